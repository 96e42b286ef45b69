//! A port's connections, for the decisions of vsnoop-hold.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use vsnoop_flow::types::{flow, flow_key, rejoined, reset_reason};
use vsnoop_hold::{Connections, Place};

use crate::error::{Error, Result};
use crate::port::Port;
use crate::reclaim;
use crate::record::Record;

/// The calling thread must be in the tap's network namespace to send frames.
impl Connections for &Port {
    type Error = Error;

    fn flows(&mut self) -> Result<Vec<(flow_key, flow)>> {
        Port::flows(self)
    }

    fn max_flows(&mut self) -> u32 {
        Port::max_flows(self)
    }

    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>> {
        Port::flow(self, key)
    }

    fn take(&mut self, key: &flow_key) -> Result<Option<flow>> {
        take::<flow>(&self.flows, key.as_bytes())
            .map_err(Error::bpf(format!("delete a flow of {}", self.dir().display())))
    }

    fn add(&mut self, key: &flow_key, flow: &flow) -> Result<bool> {
        match self.flows.update(key.as_bytes(), flow.as_value_of(&self.flows), MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => {
                Err(Error::bpf(format!("put back a flow of {}", self.dir().display()))(error))
            }
        }
    }

    fn put(&mut self, key: &flow_key, flow: &flow) -> Result<()> {
        self.flows
            .update(key.as_bytes(), flow.as_value_of(&self.flows), MapFlags::ANY)
            .map_err(Error::bpf(format!("write a flow of {}", self.dir().display())))
    }

    fn replace(&mut self, key: &flow_key, flow: &flow) -> Result<bool> {
        let existing = MapFlags::LOCK | MapFlags::EXIST;
        match self.flows.update(key.as_bytes(), flow.as_value_of(&self.flows), existing) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => {
                Err(Error::bpf(format!("reset a flow of {}", self.dir().display()))(error))
            }
        }
    }

    fn end_hold(&mut self, number: u32) {
        let _ = reclaim::end(self.dir(), number);
    }

    fn count_reset(&mut self, why: reset_reason::Type, flows: u64, bytes: u64) -> Result<()> {
        Port::count_reset(self, why, flows, bytes)
    }

    fn note_failure(&mut self, vm_port: u16, now_ns: u64) -> Result<()> {
        Port::note_failure(self, vm_port, now_ns)
    }

    fn count_unsent(&mut self) -> Result<()> {
        Port::count_unsent(self)
    }

    fn send(&mut self, place: Place, frame: &[u8]) -> Result<()> {
        Port::send(self, place, frame)
    }
}

impl Port {
    /// See [`vsnoop_hold::delete_flow_if`].
    pub fn delete_flow_if(
        mut self: &Self,
        key: &flow_key,
        is_due: impl FnMut(&flow) -> bool,
    ) -> Result<bool> {
        vsnoop_hold::delete_flow_if(&mut self, key, is_due)
    }

    /// Continues the record of a connection that was split, if it is there. `now_ns` is
    /// CLOCK_MONOTONIC. No segment of it may pass meanwhile.
    pub fn rejoin(mut self: &Self, key: &flow_key, ends: &rejoined, now_ns: u64) -> Result<bool> {
        let Some(mut flow) = Connections::flow(&mut self, key)? else { return Ok(false) };
        vsnoop_flow::rejoin(&mut flow, ends, now_ns);
        self.replace(key, &flow)
    }

    /// See [`vsnoop_hold::mark_reset`].
    pub fn mark_reset(mut self: &Self, key: &flow_key, seen: &flow, now_ns: u64) -> Result<bool> {
        vsnoop_hold::mark_reset(&mut self, key, seen, now_ns)
    }
}

/// Takes a record out of a hash map, and returns its last contents.
fn take<T: Record>(map: &MapHandle, key: &[u8]) -> libbpf_rs::Result<Option<T>> {
    let mut value = vec![0u8; map.value_size() as usize];
    // SAFETY: a key and room for a value of the map's own sizes, which outlive the call.
    let rc = unsafe {
        libbpf_sys::bpf_map_lookup_and_delete_elem_flags(
            map.as_fd().as_raw_fd(),
            key.as_ptr().cast(),
            value.as_mut_ptr().cast(),
            u64::from(libbpf_sys::BPF_F_LOCK),
        )
    };
    match -rc {
        0 => Ok(T::from_bytes(&value)),
        libc::ENOENT => Ok(None),
        errno => Err(libbpf_rs::Error::from_raw_os_error(errno)),
    }
}

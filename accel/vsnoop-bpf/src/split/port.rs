//! The pins of a port with split connections, open.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle, RingBuffer, RingBufferBuilder};
use vsnoop_flow::split::{at_place, split_key};
use vsnoop_flow::types::{
    SPLIT_DRAINS, flow_key, split_change, split_flow, split_place, split_port, split_totals,
};

use crate::error::{Error, Result};
use crate::map::{open_any_map, open_map, unopened};
use crate::mapping::Mapping;
use crate::port::Port;
use crate::record::Record as _;
use crate::split::attach::directory_of;
use crate::split::{CANDIDATES, CHANGE, Candidate, FLOWS, PORT, RING, Record};

/// Reads the counters of hooks and splitter. `None` if the port has no such programs.
pub fn counters(port: &Port) -> Result<Option<split_port>> {
    let path = directory_of(port).join(PORT);
    if !path.exists() {
        return Ok(None);
    }
    let found = open_map::<split_port>(&path)?.lookup(&[0; 4], MapFlags::ANY);
    let found = found.map_err(Error::bpf(format!("read {}", path.display())))?;
    Ok(found.and_then(|bytes| split_port::from_bytes(&bytes)))
}

/// The connections of a port that are split, without the VM's MAC address in their keys.
pub fn flows(port: &Port) -> Result<Vec<(flow_key, split_flow)>> {
    let path = directory_of(port).join(FLOWS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(flows_in(&open_any_map(&path)?))
}

fn flows_in(flows: &MapHandle) -> Vec<(flow_key, split_flow)> {
    let keys = flows.keys().filter_map(|key| flow_key::from_bytes(&key));
    let value = |key: &flow_key| {
        let found = flows.lookup(key.as_bytes(), MapFlags::ANY).ok()??;
        split_flow::from_bytes(&found)
    };
    keys.filter_map(|key| Some((key, value(&key)?))).collect()
}

/// Notes where the VM of a split connection is. False if it is not split.
pub fn note_place(port: &Port, key: &flow_key, place: split_place::Type) -> Result<bool> {
    let program = open_change(&directory_of(port).join(CHANGE))?;
    Ok(run(&program, at_place(key, place))?.result == 1)
}

fn open_change(path: &Path) -> Result<ProgramHandle> {
    ProgramHandle::from_pinned_path(path).map_err(|source| unopened(path, source))
}

/// The maps of one port, shared with its programs.
pub struct SplitPort {
    shared: Mapping,
    candidates: MapHandle,
    flows: MapHandle,
    change: ProgramHandle,
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<Record>>>,
}

impl SplitPort {
    pub fn open(port: &Port) -> Result<Self> {
        let directory = directory_of(port);
        let shared = open_map::<split_port>(&directory.join(PORT))?;
        let ring = open_any_map(&directory.join(RING))?;
        let records = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            shared: Mapping::new(&shared, &directory)?,
            candidates: open_any_map(&directory.join(CANDIDATES))?,
            flows: open_any_map(&directory.join(FLOWS))?,
            change: open_change(&directory.join(CHANGE))?,
            ring: listen(&ring, records.clone())
                .map_err(Error::bpf(format!("listen to the ring of {}", directory.display())))?,
            records,
        })
    }

    /// Connections are split from now on, or no new ones are.
    pub fn turn_on(&self, is_on: bool) {
        self.word(std::mem::offset_of!(split_port, is_on)).store(is_on.into(), Ordering::Release);
    }

    /// The ends of what is split are shown no room, until [`Self::turn_on`].
    pub fn drain(&self) {
        self.word(std::mem::offset_of!(split_port, is_on)).store(SPLIT_DRAINS, Ordering::Release);
    }

    /// For epoll: readable when the splitter is asked.
    pub fn ring(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer's own, open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    /// Takes all records out of the ring, in their order.
    pub fn take_records(&self) -> Vec<Record> {
        // All complete records are in the list, whatever the result.
        let _ = self.ring.consume();
        self.records.borrow_mut().split_off(0)
    }

    pub fn candidate(&self, key: &flow_key) -> Result<Option<Candidate>> {
        let found = self.candidates.lookup(key.as_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::bpf("read a candidate"))?;
        Ok(found.and_then(|bytes| super::candidate_from(&bytes)))
    }

    /// The connections that are split, without the VM's MAC address in their keys.
    pub fn split_flows(&self) -> Vec<(flow_key, split_flow)> {
        flows_in(&self.flows)
    }

    /// `None` if the connection is not split.
    pub fn split_flow(&self, key: &flow_key) -> Result<Option<split_flow>> {
        let found = self.flows.lookup(split_key(key).as_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::bpf("read a split connection"))?;
        let flow = found.and_then(|bytes| split_flow::from_bytes(&bytes));
        Ok(flow.filter(|flow| flow.vm_mac == key.vm_mac))
    }

    /// The VM counts as late until then. Both times of CLOCK_MONOTONIC.
    pub fn extend_late(&self, now_ns: u64, until_ns: u64) {
        let late_until = self.word64(std::mem::offset_of!(split_port, late_until_ns));
        // First, so that nothing that was followed before a gap counts.
        if late_until.load(Ordering::Acquire) <= now_ns {
            let epoch = self.word(std::mem::offset_of!(split_port, epoch));
            epoch.fetch_add(1, Ordering::AcqRel);
        }
        late_until.fetch_max(until_ns, Ordering::AcqRel);
    }

    /// Counters, as read at some moment.
    pub fn counters(&self) -> split_port {
        // SAFETY: the mapping has the record, of which any bytes are a value.
        unsafe { self.shared.at(0).cast::<split_port>().read_volatile() }
    }

    /// Changes what the splitter has counted. Only it may do so.
    pub fn change_totals(&self, change: impl FnOnce(&mut split_totals)) {
        let at = self.shared.at(std::mem::offset_of!(split_port, totals)).cast::<split_totals>();
        // SAFETY: the mapping has the record, of which any bytes are a value.
        let mut totals = unsafe { at.read_volatile() };
        change(&mut totals);
        // SAFETY: as above.
        unsafe { at.write_volatile(totals) };
    }

    /// Runs the program that changes the state of a connection.
    pub fn change(&self, change: split_change) -> Result<split_change> {
        run(&self.change, change)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.shared.at(offset).cast()) }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.shared.at(offset).cast()) }
    }
}

fn run(program: &ProgramHandle, mut change: split_change) -> Result<split_change> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: (&raw mut change).cast(),
        ctx_size_in: size_of::<split_change>() as u32,
        ..Default::default()
    };
    // The kernel writes the context back to where it has read it.
    // SAFETY: the context outlives the call, with its true length.
    let rc =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &mut options) };
    if rc != 0 {
        let error = libbpf_rs::Error::from_raw_os_error(-rc);
        return Err(Error::bpf("change a split connection")(error));
    }
    Ok(change)
}

fn listen(
    ring: &MapHandle,
    records: Rc<RefCell<Vec<Record>>>,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(ring, move |bytes| {
        records.borrow_mut().extend(Record::from_bytes(bytes));
        0
    })?;
    builder.build()
}

//! The pins of a port with split connections, open.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle, RingBuffer, RingBufferBuilder};
use vsnoop_flow::types::{
    flow_key, split_ask, split_change, split_flow, split_kind, split_port, split_record,
};

use crate::error::{Error, Result};
use crate::map::{open_any_map, open_map, unopened};
use crate::mapping::Mapping;
use crate::port::Port;
use crate::record::Record as _;
use crate::split::attach::directory_of;
use crate::split::{CANDIDATES, CHANGE, Candidate, FLOWS, PORT, RING};

/// A record of the ring.
#[derive(Debug)]
pub enum Record {
    /// What the VM has sent, and the hooks have let pass.
    Copied(Copied),
    /// The connection is to be split.
    Wanted(flow_key),
}

/// A part of a segment.
#[derive(Debug)]
pub struct Copied {
    pub key: flow_key,
    /// SEQ of the first byte.
    pub seq: u32,
    pub bytes: Vec<u8>,
    /// When it was sent, CLOCK_MONOTONIC.
    pub sent_ns: u64,
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
        let change = directory.join(CHANGE);
        let records = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            shared: Mapping::new(&shared, &directory)?,
            candidates: open_any_map(&directory.join(CANDIDATES))?,
            flows: open_any_map(&directory.join(FLOWS))?,
            change: ProgramHandle::from_pinned_path(&change)
                .map_err(|source| unopened(&change, source))?,
            ring: listen(&ring, records.clone())
                .map_err(Error::bpf(format!("listen to the ring of {}", directory.display())))?,
            records,
        })
    }

    /// Connections are split from now on, or no new ones are.
    pub fn turn_on(&self, is_on: bool) {
        self.word(std::mem::offset_of!(split_port, is_on)).store(is_on.into(), Ordering::Release);
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
        let keys = self.flows.keys().filter_map(|key| flow_key::from_bytes(&key));
        let value = |key: &flow_key| {
            let found = self.flows.lookup(key.as_bytes(), MapFlags::ANY).ok()??;
            split_flow::from_bytes(&found)
        };
        keys.filter_map(|key| Some((key, value(&key)?))).collect()
    }

    /// Sends both ends' segments to their sockets, if the VM has sent all up to `sent` and no more,
    /// and has acknowledged all of the peer, up to `peer_nxt`. Else nothing is changed.
    pub fn begin(
        &self,
        key: &flow_key,
        flow: split_flow,
        sent: u32,
        peer_nxt: u32,
    ) -> Result<bool> {
        let change = split_change {
            flow,
            sent: vsnoop_flow::seq::new(sent),
            peer_nxt: vsnoop_flow::seq::new(peer_nxt),
            ..asking(key, split_ask::SPLIT_BEGIN)
        };
        Ok(self.run(change)?.result == 1)
    }

    /// Lets the segments of both ends pass again. Each has acknowledged all that the other has
    /// sent. `None` if the connection is not split.
    pub fn end(&self, key: &flow_key, sent: u32, peer_nxt: u32) -> Result<Option<split_flow>> {
        let change = split_change {
            sent: vsnoop_flow::seq::new(sent),
            peer_nxt: vsnoop_flow::seq::new(peer_nxt),
            ..asking(key, split_ask::SPLIT_END)
        };
        let done = self.run(change)?;
        Ok((done.result == 1).then_some(done.flow))
    }

    /// Undoes [`SplitPort::end`]: a segment had come to a socket just before.
    pub fn again(&self, key: &flow_key, flow: split_flow, sent: u32) -> Result<bool> {
        let change = split_change {
            flow,
            sent: vsnoop_flow::seq::new(sent),
            ..asking(key, split_ask::SPLIT_AGAIN)
        };
        Ok(self.run(change)?.result == 1)
    }

    /// The connection is not split now: the splitter is asked again.
    pub fn later(&self, key: &flow_key) -> Result<()> {
        self.run(asking(key, split_ask::SPLIT_LATER)).map(drop)
    }

    /// It is not split, and the splitter is not asked again soon.
    pub fn refuse(&self, key: &flow_key) -> Result<()> {
        self.run(asking(key, split_ask::SPLIT_REFUSE)).map(drop)
    }

    /// The VM counts as late until then, CLOCK_MONOTONIC.
    pub fn extend_late(&self, until_ns: u64) {
        let word = self.word64(std::mem::offset_of!(split_port, late_until_ns));
        word.fetch_max(until_ns, Ordering::AcqRel);
    }

    /// Counters, as read at some moment.
    pub fn counters(&self) -> split_port {
        // SAFETY: the mapping has the record, of which any bytes are a value.
        unsafe { self.shared.at(0).cast::<split_port>().read_volatile() }
    }

    fn run(&self, mut change: split_change) -> Result<split_change> {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            ctx_in: (&raw mut change).cast(),
            ctx_size_in: size_of::<split_change>() as u32,
            ..Default::default()
        };
        // The kernel writes the context back to where it has read it.
        // SAFETY: the context outlives the call, with its true length.
        let rc = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.change.as_fd().as_raw_fd(), &mut options)
        };
        if rc != 0 {
            let error = libbpf_rs::Error::from_raw_os_error(-rc);
            return Err(Error::bpf("change a split connection")(error));
        }
        Ok(change)
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

fn asking(key: &flow_key, ask: split_ask::Type) -> split_change {
    split_change { key: *key, ask, ..Default::default() }
}

fn listen(
    ring: &MapHandle,
    records: Rc<RefCell<Vec<Record>>>,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(ring, move |bytes| {
        records.borrow_mut().extend(parse(bytes));
        0
    })?;
    builder.build()
}

/// A record of the ring; a request to split has no bytes.
fn parse(bytes: &[u8]) -> Option<Record> {
    const BYTES: usize = std::mem::offset_of!(split_record, bytes);
    let key = flow_key::from_bytes(bytes.get(..size_of::<flow_key>())?)?;
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*word))
    };
    if word(std::mem::offset_of!(split_record, kind))? == split_kind::SPLIT_WANTS {
        return Some(Record::Wanted(key));
    }
    let at = std::mem::offset_of!(split_record, ns);
    let sent_ns = u64::from_ne_bytes(*bytes.get(at..at + 8)?.first_chunk::<8>()?);
    let len = word(std::mem::offset_of!(split_record, len))? as usize;
    let bytes_of = bytes.get(BYTES..BYTES + len)?.to_vec();
    let seq = word(std::mem::offset_of!(split_record, seq))?;
    Some(Record::Copied(Copied { key, seq, bytes: bytes_of, sent_ns }))
}

//! A port with one split connection, which an earlier splitter has left.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use vsnoop_flow::split::{Candidate, Record, split_key};
use vsnoop_flow::types::{
    flow, flow_key, flow_mode, policy, rejoined, reset_reason, seq, split_ask, split_change,
    split_flow, split_totals,
};
use vsnoop_split::{Connection, Facing, Info, Queue, Settings, Side, State};
use vsnoop_splitter::{Hooks, Left, Received, Record as Kept, SplitterPort};

const KEY: flow_key = flow_key {
    sender_addr: [1; 16],
    vm_addr: [2; 16],
    sender_port: 3,
    vm_port: 4,
    vlan_outer: 0,
    vlan_inner: 0,
    vm_mac: [2, 0, 0, 0, 0, 1],
    zero: 0,
};
const NOW_NS: u64 = 7_000_000_000;

/// SEQ of a byte of the VM; the numbers wrap.
pub fn at(offset: u32) -> seq {
    seq::new(0u32.wrapping_sub(100)).add(offset)
}

/// Why the sockets end, once they do.
type Ends = Rc<Cell<Option<io::ErrorKind>>>;

pub struct Scene {
    splitter: SplitterPort<Socket>,
    number: u32,
    ends: Ends,
    pub hooks: Port,
}

impl Scene {
    /// The peer has not acknowledged all.
    pub fn with_bytes_on_their_way() -> Self {
        Self::new(500)
    }

    pub fn at_rest() -> Self {
        Self::new(0)
    }

    fn new(unacknowledged: usize) -> Self {
        let mut hooks = Port::new();
        let ends = Ends::default();
        let (splitter, taken) = take_up(unacknowledged, 0, &ends, &mut hooks);
        let [number] = taken[..] else { panic!("{taken:?}") };
        Self { splitter, number, ends, hooks }
    }

    pub fn reset_by_the_peer(&mut self) {
        self.ends.set(Some(io::ErrorKind::ConnectionReset));
        self.splitter.serve(self.number, &mut self.hooks, NOW_NS);
    }

    /// The peer answers no more. Its socket gives up, and some time goes by.
    pub fn lose_the_peer(&mut self) {
        self.ends.set(Some(io::ErrorKind::TimedOut));
        self.splitter.serve(self.number, &mut self.hooks, NOW_NS);
        for second in 1..=5 {
            self.splitter.tick(&mut self.hooks, NOW_NS + second * 1_000_000_000);
        }
        assert!(!self.splitter.are_any() && !self.hooks.is_split);
    }

    pub fn leave_all(&mut self) {
        self.splitter.leave_all(&mut self.hooks, NOW_NS);
        assert!(!self.splitter.are_any() && !self.hooks.is_split);
    }
}

/// What the hooks know after the next splitter has taken up a connection that an earlier one was
/// about to join: its entry is gone, and a socket had acknowledged a segment just before.
pub fn killed_amid_a_join() -> Port {
    let mut hooks = Port { is_split: false, ..Port::new() };
    let (_, taken) = take_up(500, 1_448, &Ends::default(), &mut hooks);
    assert!(taken.is_empty());
    hooks
}

fn take_up(
    unacknowledged: usize,
    received: u64,
    ends: &Ends,
    hooks: &mut Port,
) -> (SplitterPort<Socket>, Vec<u32>) {
    let port = (1, 2, 3, 4);
    let from = Received { seq: 0, bytes: 0 };
    let record = Kept { port, key: KEY, vm: from, peer: from, ahead: 1 << 20 };
    let socket = |unacknowledged| Socket { unacknowledged, received, ends: ends.clone() };
    let parts = (socket(0), socket(unacknowledged), Pipe, Pipe);
    let mut splitter = SplitterPort::new("tap0".into(), port, "veth0".into());
    let taken = splitter.take_up(vec![Left { id: 1, record, parts }], hooks, NOW_NS);
    (splitter, taken)
}

/// What the hooks know of the connection.
#[derive(Debug)]
pub struct Port {
    pub split: split_flow,
    is_split: bool,
    pub record: flow,
    pub is_deleted: bool,
    /// Bytes that leave towards the peer just before the entry goes.
    pub leaves_before_end: u32,
    /// What was asked, and the record at that time.
    pub changes: Vec<(split_ask::Type, flow)>,
}

impl Port {
    fn new() -> Self {
        Self {
            split: split_flow { vm_mac: KEY.vm_mac, ..Default::default() },
            is_split: true,
            record: flow { mode: flow_mode::FLOW_ACTIVE as u8, ..Default::default() },
            is_deleted: false,
            leaves_before_end: 0,
            changes: Vec::new(),
        }
    }
}

impl Hooks for Port {
    fn take_records(&mut self) -> Vec<Record> {
        Vec::new()
    }

    fn candidate(&mut self, _: &flow_key) -> Result<Option<Candidate>> {
        Ok(None)
    }

    fn split_flows(&mut self) -> Vec<(flow_key, split_flow)> {
        self.is_split.then_some((split_key(&KEY), self.split)).into_iter().collect()
    }

    fn split_flow(&mut self, _: &flow_key) -> Result<Option<split_flow>> {
        Ok(self.is_split.then_some(self.split))
    }

    fn moves(&mut self) -> u64 {
        0
    }

    fn change(&mut self, change: split_change) -> Result<split_change> {
        self.changes.push((change.ask, self.record));
        self.split.sent_end = self.split.sent_end.add(self.leaves_before_end);
        let is_end = change.ask == split_ask::SPLIT_END && self.is_split;
        self.is_split &= !is_end;
        Ok(split_change { result: is_end.into(), flow: self.split, ..change })
    }

    fn turn_on(&mut self, _: bool) {}

    fn drain(&mut self) {}

    fn extend_late(&mut self, _: u64, _: u64) {}

    fn starved_ns(&mut self) -> u64 {
        0
    }

    fn change_totals(&mut self, change: impl FnOnce(&mut split_totals)) {
        change(&mut split_totals::default());
    }

    fn may_split(&mut self) -> bool {
        true
    }

    fn policy(&mut self) -> Result<policy> {
        Ok(policy::default())
    }

    fn congestion_control(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    fn flow(&mut self, _: &flow_key) -> Result<Option<flow>> {
        Ok(Some(self.record))
    }

    fn delete_flow(&mut self, _: &flow_key) -> Result<()> {
        self.is_deleted = true;
        Ok(())
    }

    fn rejoin(&mut self, _: &flow_key, ends: &rejoined, now_ns: u64) -> Result<()> {
        vsnoop_flow::rejoin(&mut self.record, ends, now_ns);
        Ok(())
    }

    fn mark_reset(&mut self, _: &flow_key, _: &flow, _: u64) -> Result<()> {
        self.record.mode = flow_mode::FLOW_RESET as u8;
        Ok(())
    }

    fn count_reset(&mut self, _: reset_reason::Type, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub struct Pipe;

/// A socket in mid-connection, with nothing to read.
#[derive(Debug)]
pub struct Socket {
    unacknowledged: usize,
    received: u64,
    ends: Ends,
}

impl Facing for Socket {
    type Pipe = Pipe;

    fn restore(_: Side, _: &Connection, _: &Settings) -> vsnoop_split::Result<Self> {
        unreachable!("nothing is split")
    }

    fn pipe() -> io::Result<Pipe> {
        Ok(Pipe)
    }

    fn held(_: &Pipe) -> io::Result<usize> {
        Ok(0)
    }

    fn fill(&self, _: &Pipe, _: usize) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn drain(&self, _: &Pipe, _: usize) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn info(&self) -> io::Result<Info> {
        Ok(Info {
            state: State::Established,
            round_trip: Duration::ZERO,
            round_trip_deviation: Duration::ZERO,
            retransmission_timeout: Duration::ZERO,
            congestion_window: 10,
            mss: 1_448,
            in_flight: 0,
            retransmissions: 0,
            timeouts: 0,
            bytes_sent: 0,
            bytes_retransmitted: 0,
            bytes_acknowledged: 0,
            bytes_received: self.received,
            bytes_not_sent: 0,
            knows_path: false,
            delivery_rate: 0,
            since_last_ack: Duration::ZERO,
            send_window: 60_000,
            receive_window: 60_000,
        })
    }

    fn unread(&self) -> io::Result<usize> {
        Ok(0)
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        Ok(self.unacknowledged)
    }

    fn received_memory(&self) -> io::Result<u32> {
        Ok(0)
    }

    fn reason_of_end(&self) -> io::Result<Option<io::Error>> {
        Ok(self.ends.get().map(io::Error::from))
    }

    fn clock(&self) -> io::Result<u32> {
        Ok(0)
    }

    fn discard(&self, bytes: usize) -> io::Result<usize> {
        Ok(bytes)
    }

    fn pass_urgent(&self, _: &Self) -> io::Result<bool> {
        Ok(false)
    }

    fn finish(&self) -> io::Result<()> {
        Ok(())
    }

    fn queue_seq(&self, _: Queue) -> io::Result<u32> {
        Ok(0)
    }

    fn ask_for_window(&self) -> io::Result<()> {
        Ok(())
    }

    fn limit_received(&self, _: u32, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn limit_unsent(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn reset(&self) -> io::Result<()> {
        Ok(())
    }

    fn close_silently(&self) -> io::Result<()> {
        Ok(())
    }
}

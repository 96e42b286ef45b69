//! A port with one split connection, which an earlier splitter has left.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use vsnoop_flow::split::{Candidate, Record, split_key};
use vsnoop_flow::types::{
    flow, flow_key, flow_mode, policy, rejoined, reset_reason, seq, split_ask, split_change,
    split_flow, split_place, split_totals,
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

/// What the sockets tell, and are asked.
#[derive(Debug, Default)]
struct Told {
    /// Why they end, once they do.
    end: Cell<Option<io::ErrorKind>>,
    since_last_ack: Cell<Duration>,
    timeouts: Cell<u8>,
    /// Window probes to the peer.
    asked: Cell<usize>,
}

pub struct Scene {
    splitter: SplitterPort<Socket>,
    number: u32,
    told: Rc<Told>,
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
        let told = Rc::default();
        let (splitter, taken) = take_up(unacknowledged, 0, &told, &mut hooks);
        let [number] = taken[..] else { panic!("{taken:?}") };
        Self { splitter, number, told, hooks }
    }

    pub fn reset_by_the_peer(&mut self) {
        self.told.end.set(Some(io::ErrorKind::ConnectionReset));
        self.splitter.serve(self.number, &mut self.hooks, NOW_NS);
    }

    /// The peer answers no more. Its socket gives up, and some time goes by.
    pub fn lose_the_peer(&mut self) {
        self.told.end.set(Some(io::ErrorKind::TimedOut));
        self.splitter.serve(self.number, &mut self.hooks, NOW_NS);
        for second in 1..=5 {
            self.splitter.tick(&mut self.hooks, NOW_NS + second * 1_000_000_000);
        }
        assert!(!self.splitter.are_any() && !self.hooks.is_split);
    }

    /// Another Ethernet address has announced the VM's IP address.
    pub fn take_the_address(&mut self) {
        self.hooks.split.moved = split_place::SPLIT_TAKEN;
        self.hooks.moves += 1;
    }

    /// Both ends are heard for the first part of this time. Of what they are sent later they answer
    /// nothing.
    pub fn tick_for(&mut self, time_ns: u64, heard_for_ns: u64) {
        self.tick_with(time_ns, heard_for_ns, 1);
    }

    /// Nothing is sent to the ends, which are silent.
    pub fn tick_in_silence(&mut self, time_ns: u64) {
        self.tick_with(time_ns, 0, 0);
    }

    fn tick_with(&mut self, time_ns: u64, heard_for_ns: u64, timeouts: u8) {
        const STEP_NS: u64 = 250_000_000;
        for at_ns in (0..=time_ns).step_by(STEP_NS as usize) {
            let silent_ns = at_ns.saturating_sub(heard_for_ns);
            self.told.since_last_ack.set(Duration::from_nanos(silent_ns));
            self.told.timeouts.set(if silent_ns > 0 { timeouts } else { 0 });
            self.splitter.tick(&mut self.hooks, NOW_NS + at_ns);
        }
    }

    /// How often the peer was asked for its window.
    pub fn asked(&self) -> usize {
        self.told.asked.get()
    }

    pub fn leave_all(&mut self) {
        self.splitter.leave_all(&mut self.hooks, NOW_NS);
        assert!(!self.splitter.are_any() && !self.hooks.is_split);
    }
}

/// The hooks' state after the next splitter has taken up a connection that an earlier one was about
/// to join: its entry is gone, and a socket had acknowledged a segment just before.
pub fn killed_amid_a_join() -> Port {
    let mut hooks = Port { is_split: false, ..Port::new() };
    let (_, taken) = take_up(500, 1_448, &Rc::default(), &mut hooks);
    assert!(taken.is_empty());
    hooks
}

fn take_up(
    unacknowledged: usize,
    received: u64,
    told: &Rc<Told>,
    hooks: &mut Port,
) -> (SplitterPort<Socket>, Vec<u32>) {
    let port = (1, 2, 3, 4);
    let from = Received { seq: 0, bytes: 0 };
    let record = Kept { port, key: KEY, vm: from, peer: from, ahead: 1 << 20 };
    let socket = |side, unacknowledged| {
        let told = told.clone();
        Socket { side, unacknowledged, received, told }
    };
    let parts = (socket(Side::Vm, 0), socket(Side::Peer, unacknowledged), Pipe, Pipe);
    let mut splitter = SplitterPort::new("tap0".into(), port, "veth0".into());
    let taken = splitter.take_up(vec![Left { id: 1, record, parts }], hooks, NOW_NS);
    (splitter, taken)
}

/// The hooks' state of the connection.
#[derive(Debug)]
pub struct Port {
    pub split: split_flow,
    is_split: bool,
    pub record: flow,
    pub is_deleted: bool,
    moves: u64,
    pub resets: Vec<reset_reason::Type>,
    /// Bytes that leave towards the peer just before the entry goes.
    pub leaves_before_end: u32,
    /// The requests, and the record at that time.
    pub changes: Vec<(split_ask::Type, flow)>,
}

impl Port {
    fn new() -> Self {
        Self {
            split: split_flow { vm_mac: KEY.vm_mac, ..Default::default() },
            is_split: true,
            record: flow { mode: flow_mode::FLOW_ACTIVE as u8, ..Default::default() },
            is_deleted: false,
            moves: 0,
            resets: Vec::new(),
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
        self.moves
    }

    fn change(&mut self, change: split_change) -> Result<split_change> {
        self.changes.push((change.ask, self.record));
        self.split.sent_end = self.split.sent_end.add(self.leaves_before_end);
        let is_end = change.ask == split_ask::SPLIT_END && self.is_split;
        self.is_split &= !is_end;
        if change.ask == split_ask::SPLIT_PLACE {
            self.split.moved = change.flow.moved;
        }
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
        Ok(policy { downloads: 1, ..Default::default() })
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

    fn count_reset(&mut self, reason: reset_reason::Type, _: u64, _: u64) -> Result<()> {
        self.resets.push(reason);
        Ok(())
    }
}

#[derive(Debug)]
pub struct Pipe;

/// A socket in mid-connection, with nothing to read.
#[derive(Debug)]
pub struct Socket {
    side: Side,
    unacknowledged: usize,
    received: u64,
    told: Rc<Told>,
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
            timeouts: self.told.timeouts.get(),
            probes: 0,
            bytes_sent: 0,
            bytes_retransmitted: 0,
            bytes_acknowledged: 0,
            bytes_received: self.received,
            bytes_not_sent: 0,
            knows_path: false,
            delivery_rate: 0,
            since_last_ack: self.told.since_last_ack.get(),
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
        Ok(self.told.end.get().map(io::Error::from))
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
        let is_peer = matches!(self.side, Side::Peer);
        self.told.asked.set(self.told.asked.get() + usize::from(is_peer));
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

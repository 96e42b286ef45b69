//! Flows take turns, by bytes, and who has little to send goes first (RFC 8290).
//!
//! A flow is a hash; flows whose hashes fall together share a line, and there is a fixed number of
//! them. Each line may send a quantum per round (deficit round robin). One that was empty joins the
//! new lines, which go before the old ones and may send a plain packet there: a ping never waits
//! for the rounds of the bulk. A super-packet always does; else many bulk flows, each empty now and
//! then, would all be new.
//!
//! Three things keep it short: the control of each line's standing delay ([`super::codel`]); the
//! bound in bytes, which follows the connection's rate ([`super::rate`]) so that all of it drains
//! in [`BOUND_NS`]; and what has waited so long that its sender will have repeated it is not sent
//! at all. When the bound is reached, the first of the longest line is dropped, not the one that
//! comes: its sender hears of it soonest.

use std::collections::VecDeque;

use super::arena::{Arena, Entry, Line};
use super::codel::{Codel, Times};
use super::rate::DrainRate;

/// Lines.
const LINES: usize = 256;
/// What a line may send per round, and before the rounds: a full frame with tags and headers. It
/// must be small: a flow is sparse if it sends less often than once a round, so rounds have to be
/// short. A super-packet takes its line some dozens of rounds.
const QUANTUM_BYTES: i64 = 1600;
/// What all that waits may take to drain.
pub const BOUND_NS: u64 = 100_000_000;
/// Whatever the rate, so many of the largest items may wait.
const LARGEST_ITEMS: usize = 4;
/// What one item should take of the connection's time at most.
const UNIT_NS: u64 = 2_000_000;
/// Two segments of a full Ethernet frame: a smaller unit costs more than it gains.
const SMALLEST_UNIT_BYTES: usize = 2 * 1514;
/// A super-packet.
const LARGEST_UNIT_BYTES: usize = 65_536;
/// Intervals after which what waits is stale.
const STALE: u64 = 10;

/// Bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all lines, whatever the rate.
    pub bytes: usize,
    /// Items in all lines.
    pub packets: usize,
    /// Delay that is accepted for longer than an interval; more where one item takes longer.
    pub target_ns: u64,
    /// In the order of a long round trip.
    pub interval_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // The interval is as long as bbr, in the kernel, sends next to nothing to measure the round
        // trip: a queue of that time is not the flow's doing. Shorter, it costs a cubic flow a
        // tenth of its rate.
        Self { bytes: 8 << 20, packets: 4096, target_ns: 10_000_000, interval_ns: 200_000_000 }
    }
}

/// Counters since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Given to the queue.
    pub pushed_packets: u64,
    /// Given to the queue.
    pub pushed_bytes: u64,
    /// Sent on.
    pub popped_packets: u64,
    /// Sent on.
    pub popped_bytes: u64,
    /// To make room.
    pub dropped_full_packets: u64,
    /// To make room.
    pub dropped_full_bytes: u64,
    /// Because their line stood, or they were stale.
    pub dropped_late_packets: u64,
    /// Because their line stood, or they were stale.
    pub dropped_late_bytes: u64,
    /// The longest that anything waited that was sent on.
    pub longest_wait_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowList {
    Idle,
    New,
    Old,
}

#[derive(Clone, Copy, Debug)]
struct FlowQueue {
    line: Line,
    codel: Codel,
    list: FlowList,
    deficit_bytes: i64,
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: Limits,
    arena: Arena<T>,
    flows: Vec<FlowQueue>,
    /// Of each line; apart from the rest because the longest is looked for.
    backlog_bytes: Vec<usize>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    bytes: usize,
    /// The largest item of late.
    largest_bytes: usize,
    rate: DrainRate,
    stats: Stats,
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        let flow = FlowQueue {
            line: Line::EMPTY,
            codel: Codel::default(),
            list: FlowList::Idle,
            deficit_bytes: 0,
        };
        Self {
            limits,
            arena: Arena::new(),
            flows: vec![flow; LINES],
            backlog_bytes: vec![0; LINES],
            new: VecDeque::with_capacity(LINES),
            old: VecDeque::with_capacity(LINES),
            bytes: 0,
            largest_bytes: 0,
            rate: DrainRate::default(),
            stats: Stats::default(),
        }
    }

    /// Takes an item of a flow in. To make room the longest lines lose what they must; an item that
    /// alone is larger than the queue may be is dropped itself. [`Self::stats`] counts both.
    pub fn push(&mut self, flow: u64, bytes: usize, item: T, now_ns: u64) {
        self.stats.pushed_packets += 1;
        self.stats.pushed_bytes += bytes as u64;
        if bytes > self.limits.bytes || self.limits.packets == 0 {
            self.count_full(bytes);
            return;
        }
        self.largest_bytes = bytes.max(self.largest_bytes - self.largest_bytes / 64);
        let index = index_of(flow);
        let at = usize::from(index);
        let line = &mut self.flows[at];
        self.arena.append(&mut line.line, Entry { item, bytes, since_ns: now_ns });
        if line.list == FlowList::Idle {
            line.list = FlowList::New;
            line.deficit_bytes = QUANTUM_BYTES;
            self.new.push_back(index);
        }
        self.backlog_bytes[at] += bytes;
        self.bytes += bytes;
        self.make_room();
    }

    /// The next item to send.
    pub fn pop(&mut self, now_ns: u64) -> Option<T> {
        loop {
            let (index, new) = match self.new.front() {
                Some(&index) => (index, true),
                None => match self.old.front() {
                    Some(&index) => (index, false),
                    None => {
                        self.rate.idle();
                        return None;
                    }
                },
            };
            let at = usize::from(index);
            let flow = &self.flows[at];
            let first = self.arena.first(&flow.line).map_or(0, |entry| entry.bytes as i64);
            if flow.deficit_bytes <= 0 || (new && first > flow.deficit_bytes) {
                self.flows[at].deficit_bytes += QUANTUM_BYTES;
                self.rotate(index, new);
                continue;
            }
            let Some(entry) = self.take(at, now_ns) else {
                // An empty new line passes through the old ones once: else one that sends an item
                // at a time, just when its last has left, would be new for ever.
                if new && !self.old.is_empty() {
                    self.rotate(index, new);
                } else {
                    let list = if new { &mut self.new } else { &mut self.old };
                    list.pop_front();
                    self.flows[at].list = FlowList::Idle;
                }
                continue;
            };
            self.flows[at].deficit_bytes -= entry.bytes as i64;
            self.rate.left(entry.bytes, self.arena.len() > 0, now_ns);
            self.stats.popped_packets += 1;
            self.stats.popped_bytes += entry.bytes as u64;
            let waited_ns = now_ns.saturating_sub(entry.since_ns);
            self.stats.longest_wait_ns = self.stats.longest_wait_ns.max(waited_ns);
            return Some(entry.item);
        }
    }

    /// What waits.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.arena.len() == 0
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How fast the connection drains; unknown before anything had to wait.
    pub fn rate_bytes_per_s(&self) -> Option<u64> {
        self.rate.bytes_per_s()
    }

    /// How large the items given to the queue should be. A drop costs its flow a whole item, and
    /// who comes next waits for a whole item: on a slow connection super-packets are better cut.
    pub fn unit_bytes(&self) -> usize {
        let unit = self.rate.bytes_in(UNIT_NS).unwrap_or(LARGEST_UNIT_BYTES);
        unit.clamp(SMALLEST_UNIT_BYTES, LARGEST_UNIT_BYTES)
    }

    /// What may wait at the present rate.
    pub fn bound_bytes(&self) -> usize {
        let bound = self.rate.bytes_in(BOUND_NS).unwrap_or(usize::MAX);
        bound.max(LARGEST_ITEMS * self.largest_bytes).min(self.limits.bytes)
    }

    fn make_room(&mut self) {
        let bound = self.bound_bytes();
        while self.bytes > bound || self.arena.len() > self.limits.packets {
            let waiting = (0..LINES).filter(|at| !self.flows[*at].line.is_empty());
            let longest = waiting.max_by_key(|at| self.backlog_bytes[*at]);
            let Some(entry) = longest.and_then(|at| self.remove(at)) else { break };
            self.count_full(entry.bytes);
        }
    }

    /// The first of a line that is worth sending.
    fn take(&mut self, at: usize, now_ns: u64) -> Option<Entry<T>> {
        let unit_ns = self.rate.ns_of(self.largest_bytes).unwrap_or(0);
        let times = Times {
            target_ns: self.limits.target_ns.max(unit_ns.saturating_add(unit_ns / 2)),
            interval_ns: self.limits.interval_ns.max(unit_ns.saturating_mul(4)),
        };
        loop {
            let entry = self.remove(at)?;
            let waited_ns = now_ns.saturating_sub(entry.since_ns);
            let flow = &mut self.flows[at];
            let late = flow.codel.drops(times, waited_ns, flow.line.is_empty(), now_ns);
            let stale = waited_ns > times.interval_ns.saturating_mul(STALE);
            if !(late || stale) {
                return Some(entry);
            }
            self.stats.dropped_late_packets += 1;
            self.stats.dropped_late_bytes += entry.bytes as u64;
        }
    }

    fn remove(&mut self, at: usize) -> Option<Entry<T>> {
        let entry = self.arena.take(&mut self.flows[at].line)?;
        self.backlog_bytes[at] -= entry.bytes;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// The first of the new or the old lines goes to the end of the old ones.
    fn rotate(&mut self, index: u16, new: bool) {
        if new {
            self.new.pop_front()
        } else {
            self.old.pop_front()
        };
        self.flows[usize::from(index)].list = FlowList::Old;
        self.old.push_back(index);
    }

    fn count_full(&mut self, bytes: usize) {
        self.stats.dropped_full_packets += 1;
        self.stats.dropped_full_bytes += bytes as u64;
    }
}

/// The line of a flow. Its low bits may have chosen the connection.
fn index_of(flow: u64) -> u16 {
    (flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 % LINES as u16
}

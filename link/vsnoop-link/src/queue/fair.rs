//! Deficit round robin over flow queues; sparse flows go first (RFC 8290).
//!
//! A flow is a hash; there is a fixed number of queues, and flows whose hashes collide share one.
//! Each queue may send a quantum per round. A queue that was empty joins the new queues, which go
//! before the old ones and may send a plain packet there: a ping never waits for the rounds of bulk
//! flows. A super-packet always waits for them: otherwise many bulk flows, each of them empty now
//! and then, would all be new.
//!
//! Three mechanisms keep the whole short. [`super::codel`] controls the standing delay of each
//! queue. A bound in bytes follows the connection's rate ([`super::rate`]), so that everything
//! drains in [`BOUND_NS`]. An item that has waited longer than its sender's retransmission timeout
//! is dropped. When the bound is reached, the first item of the longest queue is dropped instead of
//! the new one, because its sender notices that soonest.

use std::collections::VecDeque;

use vsnoop_packet::headers::FlowHash;

use super::arena::{Arena, Chain, Entry};
use super::codel::{Codel, Times};
use super::rate::DrainRate;

/// Number of flow queues.
const QUEUES: usize = 256;
/// Bytes that a queue may send per round, and as a new queue: a full frame with tags and headers.
/// It must be small: a flow is sparse if it sends less often than once a round, so rounds have to
/// be short. A super-packet takes some dozens of rounds.
const QUANTUM_BYTES: i64 = 1600;
/// Time in which all queued items should drain.
pub const BOUND_NS: u64 = 100_000_000;
/// Largest items that fit in the bound at any rate.
const LARGEST_ITEMS: usize = 4;
/// Longest time that one item should take to send.
const UNIT_NS: u64 = 2_000_000;
/// Two segments of a full Ethernet frame: a smaller unit costs more than it gains.
const SMALLEST_UNIT_BYTES: usize = 2 * 1514;
/// The largest super-packet.
const LARGEST_UNIT_BYTES: usize = 65_536;
/// Intervals after which an item is stale.
const STALE: u64 = 10;

/// Bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Bytes in all queues, at any rate.
    pub bytes: usize,
    /// Items in all queues.
    pub packets: usize,
    /// Sojourn time that is accepted for longer than an interval; it is raised where one item takes
    /// longer to send.
    pub target_ns: u64,
    /// In the order of a long round trip.
    pub interval_ns: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        // The interval is as long as bbr, in the kernel, sends next to nothing to measure the round
        // trip: a queue of that time is not the flow's doing. Shorter, it costs a cubic flow a
        // tenth of its rate.
        Self { bytes: 8 << 20, packets: 4096, target_ns: 10_000_000, interval_ns: 200_000_000 }
    }
}

/// Counters since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Given to the queue.
    pub pushed_packets: u64,
    /// Given to the queue.
    pub pushed_bytes: u64,
    /// Packets sent on.
    pub popped_packets: u64,
    /// Bytes sent on.
    pub popped_bytes: u64,
    /// Packets dropped to make room.
    pub dropped_full_packets: u64,
    /// Bytes dropped to make room.
    pub dropped_full_bytes: u64,
    /// Because of their queue's standing delay, or because they were stale.
    pub dropped_late_packets: u64,
    /// Because of their queue's standing delay, or because they were stale.
    pub dropped_late_bytes: u64,
    /// The longest sojourn time of an item that was sent on.
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
    items: Chain,
    codel: Codel,
    list: FlowList,
    deficit_bytes: i64,
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: QueueLimits,
    arena: Arena<T>,
    flows: Vec<FlowQueue>,
    /// Bytes of each queue; in an array of their own, for the search for the longest queue.
    backlog_bytes: Vec<usize>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    bytes: usize,
    /// The largest recent item, bytes.
    largest_bytes: usize,
    rate: DrainRate,
    stats: QueueStats,
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        let flow = FlowQueue {
            items: Chain::EMPTY,
            codel: Codel::default(),
            list: FlowList::Idle,
            deficit_bytes: 0,
        };
        Self {
            limits,
            arena: Arena::new(),
            flows: vec![flow; QUEUES],
            backlog_bytes: vec![0; QUEUES],
            new: VecDeque::with_capacity(QUEUES),
            old: VecDeque::with_capacity(QUEUES),
            bytes: 0,
            largest_bytes: 0,
            rate: DrainRate::default(),
            stats: QueueStats::default(),
        }
    }

    /// Appends an item of a flow. To make room, the first items of the longest queues are dropped;
    /// an item larger than the limit is dropped itself. [`Self::stats`] counts both.
    pub fn push(&mut self, flow: FlowHash, bytes: usize, item: T, now_ns: u64) {
        self.stats.pushed_packets += 1;
        self.stats.pushed_bytes += bytes as u64;
        if bytes > self.limits.bytes || self.limits.packets == 0 {
            self.count_full(bytes);
            return;
        }
        self.largest_bytes = bytes.max(self.largest_bytes - self.largest_bytes / 64);
        let index = index_of(flow);
        let at = usize::from(index);
        let queue = &mut self.flows[at];
        self.arena.append(&mut queue.items, Entry { item, bytes, since_ns: now_ns });
        if queue.list == FlowList::Idle {
            queue.list = FlowList::New;
            queue.deficit_bytes = QUANTUM_BYTES;
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
                        self.rate.note_idle();
                        return None;
                    }
                },
            };
            let at = usize::from(index);
            let flow = &self.flows[at];
            let first = self.arena.first(&flow.items).map_or(0, |entry| entry.bytes as i64);
            if flow.deficit_bytes <= 0 || (new && first > flow.deficit_bytes) {
                self.flows[at].deficit_bytes += QUANTUM_BYTES;
                self.rotate_flow(index, new);
                continue;
            }
            let Some(entry) = self.take_entry(at, now_ns) else {
                // An empty new queue passes through the old ones once: a flow that sends one item
                // at a time, just after its last one has left, would be new for ever.
                if new && !self.old.is_empty() {
                    self.rotate_flow(index, new);
                } else {
                    let list = if new { &mut self.new } else { &mut self.old };
                    list.pop_front();
                    self.flows[at].list = FlowList::Idle;
                }
                continue;
            };
            self.flows[at].deficit_bytes -= entry.bytes as i64;
            self.rate.note_left(entry.bytes, self.arena.len() > 0, now_ns);
            self.stats.popped_packets += 1;
            self.stats.popped_bytes += entry.bytes as u64;
            let waited_ns = now_ns.saturating_sub(entry.since_ns);
            self.stats.longest_wait_ns = self.stats.longest_wait_ns.max(waited_ns);
            return Some(entry.item);
        }
    }

    /// Bytes in all queues.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Items in all queues.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Whether all queues are empty.
    pub fn is_empty(&self) -> bool {
        self.arena.len() == 0
    }

    /// Counters.
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// The rate at which the connection drains; unknown before an item had to wait.
    pub fn rate_bytes_per_s(&self) -> Option<u64> {
        self.rate.bytes_per_s()
    }

    /// Largest size in bytes that items given to the queue should have. A drop costs its flow a
    /// whole item, and the next item waits for a whole one: on a slow connection super-packets are
    /// better split.
    pub fn unit_bytes(&self) -> usize {
        let unit = self.rate.bytes_in(UNIT_NS).unwrap_or(LARGEST_UNIT_BYTES);
        unit.clamp(SMALLEST_UNIT_BYTES, LARGEST_UNIT_BYTES)
    }

    /// Bytes that may be queued at the present rate.
    pub fn bound_bytes(&self) -> usize {
        let bound = self.rate.bytes_in(BOUND_NS).unwrap_or(usize::MAX);
        bound.max(LARGEST_ITEMS * self.largest_bytes).min(self.limits.bytes)
    }

    fn make_room(&mut self) {
        let bound = self.bound_bytes();
        while self.bytes > bound || self.arena.len() > self.limits.packets {
            let waiting = (0..QUEUES).filter(|at| !self.flows[*at].items.is_empty());
            let longest = waiting.max_by_key(|at| self.backlog_bytes[*at]);
            let Some(entry) = longest.and_then(|at| self.remove_head(at)) else { break };
            self.count_full(entry.bytes);
        }
    }

    /// Removes the first item of a queue that is neither late nor stale; drops those before it.
    fn take_entry(&mut self, at: usize, now_ns: u64) -> Option<Entry<T>> {
        let unit_ns = self.rate.ns_of(self.largest_bytes).unwrap_or(0);
        let times = Times {
            target_ns: self.limits.target_ns.max(unit_ns.saturating_add(unit_ns / 2)),
            interval_ns: self.limits.interval_ns.max(unit_ns.saturating_mul(4)),
        };
        loop {
            let entry = self.remove_head(at)?;
            let waited_ns = now_ns.saturating_sub(entry.since_ns);
            let flow = &mut self.flows[at];
            let late = flow.codel.drops(times, waited_ns, flow.items.is_empty(), now_ns);
            let stale = waited_ns > times.interval_ns.saturating_mul(STALE);
            if !(late || stale) {
                return Some(entry);
            }
            self.stats.dropped_late_packets += 1;
            self.stats.dropped_late_bytes += entry.bytes as u64;
        }
    }

    fn remove_head(&mut self, at: usize) -> Option<Entry<T>> {
        let entry = self.arena.take(&mut self.flows[at].items)?;
        self.backlog_bytes[at] -= entry.bytes;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Moves the first of the new or the old queues to the end of the old ones.
    fn rotate_flow(&mut self, index: u16, new: bool) {
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

/// The queue of a flow. The low bits of the hash may have chosen the connection.
fn index_of(flow: FlowHash) -> u16 {
    (flow.spread() >> 48) as u16 % QUEUES as u16
}

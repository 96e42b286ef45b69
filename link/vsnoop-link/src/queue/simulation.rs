//! Senders as guests have them (CUBIC and Reno with SACK, in super-packets), a queue, and a
//! connection of some rate and delay that drains it through a short send buffer, under a simulated
//! clock.

use std::collections::{BTreeMap, BinaryHeap};

use vsnoop_packet::headers::FlowHash;

use super::*;

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1000 * MS;
const MSS: usize = 1448;
const SUPER_BYTES: usize = 65_160;
/// Congestion windows of a receive window's size at most.
const WINDOW_BYTES: f64 = 64e6;

/// How a sender grows its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    Cubic,
    Reno,
}

/// Sent packets, with their bytes of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub flow: usize,
    number: u64,
    bytes: usize,
}

/// A sender with more to send than it ever can.
#[derive(Debug)]
pub struct Sender {
    control: CongestionControl,
    cwnd: f64,
    threshold: f64,
    /// CUBIC: the window before the last loss, and when that was.
    before: f64,
    reduced_ns: u64,
    round_trip_ns: u64,
    least_ns: u64,
    next: u64,
    /// Unacknowledged: when sent, and bytes.
    sent: BTreeMap<u64, (u64, usize)>,
    in_flight: usize,
    /// To be sent again.
    again: usize,
    heard_ns: u64,
    pub delivered: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
}

impl Sender {
    pub fn new(control: CongestionControl) -> Self {
        Self {
            control,
            cwnd: 10.0 * MSS as f64,
            threshold: f64::INFINITY,
            before: 0.0,
            reduced_ns: 0,
            round_trip_ns: 0,
            least_ns: u64::MAX,
            next: 0,
            sent: BTreeMap::new(),
            in_flight: 0,
            again: 0,
            heard_ns: 0,
            delivered: 0,
            retransmitted: 0,
            timeouts: 0,
        }
    }

    /// Its next send: a super-packet of the largest size, but at least two in a window.
    fn send(&mut self, unit_bytes: usize, now_ns: u64) -> Option<(u64, usize)> {
        let burst = (self.cwnd / 2.0) as usize;
        let bytes = burst.min(unit_bytes).clamp(2 * MSS, SUPER_BYTES) / MSS * MSS;
        if (self.in_flight + bytes) as f64 > self.cwnd.max(2.0 * MSS as f64) {
            return None;
        }
        let again = bytes.min(self.again);
        self.again -= again;
        self.retransmitted += again as u64;
        if self.sent.is_empty() {
            self.heard_ns = now_ns;
        }
        let number = self.next;
        self.next += 1;
        self.in_flight += bytes;
        self.sent.insert(number, (now_ns, bytes));
        Some((number, bytes))
    }

    /// An item has arrived, and its acknowledgement here. Nothing is reordered, so all before it
    /// are lost.
    fn acknowledged(&mut self, number: u64, now_ns: u64) {
        self.heard_ns = now_ns;
        let Some((sent_ns, bytes)) = self.sent.remove(&number) else { return };
        self.in_flight -= bytes;
        self.delivered += bytes as u64;
        let trip_ns = now_ns - sent_ns;
        self.round_trip_ns =
            if self.round_trip_ns == 0 { trip_ns } else { (7 * self.round_trip_ns + trip_ns) / 8 };
        self.least_ns = self.least_ns.min(trip_ns);
        let lost: Vec<u64> = self.sent.range(..number).map(|(number, _)| *number).collect();
        let latest = lost.iter().map(|number| self.lose(*number)).max();
        match latest {
            Some(sent_ns) if sent_ns >= self.reduced_ns => self.reduce(now_ns),
            Some(_) => {}
            None => self.grow(bytes as f64, trip_ns, now_ns),
        }
    }

    fn lose(&mut self, number: u64) -> u64 {
        let (sent_ns, bytes) = self.sent.remove(&number).unwrap();
        self.in_flight -= bytes;
        self.again += bytes;
        sent_ns
    }

    fn reduce(&mut self, now_ns: u64) {
        let keep = if self.control == CongestionControl::Cubic { 0.7 } else { 0.5 };
        self.before = self.cwnd;
        self.cwnd = (self.cwnd * keep).max(2.0 * MSS as f64);
        self.threshold = self.cwnd;
        self.reduced_ns = now_ns;
    }

    fn grow(&mut self, bytes: f64, trip_ns: u64, now_ns: u64) {
        let mss = MSS as f64;
        if self.cwnd < self.threshold {
            self.cwnd += bytes;
            // HyStart: a round trip that grows ends the slow start.
            let more_ns = (self.least_ns / 8).clamp(4 * MS, 16 * MS);
            if self.control == CongestionControl::Cubic && trip_ns > self.least_ns + more_ns {
                (self.threshold, self.before) = (self.cwnd, self.cwnd);
                self.reduced_ns = now_ns;
            }
        } else if self.control == CongestionControl::Reno {
            self.cwnd += mss * bytes / self.cwnd;
        } else {
            let t = (now_ns - self.reduced_ns + trip_ns) as f64 / 1e9;
            let before = self.before / mss;
            let k = (before * 0.3 / 0.4).max(0.0).cbrt();
            let target = (0.4 * (t - k).powi(3) + before) * mss;
            let friendly = 0.7 * self.before + 0.53 * mss * t * 1e9 / trip_ns as f64;
            let target = target.max(friendly).min(1.5 * self.cwnd);
            if target > self.cwnd {
                self.cwnd += (target - self.cwnd) * bytes / self.cwnd;
            }
        }
        self.cwnd = self.cwnd.min(WINDOW_BYTES);
    }

    fn deadline_ns(&self) -> u64 {
        let wait_ns = (2 * self.round_trip_ns).max(200 * MS);
        if self.sent.is_empty() { u64::MAX } else { self.heard_ns + wait_ns }
    }

    fn timeout(&mut self, now_ns: u64) {
        self.timeouts += 1;
        let all: Vec<u64> = self.sent.keys().copied().collect();
        for number in all {
            self.lose(number);
        }
        self.reduce(now_ns);
        self.cwnd = 2.0 * MSS as f64;
        (self.heard_ns, self.reduced_ns) = (now_ns, now_ns);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The connection has delivered the item that it was sending.
    Carried,
    Acknowledged(Item),
    Ping,
}

/// Senders, queue and connection.
pub struct World {
    pub now_ns: u64,
    pub queue: FairQueue<Item>,
    pub senders: Vec<Sender>,
    pub rate_bytes_per_s: u64,
    pub delay_ns: u64,
    /// The kernel's send buffer before the connection.
    pub buffer_bytes: usize,
    /// Super-packets are cut as the queue advises.
    pub cut: bool,
    /// How long each waited that was sent: in the queue, and a ping also in the buffer.
    pub waits_ns: Vec<u64>,
    pub pings_ns: Vec<u64>,
    pub ping_every_ns: Option<u64>,
    buffer: std::collections::VecDeque<(Item, u64)>,
    buffered: usize,
    carrying: bool,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    event_of: BTreeMap<u64, Event>,
    sent_ns: BTreeMap<(usize, u64), u64>,
    pings: u64,
    order: u64,
}

const PING: usize = usize::MAX;

impl World {
    pub fn new(mbps: u64, round_trip_ms: u64, senders: Vec<Sender>) -> Self {
        Self {
            now_ns: 0,
            queue: FairQueue::new(QueueLimits::default()),
            senders,
            rate_bytes_per_s: mbps * 125_000,
            delay_ns: round_trip_ms * MS,
            buffer_bytes: 32_768,
            cut: true,
            waits_ns: Vec::new(),
            pings_ns: Vec::new(),
            ping_every_ns: None,
            buffer: Default::default(),
            buffered: 0,
            carrying: false,
            events: BinaryHeap::new(),
            event_of: BTreeMap::new(),
            sent_ns: BTreeMap::new(),
            pings: 0,
            order: 0,
        }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.events.push(std::cmp::Reverse((at_ns, self.order)));
        self.event_of.insert(self.order, event);
        self.order += 1;
    }

    fn push(&mut self, item: Item) {
        self.sent_ns.insert((item.flow, item.number), self.now_ns);
        let flow = FlowHash((item.flow as u64).wrapping_mul(0x1234_5678_9abc_def1));
        self.queue.push(flow, item.bytes, item, self.now_ns);
        assert!(self.queue.bytes() <= self.queue.bound_bytes());
    }

    fn fill(&mut self) {
        let unit_bytes = if self.cut { self.queue.unit_bytes() } else { SUPER_BYTES };
        for flow in 0..self.senders.len() {
            while let Some((number, bytes)) = self.senders[flow].send(unit_bytes, self.now_ns) {
                self.push(Item { flow, number, bytes });
            }
        }
        while self.buffered < self.buffer_bytes {
            let Some(item) = self.queue.pop(self.now_ns) else { break };
            let sent_ns = self.sent_ns.remove(&(item.flow, item.number)).unwrap();
            self.waits_ns.push(self.now_ns - sent_ns);
            self.buffered += item.bytes;
            self.buffer.push_back((item, sent_ns));
        }
        if let Some((item, _)) = self.buffer.front()
            && !self.carrying
            && self.rate_bytes_per_s > 0
        {
            self.carrying = true;
            let takes_ns = item.bytes as u64 * S / self.rate_bytes_per_s;
            self.at(self.now_ns + takes_ns, Event::Carried);
        }
    }

    pub fn run(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        if self.ping_every_ns.is_some() && self.pings == 0 {
            self.at(self.now_ns, Event::Ping);
        }
        self.fill();
        loop {
            let next = self.events.peek().map_or(u64::MAX, |key| key.0.0);
            let timeout = self.senders.iter().map(Sender::deadline_ns).min().unwrap_or(u64::MAX);
            let then_ns = next.min(timeout);
            if then_ns >= end_ns {
                break;
            }
            self.now_ns = then_ns.max(self.now_ns);
            if timeout < next {
                let late = self.senders.iter_mut().filter(|s| s.deadline_ns() == timeout);
                late.for_each(|sender| sender.timeout(timeout));
            } else {
                let order = self.events.pop().unwrap().0.1;
                match self.event_of.remove(&order).unwrap() {
                    Event::Carried => {
                        self.carrying = false;
                        let (item, sent_ns) = self.buffer.pop_front().unwrap();
                        self.buffered -= item.bytes;
                        if item.flow == PING {
                            self.pings_ns.push(self.now_ns - sent_ns);
                        } else {
                            self.at(self.now_ns + self.delay_ns, Event::Acknowledged(item));
                        }
                    }
                    Event::Acknowledged(item) => {
                        self.senders[item.flow].acknowledged(item.number, self.now_ns);
                    }
                    Event::Ping => {
                        self.pings += 1;
                        self.push(Item { flow: PING, number: self.pings, bytes: 98 });
                        let every_ns = self.ping_every_ns.unwrap_or(S);
                        self.at(self.now_ns + every_ns, Event::Ping);
                    }
                }
            }
            self.fill();
        }
        self.now_ns = end_ns;
    }

    /// Forgets what was measured so far.
    pub fn measure(&mut self) {
        self.waits_ns.clear();
        self.pings_ns.clear();
        self.senders.iter_mut().for_each(|sender| sender.delivered = 0);
    }

    /// The share of the connection's rate that arrived within a time.
    pub fn share(&self, within_ns: u64) -> f64 {
        let delivered: u64 = self.senders.iter().map(|sender| sender.delivered).sum();
        delivered as f64 / (self.rate_bytes_per_s as f64 * within_ns as f64 / 1e9)
    }
}

/// The percentile of these values.
pub fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0)
}

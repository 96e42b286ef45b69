//! A small network: senders with plain TCPs, one queue of limited size in front of a link, the
//! receiving host, a VM.
//!
//! The senders are like Linux in what matters here: slow start from ten segments, growth only while
//! the window is used, NewReno, a timeout of 200 ms, full segments only while more data follow (but
//! after a full one the rest of the window, as with TCP_NODELAY), PSH after half of the largest
//! window, a probe of a closed window after a timeout. The VM acknowledges all data when it runs.
//! Positions of the streams are `u64` and count from the first byte. All randomness comes from one
//! seed.

use std::collections::VecDeque;
use std::iter::repeat_n;

use vsnoop_flow::testing::clock::{Events, START};
use vsnoop_flow::testing::segment::Ranges;
use vsnoop_flow::{ack_fields, incast, policy, segment, seq, types::*};

use crate::hooks::Hooks;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// Bytes of a frame beside the payload: headers with timestamps; preamble, check sequence and gap.
const HEADERS: u32 = 66;
const WIRE: u32 = 24;
const RTO: u64 = 200 * MS;
const REQUEST: u32 = 100;
const VM_FIRST: u32 = 0x8000_0000;
/// The window that the VM always has.
const VM_WINDOW: u64 = 4 << 20;

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Setting {
    pub senders: usize,
    pub mbps: u64,
    /// Queue of the last hop, frame bytes.
    pub queue: u32,
    /// The queue that incast control is configured with; `None` without incast control.
    pub control: Option<u32>,
    /// Are there early ACKs?
    pub early: bool,
    pub rtt_ns: u64,
    pub mss: u32,
    pub scale: u8,
    /// From data in the VM's ring to its ACK.
    pub vm_delay_ns: u64,
    /// Periods in which the VM runs, and stops, ns.
    pub vm_schedule: Option<(u64, u64)>,
    /// The sender's delay from a request to its answer, at most.
    pub think_ns: u64,
    /// Parts in which a sender writes an answer; it thinks before each.
    pub writes: u64,
    /// From one request to the next one.
    pub request_gap_ns: u64,
    /// Between the end of a round and the next request.
    pub pause_ns: u64,
    /// The helper serves the grant queue so often.
    pub helper_ns: u64,
    /// From one connection to the next one, when they are opened.
    pub connect_gap_ns: u64,
    /// Marks instead of drops from this length on, and senders that halve on them.
    pub marks: Option<u32>,
    /// Connections that are open and send nothing.
    pub idle: usize,
    /// How many of the senders each port has, in their order; none: there is one port.
    pub ports: Vec<usize>,
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            senders: 1,
            mbps: 1_000,
            queue: 128 << 10,
            control: Some(128 << 10),
            early: true,
            rtt_ns: 100 * US,
            mss: 1_448,
            scale: 7,
            vm_delay_ns: 20 * US,
            vm_schedule: None,
            think_ns: 20 * US,
            writes: 1,
            request_gap_ns: 2 * US,
            pause_ns: 200 * US,
            helper_ns: 10 * MS,
            connect_gap_ns: 0,
            marks: None,
            idle: 0,
            ports: Vec::new(),
            seed: 1,
        }
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    pub drops: u64,
    pub timeouts: u64,
    pub probes: u64,
    pub retransmitted: u64,
    pub helper_grants: u64,
    /// Highest length of the queue, and most outstanding credit, bytes.
    pub queue_max: u32,
    pub outstanding_max: i64,
}

/// A segment with data; without: the probe of a closed window.
struct Data {
    id: usize,
    at: u64,
    len: u32,
    tsval: u32,
    tsecr: u32,
    psh: bool,
    ce: bool,
}

struct Acked {
    id: usize,
    at: u64,
    edge: u64,
    tsval: u32,
    ece: bool,
}

enum Event {
    Request(usize, u64),
    Answers(usize, u64),
    Queued(Data),
    Departs,
    Arrives(Data),
    VmRuns(usize),
    Acked(Acked),
    Timer(usize),
    Helper,
}

#[derive(Default)]
struct Sender {
    first: u32,
    una: u64,
    nxt: u64,
    /// The window's right edge, and the end of its data.
    edge: u64,
    end: u64,
    /// The furthest edge that left for it, in the VM's SYN-ACK or an ACK.
    shown: u64,
    max_window: u64,
    pushed: u64,
    cwnd: u64,
    ssthresh: u64,
    dup_acks: u64,
    recover: Option<u64>,
    /// It has halved for a mark; not again below this.
    halved: u64,
    deadline: u64,
    armed: bool,
    backoff: u32,
    ts_recent: u32,
    last_sent_ns: u64,
    /// Its own link is busy until then.
    link_ns: u64,
}

#[derive(Default)]
struct Receiver {
    got: Ranges,
    ack: u64,
    goal: u64,
    /// ACKs that are due: for new data, repeated data, or a request.
    acks_due: u32,
    scheduled: bool,
    ce: bool,
    tsecr: u32,
    sent: u32,
}

pub struct Sim {
    pub set: Setting,
    pub host: Hooks,
    pub now: u64,
    pub tally: Tally,
    events: Events<Event>,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    queue: VecDeque<Data>,
    queued: u32,
    unfinished: usize,
    steps: u64,
    rng: fastrand::Rng,
}

/// One round of requests and answers.
#[derive(Clone, Debug)]
pub struct Round {
    pub ms: f64,
    pub drops: u64,
    pub timeouts: u64,
    pub probes: u64,
}

impl Sim {
    pub fn new(set: Setting) -> Self {
        let rate = ((set.mbps * 125_000) << 20).div_ceil(1_000_000_000) as u32;
        let (rate, buffer) = set.control.map_or((0, 0), |buffer| (rate, buffer));
        let run = if set.early { port_run::PORT_ACCELERATE } else { port_run::PORT_OBSERVE };
        let policy = policy { run, passive: 1, ..policy::default() };
        let mut sim = Sim {
            host: Hooks::new(set.ports.len().max(1), rate, buffer, policy),
            now: START,
            tally: Tally::default(),
            events: Events::default(),
            senders: Vec::new(),
            receivers: Vec::new(),
            queue: VecDeque::new(),
            queued: 0,
            unfinished: 0,
            steps: 0,
            rng: fastrand::Rng::with_seed(set.seed),
            set,
        };
        let of_ports = sim.set.ports.clone().into_iter().enumerate();
        let mut port_of = of_ports.flat_map(|(port, senders)| repeat_n(port, senders));
        for _ in 0..sim.set.senders + sim.set.idle {
            sim.connect(port_of.next().unwrap_or(0));
            let next = sim.now + sim.set.connect_gap_ns;
            sim.run(next, |_| false);
        }
        if sim.set.control.is_some() {
            sim.events.at(sim.now + sim.set.helper_ns, Event::Helper);
        }
        let settled = sim.now + MS;
        sim.run(settled, |_| false);
        sim
    }

    fn ts(&self) -> u32 {
        (self.now / MS) as u32
    }

    /// The VM of a port accepts a connection, and sends the first byte.
    fn connect(&mut self, port: usize) {
        let first = self.rng.u32(..);
        let id = self.host.connect(port);
        let syn = segment {
            seq: seq::new(VM_FIRST.wrapping_sub(1)),
            ack: seq::new(first),
            window: 65_160,
            tsval: self.ts(),
            scale: self.set.scale,
            tcp_flags: (TCP_SYN | TCP_ACK) as u8,
            bits: (SEG_TIMESTAMPS | SEG_SCALE | SEG_SACK_PERMITTED) as u16,
            ..segment::default()
        };
        let shown = self.host.from_vm(id, &syn, self.now)[0].1.window;
        let ack = segment {
            seq: seq::new(first),
            ack: seq::new(VM_FIRST),
            tsval: self.ts(),
            tsecr: self.ts(),
            tcp_flags: TCP_ACK as u8,
            bits: SEG_TIMESTAMPS as u16,
            ..segment::default()
        };
        self.host.to_vm(id, &ack, self.now);
        self.senders.push(Sender {
            first,
            edge: u64::from(shown),
            shown: u64::from(shown),
            cwnd: 10 * u64::from(self.set.mss),
            ssthresh: u64::MAX,
            max_window: u64::from(shown),
            ..Sender::default()
        });
        self.receivers.push(Receiver::default());
        self.vm_sends(id, 1);
    }

    /// The window with which one more connection begins, bytes.
    pub fn first_window(&mut self) -> u64 {
        self.connect(0);
        self.senders[self.senders.len() - 1].max_window
    }

    /// Changes [`Setting::writes`] and [`Setting::think_ns`].
    pub fn write_in(&mut self, writes: u64, think_ns: u64) {
        (self.set.writes, self.set.think_ns) = (writes, think_ns);
    }

    /// Requests of `bytes` from each of the first `n` senders, until all have answered. `None`:
    /// that took more than `limit_ns`.
    pub fn round(&mut self, n: usize, bytes: u64, limit_ns: u64) -> Option<Round> {
        let (before, start) = (self.tally.clone(), self.now);
        for id in 0..n {
            self.receivers[id].goal = self.receivers[id].ack + bytes;
            let at = start + id as u64 * self.set.request_gap_ns;
            self.events.at(at, Event::Request(id, bytes));
        }
        self.unfinished = n;
        let done = self.run(start + limit_ns, |sim| sim.unfinished == 0);
        let ns = self.now - start;
        let round = Round {
            ms: ns as f64 / MS as f64,
            drops: self.tally.drops - before.drops,
            timeouts: self.tally.timeouts - before.timeouts,
            probes: self.tally.probes - before.probes,
        };
        let pause = self.now + self.set.pause_ns;
        self.run(pause, |_| false);
        for id in 0..n {
            self.check_shown(id);
        }
        done.then_some(round)
    }

    /// Gives these senders data without end.
    pub fn stream(&mut self, senders: std::ops::Range<usize>) {
        for id in senders {
            let at = self.now + self.rng.u64(0..=self.set.think_ns);
            self.events.at(at, Event::Answers(id, 1 << 40));
        }
    }

    /// Bytes that each flow transfers in the next `ns`.
    pub fn progress(&mut self, ns: u64) -> Vec<u64> {
        let before: Vec<u64> = self.receivers.iter().map(|r| r.ack).collect();
        let end = self.now + ns;
        self.run(end, |_| false);
        self.receivers.iter().zip(before).map(|(r, before)| r.ack - before).collect()
    }

    /// Runs until `end`, or until `done`.
    fn run(&mut self, end: u64, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            match self.events.next_at() {
                Some(at) if at <= end => {}
                _ => {
                    self.now = end;
                    return false;
                }
            }
            let Some((at, event)) = self.events.pop() else { return false };
            self.now = at;
            self.step(event);
            let outstanding = incast::outstanding(self.host.uplink());
            self.tally.outstanding_max = self.tally.outstanding_max.max(outstanding);
            self.steps += 1;
            if self.steps.is_multiple_of(1_000) {
                let sum = self.host.outstanding();
                assert_eq!(sum, outstanding, "outstanding is not the sum of the flows");
            }
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Request(id, bytes) => {
                self.vm_sends(id, REQUEST);
                let mut at = self.now + self.set.rtt_ns / 2;
                let (part, rest) = (bytes / self.set.writes, bytes % self.set.writes);
                for number in 0..self.set.writes {
                    at += self.rng.u64(0..=self.set.think_ns);
                    let more = if number == 0 { rest } else { 0 };
                    self.events.at(at, Event::Answers(id, part + more));
                }
            }
            Event::Answers(id, bytes) => {
                let s = &mut self.senders[id];
                s.end += bytes;
                if s.una == s.nxt && self.now - s.last_sent_ns > RTO {
                    s.cwnd = s.cwnd.min(10 * u64::from(self.set.mss));
                }
                self.send(id);
            }
            Event::Queued(data) => self.queued(data),
            Event::Departs => {
                let data = self.queue.pop_front().expect("what departs was queued");
                self.queued -= data.len + HEADERS;
                self.events.at(self.now + self.set.rtt_ns / 4, Event::Arrives(data));
                self.departs();
            }
            Event::Arrives(data) => self.arrives(data),
            Event::VmRuns(id) => {
                let r = &mut self.receivers[id];
                r.scheduled = false;
                for _ in 0..std::mem::take(&mut r.acks_due) {
                    self.vm_sends(id, 0);
                }
            }
            Event::Acked(acked) => self.acked(acked),
            Event::Timer(id) => self.timer(id),
            Event::Helper => {
                for port in 0..self.set.ports.len().max(1) {
                    self.helper_serves(port);
                }
                self.events.at(self.now + self.set.helper_ns, Event::Helper);
            }
        }
    }

    /// Lets the helper serve the waiting flows of a port without traffic.
    fn helper_serves(&mut self, port: usize) {
        let waiting = self.host.waiting(port);
        for (id, ack) in self.host.grants(port, waiting, self.now) {
            self.tally.helper_grants += 1;
            self.answer(id, &ack, false);
        }
    }

    // The network.

    fn wire_ns(&self, payload: u32) -> u64 {
        u64::from(payload + HEADERS + WIRE) * 8_000 / self.set.mbps
    }

    fn queued(&mut self, mut data: Data) {
        let bytes = data.len + HEADERS;
        self.tally.packets += 1;
        if self.queued + bytes > self.set.queue {
            self.tally.drops += 1;
            return;
        }
        data.ce = self.set.marks.is_some_and(|from| self.queued > from);
        self.queued += bytes;
        self.tally.queue_max = self.tally.queue_max.max(self.queued);
        self.queue.push_back(data);
        if self.queue.len() == 1 {
            self.departs();
        }
    }

    fn departs(&mut self) {
        if let Some(data) = self.queue.front() {
            let at = self.now + self.wire_ns(data.len);
            self.events.at(at, Event::Departs);
        }
    }

    // The host and the VM.

    fn arrives(&mut self, data: Data) {
        let (r, s) = (&mut self.receivers[data.id], &self.senders[data.id]);
        let mut bits = SEG_TIMESTAMPS;
        if data.ce {
            bits |= SEG_CE;
            r.ce = true;
        }
        let segment = segment {
            seq: seq::new(s.first.wrapping_add(data.at as u32)),
            ack: seq::new(VM_FIRST.wrapping_add(r.sent)),
            len: data.len,
            unit_len: data.len as u16,
            tsval: data.tsval,
            tsecr: data.tsecr,
            window: 1_000,
            tcp_flags: (TCP_ACK | if data.psh { TCP_PSH } else { 0 }) as u8,
            bits: bits as u16,
            ..segment::default()
        };
        let to_vm = self.host.to_vm(data.id, &segment, self.now);
        for (id, ack) in to_vm.answers {
            self.answer(id, &ack, false);
        }
        self.check_shown(data.id);
        if !to_vm.delivered {
            return;
        }
        let r = &mut self.receivers[data.id];
        let before = r.ack;
        r.got.insert(data.at, data.at + u64::from(data.len));
        r.ack = r.got.reach(r.ack);
        r.got.forget_below(r.ack.saturating_sub(1));
        if before < r.goal && r.ack >= r.goal {
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        if r.ack > before {
            r.tsecr = data.tsval;
            r.acks_due = r.acks_due.max(1);
        } else {
            r.acks_due += 1;
        }
        if !r.scheduled {
            r.scheduled = true;
            let at = self.vm_runs(self.now) + self.set.vm_delay_ns;
            self.events.at(at, Event::VmRuns(data.id));
        }
    }

    /// An edge that counts as shown to the sender has left for it: otherwise it would wait for an
    /// ACK that does not come.
    fn check_shown(&mut self, id: usize) {
        let Some(f) = self.host.flow(id) else { return };
        let (adv_edge, s) = (f.adv_edge, &self.senders[id]);
        let shown = seq::new(s.first.wrapping_add(s.shown as u32));
        assert!(s.shown == 0 || adv_edge.diff(shown) <= 0, "an edge was not shown to {id}");
    }

    /// When the VM runs next.
    fn vm_runs(&self, now: u64) -> u64 {
        let Some((on, off)) = self.set.vm_schedule else { return now };
        let phase = (now - START) % (on + off);
        if phase < on { now } else { now - phase + on + off }
    }

    /// The VM sends `len` bytes with its ACK.
    fn vm_sends(&mut self, id: usize, len: u32) {
        let (tsval, scale, first) = (self.ts(), self.set.scale, self.senders[id].first);
        let r = &mut self.receivers[id];
        let ece = std::mem::take(&mut r.ce);
        let s = segment {
            seq: seq::new(VM_FIRST.wrapping_add(r.sent)),
            ack: seq::new(first.wrapping_add(r.ack as u32)),
            len,
            unit_len: len as u16,
            tsval,
            tsecr: r.tsecr,
            window: (VM_WINDOW >> scale).min(0xffff) as u16,
            tcp_flags: (TCP_ACK | if ece { TCP_ECE } else { 0 }) as u8,
            bits: SEG_TIMESTAMPS as u16,
            ..segment::default()
        };
        r.sent += len;
        for (id, ack) in self.host.from_vm(id, &s, self.now) {
            self.answer(id, &ack, ece);
        }
    }

    /// An ACK leaves the host.
    fn answer(&mut self, id: usize, a: &ack_fields, ece: bool) {
        let s = &mut self.senders[id];
        let from = seq::new(s.first.wrapping_add(s.una as u32));
        let at = s.una.saturating_add_signed(a.ack.diff(from).into());
        let edge = at + (u64::from(a.window) << self.set.scale);
        s.shown = s.shown.max(edge);
        let acked = Acked { id, at, edge, tsval: a.tsval, ece };
        self.events.at(self.now + self.set.rtt_ns / 2, Event::Acked(acked));
    }

    // The senders.

    fn mss(&self, id: usize) -> u64 {
        // Half of the largest window ever seen, at most.
        let (mss, window) = (u64::from(self.set.mss), self.senders[id].max_window);
        if window > 536 { mss.min(window / 2) } else { mss.min(window.max(48)) }
    }

    fn transmit(&mut self, id: usize, at: u64, len: u64) {
        let tsval = self.ts();
        let wire = self.wire_ns(len as u32);
        let s = &mut self.senders[id];
        let psh = len > 0 && (at + len == s.end || at + len > s.pushed + s.max_window / 2);
        if psh {
            s.pushed = at + len;
        }
        let data = Data { id, at, len: len as u32, tsval, tsecr: s.ts_recent, psh, ce: false };
        s.link_ns = s.link_ns.max(self.now) + wire;
        s.last_sent_ns = self.now;
        let arrives = s.link_ns + self.set.rtt_ns / 4;
        self.events.at(arrives, Event::Queued(data));
    }

    fn arm(&mut self, id: usize) {
        let s = &mut self.senders[id];
        s.deadline = self.now + (RTO << s.backoff.min(6));
        if !s.armed {
            s.armed = true;
            self.events.at(s.deadline, Event::Timer(id));
        }
    }

    /// Sends data as far as its window allows.
    fn send(&mut self, id: usize) {
        let mss = self.mss(id);
        let mut whole = false;
        loop {
            let s = &mut self.senders[id];
            let mut len = mss.min(s.end - s.nxt);
            if whole && s.nxt + len > s.edge {
                len = s.edge.saturating_sub(s.nxt);
            }
            whole |= len == mss;
            let flight = s.nxt - s.una;
            let extra = if s.recover.is_none() { s.dup_acks.min(2) * mss } else { 0 };
            if len == 0 || s.nxt + len > s.edge || (flight > 0 && flight + len > s.cwnd + extra) {
                break;
            }
            let at = s.nxt;
            s.nxt += len;
            self.transmit(id, at, len);
            if !self.senders[id].armed {
                self.arm(id);
            }
        }
        let s = &self.senders[id];
        if s.end > s.nxt && !s.armed {
            self.arm(id);
        }
    }

    fn resend(&mut self, id: usize) {
        let s = &self.senders[id];
        let (at, len) = (s.una, self.mss(id).min(s.end - s.una));
        self.tally.retransmitted += 1;
        self.transmit(id, at, len);
        let s = &mut self.senders[id];
        s.nxt = s.nxt.max(at + len);
        self.arm(id);
    }

    fn acked(&mut self, a: Acked) {
        let (id, mss) = (a.id, u64::from(self.set.mss));
        let s = &mut self.senders[id];
        if a.at < s.una {
            return;
        }
        if a.tsval.wrapping_sub(s.ts_recent) as i32 > 0 {
            s.ts_recent = a.tsval;
        }
        s.max_window = s.max_window.max(a.edge.saturating_sub(a.at));
        let opens = a.edge > s.edge;
        assert!(a.edge + (1 << self.set.scale) > s.edge || a.at == s.una, "an edge was taken back");
        // As a TCP does: an ACK that moves tells the window, even where its edge is less.
        s.edge = if a.at > s.una { a.edge } else { s.edge.max(a.edge) };
        let flight = s.nxt - s.una;
        if a.ece && a.at > s.halved && self.set.marks.is_some() {
            s.halved = s.nxt;
            s.ssthresh = (s.cwnd / 2).max(2 * mss);
            s.cwnd = s.ssthresh;
        }
        if a.at > s.una {
            let fresh = a.at - s.una;
            s.una = a.at;
            s.nxt = s.nxt.max(s.una);
            s.dup_acks = 0;
            s.backoff = 0;
            match s.recover {
                Some(recover) if a.at >= recover => {
                    s.recover = None;
                    s.cwnd = s.ssthresh;
                }
                Some(_) => {
                    s.cwnd = (s.cwnd + mss).saturating_sub(fresh).max(mss);
                    self.resend(id);
                }
                None if s.cwnd < s.ssthresh => {
                    if s.cwnd < 2 * flight {
                        s.cwnd += fresh;
                    }
                }
                None => {
                    if flight + mss > s.cwnd {
                        s.cwnd += mss * fresh / s.cwnd;
                    }
                }
            }
            self.arm(id);
        } else if flight > 0 && !opens {
            s.dup_acks += 1;
            if s.recover.is_some() {
                s.cwnd += mss;
            } else if s.dup_acks == 3 {
                s.recover = Some(s.nxt);
                s.ssthresh = (flight / 2).max(2 * mss);
                s.cwnd = s.ssthresh + 3 * mss;
                self.resend(id);
            }
        }
        self.send(id);
    }

    fn timer(&mut self, id: usize) {
        let mss = u64::from(self.set.mss);
        let s = &mut self.senders[id];
        s.armed = false;
        if s.una == s.nxt && s.end == s.nxt {
            return;
        }
        if self.now < s.deadline {
            s.armed = true;
            self.events.at(s.deadline, Event::Timer(id));
            return;
        }
        s.backoff += 1;
        if s.una == s.nxt {
            self.tally.probes += 1;
            let at = s.una.saturating_sub(1);
            self.transmit(id, at, 0);
            self.arm(id);
            return;
        }
        self.tally.timeouts += 1;
        s.ssthresh = ((s.nxt - s.una) / 2).max(2 * mss);
        s.cwnd = mss;
        s.nxt = s.una;
        s.recover = None;
        s.dup_acks = 0;
        self.resend(id);
        self.send(id);
    }
}

//! Flows behind an uplink, and functions that act on them.
//!
//! Offsets count from the first byte of a sender's stream, whose sequence numbers wrap after 20,000
//! bytes. The host acknowledges early, so that each of the first segments with data is answered at
//! once.

use vsnoop_flow::{ack_fields, flow, policy, segment, seq, types::*};

use crate::hooks::{Answer, Hooks};
use crate::properties::rate_of;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const MSS: u32 = 1_448;
pub const BUFFER: u32 = 128 << 10;
pub const SCALE: u8 = 7;
const VM_WINDOW: u32 = 4 << 20;

pub struct IncastCase {
    pub host: Hooks,
    pub now: u64,
    sent: Vec<u32>,
}

/// A sequence number of a sender's stream.
pub fn at(offset: u32) -> seq {
    seq::new(0u32.wrapping_sub(20_000)).add(offset)
}

impl IncastCase {
    pub fn new(mbps: u32, buffer: u32) -> Self {
        Self::at_port(mbps, buffer, port_run::PORT_ACCELERATE)
    }

    fn at_port(mbps: u32, buffer: u32, run: port_run::Type) -> Self {
        let policy = policy { run, passive: 0, ..policy::default() };
        let host = Hooks::new(1, rate_of(mbps), buffer, policy);
        IncastCase { host, now: 1_000 * MS, sent: Vec::new() }
    }

    /// 1 Gb/s, 128 kB, and `flows` connections that the VM has opened.
    pub fn with(flows: usize) -> Self {
        Self::new(1_000, BUFFER).having(flows)
    }

    /// The same, where the host acknowledges nothing early.
    pub fn without_early_acks(flows: usize) -> Self {
        Self::at_port(1_000, BUFFER, port_run::PORT_OBSERVE).having(flows)
    }

    fn having(mut self, flows: usize) -> Self {
        for _ in 0..flows {
            self.begin(0);
        }
        self
    }

    /// Adds a flow that was shown `shown` bytes in its handshake; the VM sends its first ACK.
    pub fn begin(&mut self, shown: u32) -> usize {
        let f = flow {
            next_seq: at(0),
            vm_seq: at(0),
            high_seq: at(0),
            right_edge: at(shown),
            adv_edge: at(shown),
            scale: SCALE,
            mss: MSS as u16,
            flags: (FLOW_F_SCALE_KNOWN | FLOW_F_TIMESTAMPS) as u16,
            ..flow::default()
        };
        let id = self.host.connect(0);
        self.host.insert(id, f);
        self.sent.push(0);
        self.vm(id, 0);
        id
    }

    pub fn u(&mut self) -> &mut uplink {
        self.host.uplink()
    }

    /// The port of all flows of a case.
    pub fn p(&mut self) -> &mut incast_port {
        self.host.share_of(0)
    }

    pub fn f(&mut self, id: usize) -> &mut flow {
        self.host.flow(id).expect("the flow is there")
    }

    pub fn i(&mut self, id: usize) -> &mut incast {
        &mut self.f(id).incast
    }

    pub fn share(&mut self) -> u32 {
        let uplink = *self.u();
        vsnoop_flow::incast::share(&uplink, self.p())
    }

    pub fn first_window(&mut self, accepts: bool) -> u32 {
        let uplink = *self.u();
        vsnoop_flow::incast::first_window(&uplink, self.p(), accepts)
    }

    /// Moves the clock.
    pub fn advance_time(&mut self, now: u64) {
        let mut uplink = *self.u();
        vsnoop_flow::incast::advance_time(&mut uplink, self.p(), now);
        *self.u() = uplink;
    }

    pub fn wait(&mut self, ns: u64) -> &mut Self {
        self.now += ns;
        self
    }

    /// A segment with data at `offset`.
    pub fn segment(&mut self, id: usize, offset: u32, len: u32) -> segment {
        let now = self.now;
        let f = self.f(id);
        segment {
            seq: at(offset),
            ack: f.snd_nxt,
            len,
            unit_len: len.min(MSS) as u16,
            tsval: (now / MS) as u32,
            tsecr: f.vm_tsval,
            tcp_flags: TCP_ACK as u8,
            bits: SEG_TIMESTAMPS as u16,
            ..segment::default()
        }
    }

    /// The next data of the sender, in order.
    pub fn data(&mut self, id: usize, len: u32) -> Vec<Answer> {
        self.send(id, len, TCP_ACK)
    }

    /// The last data of an answer.
    pub fn end(&mut self, id: usize, len: u32) -> Vec<Answer> {
        self.send(id, len, TCP_ACK | TCP_PSH)
    }

    fn send(&mut self, id: usize, len: u32, flags: u32) -> Vec<Answer> {
        let offset = self.sent[id];
        self.sent[id] += len;
        let segment = segment { tcp_flags: flags as u8, ..self.segment(id, offset, len) };
        self.host.to_vm(id, &segment, self.now).answers
    }

    /// The sender sends all that it may.
    pub fn use_up(&mut self, id: usize) -> Vec<Answer> {
        let f = self.f(id);
        let len = f.adv_edge.diff(f.incast.received) as u32;
        self.data(id, len)
    }

    /// Flows that wait in the grant queue.
    pub fn queue(&self) -> Vec<usize> {
        self.host.queue(0, "grant_queue")
    }

    /// The VM acknowledges all delivered data, and sends `len` bytes.
    pub fn vm(&mut self, id: usize, len: u32) -> Vec<Answer> {
        let s = self.of_vm(id, len);
        self.host.from_vm(id, &s, self.now)
    }

    /// That segment of the VM.
    pub fn of_vm(&mut self, id: usize, len: u32) -> segment {
        let tsval = (self.now / MS) as u32;
        let f = self.f(id);
        segment {
            seq: f.snd_nxt,
            ack: f.high_seq,
            len,
            window: (VM_WINDOW >> SCALE) as u16,
            tsval,
            tsecr: 1,
            tcp_flags: TCP_ACK as u8,
            bits: SEG_TIMESTAMPS as u16,
            ..segment::default()
        }
    }

    /// The flow asks for no more window, in the middle of a round trip.
    pub fn keep_shut(&mut self, id: usize) {
        let now = self.now;
        let i = self.i(id);
        (i.window, i.sample_at, i.rtt_ns) = (0, (now >> 8) as u32, 0);
    }

    /// Its outstanding credit, bytes.
    pub fn outstanding(&mut self, id: usize) -> u32 {
        let i = self.i(id);
        i.edge.diff(i.received).max(0) as u32
    }

    /// The right edge that an ACK shows, as an offset.
    pub fn edge_of(ack: &ack_fields) -> u32 {
        ack.ack.add(u32::from(ack.window) << SCALE).diff(at(0)) as u32
    }
}

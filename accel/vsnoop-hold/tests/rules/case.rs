//! A hold as the engine reads it, and a flow that has looked at it.

use vsnoop_flow::seq;
use vsnoop_flow::types::{HOLD_FIN, HOLD_UNCONFIRMED, hold};
use vsnoop_hold::{Deadline, Flow, HoldFrame, Kind, Time, View};

pub const MS: u64 = 1_000_000;
pub const MSS: u32 = 1_000;
/// SEQ of the first byte; it wraps after 2,500 bytes.
const FIRST: u32 = 0u32.wrapping_sub(2_500);

pub fn at(offset: u32) -> seq {
    seq::new(FIRST).add(offset)
}

/// Bytes from 0 to `tail` are kept; the VM has acknowledged none, was handed those below `handed`,
/// and its window ends at `edge`.
pub fn held(handed: u32, tail: u32, edge: u32) -> hold {
    hold {
        used: 1,
        chunks: 1,
        first: at(0),
        vm_seq: at(0),
        high_seq: at(handed),
        handed: at(handed),
        tail: at(tail),
        right_edge: at(edge),
        mss: MSS as u16,
        sender_window: 100,
        ..hold::default()
    }
}

pub struct HoldCase {
    pub h: hold,
    super_packets: bool,
    pub flow: Flow,
    /// Run time of the VM.
    pub run_time_ns: u64,
    pub now_ns: u64,
}

impl HoldCase {
    pub fn new(h: hold) -> Self {
        let flow = Flow::new(&View::new(&h), Time::default());
        Self { flow, h, super_packets: true, run_time_ns: 0, now_ns: 0 }
    }

    pub fn view(&self) -> View {
        let mut view = View::new(&self.h);
        view.super_packets = self.super_packets;
        view
    }

    pub fn time(&self) -> Time {
        let (now_ns, run_time_ns) = (self.now_ns, self.run_time_ns);
        Time { now_ns, run_time_ns, live_ns: run_time_ns }
    }

    pub fn deadline(&self) -> Deadline {
        self.flow.deadline(&self.view())
    }

    /// The next frame, without sending it.
    pub fn wants(&mut self) -> Option<HoldFrame> {
        self.flow.poll(&self.view(), self.time())
    }

    /// Sends one frame as the I/O layer does.
    pub fn send(&mut self) -> Option<HoldFrame> {
        let frame = self.wants()?;
        self.flow.sent(&self.view(), &frame);
        if frame.kind == Kind::Handover {
            self.h.handed = frame.end();
        }
        Some(frame)
    }

    /// Sends all frames that are due.
    pub fn send_all(&mut self) -> Vec<HoldFrame> {
        let frames: Vec<_> = std::iter::from_fn(|| self.send()).take(100).collect();
        assert!(frames.len() < 100, "it never ends: {:?}", frames.last());
        frames
    }

    /// The VM has acknowledged everything below `offset`, its window ends at `edge`.
    pub fn acks(&mut self, offset: u32, edge: u32) {
        self.h.vm_acks += 1;
        self.h.vm_seq = at(offset);
        self.h.right_edge = at(edge);
    }

    /// The VM sends a duplicate ACK, with these SACK blocks.
    pub fn duplicate_ack(&mut self, blocks: &[(u32, u32)]) {
        self.h.vm_acks += 1;
        self.h.duplicate_acks += 1;
        self.sacks(blocks);
    }

    pub fn sacks(&mut self, blocks: &[(u32, u32)]) {
        self.h.sack_count = blocks.len() as u32;
        for (edges, &(left, right)) in self.h.sack.chunks_exact_mut(2).zip(blocks) {
            edges.copy_from_slice(&[at(left), at(right)]);
        }
    }

    /// The VM has sent nothing beyond its SYN-ACK.
    pub fn unconfirmed(mut self) -> Self {
        self.h.flags |= HOLD_UNCONFIRMED as u16;
        self
    }

    /// The VM takes no super-packets.
    pub fn single_segments(mut self) -> Self {
        self.super_packets = false;
        self
    }

    /// The sender's FIN follows.
    pub fn fin(mut self) -> Self {
        self.h.flags |= HOLD_FIN as u16;
        self.h.fin_at = self.h.tail;
        self
    }
}

pub fn handover(from: u32, len: u32) -> HoldFrame {
    HoldFrame { seq: at(from), len, fin: false, kind: Kind::Handover }
}

pub fn resend(from: u32, len: u32) -> HoldFrame {
    HoldFrame { kind: Kind::Resend, ..handover(from, len) }
}

pub fn with_fin(frame: HoldFrame) -> HoldFrame {
    HoldFrame { fin: true, ..frame }
}

/// A window probe with the byte at VM_SEQ.
pub fn probe(vm_seq: u32) -> HoldFrame {
    HoldFrame { kind: Kind::Probe, ..handover(vm_seq, 1) }
}

/// A keep-alive probe: SEQ is VM_SEQ - 1, no data.
pub fn keep_alive(vm_seq: u32) -> HoldFrame {
    HoldFrame { seq: at(vm_seq).add(u32::MAX), len: 0, fin: false, kind: Kind::Probe }
}

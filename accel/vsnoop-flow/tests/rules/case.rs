//! A flow with a hold, and functions to build segments of both sides.
//!
//! Offsets count from the first byte after the SYN, on either side. There is no memory here: a
//! segment that counts as copied is assumed to be in a chain that is long enough.

use vsnoop_flow::hold::{self, Copied, Hand, Kept, Verdict};
pub use vsnoop_flow::testing::segment::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
use vsnoop_flow::types;
use vsnoop_flow::{FromVm, embryo, flow, outcome, policy, port_state, segment, seq, types::*};

pub const MS: u64 = 1_000_000;
pub const MSS: u32 = 1_448;
/// The VM's shift count, and the window of its ACKs: 64,000 bytes.
pub const SCALE: u8 = 7;
pub const WINDOW: u16 = 500;
/// The window of the VM's SYN or SYN-ACK, unscaled.
pub const SYN_WINDOW: u16 = 60_000;
/// Sequence numbers of the first bytes; the sender's wrap after 20,000 bytes.
pub const SENDER_FIRST: u32 = 0u32.wrapping_sub(20_000);
pub const VM_FIRST: u32 = 0x8000_0000 - 100;
/// Timestamps of the handshake; the sender's wrap too.
pub const SENDER_TS: u32 = 0u32.wrapping_sub(3);
pub const VM_TS: u32 = 0x7fff_fff0;

/// The VM's window, bytes.
pub const FULL: u32 = (WINDOW as u32) << SCALE;
/// The hold's number.
pub const NUMBER: u32 = 3;
/// The port's chunks: 16 MiB.
pub const CHUNKS: u32 = 4_096;
/// The next hop and the VM's traffic class with its flow label.
pub const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 7];
pub const TRAFFIC: u32 = 0x2e << 20 | 0x12345;

/// A flow with a hold from the start, except after [`FlowCase::without_hold`]. Senders may not send
/// beyond the VM's own window, except in cases that are [`FlowCase::unbounded`]. An engine lives,
/// and the VM is not prompt.
#[derive(Clone)]
pub struct FlowCase {
    pub f: flow,
    pub h: types::hold,
    /// Outcome of the last TO_VM_KEEP.
    keeps: outcome,
    pub port: port_state,
    pub policy: policy,
    pub now: u64,
    /// The sender's clock and the VM's.
    pub ts: u32,
    pub vm_ts: u32,
}

/// A sequence number of the sender's stream.
pub fn at(offset: u32) -> seq {
    seq::new(SENDER_FIRST).add(offset)
}

/// A sequence number of the VM's stream.
pub fn vm_at(offset: u32) -> seq {
    seq::new(VM_FIRST).add(offset)
}

/// The VM's SYN or, with `ACK`, SYN-ACK.
pub fn vm_syn(flags: u8) -> segment {
    segment {
        seq: vm_at(0).add(u32::MAX),
        ack: if flags & ACK != 0 { at(0) } else { seq::new(0) },
        tsval: VM_TS,
        tsecr: if flags & ACK != 0 { SENDER_TS } else { 0 },
        window: SYN_WINDOW,
        tcp_flags: SYN | flags,
        scale: SCALE,
        bits: (SEG_TIMESTAMPS | SEG_SACK_PERMITTED | SEG_SCALE) as u16,
        destination: NEXT_HOP,
        traffic: TRAFFIC,
        ..segment::default()
    }
}

/// The sender's SYN-ACK to the VM's SYN.
pub fn sender_syn_ack() -> segment {
    segment {
        seq: at(0).add(u32::MAX),
        ack: vm_at(0),
        tsval: SENDER_TS,
        tsecr: VM_TS,
        window: 65_000,
        tcp_flags: SYN | ACK,
        scale: 2,
        bits: (SEG_TIMESTAMPS | SEG_SACK_PERMITTED | SEG_SCALE) as u16,
        ..segment::default()
    }
}

impl FlowCase {
    fn from_flow(f: flow) -> Self {
        let now = 1_000 * MS;
        FlowCase {
            f,
            h: types::hold { used: 1, ..Default::default() },
            keeps: outcome::default(),
            port: port_state { engine_ns: now, slabs: CHUNKS / SLAB_CHUNKS, ..Default::default() },
            policy: policy {
                run: port_run::PORT_ACCELERATE,
                hold_chunks: CHUNKS,
                silence_ms: 300_000,
                ..Default::default()
            },
            now,
            ts: SENDER_TS,
            vm_ts: VM_TS,
        }
    }

    /// A connection that the VM has accepted, and sent nothing for since.
    pub fn unconfirmed() -> Self {
        let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
        let mut case = FlowCase::from_flow(flow::default());
        let first = case.ack_of_sender(0, 0);
        case.f = vsnoop_flow::flow_accepted(&e, &first, case.now).expect("the handshake is whole");
        case.begin_hold();
        case.decide(&first);
        case
    }

    /// A connection that the VM accepted.
    pub fn accepted() -> Self {
        let mut case = FlowCase::unconfirmed();
        // The VM opens its window as far as its ACKs say.
        case.acks(0, WINDOW);
        case
    }

    /// A connection that the VM opened.
    pub fn opened() -> Self {
        let mut case = FlowCase::from_flow(flow::default());
        let mut e: embryo = vsnoop_flow::embryo_of_vm(&vm_syn(0));
        assert!(vsnoop_flow::answer_embryo(&mut e, &sender_syn_ack()));
        let ack = case.ack_of_vm(0, WINDOW);
        case.f = vsnoop_flow::flow_opened(&e, &ack, case.now).expect("the handshake is whole");
        case.begin_hold();
        case.hear(&ack);
        case
    }

    /// A connection found in mid-stream; the VM has acknowledged one byte since.
    pub fn mid_flow() -> Self {
        let mut case = FlowCase::from_flow(flow::default());
        let ack = case.ack_of_vm(0, WINDOW);
        case.f = vsnoop_flow::flow_mid_flow(&ack, case.now).expect("an ACK of the VM");
        case.hear(&ack);
        case.pass(&case.data(0, 1));
        case.acks(1, WINDOW);
        case
    }

    /// Accepted; the sender may send beyond the VM's window as far as the hold allows.
    pub fn new() -> Self {
        FlowCase::accepted().unbounded()
    }

    pub fn unbounded(mut self) -> Self {
        self.policy.ahead = u32::MAX;
        self
    }

    /// The VM's window ends at `edge`, and never ended elsewhere.
    pub fn bounded(mut self, edge: u32) -> Self {
        self.f.right_edge = at(edge);
        self.f.adv_edge = at(edge);
        self.h.right_edge = at(edge);
        self
    }

    /// The VM's window is full.
    pub fn full() -> Self {
        let mut c = Self::new();
        c.early(&c.data(0, FULL));
        c
    }

    /// The VM's window is full, and two segments more are held.
    pub fn holding() -> Self {
        let mut c = Self::full();
        c.held(&c.data(FULL, MSS));
        c.held(&c.data(FULL + MSS, MSS));
        assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
        c
    }

    /// Takes the connection's hold away.
    pub fn without_hold(mut self) -> Self {
        self.f.hold = 0;
        self
    }

    /// Gives the flow a hold.
    pub fn begin_hold(&mut self) {
        hold::begin(&mut self.f, &mut self.h, NUMBER as u16);
    }

    /// The two ways in which the whole handshake is seen.
    pub fn both() -> [Self; 2] {
        [FlowCase::accepted(), FlowCase::opened()]
    }

    /// Neither timestamps nor SACK.
    pub fn plain() -> Self {
        let mut case = FlowCase::accepted();
        case.f.flags &= !((FLOW_F_TIMESTAMPS | FLOW_F_SACK) as u16);
        case.begin_hold();
        case
    }

    fn has_timestamps(&self) -> bool {
        // A flow that does not exist yet will have them.
        self.f.last_ns == 0 || u32::from(self.f.flags) & FLOW_F_TIMESTAMPS != 0
    }

    fn dress(&self, mut s: segment, tsval: u32, tsecr: u32) -> segment {
        if self.has_timestamps() {
            s.bits |= SEG_TIMESTAMPS as u16;
            s.tsval = tsval;
            s.tsecr = tsecr;
        }
        s
    }

    /// Data of the sender.
    pub fn data(&self, offset: u32, len: u32) -> segment {
        let s = segment {
            seq: at(offset),
            ack: if self.f.last_ns == 0 { vm_at(0) } else { self.f.snd_nxt },
            len,
            unit_len: len.min(MSS) as u16,
            window: 10_000,
            tcp_flags: ACK,
            ..segment::default()
        };
        self.dress(s, self.ts, self.vm_ts)
    }

    /// A pure ACK of the sender.
    pub fn ack_of_sender(&self, offset: u32, vm_offset: u32) -> segment {
        segment { ack: vm_at(vm_offset), ..self.data(offset, 0) }
    }

    /// A pure ACK of the VM.
    pub fn ack_of_vm(&self, offset: u32, window: u16) -> segment {
        let s = segment {
            seq: if self.f.last_ns == 0 { vm_at(0) } else { self.f.snd_nxt },
            ack: at(offset),
            window,
            tcp_flags: ACK,
            destination: NEXT_HOP,
            traffic: TRAFFIC,
            ..segment::default()
        };
        self.dress(s, self.vm_ts, self.ts)
    }

    /// An ACK of the VM with a SACK block that ends at `end`.
    pub fn sack_of_vm(&self, offset: u32, end: u32) -> segment {
        let s = self.ack_of_vm(offset, self.window_at(offset));
        segment { bits: s.bits | SEG_SACK as u16, sack_end: at(end), ..s }
    }

    /// Data of the VM.
    pub fn data_of_vm(&self, vm_offset: u32, len: u32, ack: u32) -> segment {
        segment {
            seq: vm_at(vm_offset),
            len,
            unit_len: len as u16,
            ..self.ack_of_vm(ack, self.window_at(ack))
        }
    }

    /// The window field that leaves the VM's right edge where it is.
    pub fn window_at(&self, offset: u32) -> u16 {
        (self.f.right_edge.diff(at(offset)).max(0) >> self.f.scale) as u16
    }

    /// The decision of the hook for segments to the VM.
    pub fn decide(&mut self, s: &segment) -> (Verdict, outcome) {
        let (verdict, out) = if self.f.hold != 0 {
            hold::to_vm(&mut self.f, &mut self.h, s, &self.port, &self.policy, self.now)
        } else {
            vsnoop_flow::to_vm(&mut self.f, s, &self.port, &self.policy, self.now)
        };
        if matches!(verdict, Verdict::Keep { .. }) {
            self.keeps = out;
        }
        vsnoop_flow::learn(&mut self.port, &out, self.now);
        (verdict, out)
    }

    /// After [`Verdict::Keep`]: `copied` in memory that is not the last, or there was none.
    pub fn after_copy(&mut self, s: &segment, copied: bool, taken: bool) -> (Kept, outcome) {
        if copied && self.h.chunks == 0 {
            self.h.front = u64::from(self.h.tail.v) << 32;
            self.h.chunks = 1;
        }
        self.after(s, Copied { copied, is_full: !copied, taken, ..self.not_copied() })
    }

    /// After [`Verdict::Keep`] where the copy failed, and memory was not the reason.
    pub fn after_failed_copy(&mut self, s: &segment) -> (Kept, outcome) {
        self.after(s, self.not_copied())
    }

    /// After [`Verdict::Keep`] and a copy into the last memory of the hold.
    pub fn after_last_copy(&mut self, s: &segment) -> (Kept, outcome) {
        self.after(s, Copied { copied: true, last: true, ..self.not_copied() })
    }

    fn not_copied(&self) -> Copied {
        Copied { copied: false, is_full: false, last: false, taken: false, out: self.keeps }
    }

    fn after(&mut self, s: &segment, how: Copied) -> (Kept, outcome) {
        hold::kept(&mut self.f, &mut self.h, s, how, &self.port, &self.policy, self.now)
    }

    /// Asserts that it is kept, a clone handed over, and acknowledged.
    #[track_caller]
    pub fn early(&mut self, s: &segment) -> outcome {
        let verdict = self.decide(s).0;
        assert_eq!(verdict, Verdict::Keep { skip: 0, hand: Hand::AndAck }, "{:?}", self.f);
        let (kept, out) = self.after_copy(s, true, true);
        assert_eq!(kept, Kept::Ack);
        out
    }

    /// Asserts that it is kept, and goes to the VM at once, acknowledged or not.
    #[track_caller]
    pub fn kept(&mut self, s: &segment) {
        let next = s.seq.add(s.len);
        self.goes(s);
        assert_ne!(self.mode(), flow_mode::FLOW_HOLDING);
        assert_eq!((self.f.next_seq, self.h.tail), (next, next), "{:?}", self.f);
    }

    /// Asserts that it is kept, and goes to the VM; a later early ACK covers it.
    #[track_caller]
    pub fn handed_on(&mut self, s: &segment) -> outcome {
        let verdict = self.decide(s).0;
        assert_eq!(verdict, Verdict::Keep { skip: 0, hand: Hand::On }, "{:?}", self.f);
        let (kept, out) = self.after_copy(s, true, false);
        assert_eq!(kept, Kept::Pass);
        assert_eq!(self.f.next_seq, s.seq.add(s.len), "what is kept counts");
        out
    }

    /// Acts on the verdict; the ring has room.
    pub fn goes(&mut self, s: &segment) {
        if let Verdict::Keep { hand, .. } = self.decide(s).0 {
            self.after_copy(s, true, hand == Hand::AndAck);
        }
    }

    /// Asserts that it is kept, and not handed over.
    #[track_caller]
    pub fn held(&mut self, s: &segment) -> outcome {
        let verdict = self.decide(s).0;
        assert!(
            matches!(verdict, Verdict::Keep { hand: Hand::Nothing, .. }),
            "{verdict:?} {:?}",
            self.f
        );
        let (kept, out) = self.after_copy(s, true, false);
        assert_eq!(kept, Kept::Ack, "{:?}", self.f);
        assert_eq!(self.mode(), flow_mode::FLOW_HOLDING);
        out
    }

    /// Asserts that neither NEXT_SEQ nor the hold changes.
    #[track_caller]
    pub fn not_kept(&mut self, s: &segment) -> (Verdict, outcome) {
        let (next, tail) = (self.f.next_seq, self.h.tail);
        let (verdict, out) = self.decide(s);
        assert!(!matches!(verdict, Verdict::Keep { .. }), "kept: {:?}", self.f);
        assert_eq!((self.f.next_seq, self.h.tail), (next, tail));
        assert_eq!(self.h.claimed, 0, "claimed for nothing");
        (verdict, out)
    }

    /// Asserts that it is left to the VM; returns the events.
    #[track_caller]
    pub fn pass(&mut self, s: &segment) -> u32 {
        let (verdict, out) = self.not_kept(s);
        assert_eq!(verdict, Verdict::Pass, "{:?}", self.f);
        out.events
    }

    /// A segment of the VM; chunks that it frees are freed at once.
    pub fn hear(&mut self, s: &segment) -> (FromVm, outcome) {
        let (verdict, out) = self.hear_only(s);
        if out.events & EVENT_FREE != 0 {
            assert_eq!(self.h.claimed, 1);
            self.h.claimed = 0;
            if self.f.vm_seq.diff(self.h.tail) >= 0 && self.h.range_count == 0 {
                self.h.chunks = 0;
            } else {
                self.h.front = u64::from(self.f.vm_seq.v) << 32;
            }
        }
        (verdict, out)
    }

    /// A segment of the VM; the chunks that it frees stay in the chain.
    pub fn hear_only(&mut self, s: &segment) -> (FromVm, outcome) {
        let (verdict, out) = if self.f.hold != 0 {
            hold::from_vm(&mut self.f, &mut self.h, s, &self.port, &self.policy, self.now)
        } else {
            vsnoop_flow::from_vm(&mut self.f, s, &self.policy, self.now)
        };
        vsnoop_flow::learn(&mut self.port, &out, self.now);
        (verdict, out)
    }

    /// The VM acknowledges up to `offset`.
    pub fn acks(&mut self, offset: u32, window: u16) -> (FromVm, outcome) {
        self.hear(&self.ack_of_vm(offset, window))
    }

    /// Time passes, and the engine lives.
    pub fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.port.engine_ns = self.now;
    }

    /// The engine hands over all bytes below, with the sender's latest TSval.
    pub fn engine_hands_over(&mut self, offset: u32) {
        self.h.handed = at(offset);
        self.h.handed_tsval = self.h.tsval;
    }

    /// The right edge that an ACK shows.
    pub fn edge(&self, out: &outcome) -> i32 {
        out.ack.ack.add(u32::from(out.ack.window) << self.f.scale).diff(at(0))
    }

    pub fn holds(&self, flag: u32) -> bool {
        u32::from(self.h.flags) & flag != 0
    }

    pub fn mode(&self) -> u32 {
        self.f.mode.into()
    }

    pub fn has(&self, flag: u32) -> bool {
        u32::from(self.f.flags) & flag != 0
    }
}

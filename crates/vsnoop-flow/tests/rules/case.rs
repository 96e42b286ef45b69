//! A flow on record, and short ways to write segments of both sides.
//!
//! Offsets count from the first byte after the SYN, on either side.

pub use vsnoop_flow::testing::segment::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
use vsnoop_flow::{
    FromVm, Verdict, ack_fields, embryo, flow, outcome, policy, port_state, segment, seq, types::*,
};

pub const MS: u64 = 1_000_000;
pub const MSS: u32 = 1_448;
/// The VM's shift count, and the window of its ACKs: 64,000 bytes.
pub const SCALE: u8 = 7;
pub const WINDOW: u16 = 500;
/// What the VM's SYN or SYN-ACK offers, unscaled.
pub const SYN_WINDOW: u16 = 60_000;
/// Sequence numbers of the first bytes; the sender's wrap after 20,000 bytes.
pub const SENDER_FIRST: u32 = 0u32.wrapping_sub(20_000);
pub const VM_FIRST: u32 = 0x8000_0000 - 100;
/// Timestamps of the handshake; the sender's wrap too.
pub const SENDER_TS: u32 = 0u32.wrapping_sub(3);
pub const VM_TS: u32 = 0x7fff_fff0;

#[derive(Clone)]
pub struct Case {
    pub f: flow,
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

impl Case {
    fn of(f: flow) -> Self {
        Case {
            f,
            port: port_state::default(),
            policy: policy { run: port_run::PORT_ACTIVE, thin: 0, ..Default::default() },
            now: 1_000 * MS,
            ts: SENDER_TS,
            vm_ts: VM_TS,
        }
    }

    /// A connection that the VM accepted.
    pub fn accepted() -> Self {
        let e = vsnoop_flow::embryo_of_vm(&vm_syn(ACK));
        let mut case = Case::of(flow::default());
        let first = case.ack_of_sender(0, 0);
        case.f = vsnoop_flow::flow_accepted(&e, &first, case.now).expect("the handshake is whole");
        case.towards_vm(&first);
        // The VM opens its window as far as its ACKs say.
        case.vm_acks(0, WINDOW);
        case
    }

    /// A connection that the VM opened.
    pub fn opened() -> Self {
        let mut case = Case::of(flow::default());
        let mut e: embryo = vsnoop_flow::embryo_of_vm(&vm_syn(0));
        assert!(vsnoop_flow::answer_embryo(&mut e, &sender_syn_ack()));
        let ack = case.ack_of_vm(0, WINDOW);
        case.f = vsnoop_flow::flow_opened(&e, &ack, case.now).expect("the handshake is whole");
        case.vm_sends(&ack);
        case
    }

    /// A connection found in mid-stream; the VM has answered for one byte since.
    pub fn mid_flow() -> Self {
        let mut case = Case::of(flow::default());
        let ack = case.ack_of_vm(0, WINDOW);
        case.f = vsnoop_flow::flow_mid_flow(&ack, case.now).expect("an ACK of the VM");
        case.vm_sends(&ack);
        case.pass(&case.data(0, 1));
        case.vm_acks(1, WINDOW);
        case
    }

    /// The two ways in which the whole handshake is seen.
    pub fn both() -> [Self; 2] {
        [Case::accepted(), Case::opened()]
    }

    /// Neither timestamps nor SACK.
    pub fn plain() -> Self {
        let mut case = Case::accepted();
        case.f.flags &= !((FLOW_F_TIMESTAMPS | FLOW_F_SACK) as u16);
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
            ..segment::default()
        };
        self.dress(s, self.vm_ts, self.ts)
    }

    /// The same with a SACK block that ends at `end`.
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

    pub fn towards_vm(&mut self, s: &segment) -> (Verdict, outcome) {
        let (verdict, out) = vsnoop_flow::to_vm(&mut self.f, s, &self.port, &self.policy, self.now);
        vsnoop_flow::learn(&mut self.port, &out, self.now);
        (verdict, out)
    }

    pub fn vm_sends(&mut self, s: &segment) -> (FromVm, outcome) {
        let (verdict, out) = vsnoop_flow::from_vm(&mut self.f, s, &self.policy, self.now);
        vsnoop_flow::learn(&mut self.port, &out, self.now);
        (verdict, out)
    }

    /// The device took it or not, after [`Verdict::Deliver`].
    pub fn delivered(&mut self, s: &segment, taken: bool) -> Option<ack_fields> {
        let (ack, out) = vsnoop_flow::delivered(&mut self.f, s, taken, &self.policy, self.now);
        ack.then_some(out.ack)
    }

    /// This one is acknowledged early.
    #[track_caller]
    pub fn early(&mut self, s: &segment) -> ack_fields {
        assert_eq!(self.towards_vm(s).0, Verdict::Deliver, "{:?}", self.f);
        self.delivered(s, true).expect("acknowledged")
    }

    /// This one is left to the VM.
    #[track_caller]
    pub fn pass(&mut self, s: &segment) -> u32 {
        let next = self.f.next_seq;
        let (verdict, out) = self.towards_vm(s);
        assert_eq!(verdict, Verdict::Pass, "{:?}", self.f);
        assert_eq!(self.f.next_seq, next, "NEXT_SEQ moved without an ACK");
        out.events
    }

    /// The VM acknowledges up to `offset`.
    pub fn vm_acks(&mut self, offset: u32, window: u16) -> (FromVm, outcome) {
        self.vm_sends(&self.ack_of_vm(offset, window))
    }

    pub fn mode(&self) -> u32 {
        self.f.mode.into()
    }

    pub fn has(&self, flag: u32) -> bool {
        u32::from(self.f.flags) & flag != 0
    }
}

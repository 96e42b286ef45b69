//! The decision core under arbitrary segments from both sides, in any order.
//!
//! Bytes are the program: each step takes some of them and becomes a segment,
//! a race, a change of policy, time. Sequence numbers are drawn near the
//! record's own, where decisions are made, or from anywhere. Nothing is assumed
//! of either end; what must hold all the same is asserted after each step.
//! Shared with the fuzz target `flow`.

use vsnoop_flow::{
    FromVm, Verdict, embryo, flow, outcome, policy, port_state, segment, seq, types::*,
};

use crate::tape::Tape;

/// How often the interesting verdicts came.
#[derive(Debug, Default)]
pub struct Seen {
    pub early: u64,
    pub reacked: u64,
    pub dropped: u64,
    pub rewritten: u64,
    pub losses: u64,
    pub resets: u64,
    pub closed: u64,
}

struct Machine<'a> {
    tape: Tape<'a>,
    f: Option<flow>,
    e: Option<embryo>,
    port: port_state,
    policy: policy,
    now: u64,
    seen: &'a mut Seen,
}

/// Runs the program.
pub fn run(program: &[u8], seen: &mut Seen) {
    let mut m = Machine {
        tape: Tape(program),
        f: None,
        e: None,
        port: port_state::default(),
        policy: policy { run: port_run::PORT_ACTIVE, thin: 1, ..Default::default() },
        now: 1_000_000_000,
        seen,
    };
    while !m.tape.0.is_empty() {
        m.step();
        if let Some(f) = &m.f {
            sound(f);
        }
    }
}

/// What holds of every record at every moment.
fn sound(f: &flow) {
    let (next, vm, high) = (f.next_seq, f.vm_seq, f.high_seq);
    assert!(next.diff(vm) >= 0, "NEXT_SEQ is behind VM_SEQ: {f:?}");
    assert!(high.diff(next) >= 0, "NEXT_SEQ is beyond the highest byte: {f:?}");
    assert!(high.diff(vm) >= 0, "the distances overflow: {f:?}");
    assert!(u32::from(f.mode) < flow_mode::FLOW_MODES);
    assert!(u32::from(f.dup_acks) <= 3);
    assert!(f.scale <= 14);
}

impl Machine<'_> {
    fn step(&mut self) {
        match self.tape.byte() % 16 {
            0..=6 => self.towards_vm(),
            7..=12 => self.vm_sends(),
            13 => self.now += u64::from(self.tape.half()) << (self.tape.byte() % 24),
            14 => {
                self.policy = policy {
                    run: match self.tape.byte() {
                        0..=200 => port_run::PORT_ACTIVE,
                        other => u32::from(other) % 3,
                    },
                    buf_size: self.tape.word() >> (self.tape.byte() % 32),
                    thin: u32::from(self.tape.byte()) % 2,
                    ..Default::default()
                }
            }
            _ => {
                // The VM says SYN or SYN-ACK; the sender may answer.
                let mut s = self.segment(true);
                s.tcp_flags |= TCP_SYN as u8;
                s.bits |= (self.tape.byte() as u16) & (SEG_SACK_PERMITTED | SEG_SCALE) as u16;
                s.len = if self.tape.byte() == 0 { s.len } else { 0 };
                let own = self.f.as_ref().is_some_and(|f| vsnoop_flow::is_own_syn(f, &s));
                if !own {
                    self.f = None;
                    self.e = Some(vsnoop_flow::embryo_of_vm(&s));
                }
            }
        }
    }

    /// A sequence number close to one that matters.
    fn near(&mut self, of_vm: bool) -> seq {
        let points = match (&self.f, &self.e) {
            (Some(f), _) if of_vm => [f.snd_nxt, f.snd_una, f.snd_nxt, f.snd_una],
            (Some(f), _) => [f.next_seq, f.vm_seq, f.high_seq, f.right_edge],
            (None, Some(e)) if of_vm => [e.vm_iss.add(1); 4],
            (None, Some(e)) => [e.rcv_nxt; 4],
            (None, None) => [seq::new(0); 4],
        };
        let how = self.tape.byte();
        let point = points[usize::from(how & 3)];
        match how >> 2 & 7 {
            0..=2 => point,
            3 if how & 0x80 == 0 => point.add(1_448),
            3 => point.add(self.tape.byte().into()),
            4 => point.add(u32::from(self.tape.byte()).wrapping_neg()),
            5 => point.add(self.tape.half().into()),
            6 => point.add(u32::from(self.tape.half()).wrapping_neg()),
            _ => seq::new(self.tape.word()),
        }
    }

    fn segment(&mut self, of_vm: bool) -> segment {
        let seq = self.near(of_vm);
        let ack = self.near(!of_vm);
        let how = self.tape.byte();
        let len = match how & 3 {
            0 => 0,
            1 => u32::from(self.tape.byte()),
            2 => u32::from(self.tape.half()),
            _ => 1_448,
        };
        let mut flags = TCP_ACK as u8;
        if how & 0x1c == 0x1c && self.tape.byte() < 24 {
            flags = self.tape.byte();
        } else if how & 4 != 0 {
            flags |= TCP_PSH as u8;
        }
        let mut bits = SEG_TIMESTAMPS as u16;
        let mut sack_end = seq::new(0);
        if how & 0x60 == 0x60 && self.tape.byte() < 24 {
            bits = self.tape.byte().into();
        }
        if u32::from(bits) & SEG_SACK != 0 || how & 0x80 != 0 && of_vm {
            bits |= SEG_SACK as u16;
            sack_end = self.near(!of_vm);
        }
        let stamps = self.tape.byte();
        segment {
            seq,
            ack,
            len,
            tsval: if stamps == 255 {
                self.tape.word()
            } else {
                (self.now >> 20) as u32 + u32::from(stamps / 250)
            },
            tsecr: if stamps == 8 { self.tape.word() } else { (self.now >> 20) as u32 },
            sack_end,
            window: self.tape.half(),
            unit_len: if len > 1_448 { 1_448 } else { len as u16 },
            tcp_flags: flags,
            scale: self.tape.byte() % 15,
            bits,
        }
    }

    fn towards_vm(&mut self) {
        let mut s = self.segment(false);
        if self.tape.byte() < 128
            && let Some(f) = &self.f
        {
            // As a sender with nothing but data would go on.
            (s.seq, s.ack) = (f.next_seq, f.snd_nxt);
        }
        if self.f.is_none() {
            let Some(e) = self.e.as_mut() else { return };
            if u32::from(s.tcp_flags) & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK {
                vsnoop_flow::answer_embryo(e, &s);
                return;
            }
            self.f = vsnoop_flow::flow_accepted(e, &s, self.now);
        }
        let Some(f) = self.f.as_mut() else { return };
        let before = *f;
        let (verdict, out) = vsnoop_flow::to_vm(f, &s, &self.port, &self.policy, self.now);
        assert_eq!(f.next_seq, before.next_seq, "NEXT_SEQ moved before the hand-over");
        sound(f);
        match verdict {
            Verdict::Pass => {}
            Verdict::Reset => assert_eq!(u32::from(f.mode), flow_mode::FLOW_RESET),
            Verdict::Reack => {
                self.seen.reacked += 1;
                assert_eq!(out.ack.ack, f.next_seq);
                assert!(s.seq.add(s.len).diff(f.next_seq) <= 0, "it holds news");
                clean(&s);
                self.shown(&out);
            }
            Verdict::Deliver => self.deliver(s),
        }
        self.settle(&out, false);
    }

    fn deliver(&mut self, s: segment) {
        let how = self.tape.byte();
        if how & 0x30 == 0x30 {
            // Another CPU is faster.
            if how & 0x40 != 0 { self.towards_vm() } else { self.vm_sends() }
        }
        let Some(f) = self.f.as_mut() else { return };
        let before = *f;
        let taken = how & 7 != 0;
        let (ack, out) = vsnoop_flow::delivered(f, &s, taken, &self.policy, self.now);
        let after = *f;
        if ack {
            self.seen.early += 1;
            assert!(taken, "acknowledged what the device refused");
            assert_eq!(s.seq, before.next_seq, "not in order");
            assert_eq!(before.high_seq, before.next_seq, "a hole was filled");
            assert_eq!(out.ack.ack, s.seq.add(s.len));
            assert_eq!(after.next_seq, out.ack.ack);
            assert!(out.ack.ack.diff(after.right_edge) <= 0, "beyond the VM's right edge");
            assert_eq!(u32::from(after.mode), flow_mode::FLOW_ACTIVE);
            assert_eq!(self.policy.run, port_run::PORT_ACTIVE);
            assert_eq!(u32::from(after.flags) & FLOW_F_UNPROVEN, 0);
            assert_eq!(out.ack.tsval, after.vm_tsval);
            assert_eq!(out.ack.tsecr, s.tsval);
            clean(&s);
            self.shown(&out);
        } else {
            assert_eq!(after.next_seq, before.next_seq, "NEXT_SEQ moved without an ACK");
        }
        self.settle(&out, false);
    }

    fn vm_sends(&mut self) {
        let mut s = self.segment(true);
        let how = self.tape.byte();
        if how < 192
            && let Some(f) = &self.f
        {
            // As a VM that is behind, or has just caught up, would answer.
            s.ack = if how < 128 { f.vm_seq } else { f.next_seq };
        }
        if u32::from(s.tcp_flags) & TCP_SYN != 0 {
            return;
        }
        if self.f.is_none() {
            self.f = self
                .e
                .and_then(|e| vsnoop_flow::flow_opened(&e, &s, self.now))
                .or_else(|| vsnoop_flow::flow_mid_flow(&s, self.now));
        }
        let Some(f) = self.f.as_mut() else { return };
        let before = *f;
        let (verdict, out) = vsnoop_flow::from_vm(f, &s, &self.policy, self.now);
        let after = *f;
        sound(f);
        assert!(after.next_seq.diff(before.next_seq) >= 0, "NEXT_SEQ went back");
        assert!(after.vm_seq.diff(before.vm_seq) >= 0, "VM_SEQ went back");
        let rst = u32::from(s.tcp_flags) & TCP_RST != 0;
        let pure = s.len == 0 && u32::from(s.tcp_flags) & TCP_FIN == 0;
        match verdict {
            FromVm::Pass => {}
            FromVm::Drop => {
                self.seen.dropped += 1;
                assert!(pure && !rst, "more than an ACK was suppressed");
                assert!(s.ack.diff(after.next_seq) < 0, "the ACK of NEXT_SEQ was suppressed");
                assert_ne!(self.policy.run, port_run::PORT_OBSERVE);
            }
            FromVm::Rewrite => {
                self.seen.rewritten += 1;
                assert_eq!(out.ack.ack, after.next_seq);
                assert!(out.ack.ack.diff(s.ack) >= 0, "an ACK was lowered");
                assert_ne!(self.policy.run, port_run::PORT_OBSERVE);
                self.shown(&out);
            }
            FromVm::Reset => {
                self.seen.resets += 1;
                assert_eq!(u32::from(before.mode), flow_mode::FLOW_RESET);
            }
            FromVm::Loss => {
                self.seen.losses += 1;
                assert!(before.next_seq.diff(s.ack) > 0, "nothing was outstanding");
                assert_eq!(u32::from(after.mode), flow_mode::FLOW_RESET);
            }
        }
        self.settle(&out, rst);
    }

    /// No window goes beyond what the VM granted.
    fn shown(&self, out: &outcome) {
        let Some(f) = &self.f else { return };
        let edge = out.ack.ack.add(u32::from(out.ack.window) << f.scale);
        assert!(out.ack.window == 0 || edge.diff(f.right_edge) <= 0, "shown beyond: {f:?}");
    }

    fn settle(&mut self, out: &outcome, rst: bool) {
        vsnoop_flow::learn(&mut self.port, out, self.now);
        if out.events & EVENT_CLOSED != 0 {
            self.seen.closed += 1;
            let f = self.f.take();
            let outstanding = f.map_or(0, |f| f.next_seq.diff(f.vm_seq));
            assert!(rst || outstanding <= 0, "a record with {outstanding} bytes was removed");
        }
    }
}

/// Nothing but plain data is answered for the VM.
fn clean(s: &segment) {
    assert_eq!(u32::from(s.tcp_flags) & (TCP_SYN | TCP_FIN | TCP_RST | TCP_URG), 0);
    assert_ne!(u32::from(s.tcp_flags) & TCP_ACK, 0);
    assert_eq!(u32::from(s.bits) & (SEG_FOREIGN | SEG_CE), 0);
}

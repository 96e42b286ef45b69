//! The decision core under arbitrary segments from both sides, in any order, for flows without a
//! hold: records are made and removed, no byte is acknowledged early, and no packet changes.
//!
//! The input bytes are a program: each step takes some of them and becomes a segment, a race, a
//! change of policy, or a step of the clock. Sequence numbers are drawn near the record's own,
//! where decisions are made, or from anywhere. Neither end is assumed to be correct; the invariants
//! are asserted after each step. Shared with the fuzz target `flow`.

use vsnoop_flow::{
    FromVm, Verdict, embryo, flow, outcome, policy, port_state, segment, seq, types::*,
};

use crate::tape::Tape;

/// How often the interesting verdicts came.
#[derive(Debug, Default)]
pub struct Seen {
    pub accepted: u64,
    pub opened: u64,
    pub mid_flow: u64,
    pub caught_up: u64,
    pub bypassed: u64,
    pub closed: u64,
}

struct PassedFlow<'a> {
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
    let mut m = PassedFlow {
        tape: Tape(program),
        f: None,
        e: None,
        port: port_state::default(),
        policy: policy { run: port_run::PORT_ACCELERATE, passive: 1, ..Default::default() },
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

/// Checks the invariants of a record.
fn sound(f: &flow) {
    let (next, vm, high) = (f.next_seq, f.vm_seq, f.high_seq);
    assert_eq!(next, vm, "acknowledged without a copy: {f:?}");
    assert!(high.diff(next) >= 0, "NEXT_SEQ is beyond the highest byte: {f:?}");
    assert!(high.diff(vm) >= 0, "the distances overflow: {f:?}");
    assert!(u32::from(f.mode) < flow_mode::FLOW_MODES);
    assert!(f.scale <= 14);
}

impl PassedFlow<'_> {
    fn step(&mut self) {
        match self.tape.byte() % 16 {
            0..=6 => self.towards_vm(),
            7..=12 => self.vm_sends(),
            13 => self.now += u64::from(self.tape.half()) << (self.tape.byte() % 24),
            14 => {
                self.policy = policy {
                    run: match self.tape.byte() {
                        0..=200 => port_run::PORT_ACCELERATE,
                        other => u32::from(other) % 3,
                    },
                    silence_ms: self.tape.word() >> (self.tape.byte() % 32),
                    passive: u32::from(self.tape.byte()) % 2,
                    ..Default::default()
                }
            }
            _ => {
                // The VM sends a SYN or SYN-ACK; the sender may answer.
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
        let len = self.tape.payload_len(how);
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
            ..segment::default()
        }
    }

    fn towards_vm(&mut self) {
        let mut s = self.segment(false);
        if self.tape.byte() < 128
            && let Some(f) = &self.f
        {
            // The next segment of a sender of data only.
            (s.seq, s.ack) = (f.next_seq, f.snd_nxt);
        }
        if self.f.is_none() {
            let Some(e) = self.e.as_mut() else { return };
            if u32::from(s.tcp_flags) & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK {
                vsnoop_flow::answer_embryo(e, &s);
                return;
            }
            self.f = vsnoop_flow::flow_accepted(e, &s, self.now);
            self.seen.accepted += u64::from(self.f.is_some());
        }
        let Some(f) = self.f.as_mut() else { return };
        let (verdict, out) = vsnoop_flow::to_vm(f, &s, &self.port, &self.policy, self.now);
        assert_eq!(verdict, Verdict::Pass, "{f:?}");
        sound(f);
        self.seen.bypassed += u64::from(out.events & EVENT_BYPASS != 0);
        self.settle(&out);
    }

    fn vm_sends(&mut self) {
        let mut s = self.segment(true);
        let how = self.tape.byte();
        if how < 192
            && let Some(f) = &self.f
        {
            // The ACK of a VM that is behind, or has just caught up.
            s.ack = if how < 128 { f.vm_seq } else { f.next_seq };
        }
        if u32::from(s.tcp_flags) & TCP_SYN != 0 {
            return;
        }
        if self.f.is_none() {
            let opened = self.e.and_then(|e| vsnoop_flow::flow_opened(&e, &s, self.now));
            self.seen.opened += u64::from(opened.is_some());
            self.f = opened.or_else(|| {
                let found = vsnoop_flow::flow_mid_flow(&s, self.now);
                self.seen.mid_flow += u64::from(found.is_some());
                found
            });
        }
        let Some(f) = self.f.as_mut() else { return };
        let before = *f;
        let (verdict, out) = vsnoop_flow::from_vm(f, &s, &self.policy, self.now);
        assert_eq!(verdict, FromVm::Pass, "{before:?}");
        sound(f);
        assert!(f.vm_seq.diff(before.vm_seq) >= 0, "VM_SEQ went back");
        let is_active = |f: &flow| u32::from(f.mode) == flow_mode::FLOW_ACTIVE;
        self.seen.caught_up += u64::from(is_active(f) && !is_active(&before));
        self.settle(&out);
    }

    fn settle(&mut self, out: &outcome) {
        vsnoop_flow::learn(&mut self.port, out, self.now);
        if out.events & EVENT_CLOSED != 0 {
            self.seen.closed += 1;
            self.f = None;
        }
    }
}

//! A flow with a hold under arbitrary segments from both sides, with an engine that writes what it likes
//! and memory that runs out.
//!
//! Bytes are the program, as in `machine.rs`. Each byte of the stream follows from its sequence number, so
//! that what is kept can be compared with what it should be. Shared with the fuzz target `hold`.

use vsnoop_flow::hold::{self, Kept, Verdict};
use vsnoop_flow::testing::memory::Memory;
use vsnoop_flow::{FromVm, flow, flow_key, outcome, policy, segment, seq, types::*};

use crate::tape::Tape;

const SECOND: u64 = 1_000_000_000;

/// How often the interesting verdicts came.
#[derive(Debug, Default)]
pub struct Seen {
    pub early: u64,
    pub held: u64,
    pub ahead: u64,
    pub full: u64,
    pub fins: u64,
    pub drained: u64,
    pub forwarded: u64,
    pub reacked: u64,
    pub dropped: u64,
    pub freed: u64,
    pub told: u64,
    pub losses: u64,
    pub abandoned: u64,
    pub ended: u64,
}

struct Machine<'a> {
    tape: Tape<'a>,
    f: flow,
    m: Memory,
    now: u64,
    seen: &'a mut Seen,
}

/// The byte that has this sequence number.
fn content(at: seq) -> u8 {
    (at.v.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn bytes(from: seq, len: u32) -> Vec<u8> {
    (0..len).map(|i| content(from.add(i))).collect()
}

/// Runs the program.
pub fn run(program: &[u8], seen: &mut Seen) {
    let mut tape = Tape(program);
    let policy = policy {
        run: port_run::PORT_ACTIVE,
        thin: u32::from(tape.byte()) % 2,
        hold_chunks: 4 + u32::from(tape.byte()) % 60,
        hold_flow: 4_000 + u32::from(tape.half()) * 4,
        ..policy::default()
    };
    let mut m = Machine {
        f: begin(&mut tape, 10 * SECOND),
        m: Memory::new(policy, 2),
        tape,
        now: 10 * SECOND,
        seen,
    };
    m.m.port.engine_ns = m.now;
    while !m.tape.0.is_empty() {
        m.step();
        m.sound();
    }
}

/// A flow whose VM has accepted the connection.
fn begin(tape: &mut Tape, now: u64) -> flow {
    let scale = tape.byte() % 15;
    let iss = seq::new(tape.word());
    let syn_ack = segment {
        seq: seq::new(tape.word()),
        ack: iss,
        window: tape.half(),
        tcp_flags: (TCP_SYN | TCP_ACK) as u8,
        scale,
        bits: (SEG_TIMESTAMPS | SEG_SCALE) as u16 | tape.byte() as u16 & SEG_SACK_PERMITTED as u16,
        ..segment::default()
    };
    let e = vsnoop_flow::embryo_of_vm(&syn_ack);
    let ack = segment {
        seq: iss,
        ack: syn_ack.seq.add(1),
        tcp_flags: TCP_ACK as u8,
        bits: SEG_TIMESTAMPS as u16,
        ..segment::default()
    };
    vsnoop_flow::flow_accepted(&e, &ack, now).expect("the handshake is whole")
}

impl Machine<'_> {
    fn step(&mut self) {
        match self.tape.byte() % 16 {
            0..=7 => self.towards_vm(),
            8..=10 => self.vm_sends(),
            11 => self.vm_repeats(),
            12 => {
                self.now += u64::from(self.tape.half()) << (self.tape.byte() % 20);
                if self.tape.byte() < 230 {
                    self.m.port.engine_ns = self.now;
                }
            }
            13 => {
                self.m.policy.run = match self.tape.byte() {
                    0..=220 => port_run::PORT_ACTIVE,
                    other => u32::from(other) % 3,
                }
            }
            14 => self.engine(),
            _ => self.tend(),
        }
    }

    fn number(&self) -> u32 {
        self.f.hold.into()
    }

    /// What an engine writes, sane or not.
    fn engine(&mut self) {
        if self.number() == 0 {
            return;
        }
        let how = self.tape.byte();
        let any = self.tape.word();
        let h = self.m.hold_mut(self.f.hold.into());
        let fin = u32::from(u32::from(h.flags) & HOLD_FIN != 0);
        match how {
            0..=127 => {
                h.released = h.tail.add(fin);
                h.released_tsval = h.tsval;
            }
            128..=200 => {
                let left = h.tail.diff(h.high_seq).max(0) as u32;
                h.released = h.high_seq.add(any % (left + 1));
            }
            201..=230 => h.released = seq::new(any),
            _ => h.released_tsval = any,
        }
        h.rung = 0;
    }

    /// The engine has its holds looked after; a hold whose flow has gone is given back.
    fn tend(&mut self) {
        let end = self.tape.byte() & 1 != 0;
        self.m.now = self.now;
        for number in 1..=2 {
            let is_used = self.m.hold(number).used != 0;
            let mine = u32::from(self.f.hold) == number;
            let flow = mine.then_some(&mut self.f);
            let tended = self.m.tend(number, end, flow);
            self.seen.ended += u64::from(tended == 2 && end && is_used);
        }
    }

    /// A sequence number close to one that matters.
    fn near(&mut self, of_vm: bool) -> seq {
        let how = self.tape.byte();
        let f = &self.f;
        let tail = if f.hold != 0 { self.m.hold(f.hold.into()).tail } else { f.next_seq };
        let points = if of_vm {
            [f.snd_nxt, f.snd_una, f.snd_nxt, f.snd_una]
        } else {
            [f.next_seq, f.vm_seq, f.high_seq, if how & 0x80 == 0 { f.right_edge } else { tail }]
        };
        let point = points[usize::from(how & 3)];
        match how >> 2 & 7 {
            0..=3 => point,
            4 => point.add(u32::from(self.tape.byte())),
            5 => point.add(u32::from(self.tape.byte()).wrapping_neg()),
            6 => point.add(u32::from(self.tape.half())),
            _ if how & 0x40 == 0 => point.add(u32::from(self.tape.half()).wrapping_neg()),
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
        if how & 0x1c == 0x1c && self.tape.byte() < 6 {
            flags = self.tape.byte();
        } else if how & 0x3c == 0x24 {
            flags |= TCP_FIN as u8;
        }
        let mut bits = SEG_TIMESTAMPS as u16;
        if how & 0x60 == 0x60 && self.tape.byte() < 4 {
            bits = self.tape.byte().into();
        }
        let mut sack_end = seq::default();
        if how & 0x80 != 0 && of_vm {
            bits |= SEG_SACK as u16;
            sack_end = self.near(false);
        }
        segment {
            seq,
            ack,
            len,
            tsval: (self.now >> 20) as u32,
            tsecr: (self.now >> 20) as u32,
            sack_end,
            window: self.tape.half(),
            unit_len: len.min(1_448) as u16,
            tcp_flags: flags & !(TCP_SYN as u8),
            bits,
            ..segment::default()
        }
    }

    fn towards_vm(&mut self) {
        let mut s = self.segment(false);
        if self.tape.byte() < 160 {
            // As a sender with nothing but data would go on.
            (s.seq, s.ack) = (self.f.next_seq, self.f.snd_nxt);
        }
        // Now and then all holds are taken.
        if self.number() == 0 && s.len > 0 && self.tape.byte() & 7 == 0 {
            let key = flow_key::default();
            self.m.take(&key, &mut self.f);
        }
        if self.number() == 0 {
            self.without_hold(&s);
            return;
        }
        let before = self.f;
        let number = self.number();
        let (h, port, policy) = self.m.parts(number);
        let (verdict, out) = hold::to_vm(&mut self.f, h, &s, port, policy, self.now);
        assert_eq!(self.f.next_seq, before.next_seq, "NEXT_SEQ moved before the copy");
        self.drained(&before);
        self.settle(&out);
        match verdict {
            Verdict::Pass => {}
            Verdict::Reset => {
                self.seen.abandoned += u64::from(out.events & EVENT_ABANDONED != 0);
                assert_eq!(u32::from(self.f.mode), flow_mode::FLOW_RESET);
            }
            Verdict::Reack => {
                self.seen.reacked += 1;
                assert_eq!(out.ack.ack, self.f.next_seq);
            }
            Verdict::Drop => {
                self.seen.dropped += 1;
                self.seen.fins += u64::from(u32::from(s.tcp_flags) & TCP_FIN != 0);
            }
            Verdict::Forward => {
                self.seen.forwarded += 1;
                let rst = u32::from(s.tcp_flags) & TCP_RST != 0;
                assert!(s.len == 0 || rst, "data was forwarded");
                assert!(s.seq.diff(self.f.next_seq) >= 0);
            }
            Verdict::Keep { skip, deliver } => self.keep(&s, skip, deliver),
            Verdict::Deliver => panic!("a flow with a hold acknowledges without a copy"),
            Verdict::Busy => panic!("a claim was not ended"),
        }
    }

    fn keep(&mut self, s: &segment, skip: u32, deliver: bool) {
        let how = self.tape.byte();
        let number = self.number();
        let from = s.seq.add(skip);
        assert!(skip < s.len && (skip == 0 || from == self.f.next_seq));
        let copied = self.m.copy(number, from, &bytes(from, s.len - skip));
        if how & 0x30 == 0x30 {
            // Another CPU is faster.
            self.vm_sends();
        }
        if self.number() != number {
            self.m.hold_mut(number).busy = 0;
            return;
        }
        let taken = deliver && copied && how & 7 != 0;
        let before = self.f;
        let (h, port, policy) = self.m.parts(number);
        let (kept, out) = hold::kept(&mut self.f, h, s, (copied, taken), port, policy, self.now);
        self.settle(&out);
        self.seen.full += u64::from(out.events & EVENT_HOLD_FULL != 0);
        if kept != Kept::Ack {
            assert_eq!(self.f.next_seq, before.next_seq, "NEXT_SEQ moved without an ACK");
            return;
        }
        assert!(copied, "acknowledged without a copy");
        assert_eq!(out.ack.ack, self.f.next_seq);
        assert_eq!(u32::from(s.tcp_flags) & (TCP_SYN | TCP_RST | TCP_URG), 0);
        assert_eq!(u32::from(s.bits) & SEG_FOREIGN, 0);
        assert_eq!(self.m.policy.run, port_run::PORT_ACTIVE);
        if out.events & EVENT_AHEAD != 0 {
            self.seen.ahead += 1;
            assert_eq!(self.f.next_seq, before.next_seq, "a hole was acknowledged");
            return;
        }
        self.seen.held += u64::from(!taken);
        self.seen.early += u64::from(taken);
        assert!(self.f.next_seq.diff(s.seq.add(s.len)) >= 0);
        assert_eq!(self.m.hold(number).tail, self.f.next_seq, "acknowledged beyond what is kept");
        if !taken {
            assert_eq!(u32::from(self.f.mode), flow_mode::FLOW_HOLDING);
            assert!(self.now - self.m.port.engine_ns < SECOND, "held for an engine that is gone");
        }
    }

    fn without_hold(&mut self, s: &segment) {
        let (verdict, out) =
            vsnoop_flow::to_vm(&mut self.f, s, &self.m.port, &self.m.policy, self.now);
        if verdict == vsnoop_flow::Verdict::Deliver {
            let taken = self.tape.byte() & 7 != 0;
            let policy = self.m.policy;
            vsnoop_flow::delivered(&mut self.f, s, taken, &policy, self.now);
        }
        self.settle(&out);
    }

    fn vm_sends(&mut self) {
        let mut s = self.segment(true);
        let how = self.tape.byte();
        if how < 224 {
            // As a VM that is behind, or has just caught up, would answer.
            s.ack = [self.f.vm_seq, self.f.next_seq, self.f.high_seq][usize::from(how % 3)];
        }
        self.hear(&s);
    }

    /// It reports a loss, three times.
    fn vm_repeats(&mut self) {
        for _ in 0..3 {
            let s = segment {
                seq: self.f.snd_nxt,
                ack: self.f.vm_seq,
                sack_end: self.f.high_seq,
                window: self.tape.byte().into(),
                tcp_flags: TCP_ACK as u8,
                bits: (SEG_TIMESTAMPS | SEG_SACK) as u16,
                ..segment::default()
            };
            self.hear(&s);
        }
    }

    fn hear(&mut self, s: &segment) {
        let number = self.number();
        if number == 0 {
            let (_, out) = vsnoop_flow::from_vm(&mut self.f, s, &self.m.policy, self.now);
            return self.settle(&out);
        }
        let before = self.f;
        let (h, port, policy) = self.m.parts(number);
        let told = h.repeated;
        let (verdict, out) = hold::from_vm(&mut self.f, h, s, port, policy, self.now);
        self.seen.told += u64::from(h.repeated != told);
        self.drained(&before);
        self.settle(&out);
        let f = &self.f;
        assert!(f.next_seq.diff(before.next_seq) >= 0, "NEXT_SEQ went back");
        assert!(f.vm_seq.diff(before.vm_seq) >= 0, "VM_SEQ went back");
        let rst = u32::from(s.tcp_flags) & TCP_RST != 0;
        match verdict {
            FromVm::Pass | FromVm::Reset => {}
            FromVm::Drop => {
                let fin = u32::from(s.tcp_flags) & TCP_FIN != 0;
                assert!(s.len == 0 && !fin && !rst, "more than an ACK was suppressed");
                assert!(s.ack.diff(f.next_seq) < 0, "the ACK of NEXT_SEQ was suppressed");
            }
            FromVm::Rewrite => {
                assert_eq!(out.ack.ack, f.next_seq);
                assert!(out.ack.ack.diff(s.ack) >= 0, "an ACK was lowered");
            }
            FromVm::Loss => {
                assert_eq!(u32::from(f.mode), flow_mode::FLOW_RESET);
                if out.events & EVENT_ABANDONED != 0 {
                    self.seen.abandoned += 1;
                    assert!(self.now - self.m.port.engine_ns >= 5 * SECOND);
                } else {
                    self.seen.losses += 1;
                    let h = self.m.hold(number);
                    let is_covered = h.chunks > 0
                        && before.vm_seq.diff(h.first) >= 0
                        && before.vm_seq.diff(h.tail) < 0;
                    let is_gone = self.now - self.m.port.engine_ns >= 5 * SECOND;
                    assert!(!is_covered || is_gone, "a loss of which there is a copy: {f:?}");
                }
            }
        }
        if out.events & EVENT_CLOSED != 0 {
            let outstanding = f.next_seq.diff(f.vm_seq);
            assert!(rst || outstanding <= 0, "a record with {outstanding} bytes was removed");
        }
    }

    fn drained(&mut self, before: &flow) {
        let (was, is) = (u32::from(before.mode), u32::from(self.f.mode));
        let holding = flow_mode::FLOW_HOLDING;
        self.seen.drained += u64::from(was == holding && is == flow_mode::FLOW_ACTIVE);
    }

    fn settle(&mut self, out: &outcome) {
        vsnoop_flow::learn(&mut self.m.port, out, self.now);
        if out.events & EVENT_FREE != 0 {
            self.seen.freed += 1;
            let number = self.number();
            self.m.release(number, false);
        }
    }

    /// What holds at every moment.
    fn sound(&self) {
        self.m.check();
        let f = &self.f;
        assert!(f.next_seq.diff(f.vm_seq) >= 0, "NEXT_SEQ is behind VM_SEQ: {f:?}");
        assert!(u32::from(f.mode) < flow_mode::FLOW_MODES);
        let is_holding = u32::from(f.mode) == flow_mode::FLOW_HOLDING;
        if f.hold == 0 {
            assert!(!is_holding, "holding without a hold: {f:?}");
            return;
        }
        let h = self.m.hold(f.hold.into());
        assert_eq!(h.busy, 0, "a claim was not ended");
        assert!(h.ahead_count <= 4);
        assert!(h.rcv_win <= self.m.policy.hold_flow);
        if !is_holding {
            return;
        }
        let fin = u32::from(h.flags) & HOLD_FIN != 0;
        if fin && f.next_seq != h.tail && f.next_seq != h.tail.add(1) {
            // The VM has acknowledged what lies behind the sender's FIN.
            return;
        }
        // What was acknowledged and not handed over is kept, byte by byte; and so are the pieces.
        let (base, _) = self.m.front(f.hold.into());
        let first = if h.first.diff(f.vm_seq) > 0 { h.first } else { f.vm_seq };
        assert!(f.vm_seq.diff(h.tail) >= 0 || f.next_seq == h.tail, "{f:?} {h:?}");
        let mut kept = vec![(first, h.tail)];
        let ahead = h.ahead.chunks_exact(2).take(h.ahead_count as usize);
        for (place, one) in ahead.clone().enumerate() {
            let touches = |other: &[seq]| one[0].diff(other[1]) <= 0 && other[0].diff(one[1]) <= 0;
            assert!(!ahead.clone().skip(place + 1).any(touches), "pieces touch: {h:?}");
        }
        kept.extend(ahead.map(|edges| (edges[0], edges[1])));
        for (from, to) in kept {
            let len = to.diff(from);
            if len > 0 {
                assert!(from.diff(base) >= 0, "{} was given back: {f:?} {h:?}", from.v);
                let found = self.m.stream(f.hold.into(), from, len as u32);
                assert!(found == bytes(from, len as u32), "kept wrong: {f:?} {h:?}");
            }
        }
    }
}

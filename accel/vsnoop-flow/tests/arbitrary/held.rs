//! A flow with a hold under arbitrary segments from both sides, with an engine that writes
//! arbitrary values and memory that runs out.
//!
//! The input bytes are a program, as in `machine.rs`. Each byte of the stream is a function of its
//! sequence number, so that copies can be checked. Shared with the fuzz target `hold`.

use vsnoop_flow::hold::{self, Copied, Hand, Kept, Verdict};
use vsnoop_flow::{
    FromVm, continues_passive, end_vm_lease, flow, grant_lease, grant_vm_lease, lease_covers,
    outcome, pass_by_vm_lease, policy, port_state, segment, seq,
    types::{self, *},
};

use crate::memory::ModelHold;
use crate::tape::Tape;

const SECOND: u64 = 1_000_000_000;
/// HOLD_STALE_NS and HOLD_ENGINE_GONE_NS.
const STALE: u64 = SECOND;
const ENGINE_GONE: u64 = HOLD_ENGINE_GONE_S as u64 * SECOND;

/// How often the interesting verdicts came.
#[derive(Debug, Default)]
pub struct Seen {
    pub early: u64,
    pub handed_on: u64,
    pub held: u64,
    pub leased: u64,
    pub vm_leased: u64,
    pub out_of_order: u64,
    pub full: u64,
    pub withheld: u64,
    pub waiting: u64,
    pub fins: u64,
    pub all_handed: u64,
    pub forwarded: u64,
    pub reacked: u64,
    pub dropped: u64,
    pub sender_acks: u64,
    pub suppressed: u64,
    pub rewritten: u64,
    pub replaced: u64,
    pub freed: u64,
    pub raced: u64,
    pub told: u64,
    pub refused: u64,
    pub silent: u64,
    pub engine_gone: u64,
    pub ended: u64,
}

struct HeldFlow<'a> {
    tape: Tape<'a>,
    f: flow,
    m: ModelHold,
    port: port_state,
    policy: policy,
    now: u64,
    /// The highest ACK that the sender has seen.
    told: seq,
    seen: &'a mut Seen,
}

/// No jiffy ends: a lease lasts until something else ends it.
const JIFFY: u64 = 1;

/// The byte that has this sequence number.
fn content(at: seq) -> u8 {
    (at.v.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn bytes(from: seq, len: u32) -> impl ExactSizeIterator<Item = u8> {
    (0..len).map(move |i| content(from.add(i)))
}

/// Runs the program.
pub fn run(program: &[u8], seen: &mut Seen) {
    let mut tape = Tape(program);
    let now = 10 * SECOND;
    let policy = policy {
        run: port_run::PORT_ACCELERATE,
        passive: u32::from(tape.byte()) % 2,
        hold_chunks: 4 + u32::from(tape.byte()) % 60,
        ahead: match tape.byte() % 4 {
            0 => 0,
            1 => tape.half().into(),
            _ => u32::MAX,
        },
        silence_ms: if tape.byte() % 2 == 0 { 300_000 } else { 20_000 },
        ..policy::default()
    };
    let f = begin(&mut tape, now);
    let port = port_state { engine_ns: now, slabs: SLABS, ..port_state::default() };
    let (m, told) = (ModelHold::default(), f.next_seq);
    let mut m = HeldFlow { f, m, port, policy, tape, now, told, seen };
    while !m.tape.0.is_empty() {
        m.step();
        m.sound();
    }
}

/// A flow of any origin: the VM accepted the connection, or it was found in mid-stream.
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
    let ack = segment {
        seq: iss,
        ack: syn_ack.seq.add(1),
        tcp_flags: TCP_ACK as u8,
        bits: SEG_TIMESTAMPS as u16,
        ..segment::default()
    };
    if tape.byte().is_multiple_of(8) {
        let of_vm = segment { seq: ack.ack, ack: iss, window: syn_ack.window, ..ack };
        return vsnoop_flow::flow_mid_flow(&of_vm, now).expect("an ACK of the VM");
    }
    let e = vsnoop_flow::embryo_of_vm(&syn_ack);
    vsnoop_flow::flow_accepted(&e, &ack, now).expect("the handshake is whole")
}

impl HeldFlow<'_> {
    fn step(&mut self) {
        match self.tape.byte() % 16 {
            0..=6 => self.towards_vm(),
            7 => self.bulk(),
            8..=10 => self.vm_sends(),
            11 if self.tape.byte() < 8 => self.vm_resets(),
            11 => self.vm_sends_duplicate_acks(),
            12 => {
                self.now += u64::from(self.tape.half()) << (self.tape.byte() % 22);
                if self.tape.byte() < 230 {
                    self.port.engine_ns = self.now;
                }
            }
            13 => {
                self.policy.run = match self.tape.byte() {
                    0..=220 => port_run::PORT_ACCELERATE,
                    other => u32::from(other) % 3,
                }
            }
            14 => self.engine(),
            _ => self.reclaim(),
        }
    }

    fn has_hold(&self) -> bool {
        self.f.hold != 0
    }

    /// The VM has sent nothing for `silence_ms`.
    fn is_silent(&self) -> bool {
        let stamps = ((self.now >> 20) as u32).wrapping_sub(self.f.heard_at) as i32;
        stamps > 0 && (stamps as u64) << 20 > u64::from(self.policy.silence_ms) * 1_000_000
    }

    /// An engine writes values, valid or not.
    fn engine(&mut self) {
        if !self.has_hold() {
            return;
        }
        let how = self.tape.byte();
        let any = self.tape.word();
        let h = &mut self.m.hold;
        let fin = u32::from(u32::from(h.flags) & HOLD_FIN != 0);
        match how {
            0..=110 => {
                h.handed = h.tail.add(fin);
                h.handed_tsval = h.tsval;
                h.resends += u32::from(how < 30);
                h.probes += u32::from(how > 100);
            }
            111..=200 => {
                let left = h.tail.diff(h.high_seq).max(0) as u32;
                h.handed = h.high_seq.add(any % (left + 1));
            }
            201..=230 => h.handed = seq::new(any),
            _ => h.handed_tsval = any,
        }
        h.woken = 0;
    }

    /// Frees the hold of a flow that is over, or idle.
    fn reclaim(&mut self) {
        let is_over = u32::from(self.f.mode) == flow_mode::FLOW_RESET
            || u32::from(self.f.flags) & FLOW_F_CLOSED != 0;
        let is_idle = hold::is_idle(&self.f, &self.m.hold, self.now);
        if self.has_hold() && (is_over || is_idle) {
            self.f.hold = 0;
            self.m.give_back();
            self.seen.ended += 1;
        }
    }

    /// A sequence number close to one that matters.
    fn near(&mut self, of_vm: bool) -> seq {
        let how = self.tape.byte();
        let f = &self.f;
        let tail = if self.has_hold() { self.m.hold.tail } else { f.next_seq };
        let edge = if how & 0x20 == 0 { f.right_edge } else { f.adv_edge };
        let points = if of_vm {
            [f.snd_nxt, f.snd_una, f.snd_nxt, f.snd_una]
        } else {
            [f.next_seq, f.vm_seq, f.high_seq, if how & 0x80 == 0 { edge } else { tail }]
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
        let len = self.tape.payload_len(how);
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
            // The next segment of a sender of data only.
            (s.seq, s.ack) = (self.f.next_seq, self.f.snd_nxt);
        }
        self.arrives(&s);
    }

    /// Full segments, one after the other.
    fn bulk(&mut self) {
        if self.tape.byte() & 3 == 0 {
            // More than a tape has came before, without a loss.
            self.f.ramp = 128;
        }
        for _ in 0..self.tape.byte() % 24 {
            // What is left to the VM goes on behind what it was handed.
            let is_passive = u32::from(self.f.mode) == flow_mode::FLOW_PASSIVE;
            let s = segment {
                seq: if is_passive { self.f.high_seq } else { self.f.next_seq },
                ack: self.f.snd_nxt,
                len: 1_448,
                tsval: (self.now >> 20) as u32,
                tsecr: (self.now >> 20) as u32,
                window: 1_000,
                unit_len: 1_448,
                tcp_flags: TCP_ACK as u8,
                bits: SEG_TIMESTAMPS as u16,
                ..segment::default()
            };
            self.arrives(&s);
            if u32::from(self.f.mode) == flow_mode::FLOW_PASSIVE && self.tape.byte() & 1 != 0 {
                self.vm_follows();
            }
        }
    }

    /// The VM acknowledges some bytes more, and opens its window as far, or leaves its edge.
    fn vm_follows(&mut self) {
        let f = &self.f;
        let (ack, how) = (f.vm_seq.add(700), self.tape.byte());
        let edge = f.right_edge.max(f.adv_edge).add(if how & 1 != 0 { 700 } else { 0 });
        let window = (edge.diff(ack).max(0) >> f.scale) + 1;
        let s = segment {
            seq: f.snd_nxt,
            ack,
            tsval: (self.now >> 20) as u32,
            tsecr: (self.now >> 20) as u32,
            window: window.min(0xffff) as u16,
            tcp_flags: TCP_ACK as u8,
            bits: SEG_TIMESTAMPS as u16,
            ..segment::default()
        };
        self.hear(&s);
    }

    /// A segment of the sender.
    fn arrives(&mut self, s: &segment) {
        // Sometimes all holds are taken.
        let is_active = u32::from(self.f.mode) == flow_mode::FLOW_ACTIVE;
        if !self.has_hold() && s.len > 0 && is_active && self.tape.byte() & 7 != 0 {
            self.m.take(&mut self.f);
        }
        if !self.has_hold() {
            return self.without_hold(s);
        }
        if self.passes_by_lease(s) {
            return;
        }
        let before = self.f;
        let (verdict, out) =
            hold::to_vm(&mut self.f, &mut self.m.hold, s, &self.port, &self.policy, self.now);
        let learnt = before.next_seq.max(before.vm_seq);
        assert_eq!(self.f.next_seq, learnt, "NEXT_SEQ moved before the copy");
        self.note_all_handed(&before);
        self.refused_changes_nothing(&before, s);
        self.settle(&out);
        if self.is_silent() {
            self.seen.silent += 1;
            let answers = matches!(verdict, Verdict::Keep { .. } | Verdict::Reack);
            let is_challenge = u32::from(s.tcp_flags) & TCP_RST != 0;
            assert!(!answers || is_challenge, "answered for a silent VM: {verdict:?} {s:?}");
        }
        let is_new = out.events & EVENT_SENDER_ACK != 0;
        self.seen.sender_acks += u64::from(is_new);
        match verdict {
            Verdict::Pass => assert!(!is_new, "the VM gets it all"),
            Verdict::Reset => {
                self.seen.engine_gone += u64::from(out.events & EVENT_ENGINE_GONE != 0);
                assert_eq!(u32::from(self.f.mode), flow_mode::FLOW_RESET);
            }
            Verdict::Reack => {
                self.seen.reacked += 1;
                self.tells(out.ack.ack);
            }
            Verdict::Drop => {
                self.seen.dropped += 1;
                self.seen.fins += u64::from(u32::from(s.tcp_flags) & TCP_FIN != 0);
            }
            Verdict::Forward => {
                self.seen.forwarded += 1;
                let rst = u32::from(s.tcp_flags) & TCP_RST != 0;
                assert!(s.len == 0 || rst, "data was forwarded");
                assert!(!is_new, "the VM gets it");
                let unconfirmed = u32::from(self.f.flags) & FLOW_F_UNCONFIRMED != 0;
                assert!(!unconfirmed || out.ack.seq == self.f.vm_seq, "it has no connection yet");
                assert!(out.ack.seq.diff(self.f.high_seq) <= 0, "beyond what the VM has");
            }
            Verdict::Keep { skip, hand } => self.keep(s, skip, hand, out),
        }
    }

    /// Passes the segment by its lease if the hooks would; a full decision must pass it, too.
    fn passes_by_lease(&mut self, s: &segment) -> bool {
        if lease_covers(&self.f, s, JIFFY) {
            let (mut f, mut h) = (self.f, self.m.hold);
            let (verdict, _) = hold::to_vm(&mut f, &mut h, s, &self.port, &self.policy, self.now);
            assert_eq!(verdict, Verdict::Pass, "a lease covers {s:?}: {:?}", self.f);
            self.f.high_seq = s.seq.add(s.len);
            self.seen.leased += 1;
            return true;
        }
        if continues_passive(&self.f, s, &self.port, &self.policy, self.now) {
            grant_lease(&mut self.f, s, JIFFY);
        }
        false
    }

    /// A segment that the VM would refuse altogether changes nothing. The ACK of an old segment may
    /// count.
    fn refused_changes_nothing(&self, before: &flow, s: &segment) {
        let edge = before.right_edge.diff(before.adv_edge).max(0) as u32;
        let edge = before.adv_edge.add(edge);
        let knows_scale = u32::from(before.flags) & FLOW_F_SCALE_KNOWN != 0;
        let fin = u32::from(s.tcp_flags) & TCP_FIN != 0;
        let is_old = s.seq.add(s.len + u32::from(fin)).diff(before.vm_seq) < 0;
        let is_refused = s.ack.diff(before.snd_nxt) > 0 || (knows_scale && s.seq.diff(edge) > 0);
        let is_plain = u32::from(s.tcp_flags) & (TCP_SYN | TCP_RST | TCP_ACK) == TCP_ACK;
        if !is_plain || !(is_old || is_refused) {
            return;
        }
        let lasting = FLOW_F_FIN_SENDER | FLOW_F_FOREIGN | FLOW_F_CLOSED;
        let lasting = |f: &flow| (u32::from(f.flags) & lasting, f.mss);
        assert_eq!(lasting(&self.f), lasting(before), "{s:?}");
        assert!(!is_refused || self.f.snd_una == before.snd_una, "{s:?}");
        let bypass = flow_mode::FLOW_BYPASS;
        assert_eq!(u32::from(self.f.mode) == bypass, u32::from(before.mode) == bypass, "{s:?}");
    }

    fn keep(&mut self, s: &segment, skip: u32, hand: Hand, out: outcome) {
        let how = self.tape.byte();
        let from = s.seq.add(skip);
        assert!(skip < s.len && (skip == 0 || from == self.f.next_seq));
        let edge = if self.f.adv_edge.diff(self.f.right_edge) > 0 {
            self.f.adv_edge
        } else {
            self.f.right_edge
        };
        assert!(s.seq.add(s.len).diff(edge) <= 0, "it ends beyond what was shown");
        // Sometimes there is no memory.
        let most = (self.policy.hold_chunks * HOLD_CHUNK) as usize;
        let copied = how & 0xc0 != 0xc0 && self.m.copy(from, bytes(from, s.len - skip), most);
        if how & 0x30 == 0x30 {
            // Another CPU is faster.
            self.vm_sends();
        }
        let taken = hand == Hand::AndAck && copied && how & 7 != 0;
        let before = self.f;
        let (kept, out) = hold::kept(
            &mut self.f,
            &mut self.m.hold,
            s,
            Copied { copied, is_full: !copied, last: copied && how & 8 != 0, taken, out },
            &self.port,
            &self.policy,
            self.now,
        );
        self.settle(&out);
        self.seen.full += u64::from(out.events & EVENT_HOLD_FULL != 0);
        self.seen.withheld += u64::from(self.m.hold.reach.diff(self.m.hold.tail) > 0);
        let moved = self.f.next_seq.diff(before.next_seq);
        if kept == Kept::Reack {
            self.tells(out.ack.ack);
        }
        if matches!(kept, Kept::Drop | Kept::Reack) || (kept == Kept::Pass && hand != Hand::On) {
            return assert_eq!(moved, 0, "NEXT_SEQ moved without an ACK");
        }
        if moved == 0 && kept == Kept::Pass {
            // It is left to the VM.
            return;
        }
        assert!(copied, "acknowledged without a copy");
        assert_eq!(u32::from(s.tcp_flags) & (TCP_SYN | TCP_RST | TCP_URG), 0);
        assert_eq!(u32::from(s.bits) & SEG_FOREIGN, 0);
        assert_eq!(self.policy.run, port_run::PORT_ACCELERATE);
        if out.events & EVENT_OUT_OF_ORDER != 0 {
            self.tells(out.ack.ack);
            self.seen.out_of_order += 1;
            assert_eq!(moved, 0, "a hole was acknowledged");
            return;
        }
        assert!(self.f.next_seq.diff(s.seq.add(s.len)) >= 0);
        assert_eq!(self.m.hold.tail, self.f.next_seq, "acknowledged beyond what is kept");
        if kept == Kept::Pass {
            self.seen.handed_on += 1;
            return;
        }
        if kept == Kept::Wait {
            self.seen.waiting += 1;
        } else {
            self.tells(out.ack.ack);
        }
        self.seen.held += u64::from(!taken);
        self.seen.early += u64::from(taken);
        if !taken {
            assert_eq!(u32::from(self.f.mode), flow_mode::FLOW_HOLDING);
            assert!(self.now - self.port.engine_ns < STALE, "held for an engine that is gone");
        }
    }

    fn without_hold(&mut self, s: &segment) {
        let before = self.f;
        let (_, out) = vsnoop_flow::to_vm(&mut self.f, s, &self.port, &self.policy, self.now);
        let learnt = before.next_seq.max(before.vm_seq);
        assert_eq!(self.f.next_seq, learnt, "acknowledged without a copy");
        self.refused_changes_nothing(&before, s);
        self.settle(&out);
    }

    fn vm_sends(&mut self) {
        let mut s = self.segment(true);
        let how = self.tape.byte();
        if how < 224 {
            // The ACK of a VM that is behind, or has just caught up.
            let f = &self.f;
            let behind = f.next_seq.diff(f.vm_seq).clamp(0, 1_448 * i32::from(how / 64)) as u32;
            s.ack = [f.vm_seq, f.next_seq, f.high_seq, f.vm_seq.add(behind)][usize::from(how % 4)];
        }
        self.hear(&s);
    }

    /// The VM reports a loss with three duplicate ACKs.
    fn vm_sends_duplicate_acks(&mut self) {
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

    fn vm_resets(&mut self) {
        let s = segment { seq: self.f.snd_nxt, tcp_flags: TCP_RST as u8, ..segment::default() };
        self.hear(&s);
    }

    fn hear(&mut self, s: &segment) {
        if !self.has_hold() {
            let (_, out) = vsnoop_flow::from_vm(&mut self.f, s, &self.policy, self.now);
            self.passes(s.ack);
            return self.settle(&out);
        }
        if self.acks_by_lease(s) {
            return;
        }
        let before = self.f;
        let told = self.m.hold.duplicate_acks;
        let (verdict, out) =
            hold::from_vm(&mut self.f, &mut self.m.hold, s, &self.port, &self.policy, self.now);
        self.seen.told += u64::from(self.m.hold.duplicate_acks != told);
        self.seen.refused += u64::from(out.events & EVENT_REFUSED != 0);
        self.note_all_handed(&before);
        self.settle(&out);
        let f = self.f;
        assert!(f.next_seq.diff(before.next_seq) >= 0, "NEXT_SEQ went back");
        assert!(f.vm_seq.diff(before.vm_seq) >= 0, "VM_SEQ went back");
        let rst = u32::from(s.tcp_flags) & TCP_RST != 0;
        match verdict {
            FromVm::Pass => {
                self.passes(s.ack);
                grant_vm_lease(&mut self.f, &self.m.hold, JIFFY);
            }
            FromVm::Reset => {}
            FromVm::Drop => {
                self.seen.suppressed += 1;
                let fin = u32::from(s.tcp_flags) & TCP_FIN != 0;
                assert!(s.len == 0 && !fin && !rst, "more than an ACK was suppressed");
                assert!(s.ack.diff(f.next_seq) < 0, "the ACK of NEXT_SEQ was suppressed");
                // In units of 16 bytes.
                let growth = s.ack.diff(self.told);
                assert!(growth <= 64, "the VM's ACK was new to the sender: {growth} {f:?}");
            }
            FromVm::Rewrite | FromVm::Replace => {
                self.seen.rewritten += u64::from(verdict == FromVm::Rewrite);
                self.seen.replaced += u64::from(verdict == FromVm::Replace);
                assert!(out.ack.ack.diff(s.ack) >= 0, "an ACK was lowered");
                if out.ack.ack == s.ack && u32::from(before.flags) & FLOW_F_CHALLENGE_DUE != 0 {
                    self.passes(s.ack);
                } else {
                    self.tells(out.ack.ack);
                }
                assert!(verdict == FromVm::Rewrite || s.len == 0, "data of the VM was replaced");
            }
            FromVm::ResetBoth => {
                assert_eq!(u32::from(f.mode), flow_mode::FLOW_RESET);
                assert_ne!(out.events & EVENT_ENGINE_GONE, 0);
                self.seen.engine_gone += 1;
                assert!(self.now - self.port.engine_ns >= ENGINE_GONE);
            }
        }
        if out.events & EVENT_CLOSED != 0 {
            let outstanding = f.next_seq.diff(f.vm_seq);
            assert!(rst || outstanding <= 0, "a record with {outstanding} bytes was removed");
        }
        if out.events & EVENT_FREE != 0 {
            self.free();
        }
    }

    /// Frees chunks after the lock was given back. Another CPU may be faster; it cannot claim them.
    fn free(&mut self) {
        let how = self.tape.byte();
        if how < 128 {
            self.seen.raced += 1;
            if how < 96 { self.vm_sends() } else { self.towards_vm() }
        }
        assert_eq!(self.m.hold.claimed, 1, "a claim was ended by another");
        self.seen.freed += 1;
        self.m.free(1 + u32::from(how) % 32);
    }

    /// Passes the ACK by the VM's lease if the hooks would. A full decision must pass it, too, and
    /// learn the same; it may show more of the hold's window.
    fn acks_by_lease(&mut self, s: &segment) -> bool {
        let (mut f, mut h) = (self.f, self.m.hold);
        if !pass_by_vm_lease(&mut self.f, s, JIFFY, self.now) {
            return false;
        }
        let (mut by_lease, mut hold) = (self.f, self.m.hold);
        end_vm_lease(&mut by_lease, &mut hold);
        let (verdict, out) = hold::from_vm(&mut f, &mut h, s, &self.port, &self.policy, self.now);
        match verdict {
            FromVm::Pass => assert_eq!(by_lease.adv_edge, f.adv_edge, "{s:?}: {f:?}"),
            FromVm::Rewrite => assert_eq!(out.ack.ack, s.ack, "{s:?}: {f:?}"),
            _ => panic!("a lease covers {s:?}, {verdict:?}: {f:?}"),
        }
        assert_eq!(out.events & !EVENT_PROMPT, 0, "{s:?}: {f:?}");
        let of_flow = |f: &flow| {
            let times = (f.vm_tsval, f.progress_ns, f.heard_at, f.sample, f.sample_seq);
            (f.mode, f.flags, f.vm_seq, f.next_seq, f.right_edge, f.high_seq, times)
        };
        assert_eq!(of_flow(&by_lease), of_flow(&f), "{s:?}");
        // A full decision may lower it, too.
        assert!(by_lease.ts_recent.wrapping_sub(f.ts_recent) as i32 >= 0, "{s:?}: {f:?}");
        let of_hold = |h: &types::hold| (h.vm_seq, h.first, h.tail, h.sure, h.chunks);
        assert_eq!(of_hold(&hold), of_hold(&h), "{s:?}");
        self.passes(s.ack);
        self.seen.vm_leased += 1;
        true
    }

    /// The host sends an ACK.
    fn tells(&mut self, ack: seq) {
        assert_eq!(ack, self.f.next_seq);
        self.told = ack;
    }

    /// The VM's own ACK reaches the sender.
    fn passes(&mut self, ack: seq) {
        if ack.diff(self.told) > 0 && ack.diff(self.f.next_seq) <= 0 {
            self.told = ack;
        }
    }

    fn note_all_handed(&mut self, before: &flow) {
        let (was, is) = (u32::from(before.mode), u32::from(self.f.mode));
        let holding = flow_mode::FLOW_HOLDING;
        self.seen.all_handed += u64::from(was == holding && is == flow_mode::FLOW_ACTIVE);
    }

    fn settle(&mut self, out: &outcome) {
        vsnoop_flow::learn(&mut self.port, out, self.now);
    }

    /// Checks the invariants.
    fn sound(&self) {
        let f = &self.f;
        let is_behind = f.next_seq.diff(f.vm_seq) < 0;
        assert!(!is_behind || f.vm_lease != 0, "NEXT_SEQ is behind VM_SEQ: {f:?}");
        assert!(u32::from(f.mode) < flow_mode::FLOW_MODES);
        let is_holding = u32::from(f.mode) == flow_mode::FLOW_HOLDING;
        if !self.has_hold() {
            assert!(!is_holding, "holding without a hold: {f:?}");
            return;
        }
        let h = &self.m.hold;
        assert_eq!(h.claimed, 0, "a claim was not ended");
        assert!(h.range_count <= 4);
        assert!(h.rcv_win / HOLD_CHUNK <= self.policy.hold_chunks);
        let is_over =
            u32::from(f.mode) == flow_mode::FLOW_RESET || u32::from(f.flags) & FLOW_F_CLOSED != 0;
        let fin = u32::from(h.flags) & HOLD_FIN != 0;
        if is_over || (fin && f.next_seq != h.tail && f.next_seq != h.tail.add(1)) {
            // The VM has acknowledged bytes beyond the sender's FIN.
            return;
        }
        // All bytes that the host has acknowledged and the VM has not are kept, and so are those
        // that wait in the last memory, and the out-of-order ranges.
        let ranges = h.ranges.chunks_exact(2).take(h.range_count as usize);
        for (at, one) in ranges.clone().enumerate() {
            let touches = |other: &[seq]| one[0].diff(other[1]) <= 0 && other[0].diff(one[1]) <= 0;
            assert!(!ranges.clone().skip(at + 1).any(touches), "ranges touch: {h:?}");
        }
        self.is_kept(f.vm_seq, f.next_seq);
        assert!(h.reach.diff(h.tail) >= 0, "{h:?}");
        self.is_kept(h.tail, h.reach);
        for edges in ranges {
            // The CPU with the claim may free what the VM acknowledges meanwhile, and the range is
            // removed with the next ACK.
            self.is_kept(edges[0].max(f.vm_seq), edges[1]);
        }
    }

    fn is_kept(&self, from: seq, to: seq) {
        if to.diff(from) <= 0 {
            return;
        }
        let (f, h) = (&self.f, &self.m.hold);
        let found = self.m.stream(from, to);
        let found = found.unwrap_or_else(|| panic!("no copy of {from:?} to {to:?}: {f:?} {h:?}"));
        // Compares all of it sometimes; chunks freed too early are missing at the left edge.
        let most = if self.tape.0.len() % 64 < 4 { found.len() } else { 16 };
        let right = bytes(from, found.len() as u32).map(Some);
        assert!(found.iter().copied().zip(right).take(most).all(|(a, b)| a == b), "{f:?} {h:?}");
    }
}

//! The two hooks, step by step as in bpf/vsnoop.bpf.c and bpf/decide.h: parse, decide, act.

use vsnoop_flow::hold::{self, Kept};
use vsnoop_flow::testing::record::{reply, rewrite_ack, rewrite_seq};
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::types::*;
use vsnoop_flow::{FromVm, ack_fields, outcome, segment};

use crate::checks::Made;
use crate::world::{STALE, World};

/// What is decided of a segment for the VM, with a hold or without.
type Verdict = hold::Verdict;

impl World {
    /// The tap's egress. `depth` > 0: this is another CPU, in the middle of it.
    pub fn towards_vm(&mut self, c: usize, s: Seg, depth: u32) {
        if !self.attached || s.corrupt {
            self.push(c, s);
            return;
        }
        let now = self.now;
        let record = &mut self.connections[c].record;
        if record.flow.is_none() && !record.for_sender(&s, now) {
            self.push(c, s);
            return;
        }
        let (verdict, out) = self.decide(c, &s.view(), s.len() > 0);
        self.after(c, &out);
        if out.events & EVENT_ABANDONED != 0 {
            self.tally.abandoned += 1;
            self.may_be_abandoned(c);
        }
        match verdict {
            Verdict::Pass => {
                self.push(c, s);
            }
            Verdict::Reset => {
                self.send_to_sender(c, reply(&out.ack, RST), Made::Early);
            }
            Verdict::Reack => {
                self.tally.reacked += 1;
                let ack = self.reply(c, &out.ack);
                self.send_to_sender(c, ack, Made::Reacked);
            }
            Verdict::Deliver => self.deliver(c, s, depth),
            Verdict::Keep { skip, deliver } => self.keep(c, s, skip, deliver, depth),
            Verdict::Forward => {
                self.tally.forwarded += 1;
                let mut s = s;
                rewrite_seq(&mut s, &out.ack);
                self.push(c, s);
            }
            Verdict::Drop => self.tally.dropped += 1,
            Verdict::Busy => {
                assert!(depth > 0, "a claim was not ended");
                self.tally.busy += 1;
            }
        }
    }

    /// decide() of bpf/vsnoop.bpf.c.
    fn decide(&mut self, c: usize, s: &segment, has_data: bool) -> (Verdict, outcome) {
        let now = self.now;
        let connection = &mut self.connections[c];
        let f = connection.record.flow.as_mut().expect("there is a flow");
        let memory = &mut self.memory;
        let mut out = outcome { now, ..outcome::default() };
        // SAFETY: all pointers come from live references; the C code keeps none.
        unsafe {
            if flow_is_plain_ack(f, s) {
                flow_note_ack(f, s);
                if f.hold != 0 {
                    hold_note_sender(f, memory.hold_mut(f.hold.into()), s);
                }
                return (Verdict::Pass, out);
            }
            if u32::from(f.mode) == flow_mode::FLOW_ASIDE
                && flow_continues_aside(f, s, &memory.port, &memory.policy, now)
            {
                flow_note_aside(f, s);
                out.events = EVENT_ASIDE;
                return (Verdict::Pass, out);
            }
        }
        let has_memory = memory.policy.hold_chunks > 0;
        if has_memory && (f.hold != 0 || (has_data && memory.take(&connection.key, f))) {
            let number = u32::from(f.hold);
            let (h, port, policy) = memory.parts(number);
            let (verdict, out) = hold::to_vm(f, h, s, port, policy, now);
            if verdict != Verdict::Busy {
                return (verdict, out);
            }
            // bpf/decide.h, wait_for_hold(): the other CPU gives chunks back, or it copies.
            self.finish_frees();
            let f = self.connections[c].record.flow.as_mut().expect("still there");
            let (h, port, policy) = self.memory.parts(number);
            return hold::to_vm(f, h, s, port, policy, now);
        }
        self.tally.without_hold += u64::from(has_data);
        // SAFETY: as above.
        if unsafe { flow_is_early(f, s, &memory.port, &memory.policy, now) } {
            return (Verdict::Deliver, out);
        }
        let (verdict, out) = vsnoop_flow::to_vm(f, s, &memory.port, &memory.policy, now);
        let verdict = match verdict {
            vsnoop_flow::Verdict::Pass => Verdict::Pass,
            vsnoop_flow::Verdict::Deliver => Verdict::Deliver,
            vsnoop_flow::Verdict::Reack => Verdict::Reack,
            vsnoop_flow::Verdict::Reset => Verdict::Reset,
        };
        (verdict, out)
    }

    /// keep() of bpf/vsnoop.bpf.c.
    fn keep(&mut self, c: usize, s: Seg, skip: u32, deliver: bool, depth: u32) {
        let number = self.number(c);
        let from = vsnoop_flow::seq::new(s.seq).add(skip);
        let copied = self.memory.copy(number, from, &s.data[skip as usize..]);
        let (inexact, races) = (self.sc.inexact, self.sc.races);
        if depth == 0 && self.chance(races) {
            self.race(c, &s);
        }
        let taken = copied && deliver && !self.chance(inexact) && self.push(c, s.clone());
        if depth == 0 && self.chance(races) {
            self.race(c, &s);
        }
        let now = self.now;
        let f = self.connections[c].record.flow.as_mut();
        let Some(f) = f.filter(|f| u32::from(f.hold) == number) else {
            self.memory.hold_mut(number).busy = 0;
            if !taken {
                self.push(c, s);
            }
            return;
        };
        let (h, port, policy) = self.memory.parts(number);
        let (kept, out) = hold::kept(f, h, &s.view(), (copied, taken), port, policy, now);
        self.after(c, &out);
        match kept {
            Kept::Pass => {
                self.push(c, s);
            }
            Kept::Drop => self.tally.dropped += 1,
            Kept::Ack => {
                assert!(copied, "acknowledged without a copy");
                let silent = now - self.memory.port.engine_ns;
                assert!(taken || silent < STALE, "held for an engine that is gone for {silent} ns");
                if out.events & EVENT_AHEAD != 0 {
                    self.tally.ahead += 1;
                } else if taken {
                    self.tally.early += 1;
                } else {
                    self.tally.held += 1;
                }
                let ack = self.reply(c, &out.ack);
                self.send_to_sender(c, ack, Made::Early);
            }
        }
    }

    /// Without a copy.
    fn deliver(&mut self, c: usize, s: Seg, depth: u32) {
        let (inexact, races) = (self.sc.inexact, self.sc.races);
        let taken = !self.chance(inexact) && self.push(c, s.clone());
        if depth == 0 && self.chance(races) {
            self.race(c, &s);
        }
        let (policy, now) = (self.memory.policy, self.now);
        let Some(f) = self.connections[c].record.flow.as_mut() else {
            if !taken {
                self.push(c, s);
            }
            return;
        };
        let (ack, out) = vsnoop_flow::delivered(f, &s.view(), taken, &policy, now);
        self.after(c, &out);
        if !taken {
            self.push(c, s);
        } else if ack {
            self.tally.strict += 1;
            let ack = self.reply(c, &out.ack);
            self.send_to_sender(c, ack, Made::Early);
        }
    }

    /// Another CPU, the VM or the engine gets in before a decision is carried out.
    fn race(&mut self, c: usize, s: &Seg) {
        match self.rng.u32(0..5) {
            0 => self.vm_acts(),
            1 => self.towards_vm(c, s.clone(), 1),
            2 => {
                // The next segment of the stream overtakes this one.
                let connection = &self.connections[c];
                let sender = &connection.sender;
                let mut next = s.clone();
                next.seq = s.seq.wrapping_add(s.len());
                let at = position(next.seq, sender.cfg.iss, connection.vm.rcv_nxt) as u64;
                if at + u64::from(s.len()) <= sender.nxt.min(sender.cfg.bytes + 1) {
                    next.data = sender.payload(at, u64::from(s.len()));
                    self.towards_vm(c, next, 1);
                }
            }
            3 => self.engine_runs(),
            _ => self.finish_frees(),
        }
    }

    /// The tap's ingress.
    pub fn vm_sends(&mut self, c: usize, mut s: Seg) {
        self.granted(c);
        if !self.attached {
            return self.send_to_sender(c, s, Made::Passed);
        }
        let now = self.now;
        let record = &mut self.connections[c].record;
        if s.has(SYN) {
            record.syn_of_vm(&s);
            return self.send_to_sender(c, s, Made::Passed);
        }
        if record.flow.is_none() && !record.for_vm(&s, now) {
            return self.send_to_sender(c, s, Made::Passed);
        }
        let f = record.flow.as_mut().expect("found or made above");
        let number = u32::from(f.hold);
        let is_challenge = u32::from(f.flags) & FLOW_F_CHALLENGE_DUE != 0;
        let (verdict, out) = if number != 0 {
            let (h, port, policy) = self.memory.parts(number);
            hold::from_vm(f, h, &s.view(), port, policy, now)
        } else {
            vsnoop_flow::from_vm(f, &s.view(), &self.memory.policy, now)
        };
        let next = f.next_seq;
        self.after(c, &out);
        if !s.sack.is_empty() && out.events & EVENT_WAKE != 0 {
            // bpf/hold.h, hand_sack_on().
            let h = self.memory.hold_mut(number);
            h.sack_count = s.sack.len().min(4) as u32;
            for (edges, block) in h.sack.chunks_exact_mut(2).zip(&s.sack) {
                edges.copy_from_slice(&[seq::new(block.0), seq::new(block.1)]);
            }
        }
        match verdict {
            FromVm::Pass if is_challenge => self.send_to_sender(c, s, Made::Challenge),
            FromVm::Pass => self.send_to_sender(c, s, Made::Passed),
            FromVm::Drop => {
                self.tally.suppressed += 1;
                assert!(s.len() == 0 && !s.has(FIN), "data of the VM was suppressed");
                assert!(s.ack != next.v, "the ACK of NEXT_SEQ was suppressed");
            }
            FromVm::Rewrite => {
                self.tally.rewritten += 1;
                rewrite_ack(&mut s, &out.ack);
                self.send_to_sender(c, s, Made::Rewritten);
            }
            FromVm::Reset => {
                self.push(c, reply(&out.ack, RST));
            }
            FromVm::Loss => {
                if out.events & EVENT_ABANDONED != 0 {
                    self.tally.abandoned += 1;
                    self.may_be_abandoned(c);
                } else {
                    self.tally.losses += 1;
                    self.may_be_lost(c);
                }
                self.push(c, reply(&out.ack, RST));
                let to_sender = ack_fields { seq: out.ack.ack, ..out.ack };
                self.send_to_sender(c, reply(&to_sender, RST), Made::Early);
            }
        }
    }

    /// settle() of bpf/decide.h.
    fn after(&mut self, c: usize, out: &outcome) {
        let (events, number) = (out.events, self.number(c));
        vsnoop_flow::learn(&mut self.memory.port, out, self.now);
        self.tally.aside += u64::from(events & EVENT_ASIDE != 0);
        self.tally.full += u64::from(events & EVENT_HOLD_FULL != 0);
        if events & EVENT_FREE != 0 {
            self.frees.push(number);
            self.free_soon();
        }
        if events & EVENT_WAKE != 0 {
            let h = self.memory.hold_mut(number);
            if h.rung == 0 {
                h.rung = 1;
                self.doorbell.push(number);
                self.wake_engine();
            }
        }
        self.audit(c);
        if events & EVENT_CLOSED != 0 {
            self.tally.closed += 1;
            self.remove(c);
        }
    }

    /// The number of a connection's hold; 0: it has none.
    pub fn number(&self, c: usize) -> u32 {
        self.connections[c].record.flow.map_or(0, |f| f.hold.into())
    }

    /// The packet of bpf/reply.h, with the pieces beyond a hole.
    fn reply(&self, c: usize, ack: &ack_fields) -> Seg {
        let mut s = reply(ack, ACK);
        if ack.sack != 0 {
            assert!(self.connections[c].vm.sack, "SACK is not permitted");
            let h = self.memory.hold(ack.sack);
            let pieces = h.ahead.chunks_exact(2).take(h.ahead_count.min(3) as usize);
            s.sack = pieces.map(|edges| (edges[0].v, edges[1].v)).collect();
        }
        s
    }
}

//! The two hooks, step by step as in bpf/vsnoop.bpf.c and bpf/setup.h, around
//! the same decision core: parse, decide (bpf/decide.h), act.

use vsnoop_flow::testing::record::{reply, rewrite_ack};
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::{
    FromVm, Verdict, ack_fields, flow, outcome, policy, port_state, segment, types::*,
};

use crate::checks::Made;
use crate::world::World;

impl World {
    /// The tap's egress. `depth` > 0: this is another CPU, in the middle of it.
    pub fn towards_vm(&mut self, s: Seg, depth: u32) {
        if !self.attached || s.corrupt {
            self.push(s);
            return;
        }
        let view = s.view();
        let now = self.now;
        if self.record.flow.is_none() && !self.record.for_sender(&s, now) {
            self.push(s);
            return;
        }
        let (port, policy) = (self.port, self.policy);
        let f = self.record.flow.as_mut().expect("found or made above");
        let (verdict, out) = without_lock(f, &view, &port, &policy, now)
            .unwrap_or_else(|| vsnoop_flow::to_vm(f, &view, &port, &policy, now));
        self.after(&out);
        match verdict {
            Verdict::Pass => {
                self.push(s);
            }
            Verdict::Reset => {
                self.send_to_sender(reply(&out.ack, RST), Made::Early);
            }
            Verdict::Reack => {
                self.tally.reacked += 1;
                let ack = reply(&out.ack, ACK);
                self.checks.early(&s, &ack, self.record.flow.as_ref().expect("still there"));
                self.send_to_sender(ack, Made::Reacked);
            }
            Verdict::Deliver => self.deliver(s, depth),
        }
    }

    fn deliver(&mut self, s: Seg, depth: u32) {
        let (inexact, races) = (self.sc.inexact, self.sc.races);
        let taken = !self.chance(inexact) && self.push(s.clone());
        if !taken {
            self.tally.ring_full += 1;
        }
        if depth == 0 && self.chance(races) {
            self.race(&s);
        }
        let Some(f) = self.record.flow.as_mut() else {
            if !taken {
                self.push(s);
            }
            return;
        };
        let (ack, out) = vsnoop_flow::delivered(f, &s.view(), taken, &self.policy, self.now);
        let f = *f;
        self.after(&out);
        if !taken {
            // The original goes the ordinary way; there may be room by now.
            self.push(s);
        } else if ack {
            self.tally.early += 1;
            let ack = reply(&out.ack, ACK);
            self.checks.early(&s, &ack, &f);
            self.send_to_sender(ack, Made::Early);
        }
    }

    /// Another CPU, or the VM, gets in before the decision is carried out.
    fn race(&mut self, s: &Seg) {
        match self.rng.u32(0..4) {
            0 => {
                self.vm_poll();
                while let Some(s) = self.vm.out.pop_front() {
                    self.vm_sends(s);
                }
            }
            1 => self.towards_vm(s.clone(), 1),
            2 => {
                // The next segment of the stream overtakes this one.
                let mut next = s.clone();
                next.seq = s.seq.wrapping_add(s.len());
                let at = position(next.seq, self.sender.cfg.iss, self.vm.rcv_nxt) as u64;
                if at + u64::from(s.len()) <= self.sender.nxt.min(self.sender.cfg.bytes + 1) {
                    next.data = self.sender.payload(at, u64::from(s.len()));
                    self.towards_vm(next, 1);
                }
            }
            _ => self.policy.run = port_run::PORT_PAUSED,
        }
    }

    /// The tap's ingress.
    pub fn vm_sends(&mut self, mut s: Seg) {
        self.checks.granted(&self.vm);
        if !self.attached {
            return self.send_to_sender(s, Made::Passed);
        }
        let view = s.view();
        let now = self.now;
        if s.has(SYN) {
            self.record.syn_of_vm(&s);
            return self.send_to_sender(s, Made::Passed);
        }
        if self.record.flow.is_none() && !self.flow_for_vm(&s) {
            return self.send_to_sender(s, Made::Passed);
        }
        let policy = self.policy;
        let f = self.record.flow.as_mut().expect("found or made above");
        let (verdict, out) = vsnoop_flow::from_vm(f, &view, &policy, now);
        let snapshot = *f;
        self.after(&out);
        match verdict {
            FromVm::Pass => self.send_to_sender(s, Made::Passed),
            FromVm::Drop => {
                self.tally.suppressed += 1;
                assert!(s.len() == 0 && !s.has(FIN), "data of the VM was suppressed");
                assert!(s.ack != snapshot.next_seq.v, "the ACK of NEXT_SEQ was suppressed");
            }
            FromVm::Rewrite => {
                self.tally.rewritten += 1;
                rewrite_ack(&mut s, &out.ack);
                self.send_to_sender(s, Made::Rewritten);
            }
            FromVm::Reset => {
                self.push(reply(&out.ack, RST));
            }
            FromVm::Loss => {
                self.tally.losses += 1;
                assert!(
                    self.checks.vm_is_at_fault,
                    "a loss in the guest was seen where there was none: {snapshot:?}"
                );
                self.push(reply(&out.ack, RST));
                let to_sender = ack_fields { seq: out.ack.ack, ..out.ack };
                self.send_to_sender(reply(&to_sender, RST), Made::Early);
            }
        }
    }

    /// What follows every decision: learn, count, remove.
    fn after(&mut self, out: &outcome) {
        vsnoop_flow::learn(&mut self.port, out, self.now);
        let events = out.events;
        let t = &mut self.tally;
        t.aside += u64::from(events & EVENT_ASIDE != 0);
        t.capped += u64::from(events & EVENT_WINDOW_CAPPED != 0);
        for (i, bit) in
            [EVENT_OFFLINE_SEQ, EVENT_OFFLINE_NO_BUF, EVENT_OFFLINE_CE].into_iter().enumerate()
        {
            t.offline[i] += u64::from(events & bit != 0);
        }
        let Some(f) = self.record.flow else { return };
        if self.vm_is_open() && u32::from(f.mode) != flow_mode::FLOW_RESET {
            self.checks.record(&f, &self.vm, self.sender.cfg.iss);
        }
        if events & EVENT_CLOSED != 0 {
            self.tally.closed += 1;
            self.checks.removal(&f);
            self.record.flow = None;
        }
    }

    fn flow_for_vm(&mut self, s: &Seg) -> bool {
        let was_expected = self.record.embryo.is_some();
        let is_made = self.record.for_vm(s, self.now);
        let mid_flow = is_made && (!was_expected || self.record.embryo.is_some());
        self.tally.mid_flow += u64::from(mid_flow);
        is_made
    }
}

/// The frequent cases that bpf/decide.h settles before it takes the lock.
fn without_lock(
    f: &mut flow,
    s: &segment,
    port: &port_state,
    policy: &policy,
    now: u64,
) -> Option<(Verdict, outcome)> {
    let mut out = outcome { now, ..outcome::default() };
    // SAFETY: all pointers come from live references; the C code keeps none.
    unsafe {
        if flow_is_plain_ack(f, s) {
            flow_note_ack(f, s);
            return Some((Verdict::Pass, out));
        }
        if flow_is_early(f, s, port, policy, now) {
            return Some((Verdict::Deliver, out));
        }
        if flow_continues_aside(f, s, port, policy, now) {
            flow_note_aside(f, s);
            out.events = EVENT_ASIDE;
            return Some((Verdict::Pass, out));
        }
    }
    None
}

//! The receiving host: flows of one port behind an uplink, as bpf/decide.h and bpf/line.h do it.

use std::collections::VecDeque;

use vsnoop_flow::incast::{self, Served};
use vsnoop_flow::{
    FromVm, Verdict, ack_fields, flow, outcome, policy, port_state, segment, types::*,
};

/// An ACK that leaves for the sender of flow `.0`.
pub type Answer = (usize, ack_fields);

/// What became of a segment to the VM.
pub struct ToVm {
    /// The VM has been handed it.
    pub delivered: bool,
    pub answers: Vec<Answer>,
}

pub struct Host {
    pub uplink: uplink,
    pub port: port_state,
    pub policy: policy,
    pub flows: Vec<Option<flow>>,
    pub line: VecDeque<usize>,
    pub turns: u64,
}

impl Host {
    pub fn new(uplink: uplink, policy: policy) -> Self {
        Host {
            uplink,
            port: port_state::default(),
            policy,
            flows: Vec::new(),
            line: VecDeque::new(),
            turns: 0,
        }
    }

    fn is_on(&self) -> bool {
        self.uplink.rate != 0
    }

    /// What the VM's SYN or SYN-ACK is made to show: bpf/setup.h, syn_of_vm().
    pub fn syn_window(&self, window: u32) -> u32 {
        if !self.is_on() {
            return window;
        }
        window.min(incast::first_window(&self.uplink, INCAST_LEAST_MSS))
    }

    /// A decision of `decide` with incast control's part around it, under the lock; `answers`: does it
    /// end in an ACK?
    fn locked<T>(
        &mut self,
        id: usize,
        now: u64,
        decide: impl FnOnce(&mut flow, &port_state, &policy) -> (T, outcome),
        answers: impl FnOnce(&T) -> bool,
    ) -> Option<(T, outcome)> {
        let on = self.is_on();
        let f = self.flows[id].as_mut()?;
        let waits = on && incast::open(f, &mut self.uplink, now);
        let (verdict, mut out) = decide(f, &self.port, &self.policy);
        if waits {
            out.events |= EVENT_WAITS;
        }
        if f.incast.shaped != 0 {
            if answers(&verdict) {
                incast::note_shown(f, now);
            }
            if out.events & EVENT_CLOSED != 0 {
                incast::end(f, &mut self.uplink);
            }
        }
        vsnoop_flow::learn(&mut self.port, &out, now);
        if waits {
            self.line.push_back(id);
        }
        if out.events & EVENT_CLOSED != 0 {
            self.flows[id] = None;
        }
        Some((verdict, out))
    }

    /// A segment of the sender. The device always takes it.
    pub fn to_vm(&mut self, id: usize, s: &segment, now: u64) -> ToVm {
        self.arrived(id, s, now);
        self.decide_to_vm(id, s, now)
    }

    /// The part of it that needs no lock.
    pub fn arrived(&mut self, id: usize, s: &segment, now: u64) {
        let Some(f) = self.flows[id].as_mut() else { return };
        if f.incast.shaped != 0 && s.len > 0 {
            incast::received(f, &mut self.uplink, s, now);
        }
    }

    /// The rest; another CPU may get in before it.
    pub fn decide_to_vm(&mut self, id: usize, s: &segment, now: u64) -> ToVm {
        let mut answers = Vec::new();
        let Some(f) = self.flows[id].as_mut() else {
            return ToVm { delivered: true, answers };
        };
        // SAFETY: all pointers come from live references; the C code keeps none.
        let early = unsafe { flow_is_early(f, s, &self.port, &self.policy, now) };
        let verdict = if early {
            Verdict::Deliver
        } else {
            let decided = self.locked(
                id,
                now,
                |f, port, policy| vsnoop_flow::to_vm(f, s, port, policy, now),
                |&verdict| verdict == Verdict::Reack,
            );
            let Some((verdict, out)) = decided else {
                return ToVm { delivered: true, answers };
            };
            if verdict == Verdict::Reack {
                answers.push((id, out.ack));
            }
            verdict
        };
        match verdict {
            Verdict::Pass => ToVm { delivered: true, answers },
            Verdict::Reack | Verdict::Reset => ToVm { delivered: false, answers },
            Verdict::Deliver => {
                let delivered = self.locked(
                    id,
                    now,
                    |f, _, policy| vsnoop_flow::delivered(f, s, true, policy, now),
                    |&ack| ack,
                );
                if let Some((true, out)) = delivered {
                    // What would close its window can wait until its turn.
                    let turn = if out.events & EVENT_WAITS != 0 { self.turn(now) } else { None };
                    answers.push(turn.unwrap_or((id, out.ack)));
                }
                ToVm { delivered: true, answers }
            }
        }
    }

    /// A segment of the VM. The ACKs that leave, or its own with these fields.
    pub fn from_vm(&mut self, id: usize, s: &segment, now: u64) -> Vec<Answer> {
        let own = ack_fields {
            seq: s.seq,
            ack: s.ack,
            window: s.window,
            tsval: s.tsval,
            tsecr: s.tsecr,
            timestamps: u16::from(u32::from(s.bits) & SEG_TIMESTAMPS != 0),
            sack: 0,
        };
        let decided = self.locked(
            id,
            now,
            |f, _, policy| vsnoop_flow::from_vm(f, s, policy, now),
            |&verdict| verdict == FromVm::Rewrite,
        );
        let Some((verdict, out)) = decided else { return vec![(id, own)] };
        let mut answers = match verdict {
            FromVm::Pass => vec![(id, own)],
            FromVm::Rewrite => {
                vec![(id, ack_fields { ack: out.ack.ack, window: out.ack.window, ..own })]
            }
            FromVm::Drop => vec![],
            FromVm::Reset | FromVm::Loss => return vec![],
        };
        if self.uplink.waiting > 0 && s.len == 0 {
            answers.extend(self.turn(now));
        }
        answers
    }

    /// The flow at the head of the line: bpf/line.h, take_turn().
    pub fn turn(&mut self, now: u64) -> Option<Answer> {
        let id = self.line.pop_front()?;
        let f = self.flows[id].as_mut()?;
        match incast::serve(f, &mut self.uplink, &self.port, &self.policy, now) {
            Served::Ack(ack) => {
                self.turns += 1;
                Some((id, ack))
            }
            Served::NoCredit => {
                self.line.push_back(id);
                None
            }
            Served::Gone => None,
        }
    }

    /// The record goes.
    pub fn remove(&mut self, id: usize) {
        if let Some(f) = self.flows[id].as_mut()
            && f.incast.shaped != 0
        {
            incast::end(f, &mut self.uplink);
        }
        self.flows[id] = None;
    }

    /// Bytes that live flows may still send: what is to be on the account.
    pub fn owed(&self) -> i64 {
        let flows = self.flows.iter().flatten().filter(|f| incast::is_live(f, &self.uplink));
        flows.map(|f| i64::from(f.incast.edge.diff(f.incast.received)).max(0)).sum()
    }
}

//! The receiving host: flows of the ports behind an uplink, as bpf/vsnoop.bpf.c, bpf/incast_flows.h
//! and bpf/grant_queue.h do it.

use std::collections::VecDeque;

use vsnoop_flow::hold::{self, Copied, Hand, Kept, Verdict};
use vsnoop_flow::incast::{self, Served};
use vsnoop_flow::{
    FromVm, ack_fields, flow, outcome, policy, port_state, segment, types, types::*,
};

/// Queued flows that are tried for one grant, as in bpf/grant_queue.h.
const TRIES: usize = 4;

const FINISHED: u32 = incast_waiting::INCAST_FINISHED_ANSWERER;

/// An ACK that leaves for the sender of flow `.0`.
pub type Answer = (usize, ack_fields);

/// Result of a segment to the VM.
pub struct ToVm {
    /// The VM has been handed it.
    pub delivered: bool,
    pub answers: Vec<Answer>,
}

/// One port, with its waiting flows.
#[derive(Default)]
pub struct PortSide {
    pub state: port_state,
    pub grant_queue: VecDeque<usize>,
    pub finished_queue: VecDeque<usize>,
}

pub struct IncastHooks {
    pub uplink: uplink,
    pub ports: Vec<PortSide>,
    pub policy: policy,
    pub flows: Vec<Option<flow>>,
    /// The hold of each flow. There is enough memory, and no engine: data beyond the VM's own
    /// window are left to the VM.
    holds: Vec<types::hold>,
    /// The port of each flow; 0 if missing.
    pub port_of: Vec<usize>,
    pub grants: u64,
}

#[allow(clippy::wrong_self_convention, reason = "called as the hooks are, to_vm and from_vm")]
impl IncastHooks {
    pub fn new(uplink: uplink, policy: policy) -> Self {
        IncastHooks {
            uplink,
            ports: vec![PortSide::default()],
            policy: policy { hold_chunks: 1 << 16, silence_ms: 300_000, ..policy },
            flows: Vec::new(),
            holds: Vec::new(),
            port_of: Vec::new(),
            grants: 0,
        }
    }

    pub fn port_of(&self, id: usize) -> usize {
        self.port_of.get(id).copied().unwrap_or(0)
    }

    /// Incast control of a port.
    pub fn share_of(&mut self, port: usize) -> &mut incast_port {
        &mut self.ports[port].state.incast
    }

    /// bpf/incast_flows.h, incast_is_used().
    fn is_used(&self) -> bool {
        self.uplink.rate != 0 || self.uplink.all.open > 0
    }

    /// The window in the VM's SYN or SYN-ACK: bpf/setup.h, syn_of_vm().
    pub fn syn_window(&self, port: usize, window: u32) -> u32 {
        if self.uplink.rate == 0 {
            return window;
        }
        let port = &self.ports[port].state.incast;
        window.min(incast::first_window(&self.uplink, port, INCAST_LEAST_MSS))
    }

    /// Acts on a decision's events: bpf/decide.h, settle().
    fn settle(&mut self, id: usize, out: &outcome, now: u64) {
        let port = self.port_of(id);
        vsnoop_flow::learn(&mut self.ports[port].state, out, now);
        if out.events & EVENT_FREE != 0 {
            let h = self.hold_of(id);
            h.claimed = 0;
            h.chunks = u32::from(h.vm_seq.diff(h.tail) < 0);
            h.front = u64::from(h.vm_seq.v) << 32;
        }
        if out.events & EVENT_CLOSED != 0 {
            self.remove(id);
        }
    }

    fn hold_of(&mut self, id: usize) -> &mut types::hold {
        let there = self.holds.len().max(id + 1);
        self.holds.resize(there, types::hold::default());
        &mut self.holds[id]
    }

    /// Before an ACK: bpf/incast_flows.h, open_window(). `true` if the flow waits from now on.
    fn open_window(&mut self, id: usize, vm: Option<&segment>, now: u64) -> bool {
        let at = self.port_of(id);
        let port = &mut self.ports[at];
        let Some(f) = self.flows[id].as_mut() else { return false };
        let waits = incast::open(f, &mut self.uplink, &mut port.state.incast, vm, now);
        incast::note_shown(f, vm, now);
        match waits {
            incast_waiting::INCAST_QUEUED => port.grant_queue.push_back(id),
            FINISHED | incast_waiting::INCAST_FINISHED_OTHER => port.finished_queue.push_back(id),
            _ => return false,
        }
        true
    }

    /// A segment of the sender. The device always takes it.
    pub fn to_vm(&mut self, id: usize, s: &segment, now: u64) -> ToVm {
        let waits = self.arrives(id, s, now);
        self.decide_to_vm(id, s, waits, now)
    }

    /// Incast control's part of it: bpf/incast_flows.h, incast_data().
    pub fn arrives(&mut self, id: usize, s: &segment, now: u64) -> bool {
        if !self.is_used() || s.len == 0 {
            return false;
        }
        let port = self.port_of(id);
        let Some(f) = self.flows[id].as_mut() else { return false };
        if u32::from(f.incast.bits) & INCAST_BESIDE == 0 {
            incast::received(f, &mut self.uplink, &mut self.ports[port].state.incast, s, now);
        }
        self.open_window(id, None, now)
    }

    /// The rest; another CPU may act in between.
    pub fn decide_to_vm(&mut self, id: usize, s: &segment, waits: bool, now: u64) -> ToVm {
        let mut answers = Vec::new();
        let port = self.port_of(id);
        self.hold_of(id);
        let Some(f) = self.flows[id].as_mut() else {
            return ToVm { delivered: true, answers };
        };
        let (h, state) = (&mut self.holds[id], &self.ports[port].state);
        let is_active = u32::from(f.mode) == flow_mode::FLOW_ACTIVE;
        if f.hold == 0 && s.len > 0 && is_active && self.policy.run == port_run::PORT_ACCELERATE {
            hold::begin(f, h, 1);
        }
        let (verdict, out) = if f.hold != 0 {
            hold::to_vm(f, h, s, state, &self.policy, now)
        } else {
            let (verdict, out) = vsnoop_flow::to_vm(f, s, state, &self.policy, now);
            assert_ne!(verdict, vsnoop_flow::Verdict::Reack, "nothing was acknowledged");
            let is_reset = verdict == vsnoop_flow::Verdict::Reset;
            (if is_reset { Verdict::Reset } else { Verdict::Pass }, out)
        };
        match verdict {
            Verdict::Pass | Verdict::Reset => {
                self.settle(id, &out, now);
                // A queued flow has a grant at once: pass_with_grant().
                if verdict == Verdict::Pass && waits {
                    answers.extend(self.grant_next(port, now));
                }
                ToVm { delivered: verdict == Verdict::Pass, answers }
            }
            Verdict::Reack => {
                self.settle(id, &out, now);
                answers.push((id, out.ack));
                ToVm { delivered: false, answers }
            }
            Verdict::Keep { hand, .. } => {
                let copied = Copied { copied: true, taken: hand == Hand::AndAck, out };
                h.chunks = 1;
                let (kept, out) = hold::kept(f, h, s, copied, state, &self.policy, now);
                self.settle(id, &out, now);
                if kept == Kept::Ack {
                    // An ACK that would show a closed window can wait for its grant.
                    let grant = if waits { self.grant_next(port, now) } else { None };
                    answers.push(grant.unwrap_or((id, out.ack)));
                }
                ToVm { delivered: true, answers }
            }
            // In the first second of the clock an engine that never existed counts as alive.
            Verdict::Drop | Verdict::Forward => ToVm { delivered: false, answers },
        }
    }

    /// A segment of the VM. Returns the ACKs that leave: its own with these fields, another flow's.
    pub fn from_vm(&mut self, id: usize, s: &segment, now: u64) -> Vec<Answer> {
        let own = ack_fields {
            seq: s.seq,
            ack: s.ack,
            window: s.window,
            tsval: s.tsval,
            tsecr: s.tsecr,
            timestamps: u16::from(u32::from(s.bits) & SEG_TIMESTAMPS != 0),
            ..ack_fields::default()
        };
        if self.is_used() {
            self.open_window(id, Some(s), now);
        }
        self.hold_of(id);
        let port = self.port_of(id);
        let Some(f) = self.flows[id].as_mut() else { return vec![(id, own)] };
        let (verdict, out) = if f.hold != 0 {
            let (h, state) = (&mut self.holds[id], &self.ports[port].state);
            hold::from_vm(f, h, s, state, &self.policy, now)
        } else {
            vsnoop_flow::from_vm(f, s, &self.policy, now)
        };
        self.settle(id, &out, now);
        let mut answers = match verdict {
            FromVm::Pass => vec![(id, own)],
            FromVm::Rewrite => {
                vec![(id, ack_fields { ack: out.ack.ack, window: out.ack.window, ..own })]
            }
            FromVm::Replace => vec![(id, out.ack)],
            FromVm::Drop => vec![],
            FromVm::Reset | FromVm::ResetBoth => return vec![],
        };
        let share = self.share_of(port);
        if (share.own.queued > 0 || share.finished_answerers > 0 || share.finished_others > 0)
            && s.len == 0
        {
            answers.extend(self.grant_next(port, now));
        }
        answers
    }

    /// The flow at the head of a port's queue: bpf/grant_queue.h, grant_next().
    pub fn grant_next(&mut self, port: usize, now: u64) -> Option<Answer> {
        for _ in 0..TRIES {
            let PortSide { state, grant_queue, finished_queue } = &mut self.ports[port];
            let waits = incast::next(&mut self.uplink, &mut state.incast, now);
            let queue = match waits {
                incast_waiting::INCAST_QUEUED => grant_queue,
                FINISHED => finished_queue,
                _ => return None,
            };
            let id = queue.pop_front()?;
            let Some(f) = self.flows[id].as_mut() else { continue };
            match incast::serve(f, &mut self.uplink, waits, state, &self.policy, now) {
                Served::Ack(ack) => {
                    self.grants += 1;
                    return Some((id, ack));
                }
                Served::NotYet => queue.push_back(id),
                Served::Gone => {}
            }
        }
        None
    }

    /// Removes the record.
    pub fn remove(&mut self, id: usize) {
        let port = self.port_of(id);
        if let Some(f) = self.flows[id].as_mut()
            && f.incast.is_shaped()
        {
            incast::end(f, &mut self.uplink, &mut self.ports[port].state.incast);
        }
        self.flows[id] = None;
        *self.hold_of(id) = types::hold::default();
    }

    /// Outstanding credit of live flows, which the account must have.
    pub fn outstanding(&self) -> i64 {
        self.sum_of(true, |_| true)
    }

    /// The same of silent flows.
    pub fn silent(&self) -> i64 {
        self.sum_of(false, |_| true)
    }

    /// Outstanding credit of one port's flows, live or silent.
    pub fn outstanding_of(&self, port: usize) -> i64 {
        let is_of = |id| self.port_of(id) == port;
        self.sum_of(true, is_of) + self.sum_of(false, is_of)
    }

    fn sum_of(&self, live: bool, is_of: impl Fn(usize) -> bool) -> i64 {
        let flows = self.flows.iter().enumerate().filter(|(id, _)| is_of(*id));
        let flows = flows.filter_map(|(_, f)| f.as_ref()).filter(|f| f.incast.is_shaped());
        flows
            .filter(|f| incast::is_live(f, &self.uplink) == live)
            .map(incast::flow_outstanding)
            .sum()
    }
}

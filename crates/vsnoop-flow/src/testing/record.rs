//! The hooks' side of flow/setup.h: the record of one connection, and how it comes and goes.

use crate::types::{self, *};

use super::segment::*;

/// What the port's tables have of one connection.
#[derive(Debug, Default)]
pub struct Record {
    pub flow: Option<flow>,
    pub embryo: Option<embryo>,
}

impl Record {
    /// bpf/setup.h, flow_for_sender(). `true`: there is a flow now.
    pub fn for_sender(&mut self, s: &Seg, now: u64) -> bool {
        let Some(e) = self.embryo.as_mut() else { return false };
        if s.flags & (SYN | ACK) == SYN | ACK {
            crate::answer_embryo(e, &s.view());
            return false;
        }
        self.flow = crate::flow_accepted(e, &s.view(), now);
        if self.flow.is_some() {
            self.embryo = None;
        }
        self.flow.is_some()
    }

    /// bpf/setup.h, flow_for_vm(). `true`: there is a flow now.
    pub fn for_vm(&mut self, s: &Seg, now: u64) -> bool {
        let opened = self.embryo.and_then(|e| crate::flow_opened(&e, &s.view(), now));
        if opened.is_some() {
            self.embryo = None;
            self.flow = opened;
        } else {
            self.flow = crate::flow_mid_flow(&s.view(), now);
        }
        self.flow.is_some()
    }

    /// bpf/setup.h, syn_of_vm().
    pub fn syn_of_vm(&mut self, s: &Seg) {
        if let Some(f) = &self.flow {
            if crate::is_own_syn(f, &s.view()) {
                return;
            }
            self.flow = None;
        }
        let repeated = self.embryo.is_some_and(|e| {
            u32::from(e.stage) == embryo_stage::EMBRYO_VM_SYN_ANSWERED
                && !s.has(ACK)
                && e.vm_iss.v == s.seq
        });
        if !repeated {
            self.embryo = Some(crate::embryo_of_vm(&s.view()));
        }
    }

    /// The flow's mode; `None`: there is no flow.
    pub fn mode(&self) -> Option<flow_mode::Type> {
        self.flow.map(|f| f.mode.into())
    }
}

/// The packet that bpf/reply.h makes.
pub fn reply(a: &ack_fields, flags: u8) -> Seg {
    let mut s = Seg::bare(a.seq.v, if flags & RST != 0 { 0 } else { a.ack.v }, flags);
    s.window = a.window;
    s.ts = (a.timestamps != 0).then_some((a.tsval, a.tsecr));
    s
}

/// bpf/rewrite.h, rewrite_ack().
pub fn rewrite_ack(s: &mut Seg, a: &ack_fields) {
    if a.ack.v != s.ack {
        s.sack.retain(|&(left, _)| types::seq::new(left).diff(a.ack) > 0);
    }
    s.ack = a.ack.v;
    s.window = a.window;
}

/// bpf/rewrite.h, rewrite_seq().
pub fn rewrite_seq(s: &mut Seg, a: &ack_fields) {
    s.seq = a.seq.v;
    s.ts = s.ts.map(|(_, tsecr)| (a.tsval, tsecr));
}

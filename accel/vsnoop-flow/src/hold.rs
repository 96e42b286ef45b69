//! The decisions of flow/hold.h, about a flow with a hold.

use crate::decide::{FromVm, context};
pub use crate::decide::{Hand, Verdict};
use crate::types::{self, *};

/// Verdict on a segment after [`Verdict::Keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Hand on untouched.
    Pass,
    /// Answer with `outcome.ack`, hand nothing on.
    Ack,
    /// Hand nothing on.
    Drop,
    /// It is not kept: answer with `outcome.ack`, hand nothing on.
    Reack,
    /// It is kept, and a later answer acknowledges it: hand nothing on.
    Wait,
}

/// Decides as [`crate::decide::to_vm`] does, about a flow with a hold. `now` in ns.
pub fn to_vm(
    f: &mut flow,
    h: &mut hold,
    s: &segment,
    port: &port_state,
    p: &policy,
    now: u64,
) -> (Verdict, outcome) {
    let mut out = outcome::default();
    // SAFETY: all pointers come from live references; the C code keeps none.
    let verdict = unsafe { types::hold_to_vm(f, h, s, &context(port, p, now), &mut out) };
    let verdict = match verdict {
        to_vm_verdict::TO_VM_PASS => Verdict::Pass,
        to_vm_verdict::TO_VM_REACK => Verdict::Reack,
        to_vm_verdict::TO_VM_RESET => Verdict::Reset,
        to_vm_verdict::TO_VM_KEEP => {
            Verdict::Keep { skip: out.skip.into(), hand: Hand::new(out.hand.into()) }
        }
        to_vm_verdict::TO_VM_DROP => Verdict::Drop,
        to_vm_verdict::TO_VM_FORWARD => Verdict::Forward,
        other => unreachable!("hold_to_vm() answered {other}"),
    };
    (verdict, out)
}

/// The result of keeping a segment after [`Verdict::Keep`].
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// It was copied.
    pub copied: bool,
    /// It was not, because the hold had no memory.
    pub is_full: bool,
    /// It was, and the hold uses its last memory.
    pub last: bool,
    /// The device took the clone.
    pub taken: bool,
    /// Outcome of [`to_vm`].
    pub out: outcome,
}

/// Result of reclaiming a hold: that of `reclaim()` in bpf/.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaimed {
    /// The flow still has this hold.
    Used,
    /// Its flow is over: end it once no hook can use it.
    Over,
    /// The hold is free.
    Free,
}

impl Reclaimed {
    /// From the program's result.
    pub fn new(result: reclaimed::Type) -> Self {
        match result {
            reclaimed::RECLAIMED_USED => Self::Used,
            reclaimed::RECLAIMED_OVER => Self::Over,
            _ => Self::Free,
        }
    }
}

/// Second half of [`Verdict::Keep`].
pub fn kept(
    f: &mut flow,
    h: &mut hold,
    s: &segment,
    Copied { copied, is_full, last, taken, mut out }: Copied,
    port: &port_state,
    p: &policy,
    now: u64,
) -> (Kept, outcome) {
    let done =
        [(copied, KEEP_COPIED), (is_full, KEEP_NO_MEMORY), (last, KEEP_LAST), (taken, KEEP_TAKEN)];
    let done = done.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
    // SAFETY: as in to_vm().
    let verdict = unsafe { types::flow_kept(f, h, s, done, &context(port, p, now), &mut out) };
    let verdict = match verdict {
        kept_verdict::KEPT_PASS => Kept::Pass,
        kept_verdict::KEPT_ACK => Kept::Ack,
        kept_verdict::KEPT_DROP => Kept::Drop,
        kept_verdict::KEPT_REACK => Kept::Reack,
        kept_verdict::KEPT_WAIT => Kept::Wait,
        other => unreachable!("flow_kept() answered {other}"),
    };
    (verdict, out)
}

/// Decides as [`crate::decide::from_vm`] does, about a flow with a hold.
pub fn from_vm(
    f: &mut flow,
    h: &mut hold,
    s: &segment,
    port: &port_state,
    p: &policy,
    now: u64,
) -> (FromVm, outcome) {
    let mut out = outcome::default();
    // SAFETY: as in to_vm().
    let verdict = unsafe { types::flow_from_vm(f, h, s, &context(port, p, now), &mut out) };
    (FromVm::new(verdict), out)
}

/// The sender's latest ACK and window, for a VM that does not get the segment.
pub fn sender_ack(f: &flow, h: &hold) -> ack_fields {
    let mut ack = ack_fields::default();
    // SAFETY: as in to_vm().
    unsafe { types::hold_fill_sender_ack(f, h, &mut ack) };
    ack
}

/// Field `sending` of a hold while the engine writes a frame.
pub fn sending_since(now_ns: u64) -> u32 {
    (now_ns >> 20) as u32 | 1
}

/// May another flow take this hold, because the flow is silent?
pub fn is_idle(f: &flow, h: &hold, now: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::hold_is_idle(f, h, now) }
}

/// Initialises a hold for a flow that has none; `number` is the hold's, from 1.
pub fn begin(f: &mut flow, h: &mut hold, number: u16) {
    // SAFETY: as in to_vm().
    unsafe { types::hold_init(f, h, number) }
}

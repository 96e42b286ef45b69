//! The decisions of flow/hold.h, about a flow that the host keeps copies of.

use crate::decide::FromVm;
use crate::types::{self, *};

/// What is to be done with a segment for the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand on untouched.
    Pass,
    /// Answer with `outcome.ack`, hand nothing on.
    Reack,
    /// Answer with RST, hand nothing on.
    Reset,
    /// Copy from byte `skip`, do with it as `hand` says, then ask [`kept`].
    Keep {
        /// Leading bytes that are kept already.
        skip: u32,
        /// What the VM gets of it.
        hand: Hand,
    },
    /// The sender will send it again.
    Drop,
    /// Hand on with `outcome.ack`'s SEQ and TSval.
    Forward,
}

/// What becomes of a segment of which a copy was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// It waits in the hold.
    Nothing,
    /// A clone goes to the VM; if the ring takes it, the host acknowledges.
    AndAck,
    /// It passes to the VM, and a later one is acknowledged with it.
    On,
}

impl Hand {
    fn new(hand: u32) -> Self {
        match hand {
            hand::HAND_NOTHING => Self::Nothing,
            hand::HAND_AND_ACK => Self::AndAck,
            hand::HAND_ON => Self::On,
            other => unreachable!("hold_to_vm() wants a segment handed over as {other}"),
        }
    }
}

/// What becomes of a segment after [`Verdict::Keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Hand on untouched.
    Pass,
    /// Answer with `outcome.ack`, hand nothing on.
    Ack,
    /// Hand nothing on.
    Drop,
}

/// As [`crate::decide::to_vm`]. `now` in ns.
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
    let verdict = unsafe { types::hold_to_vm(f, h, s, port, p, now, &mut out) };
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

/// What became of a segment for the VM after [`Verdict::Keep`].
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// There was memory.
    pub copied: bool,
    /// The device took the clone.
    pub taken: bool,
    /// Of [`to_vm`].
    pub out: outcome,
}

/// After the copy.
pub fn kept(
    f: &mut flow,
    h: &mut hold,
    s: &segment,
    Copied { copied, taken, mut out }: Copied,
    port: &port_state,
    p: &policy,
    now: u64,
) -> (Kept, outcome) {
    // SAFETY: as in to_vm().
    let verdict = unsafe { types::flow_kept(f, h, s, copied, taken, port, p, now, &mut out) };
    let verdict = match verdict {
        kept_verdict::KEPT_PASS => Kept::Pass,
        kept_verdict::KEPT_ACK => Kept::Ack,
        kept_verdict::KEPT_DROP => Kept::Drop,
        other => unreachable!("flow_kept() answered {other}"),
    };
    (verdict, out)
}

/// As [`crate::decide::from_vm`].
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
    let verdict = unsafe { types::flow_from_vm(f, h, s, port, p, now, &mut out) };
    (FromVm::new(verdict), out)
}

/// What the sender has told beside its data, for a VM that gets nothing of its segment.
pub fn news(f: &flow, h: &hold) -> ack_fields {
    let mut news = ack_fields::default();
    // SAFETY: as in to_vm().
    unsafe { types::hold_news(f, h, &mut news) };
    news
}

/// Has the flow been silent for so long that another may have its hold?
pub fn is_idle(f: &flow, h: &hold, now: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::hold_is_idle(f, h, now) }
}

/// Gives a flow that has none a hold; `number` from 1.
pub fn begin(f: &mut flow, h: &mut hold, number: u16) {
    // SAFETY: as in to_vm().
    unsafe { types::hold_begin(f, h, number) }
}

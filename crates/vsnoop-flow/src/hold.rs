//! The decisions of flow/hold.h, about a flow that the host keeps copies of.

use crate::decide::FromVm;
use crate::types::{self, *};

/// What is to be done with a segment for the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand on untouched.
    Pass,
    /// Hand over without a copy, then ask [`crate::delivered`].
    Deliver,
    /// Answer with `outcome.ack`, hand nothing on.
    Reack,
    /// Answer with RST, hand nothing on.
    Reset,
    /// Copy from byte `skip`, hand over if `deliver`, then ask [`kept`].
    Keep {
        /// Leading bytes that are kept already.
        skip: u32,
        /// Hand it over as well.
        deliver: bool,
    },
    /// The sender will send it again.
    Drop,
    /// Hand on with `outcome.ack`'s SEQ and TSval.
    Forward,
    /// Somebody else is at this flow's chain.
    Busy,
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
        to_vm_verdict::TO_VM_DELIVER => Verdict::Deliver,
        to_vm_verdict::TO_VM_REACK => Verdict::Reack,
        to_vm_verdict::TO_VM_RESET => Verdict::Reset,
        to_vm_verdict::TO_VM_KEEP => Verdict::Keep { skip: out.skip, deliver: out.deliver != 0 },
        to_vm_verdict::TO_VM_DROP => Verdict::Drop,
        to_vm_verdict::TO_VM_FORWARD => Verdict::Forward,
        to_vm_verdict::TO_VM_BUSY => Verdict::Busy,
        other => unreachable!("hold_to_vm() answered {other}"),
    };
    (verdict, out)
}

/// The segment was `copied`, and `taken` by the device.
#[allow(clippy::too_many_arguments)]
pub fn kept(
    f: &mut flow,
    h: &mut hold,
    s: &segment,
    (copied, taken): (bool, bool),
    port: &port_state,
    p: &policy,
    now: u64,
) -> (Kept, outcome) {
    let mut out = outcome::default();
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

/// Gives a flow that has none a hold; `number` from 1.
pub fn begin(f: &mut flow, h: &mut hold, number: u16) {
    // SAFETY: as in to_vm().
    unsafe { types::hold_begin(f, h, number) }
}

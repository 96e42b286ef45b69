//! One safe function for each decision of flow/.

use std::ptr::{NonNull, null, null_mut};

use crate::types::{self, *};

/// Verdict on a segment to the VM; for a flow without a hold, one of the first three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand on untouched.
    Pass,
    /// Answer with `outcome.ack`, hand nothing on.
    Reack,
    /// Answer with RST, hand nothing on.
    Reset,
    /// Copy from byte `skip`, hand over as `hand` says, then call [`crate::hold::kept`].
    Keep {
        /// Leading bytes that are kept already.
        skip: u32,
        /// How it goes to the VM.
        hand: Hand,
    },
    /// Drop: the sender sends it again.
    Drop,
    /// Hand on with `outcome.ack`'s SEQ and TSval.
    Forward,
}

/// How a segment that was copied goes to the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Not now: it waits in the hold.
    Nothing,
    /// A clone goes to the VM; if the ring takes it, the host acknowledges.
    AndAck,
    /// It passes itself, and a later early ACK covers it.
    On,
}

impl Hand {
    pub(crate) fn new(hand: u32) -> Self {
        match hand {
            hand::HAND_NOTHING => Self::Nothing,
            hand::HAND_AND_ACK => Self::AndAck,
            hand::HAND_ON => Self::On,
            other => unreachable!("hold_to_vm() wants a segment handed over as {other}"),
        }
    }
}

/// Verdict on a segment of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromVm {
    /// Hand on untouched.
    Pass,
    /// Drop: the sender has a later ACK already.
    Drop,
    /// Replace ACK and window by `outcome.ack`.
    Rewrite,
    /// Send `outcome.ack` instead: it reports out-of-order ranges.
    Replace,
    /// Answer the VM with RST.
    Reset,
    /// RST to both ends.
    ResetBoth,
}

impl FromVm {
    pub(crate) fn new(verdict: from_vm_verdict::Type) -> Self {
        match verdict {
            from_vm_verdict::FROM_VM_PASS => FromVm::Pass,
            from_vm_verdict::FROM_VM_DROP => FromVm::Drop,
            from_vm_verdict::FROM_VM_REWRITE => FromVm::Rewrite,
            from_vm_verdict::FROM_VM_REPLACE => FromVm::Replace,
            from_vm_verdict::FROM_VM_RESET => FromVm::Reset,
            from_vm_verdict::FROM_VM_RESET_BOTH => FromVm::ResetBoth,
            other => unreachable!("flow_from_vm() answered {other}"),
        }
    }
}

pub(crate) fn context(port: &port_state, policy: &policy, now: u64) -> decision_context {
    decision_context { port, policy, now }
}

/// Decides about a segment to the VM, of a flow without a hold. `now` in ns.
pub fn to_vm(
    f: &mut flow,
    s: &segment,
    port: &port_state,
    p: &policy,
    now: u64,
) -> (Verdict, outcome) {
    let mut out = outcome::default();
    // SAFETY: all pointers come from live references, or are null where the C code allows it; it
    // keeps none.
    let verdict = unsafe { types::hold_to_vm(f, null_mut(), s, &context(port, p, now), &mut out) };
    let verdict = match verdict {
        to_vm_verdict::TO_VM_PASS => Verdict::Pass,
        to_vm_verdict::TO_VM_REACK => Verdict::Reack,
        to_vm_verdict::TO_VM_RESET => Verdict::Reset,
        other => unreachable!("without a hold it answered {other}"),
    };
    (verdict, out)
}

/// Does the segment only continue a backlog that was left to a prompt VM? Then the flow's hold is
/// not used.
pub fn continues_passive(f: &flow, s: &segment, port: &port_state, p: &policy, now: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_continues_passive(f, s, &context(port, p, now)) }
}

/// Grants a lease for this jiffy with a segment that continues a backlog, unless the flow may have
/// none.
pub fn grant_lease(f: &mut flow, s: &segment, jiffy: u64) {
    // SAFETY: as in to_vm().
    unsafe {
        if types::flow_may_lease(f) {
            types::flow_grant_lease(f, s, jiffy);
        }
    }
}

/// Does the flow's lease cover this segment?
pub fn lease_covers(f: &flow, s: &segment, jiffy: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_lease_covers(f, s, jiffy) }
}

/// Grants a lease for the VM's ACKs in this jiffy, after a decision that passed a segment of the
/// VM. Returns whether the flow has one now.
pub fn grant_vm_lease(f: &mut flow, h: &hold, jiffy: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_grant_vm_lease(f, h, jiffy) }
}

/// Passes the VM's segment if its lease covers it, and updates the record.
pub fn pass_by_vm_lease(f: &mut flow, s: &segment, jiffy: u64, now: u64) -> bool {
    // SAFETY: the reference is the only one.
    unsafe { pass_by_vm_lease_shared(NonNull::from(f), s, jiffy, now) }
}

/// Passes the VM's segment as [`pass_by_vm_lease`] does, in a record that other threads use.
///
/// # Safety
/// `f` is a record in memory whose users all follow the rules of flow/vm_lease.h.
pub unsafe fn pass_by_vm_lease_shared(f: NonNull<flow>, s: &segment, jiffy: u64, now: u64) -> bool {
    // SAFETY: as the caller says.
    unsafe { types::flow_pass_by_vm_lease(f.as_ptr(), s, jiffy, now) }
}

/// Decides about a segment of the VM, of a flow without a hold, and grants a lease: for a record
/// that other threads use by [`pass_by_vm_lease_shared`].
///
/// # Safety
/// The users of `f` follow the rules of [`pass_by_vm_lease_shared`], and only one thread decides.
pub unsafe fn decide_and_grant_shared(
    f: NonNull<flow>,
    s: &segment,
    p: &policy,
    jiffy: u64,
    now: u64,
) {
    let (mut out, port) = (outcome::default(), port_state::default());
    // SAFETY: as the caller says.
    unsafe {
        types::flow_from_vm(f.as_ptr(), null_mut(), s, &context(&port, p, now), &mut out);
        types::flow_grant_vm_lease(f.as_ptr(), null(), jiffy);
    }
}

/// Ends the VM's lease, as each decision does first.
pub fn end_vm_lease(f: &mut flow, h: &mut hold) {
    // SAFETY: as in to_vm().
    unsafe { types::flow_end_vm_lease(f, h) }
}

/// Decides about a segment that the VM sends.
pub fn from_vm(f: &mut flow, s: &segment, p: &policy, now: u64) -> (FromVm, outcome) {
    let mut out = outcome::default();
    let port = port_state::default();
    // SAFETY: as in to_vm().
    let verdict =
        unsafe { types::flow_from_vm(f, null_mut(), s, &context(&port, p, now), &mut out) };
    (FromVm::new(verdict), out)
}

/// Hash of a key, as in the record's `key_hash`.
pub fn key_hash(key: &flow_key) -> u16 {
    // SAFETY: as in to_vm().
    unsafe { types::flow_key_hash(key) }
}

/// A connection of this VM port failed for a reason that is the host's own.
pub fn note_failure(v: &mut failures, now: u64) {
    // SAFETY: as in to_vm().
    unsafe { types::failures_note(v, now) }
}

/// The listener of this VM port takes no data at the moment.
pub fn note_not_taken(v: &mut failures, now: u64) {
    // SAFETY: as in to_vm().
    unsafe { types::failures_not_taken(v, now) }
}

/// Must new connections of this VM port go to BYPASS?
pub fn is_bypassed(v: &failures, now: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::failures_stand(v, now) }
}

/// Updates the port's promptness from a decision's outcome.
pub fn learn(port: &mut port_state, out: &outcome, now: u64) {
    // SAFETY: as in to_vm().
    unsafe { types::port_learn(port, out, now) }
}

/// The embryo of the VM's SYN or SYN-ACK.
pub fn embryo_of_vm(s: &segment) -> embryo {
    let mut e = embryo::default();
    // SAFETY: as in to_vm().
    unsafe { types::embryo_from_vm(&mut e, s) };
    e
}

/// The embryo of a SYN or SYN-ACK that the VM repeats.
pub fn repeated_embryo(old: &embryo, s: &segment) -> embryo {
    let mut e = embryo_of_vm(s);
    // SAFETY: as in to_vm().
    unsafe { types::embryo_joins(&mut e, old) };
    e
}

/// A SYN-ACK of the sender. `false` if it does not answer the VM's SYN.
pub fn answer_embryo(e: &mut embryo, s: &segment) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::embryo_answered(e, s) }
}

/// The flow whose handshake the sender's segment completes.
pub fn flow_accepted(e: &embryo, s: &segment, now: u64) -> Option<flow> {
    let mut f = flow::default();
    // SAFETY: as in to_vm().
    unsafe { types::flow_accepted(&mut f, e, s, now) }.then_some(f)
}

/// The flow whose handshake the VM's ACK completes.
pub fn flow_opened(e: &embryo, s: &segment, now: u64) -> Option<flow> {
    let mut f = flow::default();
    // SAFETY: as in to_vm().
    unsafe { types::flow_opened(&mut f, e, s, now) }.then_some(f)
}

/// The flow that the VM's ACK reveals in mid-stream.
pub fn flow_mid_flow(s: &segment, now: u64) -> Option<flow> {
    let mut f = flow::default();
    // SAFETY: as in to_vm().
    unsafe { types::flow_mid_flow(&mut f, s, now) }.then_some(f)
}

/// Is this SYN or SYN-ACK of the VM a retransmission of the flow's own?
pub fn is_own_syn(f: &flow, s: &segment) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_is_own_syn(f, s) }
}

/// Has the connection of this record ended?
pub fn is_over(f: &flow) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_is_over(f) }
}

/// May a connection with this record be split?
pub fn may_be_split(f: &flow) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_may_be_split(f) }
}

/// Where both ends of a connection were that is split, for its reset.
pub fn ends_at(vm_seq: seq, split: &types::split_flow) -> types::rejoined {
    types::rejoined {
        vm_seq,
        // A RST must have the SEQ that the peer expects (RFC 5961).
        snd_nxt: split.sent_end,
        right_edge: vm_seq,
        adv_edge: vm_seq,
        vm_tsval: split.vm_tsval,
        ts_recent: split.peer_tsval,
    }
}

/// Continues the record of a connection that was split.
pub fn rejoin(f: &mut flow, ends: &types::rejoined, now: u64) {
    // SAFETY: as in to_vm().
    unsafe { types::flow_rejoin(f, ends, now) }
}

/// Does this segment of the sender end the record, because it confirms the connection of the
/// embryo, which the VM's SYN or SYN-ACK has begun since?
pub fn sender_replaces(f: &flow, e: &embryo, s: &segment) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_is_of_another(f, s) && types::embryo_is_confirmed_by_sender(e, s) }
}

/// Does this segment of the VM?
pub fn vm_replaces(f: &flow, e: &embryo, s: &segment) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_is_of_another_of_vm(f, s) && types::embryo_is_confirmed_by_vm(e, f, s) }
}

/// The VM repeats its SYN-ACK: true if its listener takes no data.
pub fn repeats_syn(f: &mut flow, now: u64) -> bool {
    // SAFETY: as in to_vm().
    unsafe { types::flow_repeats_syn(f, now) }
}

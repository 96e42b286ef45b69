//! Asking a VM how far it has got, before its connection is reset.
//!
//! A VM whose own ACK was lost (its firewall, its full transmit queue) looks like one that lost data.
//! Any TCP answers an old segment with an ACK of its RCV.NXT (RFC 9293, section 3.10.7.4): the answer
//! moves VM_SEQ, and the VM is acquitted, or it repeats VM_SEQ. A VM that knows of no such connection
//! any more (it was restarted) answers with RST, which ends it at once.
//!
//! The hooks do not know of the question: it passes the one on its way to the VM by its mark, and the
//! answer is an ACK like others to the other (`flow/from_vm.h`). One that repeats VM_SEQ is dropped on
//! its way to the sender, who did not ask. It may also count as one of the three repeated ACKs that
//! prove a loss, and rightly so:
//!
//! - with SACK it counts only if it reports bytes above the hole, which no answer does whose VM has
//!   merely not got so far: what was handed over first is missing, and will stay so;
//! - without SACK it counts, at most one in 268 ms. The VM took the question out of the ring behind
//!   the data, so an answer of VM_SEQ means that the data was lost. (Where several queues may bring
//!   the question forward of the data, the distance of the answers in time makes up for it, as it does
//!   for other repeated ACKs.) Two questions alone are not enough for a verdict of the hooks.
//!
//! A question that the VM has not read stays in the ring, and a ring that is not empty excuses the VM.

use anyhow::Result;
use vsnoop_bpf::Port;
use vsnoop_bpf::types::{flow, flow_key};

use super::frame::{Segment, frame};

/// Puts the question to the VM; an error when its device does not take it. The calling thread must be
/// in the tap's network namespace.
pub fn ask(port: &Port, key: &flow_key, flow: &flow) -> Result<()> {
    let segment = Segment::Question;
    Ok(port.inject(&frame(key, flow, segment)?, segment.is_for_sender())?)
}

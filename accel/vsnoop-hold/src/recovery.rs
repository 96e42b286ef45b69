//! Recovery from a loss: which bytes the VM is sent again.
//!
//! *With SACK blocks* the holes below the highest block are sent again, once, and a second time
//! only when a block shows that something sent after them has arrived (after RFC 6675 and RFC 8985;
//! nothing is reordered between host and VM).
//!
//! *Without blocks* it is not known what else is missing. The first bytes are sent again, and more
//! with each ACK that falls short, as in slow start: as many as the VM has acknowledged of what was
//! sent again. Where an ACK covers more than that, the VM had the rest, and nothing is added (RFC
//! 6582). After a timeout the first bytes are a whole frame, because VMs lose whole super-packets.
//!
//! A host one hop behind the VM gets lost bytes so with blocks, too: a path may have lost most of
//! what it was sent at once.

use vsnoop_flow::types::seq;

use crate::repeats::LEAST;
use crate::view::View;

/// Duplicate ACKs that prove a loss (RFC 5681).
const DUPLICATE_ACKS: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// Recovery ends when the VM has acknowledged this.
    point: seq,
    /// Bytes below this have been sent again.
    next: seq,
    /// A SACK block beyond this was sent after the retransmissions.
    proof: seq,
    /// Missing bytes from VM_SEQ on that may be on their way; none: all holes.
    allowance: Option<u32>,
    /// Blocks say where the holes are.
    has_blocks: bool,
    vm_seq: seq,
}

impl Recovery {
    /// The VM reports a loss.
    pub fn of_report(view: &View) -> Self {
        Self::new(view, view.mss)
    }

    /// The VM had its time, and has not acknowledged the byte at VM_SEQ. `frame`: payload of the
    /// largest frame, bytes.
    pub fn of_timeout(view: &View, frame: u32) -> Self {
        Self::new(view, frame)
    }

    fn new(view: &View, first: u32) -> Self {
        let (next, point) = (view.vm_seq, view.handed);
        let has_blocks = !view.blocks().is_empty();
        let first = if view.neighbour { LEAST * view.mss } else { first };
        let allowance = (!has_blocks || view.neighbour).then_some(first);
        Self { point, next, proof: point, allowance, has_blocks, vm_seq: next }
    }

    /// Has the VM all that was handed over before it began?
    pub fn is_over(&self, view: &View) -> bool {
        view.vm_seq.diff(self.point) >= 0
    }

    /// Does a report of the VM say more than is known, namely where the holes are?
    pub fn is_refined_by(&self, view: &View) -> bool {
        !self.has_blocks && !view.blocks().is_empty()
    }

    /// Looks at what the VM has acknowledged. `frame`: as in [`Recovery::of_timeout`].
    pub fn follow_acks(&mut self, view: &View, frame: u32) {
        let newest = view.blocks().last().map(|block| block.1);
        if newest.is_some_and(|newest| newest.diff(self.proof) > 0) {
            (self.next, self.proof) = (view.vm_seq, view.handed);
        }
        let advanced = view.vm_seq.diff(self.vm_seq).max(0) as u32;
        if advanced == 0 {
            return;
        }
        let is_short = view.vm_seq.diff(self.next) <= 0;
        self.vm_seq = view.vm_seq;
        match &mut self.allowance {
            Some(allowance) if is_short => {
                let most = if view.neighbour { *allowance } else { u32::MAX };
                *allowance = allowance.saturating_add(advanced.min(most));
            }
            _ => {}
        }
        // The holes are filled, so that the VM has got to what was sent after the rest.
        if self.has_blocks && newest.is_none() {
            (self.has_blocks, self.next) = (false, view.vm_seq);
            self.allowance.get_or_insert(frame);
        }
    }

    /// The next bytes to send again: all between these two.
    pub fn range(&self, view: &View) -> Option<(seq, seq)> {
        let mut from = self.next.max(view.vm_seq);
        let blocks = view.blocks();
        let mut until = match self.allowance {
            Some(allowance) => self.point.min(behind_missing(view, allowance)),
            None => self.point,
        };
        if self.has_blocks {
            until = until.min(blocks.last()?.0);
        }
        for (left, right) in blocks {
            if from.diff(*left) < 0 {
                until = until.min(*left);
                break;
            }
            from = from.max(*right);
        }
        Some((from, until))
    }

    /// Notes that the bytes below `end` were sent again.
    pub fn sent(&mut self, end: seq) {
        self.next = end;
    }
}

/// The end of the first `bytes` that the VM has not reported.
fn behind_missing(view: &View, mut bytes: u32) -> seq {
    let mut from = view.vm_seq;
    for (left, right) in view.blocks() {
        let missing = left.diff(from).max(0) as u32;
        if missing >= bytes {
            break;
        }
        (from, bytes) = (*right, bytes - missing);
    }
    from.add(bytes)
}

/// Do duplicate ACKs or SACK blocks prove a loss?
pub(crate) fn has_lost(view: &View, duplicates: u32) -> bool {
    let reported = view.blocks().last().map_or(0, |block| block.1.diff(view.vm_seq));
    view.handed.diff(view.vm_seq) > 0
        && (duplicates >= DUPLICATE_ACKS || reported >= DUPLICATE_ACKS as i32 * view.mss as i32)
}

//! Which connections are worth a split (flow/split.h).

mod candidate;
mod record;

pub use candidate::{Candidate, State};
pub use record::{Copied, Record, at_place, full_key, split_key};

use crate::types::{self, segment, split_candidate, split_port};

/// A SYN, or a SYN-ACK. `mss`: its option's value.
pub fn note_syn(c: &mut split_candidate, s: &segment, mss: u16, by_vm: bool, now: u64) {
    // SAFETY: a plain C function; the pointers are valid for the call.
    unsafe { types::split_note_syn(c, s, mss, by_vm, now) }
}

/// The VM took from `since` until `now` to answer.
pub fn note_answer(port: &mut split_port, since: u64, now: u64) {
    // SAFETY: as in note_syn().
    unsafe { types::split_note_answer(port, since, now) }
}

/// Does the VM count as late?
pub fn is_late(port: &split_port, now: u64) -> bool {
    // SAFETY: as in note_syn().
    unsafe { types::split_is_late(port, now) }
}

/// Follows a segment of the peer.
pub fn note_peer(c: &mut split_candidate, s: &segment, epoch: u32, now: u64) {
    // SAFETY: as in note_syn().
    unsafe { types::split_note_peer(c, s, epoch, now) }
}

/// Follows a segment of the VM, as the hook does. Returns whether it passes, and whether the
/// splitter is asked.
pub fn note_vm(c: &mut split_candidate, s: &segment, epoch: u32) -> (bool, bool) {
    // SAFETY: as in note_syn().
    unsafe {
        types::split_enter_epoch(c, epoch);
        types::split_note_vm(c, s);
        if !types::split_note_sent(c, s) {
            return (false, false);
        }
        (true, s.len > 0 && types::split_is_worth_it(c))
    }
}

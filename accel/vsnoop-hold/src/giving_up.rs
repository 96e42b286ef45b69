//! When a connection is given up, and why ([`Reason`]).
//!
//! A VM that answers with a closed window is probed for ever. All other reasons have the limit for
//! which Linux sends again without an answer ([`GIVE_UP_NS`]; R2 of RFC 9293, section 3.8.3), in
//! live time of the VM: an outage behind the tap ends no connection that would outlast it without
//! vsnoop. Only a VM that takes back what it has acknowledged is given up at once: it can never go
//! on.

use crate::view::View;

/// A VM that sends nothing, takes nothing, or refuses the same bytes is given up after this: as
/// long as Linux sends again without an answer (tcp_retries2).
pub(crate) const GIVE_UP_NS: u64 = 924_000_000_000;
/// ... but not before this number of refusals in a row.
const REFUSALS: u32 = 16;
/// Frames in a row that the VM answers only with ACKs below VM_SEQ. Each is sent after a timeout:
/// an ACK that was delayed or reordered answers none of them.
const CONTRADICTIONS: u32 = 5;

/// Why a connection is given up: enum reset_reason of flow/types/abi.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The VM has room, answers, and refuses the same bytes.
    Refused,
    /// The VM had its time and sent nothing, or took nothing.
    Silent,
    /// The VM does not know what it has acknowledged: it was rolled back to a snapshot.
    RolledBack,
}

/// Silence of the VM. Times are live time.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    /// When it began.
    since_ns: u64,
    /// Frames sent since that the VM should have answered.
    frames: u32,
    /// The device has not taken a frame since.
    refused: bool,
}

impl Silence {
    pub fn since(live_ns: u64) -> Self {
        Self { since_ns: live_ns, frames: 0, refused: false }
    }

    pub fn sent(&mut self) {
        self.frames += 1;
    }

    pub fn refused(&mut self) {
        self.refused = true;
    }

    pub fn is_over(&self, live_ns: u64) -> bool {
        live_ns.saturating_sub(self.since_ns) > GIVE_UP_NS && (self.frames > 1 || self.refused)
    }
}

/// Refusals: the VM does not accept bytes for which it has room. Times are live time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    count: u32,
    since_ns: u64,
    /// `vm_acks` when the byte at VM_SEQ was last sent again.
    resent: Option<u32>,
}

impl Refusal {
    /// Notes that the byte at VM_SEQ is sent again.
    pub fn resent(&mut self, view: &View) {
        self.resent.get_or_insert(view.vm_acks);
    }

    /// Counts a refusal if the VM has answered, but not accepted the byte at VM_SEQ, since that was
    /// sent again. Has it refused for too long?
    pub fn judge(&mut self, view: &View, live_ns: u64) -> bool {
        if self.resent.is_none_or(|before| before == view.vm_acks) || !view.has_room() {
            return false;
        }
        self.resent = None;
        if self.count == 0 {
            self.since_ns = live_ns;
        }
        self.count += 1;
        self.count >= REFUSALS && live_ns.saturating_sub(self.since_ns) > GIVE_UP_NS
    }
}

/// A VM that answers with ACKs below VM_SEQ and with no others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollback {
    /// Timeouts in a row between which it did.
    count: u32,
    /// `old_acks` at the last of them.
    old_acks: u32,
}

impl Rollback {
    /// Looks at what the VM has answered since the last timeout. Is it proved now?
    pub fn judge(&mut self, view: &View) -> bool {
        let has_more = view.old_acks > self.old_acks;
        self.old_acks = view.old_acks;
        self.count = if has_more { self.count + 1 } else { 0 };
        self.count >= CONTRADICTIONS
    }
}

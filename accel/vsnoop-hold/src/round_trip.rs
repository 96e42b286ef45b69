//! Round trips of what the engine hands over, in run time of the VM (RFC 6298).
//!
//! A VM answers within moments of its run time. Behind one that forwards is a path, whose round
//! trip may be longer than any timeout for the VM itself: that, too, tells of a path, whatever the
//! TTL of what the VM sends.

use vsnoop_flow::types::seq;

use crate::late::DueAcks;
use crate::time::TICK_NS;

/// Before the first sample (RFC 6298, section 2.1).
const FIRST_NS: u64 = 1_000_000_000;
/// A VM with its CPU answers sooner, also where it delays its ACKs.
const LONG_NS: u64 = 75_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrips {
    /// The byte that is timed, plus one, and when it was handed over.
    timed: Option<(seq, u64)>,
    /// SRTT and RTTVAR.
    smoothed: Option<(u64, u64)>,
    /// All samples.
    due: DueAcks,
}

impl RoundTrips {
    /// The VM was handed all below `end`.
    pub fn sent(&mut self, end: seq, now_ns: u64) {
        self.timed.get_or_insert((end, now_ns));
    }

    /// Something was sent again: an ACK may be of either (Karn's algorithm).
    pub fn resent(&mut self) {
        self.timed = None;
    }

    /// The VM has acknowledged all below `vm_seq`.
    pub fn acknowledged(&mut self, vm_seq: seq, now_ns: u64) {
        let Some((_, since)) = self.timed.filter(|(end, _)| vm_seq.diff(*end) >= 0) else { return };
        self.timed = None;
        let sample = now_ns.saturating_sub(since);
        self.due.acks = self.due.acks.wrapping_add(1);
        self.due.ns += sample;
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, varies)) => {
                ((7 * mean + sample) / 8, (3 * varies + mean.abs_diff(sample)) / 4)
            }
        });
    }

    /// ACKs of bytes that were timed.
    pub fn due_acks(&self) -> DueAcks {
        self.due
    }

    /// Are they too long for a VM that answers itself?
    pub fn are_long(&self) -> bool {
        self.smoothed.is_some_and(|(mean, _)| mean >= LONG_NS)
    }

    /// The time by which an answer is due. `neighbour`: the far end is one hop behind the VM.
    pub fn timeout(&self, neighbour: bool) -> u64 {
        match self.smoothed {
            Some((mean, varies)) => mean + (4 * varies).max(TICK_NS),
            None if neighbour => FIRST_NS,
            None => 0,
        }
    }
}

//! An estimate of what a VM's lateness costs, before anything is attached.
//!
//! In slow start a sender waits for an ACK, sends as much again, and waits again: from a first
//! flight of 10 segments (RFC 6928) on it doubles. What a VM receives waits for the VM's ACK in
//! each of these rounds; what it sends waits for its next turn, after the peer's ACK has come. With
//! a host that answers for it, a round takes the path's time only. The bounds are that each round
//! meets the VM without a CPU, and that nothing else is the limit.

use serde::Serialize;
use vsnoop_bpf::types::SPLIT_SEGMENTS;

/// Payload of a segment with timestamps.
const MSS: u64 = 1448;
const FIRST_FLIGHT: u64 = SPLIT_SEGMENTS as u64;

/// Sizes of the estimates, in bytes.
const SMALL: u64 = 100_000;
const LARGE: u64 = 1_000_000;

/// How much sooner transfers in slow start may be over, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gain {
    /// A round, in nanoseconds.
    pub round_ns: u64,
    pub of_100_kb_ns: u64,
    pub of_1_mb_ns: u64,
}

impl Gain {
    /// The gain of a VM that takes this long to answer.
    pub fn from_delay(delay_ns: u64) -> Self {
        let saved = |bytes| count_rounds(bytes).saturating_mul(delay_ns);
        Self { round_ns: delay_ns, of_100_kb_ns: saved(SMALL), of_1_mb_ns: saved(LARGE) }
    }
}

/// How often a sender in slow start waits for ACKs before it has sent so much.
fn count_rounds(bytes: u64) -> u64 {
    let segments = bytes.div_ceil(MSS);
    let (mut sent, mut flight, mut rounds) = (FIRST_FLIGHT, FIRST_FLIGHT, 0);
    while sent < segments {
        flight *= 2;
        sent += flight;
        rounds += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_flight_waits_for_nothing_and_each_round_doubles() {
        assert_eq!(count_rounds(0), 0);
        assert_eq!(count_rounds(10 * MSS), 0);
        assert_eq!(count_rounds(10 * MSS + 1), 1);
        assert_eq!(count_rounds(30 * MSS), 1);
        assert_eq!(count_rounds(30 * MSS + 1), 2);
        let gain = Gain::from_delay(40);
        assert_eq!((gain.of_100_kb_ns, gain.of_1_mb_ns), (2 * 40, 6 * 40));
        assert_eq!(Gain::from_delay(u64::MAX).of_1_mb_ns, u64::MAX);
    }
}

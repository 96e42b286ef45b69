//! Lateness that the VM's wait for a CPU does not explain.
//!
//! A VM that is late because it waits for a CPU loses nothing, and gains from early
//! acknowledgement. One that is late while it ran or slept forwards to a slower path, or is itself
//! too slow: its connections gain nothing, and are left to it (flow/far_end.h).
//!
//! The hooks count the ACKs that were due, and how long they took (`hold.due_acks`, `hold.due_ns`),
//! and so does the engine for what it hands over (round_trip.rs).
//! A look compares what was added since the last with the time for which any thread of the VM's
//! process waited for a CPU. One loss inside the guest is one late ACK, so [`ACKS`] of them are
//! needed, in looks of which none was prompt or explained.

/// A mean of less is no lateness.
const LATE_NS: u64 = 10_000_000;
/// A wait of this part of the ACKs' time may explain it.
const PART: u64 = 4;
/// This number of late ACKs proves another reason.
const ACKS: u32 = 8;
/// Half of them do if they took this time in all.
const LONG_NS: u64 = 400_000_000;

/// How long the VM has waited for a CPU in all, as far as it was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitClock {
    /// Number of samples.
    pub samples: u32,
    /// Those that told nothing.
    pub gaps: u32,
    pub waited_ns: u64,
}

/// The ACKs of a connection that were due, and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueAcks {
    pub acks: u32,
    pub ns: u64,
}

impl DueAcks {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { acks: self.acks.wrapping_add(other.acks), ns: self.ns.saturating_add(other.ns) }
    }
}

/// The ACKs of one connection at the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    due: DueAcks,
    clock: WaitClock,
    /// The ACKs before the last look, and the clock of the look before. They are judged in the next
    /// look: only then has a sample counted all waits until the last.
    pending: Option<(DueAcks, WaitClock)>,
    /// ACKs in a row that were late.
    late: DueAcks,
}

impl Lateness {
    pub fn since(due: DueAcks, clock: WaitClock) -> Self {
        Self { due, clock, ..Self::default() }
    }

    /// Compares what was added with the time that the VM waited meanwhile. Returns whether the VM
    /// is late for another reason than its CPU.
    pub fn compare_waits(&mut self, due: DueAcks, clock: WaitClock) -> bool {
        if clock.samples == self.clock.samples {
            return false;
        }
        let added = DueAcks {
            acks: due.acks.wrapping_sub(self.due.acks),
            ns: due.ns.saturating_sub(self.due.ns),
        };
        let judged = self.pending.replace((added, self.clock));
        (self.due, self.clock) = (due, clock);
        let Some((DueAcks { acks, ns }, from)) = judged else { return false };
        if clock.gaps != from.gaps {
            self.late = DueAcks::default();
        } else if acks > 0 {
            let waited_ns = clock.waited_ns.saturating_sub(from.waited_ns);
            let is_late = ns / u64::from(acks) >= LATE_NS && waited_ns < ns / PART;
            let so_far = DueAcks { acks, ns }.and(self.late);
            self.late = if is_late { so_far } else { DueAcks::default() };
        }
        self.late.acks >= ACKS || (self.late.acks >= ACKS / 2 && self.late.ns >= LONG_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks at a connection whose ACKs take `each_ns`, `acks` in each look. None: the waits are
    /// not known.
    fn looks(count: u32, acks: u32, each_ns: u64, waited_ns: Option<u64>) -> bool {
        let mut clock = WaitClock { samples: 7, gaps: 1, waited_ns: 50 };
        let mut due = DueAcks { acks: 100, ns: 7 };
        let mut lateness = Lateness::since(due, clock);
        let mut is_late = false;
        for _ in 0..count {
            due = DueAcks { acks: due.acks + acks, ns: due.ns + u64::from(acks) * each_ns };
            clock.samples += 1;
            clock.gaps += u32::from(waited_ns.is_none());
            clock.waited_ns += waited_ns.unwrap_or(0);
            is_late |= lateness.compare_waits(due, clock);
        }
        is_late
    }

    #[test]
    fn a_path_behind_the_vm_shows_within_eight_acks_and_a_long_one_within_four() {
        assert!(looks(3, 2, 100 * MS, Some(0)));
        assert!(looks(5, 2, 100 * MS, Some(20 * MS)), "it waited a little");
        assert!(!looks(2, 2, 100 * MS, Some(0)));
        assert!(looks(5, 2, 20 * MS, Some(0)));
        assert!(!looks(4, 2, 20 * MS, Some(0)), "fewer than eight");
    }

    #[test]
    fn a_vm_that_waits_for_its_cpu_is_not_late_for_another_reason() {
        assert!(!looks(100, 2, 100 * MS, Some(160 * MS)));
        assert!(!looks(100, 2, 100 * MS, None), "unknown");
    }

    #[test]
    fn a_wait_that_is_sampled_after_its_ack_excuses_it() {
        let mut lateness = Lateness::default();
        let (mut due, mut clock) = (DueAcks::default(), WaitClock::default());
        for look in 0..40 {
            // ACKs and the waits before them are seen in turn.
            due.acks += 4 * (look % 2);
            due.ns += 4 * 100 * MS * u64::from(look % 2);
            clock.samples += 1;
            clock.waited_ns += 400 * MS * u64::from(1 - look % 2);
            assert!(!lateness.compare_waits(due, clock), "{look}");
        }
    }

    #[test]
    fn a_prompt_vm_is_not_late() {
        assert!(!looks(100, 200, MS, Some(0)));
        // A loss now and then.
        let mut lateness = Lateness::default();
        let (mut due, mut clock) = (DueAcks::default(), WaitClock::default());
        for look in 0..100 {
            let (acks, ns) = if look % 4 == 0 { (1, 250 * MS) } else { (100, 100 * MS) };
            due = DueAcks { acks: due.acks + acks, ns: due.ns + ns };
            clock.samples += 1;
            assert!(!lateness.compare_waits(due, clock));
        }
    }

    #[test]
    fn looks_without_a_new_sample_judge_nothing() {
        let mut lateness = Lateness::default();
        for look in 0..100 {
            let due = DueAcks { acks: look, ns: u64::from(look) * 100 * MS };
            assert!(!lateness.compare_waits(due, WaitClock::default()));
        }
    }
}

//! Does the VM wait for a CPU? The hooks ask before they acknowledge data for a host that the VM
//! may forward to (flow/far_end.h).
//!
//! A sample is taken four times a second while something waits for the VM, else once. The second
//! one comes as soon as on a busy port: the first has no beginning, so nothing is known before it.

/// Interval of samples while something waits for the VM.
const BUSY_NS: u64 = 250_000_000;
/// Interval of samples of an idle port.
const IDLE_NS: u64 = 1_000_000_000;
/// A VM that waited for less than this part of the time between two samples has CPU enough.
const PART: u64 = 20;
/// A shorter wait says nothing: each thread waits for moments.
const LEAST_NS: u64 = 2_000_000;

/// When the VM's waits are sampled, and what the samples say.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    sampled_ns: Option<u64>,
    /// A sample with a beginning was taken.
    has_compared: bool,
}

impl Waits {
    /// Is a sample due at this time? `busy`: something waits for the VM.
    pub fn is_due(&self, now_ns: u64, busy: bool) -> bool {
        let period_ns = if busy || !self.has_compared { BUSY_NS } else { IDLE_NS };
        self.sampled_ns.is_none_or(|at| now_ns.saturating_sub(at) >= period_ns)
    }

    /// Notes a sample: the VM waited for `waited_ns` since the last one. `None`: it is unknown.
    /// Returns whether the VM is short of CPU.
    pub fn sample(&mut self, now_ns: u64, waited_ns: Option<u64>) -> bool {
        let Some(before) = self.sampled_ns.replace(now_ns) else { return false };
        self.has_compared = true;
        let elapsed_ns = now_ns.saturating_sub(before);
        waited_ns.is_some_and(|waited| waited >= LEAST_NS && waited >= elapsed_ns / PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_vm_is_short_of_cpu_that_waits_for_a_twentieth_of_the_time() {
        let mut waits = Waits::default();
        assert!(!waits.sample(0, Some(u64::MAX)), "the first sample has no beginning");
        for (waited_ns, is_short) in [
            (Some(0), false),
            (Some(49 * MS), false),
            (Some(50 * MS), true),
            (Some(800 * MS), true),
            (None, false),
        ] {
            let now_ns = waits.sampled_ns.expect("sampled") + 1_000 * MS;
            assert_eq!(waits.sample(now_ns, waited_ns), is_short, "{waited_ns:?}");
        }
        let now_ns = waits.sampled_ns.expect("sampled") + 10 * MS;
        assert!(!waits.sample(now_ns, Some(MS)), "too short a wait");
    }

    #[test]
    fn what_a_new_port_needs_is_known_after_one_short_interval() {
        let mut waits = Waits::default();
        assert!(waits.is_due(5, false));
        waits.sample(5, None);
        assert!(!waits.is_due(5 + BUSY_NS - 1, false));
        assert!(waits.is_due(5 + BUSY_NS, false));
    }

    #[test]
    fn an_idle_port_is_sampled_once_a_second_and_a_busy_one_four_times() {
        let mut waits = Waits::default();
        waits.sample(0, None);
        waits.sample(5, None);
        assert!(!waits.is_due(5 + BUSY_NS - 1, true));
        assert!(waits.is_due(5 + BUSY_NS, true));
        assert!(!waits.is_due(5 + BUSY_NS, false));
        assert!(waits.is_due(5 + IDLE_NS, false));
    }
}

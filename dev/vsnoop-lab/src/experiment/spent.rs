//! The parts of a VM's time during a measurement: it ran, its quota was used up, or others had
//! its core. What is left is time in which it had nothing to do: data were on their way, in the
//! host, or with the client.

use std::time::Duration;

use anyhow::Result;
use vsnoop_testbed::stage::Stage;

use crate::results::{Values, ms};

/// Names of values of a sample: its vCPU ran, for its own load as well.
const RAN: &str = "ran_ms";
/// Its quota was used up.
const THROTTLED: &str = "throttled_ms";
/// It had work while others ran on its core.
const QUEUED: &str = "queued_ms";

pub const NAMES: [&str; 3] = [RAN, THROTTLED, QUEUED];

/// Counters of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ran: Duration,
    /// `None` without a quota.
    throttled: Option<Duration>,
    queued: Duration,
}

impl Clock {
    pub fn read(stage: &Stage, machine: usize) -> Result<Self> {
        let vm = stage.vm(machine);
        let throttled = vm.throttled()?;
        let queued = match stage.waited_for_turns(machine) {
            Some(waited) => waited,
            // The kernel (6.18) counts what the quota makes it wait for, too.
            None => vm.queued_time()?.saturating_sub(throttled.unwrap_or_default()),
        };
        Ok(Self { ran: vm.vcpu_time()?, throttled, queued })
    }

    /// How much each counter of the machine has grown since the reading `before`, in ms, as values
    /// of a sample.
    pub fn since(&self, before: &Self) -> Values {
        let between = |after: Duration, before: Duration| ms(after.saturating_sub(before));
        let throttled = self.throttled.zip(before.throttled);
        let mut values = Values::from([
            (RAN.to_owned(), between(self.ran, before.ran)),
            (QUEUED.to_owned(), between(self.queued, before.queued)),
        ]);
        values.extend(throttled.map(|(after, before)| (THROTTLED.into(), between(after, before))));
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_differences_and_a_machine_without_a_quota_is_not_throttled() {
        let clock = |ran, throttled: Option<u64>, queued| Clock {
            ran: Duration::from_millis(ran),
            throttled: throttled.map(Duration::from_millis),
            queued: Duration::from_millis(queued),
        };
        let values = clock(30, Some(80), 9).since(&clock(10, Some(0), 10));
        let expected = [(RAN, 20.0), (THROTTLED, 80.0), (QUEUED, 0.0)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)).into());
        assert_eq!(clock(1, None, 0).since(&clock(0, None, 0)).get(THROTTLED), None);
    }
}

//! The holds of several ports together.

use vsnoop_host::holds::PortHold;
use vsnoop_host::units;

/// Held bytes on this host, and the quotas; `None` for fewer than two holds, which their own rows
/// show.
pub fn sum_text(holds: &[&PortHold]) -> Option<String> {
    let sum = |bytes: fn(&PortHold) -> u64| holds.iter().map(|hold| bytes(hold)).sum::<u64>();
    (holds.len() > 1).then(|| {
        format!(
            "held in all: {} of at most {}, in {} of memory",
            units::bytes(sum(|hold| hold.used_bytes)),
            units::bytes(sum(|hold| hold.size_bytes)),
            units::bytes(sum(|hold| hold.memory_bytes))
        )
    })
}

//! Growth of a hold's memory (flow/types/hold.h), as the engine adds slabs.

use crate::types::HOLD_READY_SLABS;

/// Slabs that are added or taken away at a time.
pub const SLABS_AT_ONCE: u32 = 16;

/// Slabs to add when the hooks want more, for a port that has `there` of at most `quota`: seven
/// times as many, but at least a 32nd of the quota and HOLD_READY_SLABS.
pub fn slabs_to_add(there: u32, quota: u32) -> u32 {
    let more = (7 * there).max(quota / 32).clamp(HOLD_READY_SLABS, SLABS_AT_ONCE);
    more.min(quota.saturating_sub(there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_to_its_quota_in_few_steps() {
        for (quota, steps) in [(0, 0), (1, 1), (4, 1), (64, 5), (256, 17), (1024, 64)] {
            let (mut there, mut taken) = (0, 0);
            while slabs_to_add(there, quota) > 0 {
                there += slabs_to_add(there, quota);
                taken += 1;
                assert!(there <= quota && slabs_to_add(there, quota) <= SLABS_AT_ONCE);
            }
            assert_eq!((there, taken), (quota, steps));
        }
        assert_eq!(slabs_to_add(5, 4), 0, "the quota was lowered");
    }
}

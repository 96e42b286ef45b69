//! How the memory of a hold grows: the engine's part of flow/types/hold.h.

use crate::types::HOLD_READY_SLABS;

/// Slabs that are added or taken away at once.
pub const SLABS_AT_ONCE: u32 = 16;

/// How many slabs are added to the `there` that a port has, of `quota` at most, when the hooks want
/// more: seven times as many, a 32nd of the quota at least, and what a new connection is to find.
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

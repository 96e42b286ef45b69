//! Growth of a hold's memory (flow/types/hold_record.h), as the engine adds and removes slabs.

use crate::types::{HOLD_READY_SLABS, SLAB_CHUNKS, SLABS};

/// Slabs that are added or taken away at a time.
pub const SLABS_AT_ONCE: u32 = 16;

/// Slabs to add when the hooks want more, for a port that has `there` of at most `quota`: seven
/// times as many, but at least a 32nd of the quota and HOLD_READY_SLABS.
pub fn slabs_to_add(there: u32, quota: u32) -> u32 {
    let more = (7 * there).max(quota / 32).clamp(HOLD_READY_SLABS, SLABS_AT_ONCE);
    more.min(quota.saturating_sub(there))
}

/// Slabs that a port with this quota of chunks may have.
pub fn slab_quota(hold_chunks: u32) -> u32 {
    hold_chunks.div_ceil(SLAB_CHUNKS).min(SLABS)
}

/// May a port that has `there` slabs give some back, so that `left` remain? At most half of them at
/// a time, so that bursts find some; and as long as at most half of the chunks are used (the hooks
/// want more then), or the quota is exceeded. `used`: chunks in use.
pub fn may_shrink_to(left: u32, there: u32, quota: u32, used: u32) -> bool {
    let least = there - there.div_ceil(2).min(SLABS_AT_ONCE);
    left >= least && (left >= quota || used <= left * SLAB_CHUNKS / 2)
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

    #[test]
    fn memory_is_given_back_while_half_of_it_is_unused() {
        assert!(may_shrink_to(3, 4, 100, 3 * SLAB_CHUNKS / 2));
        assert!(!may_shrink_to(3, 4, 100, 3 * SLAB_CHUNKS / 2 + 1));
        assert!(!may_shrink_to(1, 4, 100, 0), "more than half at a time");
        assert!(may_shrink_to(3, 4, 3, 3 * SLAB_CHUNKS), "the quota was lowered");
        assert!(!may_shrink_to(40, 64, 100, 0), "more than 16 at a time");
    }
}

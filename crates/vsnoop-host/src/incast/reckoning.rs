//! Rates as the hooks reckon with them.

/// Of bytes per 2^20 ns.
pub fn bits_per_second(rate: u64) -> u64 {
    ((u128::from(rate) * 8 * 1_000_000_000) >> 20) as u64
}

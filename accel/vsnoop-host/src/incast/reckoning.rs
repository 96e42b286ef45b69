//! Rates in the hooks' unit: bytes per 2^20 ns.

/// Bits per second from bytes per 2^20 ns.
pub fn bits_per_second(rate: u64) -> u64 {
    ((u128::from(rate) * 8 * 1_000_000_000) >> 20) as u64
}

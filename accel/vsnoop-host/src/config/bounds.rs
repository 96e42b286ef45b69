//! Bounds of a port's hold, and of how far senders may run ahead, as texts have them.

use crate::size;

/// Smallest hold of one port, bytes.
pub const HOLD_LEAST: u64 = 256 << 10;
/// Largest hold of one port, bytes: the limit of the BPF maps.
pub const HOLD_MOST: u64 = 256 << 20;

/// The quota of a port is not within [`HOLD_LEAST`] and [`HOLD_MOST`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("give a hold of 256K to 256M bytes (suffixes K, M, G)")]
pub struct HoldSizeError;

/// Parses the quota of one port.
pub fn hold_size(text: &str) -> Result<u32, HoldSizeError> {
    size::parse(text)
        .filter(|bytes| (HOLD_LEAST..=HOLD_MOST).contains(bytes))
        .map(|bytes| bytes as u32)
        .ok_or(HoldSizeError)
}

/// Parses how far a sender may send beyond the VM's own window: at most the largest that there is
/// (RFC 7323, section 2.3).
pub fn ahead_size(text: &str) -> Result<u32, &'static str> {
    size::parse(text)
        .filter(|bytes| *bytes <= 1 << 30)
        .map(|bytes| bytes as u32)
        .ok_or("give a number of bytes, up to 1G, with an optional suffix K, M or G")
}

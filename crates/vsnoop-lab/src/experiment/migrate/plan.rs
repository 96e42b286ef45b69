//! What is uploaded to which machine.

/// Of the vCPU, at both hosts.
pub const QUOTA_PERCENT: u32 = 20;
pub const SIZE_BYTES: u64 = 1_000_000;
pub const CLIENTS: usize = 4;

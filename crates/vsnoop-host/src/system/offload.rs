//! Offloads of a tap, which its reader sets: do super-packets and partial checksums reach the VM?

use vsnoop_netdev::ethtool::{Offload, is_on};

use crate::error::Result;

#[derive(Clone, Copy, Debug, Default)]
pub struct Offloads {
    pub checksum: bool,
    pub tso: bool,
}

/// Reads the offloads of a device of the calling thread's namespace.
pub fn read(device: &str) -> Result<Offloads> {
    Ok(Offloads {
        checksum: is_on(device, Offload::SendChecksum)?,
        tso: is_on(device, Offload::Tso)?,
    })
}

//! Offloads of a tap, which its reader sets: do super-packets and partial checksums reach the VM?

use std::os::fd::BorrowedFd;

use vsnoop_netdev::ethtool::{Offload, is_on, is_on_by};
use vsnoop_netdev::tap::Offloads;

use crate::error::Result;

/// Reads the offloads of a device of the calling thread's namespace.
pub fn read(device: &str) -> Result<Offloads> {
    Ok(Offloads {
        checksum: is_on(device, Offload::SendChecksum)?,
        tso: is_on(device, Offload::Tso)?,
    })
}

/// Does the device that `request` names (SIOCGIFNAME) take super-packets of TCP? `socket` is one of
/// the device's network namespace. False if the device is gone.
pub fn takes_super_packets(socket: BorrowedFd<'_>, request: libc::ifreq) -> bool {
    is_on_by(socket, request, Offload::Tso).unwrap_or(false)
}

//! Offloads of a device (SIOCETHTOOL).

use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

/// Something that a device may do for the stack, by the command that switches it
/// (include/uapi/linux/ethtool.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Checksums of what is sent.
    SendChecksum = 0x17,
    /// TCP segmentation.
    Tso = 0x1f,
    /// Segmentation in the stack, just before the device.
    Gso = 0x24,
    /// Merging on receipt.
    Gro = 0x2c,
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

nix::ioctl_readwrite_bad!(siocethtool, libc::SIOCETHTOOL, libc::ifreq);

/// Switches an offload of a device, in the network namespace of the calling thread.
pub fn set(device: &str, offload: Offload, on: bool) -> Result<()> {
    let mut value = EthtoolValue { command: offload as u32, data: on.into() };
    // SAFETY: an ifreq is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    ensure!(device.len() < request.ifr_name.len(), "{device}: the name is too long");
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).context("open a socket")?;
    // SAFETY: the request names a device and points to `value`, which lives on; the kernel reads it.
    unsafe { siocethtool(socket.as_raw_fd(), &mut request) }.map_err(io::Error::from)?;
    Ok(())
}

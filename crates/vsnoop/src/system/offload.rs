//! What a tap's reader leaves to be done: whether super-packets and unfinished checksums reach the VM.

use anyhow::Result;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;

// include/uapi/linux/ethtool.h
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

nix::ioctl_readwrite_bad!(siocethtool, libc::SIOCETHTOOL, libc::ifreq);

#[derive(Clone, Copy, Debug, Default)]
pub struct Offloads {
    pub checksum: bool,
    pub tso: bool,
}

/// Reads the offloads of a device of the calling thread's namespace.
pub fn read(device: &str) -> Result<Offloads> {
    Ok(Offloads { checksum: value(device, ETHTOOL_GTXCSUM)?, tso: value(device, ETHTOOL_GTSO)? })
}

fn value(device: &str, command: u32) -> Result<bool> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = EthtoolValue { command, data: 0 };
    // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request is zero-terminated by `take` above and points at a live ethtool_value, which
    // is what both commands fill in.
    unsafe { siocethtool(socket.as_raw_fd(), &mut request) }?;
    Ok(value.data != 0)
}

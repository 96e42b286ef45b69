//! What a device's driver tells (SIOCETHTOOL).

use std::os::fd::AsRawFd;

use anyhow::Result;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

// include/uapi/linux/ethtool.h
const ETHTOOL_GSET: u32 = 0x1;
const SPEED_UNKNOWN: u32 = u32::MAX;

#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    command: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    ports: [u8; 6],
    most_packets: [u32; 2],
    speed_high: u16,
    mdix: [u8; 2],
    partner: u32,
    reserved: [u32; 2],
}

nix::ioctl_readwrite_bad!(siocethtool, libc::SIOCETHTOOL, libc::ifreq);

/// Asks the driver of a device of the calling thread's namespace; `record` begins with the command, and
/// is what that command fills in.
pub fn ask<T>(device: &str, record: &mut T) -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(record).cast();
    // SAFETY: the request is zero-terminated by `take` above and points at a live record of the
    // command's own layout, as the caller promises.
    unsafe { siocethtool(socket.as_raw_fd(), &mut request) }?;
    Ok(())
}

/// Bits per second; `None` when the driver does not tell, or the link is down.
pub fn link_speed(device: &str) -> Option<u64> {
    let mut answer = EthtoolCmd { command: ETHTOOL_GSET, ..EthtoolCmd::default() };
    ask(device, &mut answer).ok()?;
    let megabits = u32::from(answer.speed_high) << 16 | u32::from(answer.speed);
    (megabits != 0 && megabits != SPEED_UNKNOWN).then(|| u64::from(megabits) * 1_000_000)
}

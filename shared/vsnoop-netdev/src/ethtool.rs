//! Reads and sets the features of a device's driver (SIOCETHTOOL).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The module's result.
pub type Result<T> = std::result::Result<T, Error>;

/// The driver of a device cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{device:?} is too long for a device")]
    NameTooLong { device: String },
    #[error("open a socket")]
    Socket(#[source] nix::Error),
    /// The kernel's or the driver's answer to SIOCETHTOOL.
    #[error(transparent)]
    Refused(nix::Error),
}

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

/// Something that a device may do for the stack, by the command that reads it; the next one writes
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Checksums of what is sent (`ETHTOOL_GTXCSUM`).
    SendChecksum = 0x16,
    /// TCP segmentation (`ETHTOOL_GTSO`).
    Tso = 0x1e,
    /// Segmentation in the stack, just before the device (`ETHTOOL_GGSO`).
    Gso = 0x23,
    /// Merging on receipt (`ETHTOOL_GGRO`).
    Gro = 0x2b,
}

impl Offload {
    fn reads(self) -> u32 {
        self as u32
    }

    fn writes(self) -> u32 {
        self as u32 + 1
    }
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Asks the driver of a device of the calling thread's namespace.
///
/// # Safety
/// `record` begins with a command, and has the layout that this command reads and fills in.
unsafe fn ask<T>(device: &str, record: &mut T) -> Result<()> {
    if device.len() >= libc::IFNAMSIZ {
        return Err(Error::NameTooLong { device: device.to_owned() });
    }
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(Error::Socket)?;
    // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the caller's promise; the name is zero-terminated, because it is shorter.
    unsafe { ask_by(socket.as_fd(), request, record) }
}

/// Asks the driver of the device that `request` names, by a socket of the device's namespace.
///
/// # Safety
/// The caller meets the conditions of [`ask`], and the name ends with a zero byte.
unsafe fn ask_by<T>(
    socket: BorrowedFd<'_>,
    mut request: libc::ifreq,
    record: &mut T,
) -> Result<()> {
    request.ifr_ifru.ifru_data = std::ptr::from_mut(record).cast();
    // SAFETY: the request points at a live record of the command's own layout, as the caller
    // promises.
    unsafe { siocethtool(socket.as_raw_fd(), &mut request) }.map_err(Error::Refused)?;
    Ok(())
}

/// Whether an offload of the device is on that `request` names (SIOCGIFNAME), by a socket of the
/// device's namespace.
pub fn is_on_by(socket: BorrowedFd<'_>, request: libc::ifreq, offload: Offload) -> Result<bool> {
    let mut value = EthtoolValue { command: offload.reads(), data: 0 };
    // SAFETY: the record of these commands; the kernel ends names with a zero byte.
    unsafe { ask_by(socket, request, &mut value) }?;
    Ok(value.data != 0)
}

/// Whether an offload of a device is on.
pub fn is_on(device: &str, offload: Offload) -> Result<bool> {
    let mut value = EthtoolValue { command: offload.reads(), data: 0 };
    // SAFETY: the record of these commands.
    unsafe { ask(device, &mut value) }?;
    Ok(value.data != 0)
}

/// Switches an offload of a device.
pub fn switch(device: &str, offload: Offload, on: bool) -> Result<()> {
    let mut value = EthtoolValue { command: offload.writes(), data: on.into() };
    // SAFETY: the record of these commands.
    unsafe { ask(device, &mut value) }
}

/// Bits per second; `None` when the driver does not tell, or the link is down.
pub fn link_speed(device: &str) -> Option<u64> {
    let mut answer = EthtoolCmd { command: ETHTOOL_GSET, ..EthtoolCmd::default() };
    // SAFETY: the record of this command.
    unsafe { ask(device, &mut answer) }.ok()?;
    let megabits = u32::from(answer.speed_high) << 16 | u32::from(answer.speed);
    (megabits != 0 && megabits != SPEED_UNKNOWN).then(|| u64::from(megabits) * 1_000_000)
}

//! Sends frames to a VM: a packet socket whose frames leave through the tap's egress, with a mark
//! for the hooks.
//!
//! A `virtio_net_hdr` before each frame says that its checksum must be completed and, for a
//! super-packet, how to segment it; the stack hands it over whole if the tap takes super-packets.
//! The system call copies the payload from the hold's memory, the only copy on the way out.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use libc::c_int;
use vsnoop_hold::Sent;
use vsnoop_host::system::offload;

/// The mark of a frame that the hook passes with the sender's latest ACK and window
/// (accel/bpf/marks.h).
pub const MARK_ENGINE: u32 = 0x5e30_0000;
/// The socket refuses frames beyond this; the tap's ring has its own limit.
const SEND_BUFFER: c_int = 64 << 20;

#[derive(Debug)]
pub struct Device {
    socket: OwnedFd,
    ifindex: u32,
}

impl Device {
    /// The calling thread must be in the tap's network namespace.
    pub fn open(ifindex: u32) -> Result<Self> {
        // SAFETY: takes no pointers. Protocol 0: it receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("open a packet socket");
        }
        // SAFETY: a new descriptor, owned by this value alone.
        let device = Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }, ifindex };
        device
            .set_option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
            .context("use virtio_net_hdr")?;
        device
            .set_option(libc::SOL_SOCKET, libc::SO_MARK, MARK_ENGINE as c_int)
            .context("mark frames")?;
        device
            .set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
            .context("size its buffer")?;
        // SAFETY: an all-zero sockaddr_ll is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex as i32;
        // SAFETY: a complete address and its true length.
        let bound = unsafe {
            libc::bind(
                device.socket.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if bound != 0 {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("bind to interface {ifindex}"));
        }
        Ok(device)
    }

    /// Does the socket still reach the tap? The kernel unbinds it when the tap leaves its network
    /// namespace, and does not bind it again when the tap comes back.
    pub fn reaches_the_tap(&self) -> bool {
        // SAFETY: an all-zero sockaddr_ll is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address and its true length; the kernel writes no more than that. (It writes
        // less, for which nix returns an error.)
        let asked = unsafe {
            libc::getsockname(
                self.socket.as_raw_fd(),
                std::ptr::from_mut(&mut address).cast(),
                &mut length,
            )
        };
        asked == 0 && address.sll_ifindex == self.ifindex as i32
    }

    /// Does a process read the tap, so that it has a carrier? Assumed if that cannot be told, as of
    /// a tap that is down.
    pub fn has_reader(&self) -> bool {
        let Some(mut request) = self.request_by_name() else { return true };
        let fd = self.socket.as_raw_fd();
        // SAFETY: a complete ifreq; SIOCGIFFLAGS reads the name and writes the flags.
        let flags = unsafe {
            if libc::ioctl(fd, libc::SIOCGIFFLAGS as _, &mut request) != 0 {
                return true;
            }
            c_int::from(request.ifr_ifru.ifru_flags)
        };
        flags & libc::IFF_UP == 0 || flags & libc::IFF_RUNNING != 0
    }

    /// The tap's present MTU, bytes; 1500 if the tap is gone.
    pub fn mtu(&self) -> u32 {
        const ETHERNET: u32 = 1500;
        self.ask_mtu().unwrap_or(ETHERNET)
    }

    /// Does the tap take super-packets, because its reader (a guest with TSO) has said so? False if
    /// the tap is gone.
    pub fn takes_super_packets(&self) -> bool {
        let name = self.request_by_name();
        name.is_some_and(|request| offload::takes_super_packets(self.socket.as_fd(), request))
    }

    fn ask_mtu(&self) -> Option<u32> {
        let mut request = self.request_by_name()?;
        // SAFETY: a complete ifreq; SIOCGIFMTU reads the name and writes the MTU.
        unsafe {
            if libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) != 0 {
                return None;
            }
            u32::try_from(request.ifr_ifru.ifru_mtu).ok()
        }
    }

    /// A request with the tap's present name. The socket belongs to the tap's network namespace,
    /// wherever the calling thread is.
    fn request_by_name(&self) -> Option<libc::ifreq> {
        // SAFETY: an all-zero ifreq is one.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.ifindex as i32;
        let fd = self.socket.as_raw_fd();
        // SAFETY: a complete ifreq; SIOCGIFNAME reads the index and writes the name.
        let found = unsafe { libc::ioctl(fd, libc::SIOCGIFNAME as _, &mut request) } == 0;
        found.then_some(request)
    }

    /// Hands a frame over.
    ///
    /// The parts may lie in memory that changes; the kernel copies them as they are.
    pub fn send(&self, parts: &[Part]) -> io::Result<Sent> {
        // SAFETY: an all-zero msghdr is one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: a Part is an iovec whose bytes are mapped while its owner lives; sendmsg() only
        // reads.
        let sent =
            unsafe { libc::sendmsg(self.socket.as_fd().as_raw_fd(), &message, libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(Sent::Taken);
        }
        match io::Error::last_os_error() {
            // The tap's ring is full, or memory is short, or another tool's qdisc refuses: no frame
            // may block other ports.
            error if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                Ok(Sent::Refused)
            }
            error if error.raw_os_error() == Some(libc::EMSGSIZE) => Ok(Sent::TooLarge),
            error => Err(error),
        }
    }

    fn set_option(&self, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
        // SAFETY: an int and its true length.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(&value).cast(),
                size_of::<c_int>() as u32,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A part of a frame: an iovec.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Part(libc::iovec);

impl Part {
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let slice = IoSlice::new(bytes);
        Self(libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() })
    }

    /// `start` must stay mapped for `len` bytes until the part was sent.
    pub fn from_start(start: *const u8, len: usize) -> Self {
        Self(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len })
    }
}

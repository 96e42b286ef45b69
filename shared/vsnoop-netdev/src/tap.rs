//! Opening taps, and reading and writing whole frames on them.
//!
//! A tap is made (or joined, when it is persistent) with `TUNSETIFF` in the network namespace of
//! the calling thread; the file descriptor keeps working from any other thread and namespace. With
//! `vnet_hdr` each read and write carries a `virtio_net_hdr` of `vnet_hdr_bytes` before the frame.
//! [`Offloads`] says what the *reader* of the descriptor accepts: without them the kernel cuts
//! super-packets and fills in checksums before it hands frames over. Writing is free of that: a
//! super-packet may be written to any tap that has a `virtio_net_hdr`.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::uio::{readv, writev};
use vsnoop_packet::packet::Packet;
use vsnoop_packet::vnet::{VNET_BYTES, VirtioNetHdr};
use zerocopy::IntoBytes;

nix::ioctl_write_ptr_bad!(tunsetiff, libc::TUNSETIFF, libc::ifreq);
nix::ioctl_write_int_bad!(tunsetpersist, libc::TUNSETPERSIST);
nix::ioctl_write_int_bad!(tunsetoffload, libc::TUNSETOFFLOAD);
nix::ioctl_write_ptr_bad!(tunsetvnethdrsz, libc::TUNSETVNETHDRSZ, libc::c_int);
nix::ioctl_write_ptr_bad!(tunsetcarrier, libc::TUNSETCARRIER, libc::c_int);

/// The module's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A tap cannot be opened or set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("tap name '{name}' must have 1 to {} characters", libc::IFNAMSIZ - 1)]
    Name { name: String },
    #[error("a virtio_net_hdr has {VNET_BYTES} or {} bytes, not {bytes}", VirtioNetHdr::BYTES)]
    HeaderSize { bytes: usize },
    #[error("opening /dev/net/tun; the tun driver is needed")]
    Driver(#[source] nix::Error),
    #[error("making or joining tap {name} (TUNSETIFF)")]
    Make { name: String, source: nix::Error },
    #[error("setting a virtio_net_hdr of {bytes} bytes on tap {name}")]
    SetHeader { name: String, bytes: usize, source: nix::Error },
    #[error("setting offloads {offloads:?} on tap {name}")]
    SetOffloads { name: String, offloads: Offloads, source: nix::Error },
    #[error("making tap {name} persistent: {persistent}")]
    SetPersistent { name: String, persistent: bool, source: nix::Error },
    #[error("setting the carrier of tap {name} to {is_on} (TUNSETCARRIER)")]
    SetCarrier { name: String, is_on: bool, source: nix::Error },
}

/// Offloads that a tap's reader accepts, as in a guest's virtio-net features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Accept frames whose TCP or UDP checksum is not filled in (`VIRTIO_NET_F_GUEST_CSUM`).
    pub checksum: bool,
    /// Accept super-packets of TCP over IPv4 and IPv6, with ECN; needs `checksum`.
    pub tso: bool,
}

impl Offloads {
    /// MTU-sized frames with complete checksums.
    pub const NONE: Self = Self { checksum: false, tso: false };
    /// MTU-sized frames, checksums left to the reader.
    pub const CHECKSUM: Self = Self { checksum: true, tso: false };
    /// Super-packets of up to 64 KB.
    pub const SUPER_PACKETS: Self = Self { checksum: true, tso: true };

    fn tun_flags(self) -> libc::c_uint {
        let mut flags = 0;
        if self.checksum {
            flags |= libc::TUN_F_CSUM;
        }
        if self.tso {
            flags |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        }
        flags
    }
}

/// How to open a tap.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Frames carry a `virtio_net_hdr`.
    pub vnet_hdr: bool,
    /// Size of that header: 10, or 12 with the `num_buffers` field.
    pub vnet_hdr_bytes: usize,
    /// `IFF_MULTI_QUEUE`; every opening of the same name is one more queue.
    pub multi_queue: bool,
    /// The device outlives its descriptors.
    pub persistent: bool,
    /// Reads and writes never wait.
    pub nonblocking: bool,
    pub offloads: Offloads,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            vnet_hdr: true,
            vnet_hdr_bytes: 12,
            multi_queue: false,
            persistent: false,
            nonblocking: true,
            offloads: Offloads::SUPER_PACKETS,
        }
    }
}

/// One queue of a tap.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    vnet_hdr_bytes: usize,
}

impl Tap {
    /// Makes the tap `name` in the calling thread's network namespace, or opens a queue of it.
    pub fn open(name: &str, options: &TapOptions) -> Result<Self> {
        use nix::fcntl::{OFlag, open};
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(Error::Name { name: name.to_owned() });
        }
        if options.vnet_hdr && ![VNET_BYTES, VirtioNetHdr::BYTES].contains(&options.vnet_hdr_bytes)
        {
            return Err(Error::HeaderSize { bytes: options.vnet_hdr_bytes });
        }
        let mut oflag = OFlag::O_RDWR | OFlag::O_CLOEXEC;
        if options.nonblocking {
            oflag |= OFlag::O_NONBLOCK;
        }
        let fd =
            open("/dev/net/tun", oflag, nix::sys::stat::Mode::empty()).map_err(Error::Driver)?;

        // SAFETY: ifreq is plain old data for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
        if options.vnet_hdr {
            flags |= libc::IFF_VNET_HDR;
        }
        if options.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: fd is an open tun descriptor and request a live ifreq of the size the call reads.
        unsafe { tunsetiff(fd.as_raw_fd(), &request) }
            .map_err(|source| Error::Make { name: name.to_owned(), source })?;

        let vnet_hdr_bytes = if options.vnet_hdr { options.vnet_hdr_bytes } else { 0 };
        if options.vnet_hdr {
            let size = vnet_hdr_bytes as libc::c_int;
            // SAFETY: as above; size outlives the call.
            unsafe { tunsetvnethdrsz(fd.as_raw_fd(), &size) }.map_err(|source| {
                Error::SetHeader { name: name.to_owned(), bytes: vnet_hdr_bytes, source }
            })?;
        }
        let tap = Self { fd, name: name.to_owned(), vnet_hdr_bytes };
        if options.vnet_hdr {
            tap.set_offloads(options.offloads)?;
        }
        if options.persistent {
            tap.set_persistent(true)?;
        }
        Ok(tap)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of `virtio_net_hdr` before each frame; 0 if the tap has none.
    pub fn vnet_hdr_bytes(&self) -> usize {
        self.vnet_hdr_bytes
    }

    /// Changes what the reader accepts; takes effect for frames that are queued from now on.
    pub fn set_offloads(&self, offloads: Offloads) -> Result<()> {
        // SAFETY: the descriptor is an open tap; the argument is a plain integer.
        unsafe { tunsetoffload(self.fd.as_raw_fd(), offloads.tun_flags() as libc::c_int) }
            .map_err(|source| Error::SetOffloads { name: self.name.clone(), offloads, source })?;
        Ok(())
    }

    /// Lets the device outlive its descriptors, or not.
    pub fn set_persistent(&self, persistent: bool) -> Result<()> {
        // SAFETY: the descriptor is an open tap; the argument is a plain integer.
        unsafe { tunsetpersist(self.fd.as_raw_fd(), persistent.into()) }.map_err(|source| {
            Error::SetPersistent { name: self.name.clone(), persistent, source }
        })?;
        Ok(())
    }

    /// Gives the device a carrier, which it has from the beginning, or takes it away. Linux 5.0.
    pub fn set_carrier(&self, is_on: bool) -> Result<()> {
        let value = libc::c_int::from(is_on);
        // SAFETY: the descriptor is an open tap; the argument points to an int that outlives the
        // call.
        unsafe { tunsetcarrier(self.fd.as_raw_fd(), &raw const value) }
            .map_err(|source| Error::SetCarrier { name: self.name.clone(), is_on, source })?;
        Ok(())
    }

    /// Reads one frame with its `virtio_net_hdr`; `false` when nothing is waiting.
    pub fn read(&self, packet: &mut Packet) -> io::Result<bool> {
        let (header, frame) = packet.parts_mut();
        let (header, _) = header.as_mut_bytes().split_at_mut(self.vnet_hdr_bytes);
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(frame)];
        match readv(&self.fd, &mut parts) {
            Ok(length) => {
                packet.set_length(length.saturating_sub(self.vnet_hdr_bytes));
                Ok(true)
            }
            Err(nix::Error::EAGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes one frame with its `virtio_net_hdr`; `false` when the kernel has no room for it now.
    pub fn write(&self, packet: &Packet) -> io::Result<bool> {
        let header = &packet.header.as_bytes()[..self.vnet_hdr_bytes];
        match writev(&self.fd, &[IoSlice::new(header), IoSlice::new(packet.frame())]) {
            Ok(_) => Ok(true),
            Err(nix::Error::EAGAIN | nix::Error::ENOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Tap> for OwnedFd {
    fn from(tap: Tap) -> Self {
        tap.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_device_can_have_is_refused_before_the_kernel_cuts_it() {
        for name in ["", "sixteen-letters-", "a\0b"] {
            let error = Tap::open(name, &TapOptions::default()).expect_err("must be refused");
            assert!(error.to_string().contains("1 to 15 characters"), "{error}");
        }
    }

    #[test]
    fn super_packets_are_never_asked_for_without_their_checksum_offload() {
        let flags = Offloads::SUPER_PACKETS.tun_flags();
        assert_eq!(flags & libc::TUN_F_CSUM, libc::TUN_F_CSUM);
        assert_eq!(Offloads::NONE.tun_flags(), 0);
    }
}

//! A local port of a link: where frames of VMs come in and go out.
//!
//! A *tap* is made by the link (and put into a bridge, if it has one): what the host sends out of
//! it is read here, what is written here the host receives. An *interface* that exists already, a
//! VM's tap or a network card, is joined by a packet socket instead. Both carry a `virtio_net_hdr`,
//! so that super-packets and partial checksums pass as they are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vsnoop_netdev::tap::{Offloads, Tap, TapOptions};
use vsnoop_packet::vnet::{VNET_BYTES, VirtioNetHdr};
use zerocopy::{FromBytes, IntoBytes};

use super::nonblocking::again;
use super::packet_socket::{PacketSocket, PacketSocketError, SparePacketSocket};

#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error(transparent)]
    Tap(Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Interface(#[from] PacketSocketError),
}

pub enum LinkPort {
    Tap(Tap),
    Interface(PacketSocket),
}

impl LinkPort {
    /// Makes the tap `name`, with one queue.
    pub fn open_tap(name: &str) -> Result<Self, PortError> {
        Self::tap_queue(name, false)
    }

    /// Makes the tap `name` if it is not there, and opens one more queue of it. The kernel puts the
    /// frames of a flow into one queue: into that by which frames of its other direction were
    /// written, if there were any within the last seconds, else by the flow's hash.
    pub fn open_queue(name: &str) -> Result<Self, PortError> {
        Self::tap_queue(name, true)
    }

    fn tap_queue(name: &str, multi_queue: bool) -> Result<Self, PortError> {
        let options = TapOptions {
            vnet_hdr_bytes: VNET_BYTES,
            offloads: Offloads::SUPER_PACKETS,
            multi_queue,
            ..TapOptions::default()
        };
        let tap = Tap::open(name, &options).map_err(|error| PortError::Tap(error.into()))?;
        Ok(Self::Tap(tap))
    }

    /// Joins the interface `name`.
    pub fn open_interface(name: &str) -> Result<Self, PortError> {
        Ok(Self::Interface(PacketSocket::open(name)?))
    }

    /// Joins the interface `name` by a socket that was made before, now or when it is looked at.
    pub fn interface_with(spare: SparePacketSocket, name: &str) -> Self {
        Self::Interface(PacketSocket::open_with(spare, name))
    }

    /// Whether there is an interface `name` to be joined.
    pub fn check_interface(name: &str) -> Result<(), PortError> {
        Ok(PacketSocket::index_of(name).map(drop)?)
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Tap(tap) => tap.name(),
            Self::Interface(socket) => socket.name(),
        }
    }

    /// Whether it is an interface that exists without the link.
    pub fn is_interface(&self) -> bool {
        matches!(self, Self::Interface(_))
    }

    /// Gives the tap a carrier, or takes it away. A bridge forgets the addresses that it has
    /// learned at a port without carrier. An interface belongs to others, and keeps its carrier.
    pub fn set_carrier(&self, is_on: bool) -> Result<(), PortError> {
        match self {
            Self::Tap(tap) => tap.set_carrier(is_on).map_err(|error| PortError::Tap(error.into())),
            Self::Interface(_) => Ok(()),
        }
    }

    /// Whether a read failed because of its frame alone, which is lost: a `virtio_net_hdr` cannot
    /// express its offloads.
    pub fn is_of_frame(&self, error: &io::Error) -> bool {
        self.is_interface() && error.raw_os_error() == Some(libc::EINVAL)
    }

    /// Whether a read failed because the interface went down; frames come again when it is up.
    pub fn is_of_state(&self, error: &io::Error) -> bool {
        self.is_interface() && error.raw_os_error() == Some(libc::ENETDOWN)
    }

    /// Reads one frame into `space`; where in `space` the frame stands. `None`: none waits.
    pub fn read(
        &self,
        space: &mut [u8],
    ) -> io::Result<Option<(VirtioNetHdr, std::ops::Range<usize>)>> {
        match self {
            Self::Tap(tap) => {
                let Some(length) = again(nix::unistd::read(tap, space))? else { return Ok(None) };
                Ok(Some((read_header(space), VNET_BYTES.min(length)..length)))
            }
            Self::Interface(socket) => {
                let Some((frame, tag_bytes)) = socket.read(space)? else { return Ok(None) };
                let mut header = read_header(space);
                header.shift(tag_bytes as i32);
                Ok(Some((header, frame)))
            }
        }
    }

    /// Writes one frame that lies in parts; `false`: the kernel had no room for it.
    pub fn write(&self, header: &VirtioNetHdr, parts: &[io::IoSlice<'_>]) -> io::Result<bool> {
        debug_assert!(parts.len() < libc::UIO_MAXIOV as usize);
        let mut all = [io::IoSlice::new(&[]); MAX_PARTS + 1];
        all[0] = io::IoSlice::new(&header.as_bytes()[..VNET_BYTES]);
        let count = parts.len().min(MAX_PARTS);
        all[1..=count].copy_from_slice(&parts[..count]);
        match nix::sys::uio::writev(self, &all[..=count]) {
            Ok(_) => Ok(true),
            Err(nix::Error::EAGAIN | nix::Error::ENOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Parts that a frame may lie in.
pub const MAX_PARTS: usize = 80;

impl AsFd for LinkPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Interface(socket) => socket.as_fd(),
        }
    }
}

fn read_header(space: &[u8]) -> VirtioNetHdr {
    let mut header = VirtioNetHdr::default();
    if let Some(bytes) = space.get(..VNET_BYTES) {
        let mut whole = [0; size_of::<VirtioNetHdr>()];
        whole[..VNET_BYTES].copy_from_slice(bytes);
        header = VirtioNetHdr::read_from_bytes(&whole).unwrap_or_default();
    }
    header
}

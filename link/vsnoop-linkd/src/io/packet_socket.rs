//! An existing interface as a port: a packet socket (packet(7)) with `virtio_net_hdr`.
//!
//! It reads all frames that the interface receives (promiscuous mode), but not those that the host
//! itself sends out of it. The kernel strips a VLAN tag and reports it in `PACKET_AUXDATA`; this
//! module inserts it again. Written frames pass the queue discipline and the hooks of the interface
//! like any other packet, so that early acknowledgement on a VM's tap works for frames of a link,
//! too.
//!
//! An interface that goes down gives one error of a read (`ENETDOWN`); when it is up again, reads
//! return frames as before. One that is deleted takes the binding with it: see
//! [`PacketSocket::join_device`].

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::debug;
use vsnoop_packet::vnet::VNET_BYTES;

use super::nonblocking::again;

const ETHERNET_ADDRESSES_BYTES: usize = 12;
const TAG_BYTES: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum PacketSocketError {
    #[error("there is no interface {name} here (`ip link`)")]
    NoInterface {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error("opening a packet socket on {name}")]
    Open {
        name: String,
        #[source]
        error: JoinError,
    },
}

/// A call that a packet socket needs has failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("{doing}")]
    Call {
        doing: &'static str,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Socket(io::Error),
}

impl JoinError {
    fn call(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Call { doing, error }
    }
}

#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    name: String,
    index: AtomicU32,
}

/// A packet socket that has joined no interface yet: it receives nothing. To make one needs
/// CAP_NET_RAW, to join needs nothing.
#[derive(Debug)]
pub struct SparePacketSocket(OwnedFd);

impl SparePacketSocket {
    pub fn new() -> Result<Self, JoinError> {
        // No protocol yet: nothing arrives before all options are set.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(JoinError::Socket(io::Error::last_os_error()));
        }
        // SAFETY: fd is new and owned by this value alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let one: libc::c_int = 1;
        set_option(&fd, libc::PACKET_VNET_HDR, &one).map_err(JoinError::call("PACKET_VNET_HDR"))?;
        set_option(&fd, libc::PACKET_AUXDATA, &one).map_err(JoinError::call("PACKET_AUXDATA"))?;
        set_option(&fd, PACKET_IGNORE_OUTGOING, &one)
            .map_err(JoinError::call("PACKET_IGNORE_OUTGOING"))?;
        Ok(Self(fd))
    }
}

impl PacketSocket {
    pub fn open(name: &str) -> Result<Self, PacketSocketError> {
        Self::open_index(name, Self::index_of(name)?)
            .map_err(|error| PacketSocketError::Open { name: name.to_owned(), error })
    }

    /// Joins the interface `name` by a socket that was made before. If that fails, as when the
    /// interface has just gone, its index is 0, and it may be [joined](Self::join_device) later.
    pub fn open_with(spare: SparePacketSocket, name: &str) -> Self {
        let socket = Self { fd: spare.0, name: name.to_owned(), index: AtomicU32::new(0) };
        if let Ok(index) = nix::net::if_::if_nametoindex(name)
            && let Err(error) = socket.join_device(index)
        {
            debug!("{name} is not joined yet: {error}");
        }
        socket
    }

    /// The index of the interface `name`.
    pub fn index_of(name: &str) -> Result<u32, PacketSocketError> {
        nix::net::if_::if_nametoindex(name).map_err(|error| PacketSocketError::NoInterface {
            name: name.to_owned(),
            error: error.into(),
        })
    }

    fn open_index(name: &str, index: u32) -> Result<Self, JoinError> {
        let SparePacketSocket(fd) = SparePacketSocket::new()?;
        let socket = Self { fd, name: name.to_owned(), index: AtomicU32::new(0) };
        socket.join_device(index)?;
        Ok(socket)
    }

    /// The index of the interface that it has joined.
    pub fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Joins this interface, instead of the one before: its name may be another's now. Others may
    /// read and write meanwhile.
    pub fn join_device(&self, index: u32) -> Result<(), JoinError> {
        let before = self.index.swap(0, Ordering::Relaxed);
        if before != 0 {
            // It went with the interface, if that is gone.
            let _ =
                set_option(&self.fd, libc::PACKET_DROP_MEMBERSHIP, &promiscuous_request(before));
        }
        set_option(&self.fd, libc::PACKET_ADD_MEMBERSHIP, &promiscuous_request(index))
            .map_err(JoinError::call("promiscuous mode"))?;
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: address is a live sockaddr_ll of the length given.
        let bound = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if bound != 0 {
            let error = io::Error::last_os_error();
            // Or each attempt would leave one more.
            let _ = set_option(&self.fd, libc::PACKET_DROP_MEMBERSHIP, &promiscuous_request(index));
            return Err(JoinError::call("bind")(error));
        }
        self.index.store(index, Ordering::Relaxed);
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a `virtio_net_hdr` to the start of `space` and a frame behind it; where the frame
    /// stands, and how many bytes of it, a tag, the header does not know of.
    pub fn read(&self, space: &mut [u8]) -> io::Result<Option<(std::ops::Range<usize>, usize)>> {
        // Room to put a tag back in before what was read: it is moved there only if there is one.
        if space.len() < VNET_BYTES + TAG_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (vnet, rest) = space.split_at_mut(VNET_BYTES);
        let mut parts = [
            libc::iovec { iov_base: vnet.as_mut_ptr().cast(), iov_len: VNET_BYTES },
            libc::iovec {
                iov_base: rest[TAG_BYTES..].as_mut_ptr().cast(),
                iov_len: rest.len() - TAG_BYTES,
            },
        ];
        let mut control = [0u64; 8];
        // SAFETY: all zeroes is a valid msghdr.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: message points to live buffers of the lengths it names.
        let length = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, 0) };
        let Some(length) = again(nix::Error::result(length))? else { return Ok(None) };
        let frame_bytes = (length as usize).saturating_sub(VNET_BYTES);
        let begin = VNET_BYTES + TAG_BYTES;
        if frame_bytes < ETHERNET_ADDRESSES_BYTES {
            return Ok(Some((begin..begin + frame_bytes, 0)));
        }
        let Some(tag) = tag_of(&message) else {
            return Ok(Some((begin..begin + frame_bytes, 0)));
        };
        space.copy_within(begin..begin + ETHERNET_ADDRESSES_BYTES, VNET_BYTES);
        space[VNET_BYTES + ETHERNET_ADDRESSES_BYTES..][..TAG_BYTES].copy_from_slice(&tag);
        Ok(Some((VNET_BYTES..begin + frame_bytes, TAG_BYTES)))
    }
}

fn promiscuous_request(index: u32) -> libc::packet_mreq {
    libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

fn set_option<T>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: value is live and as long as is said.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The VLAN tag that the kernel told beside the frame.
fn tag_of(message: &libc::msghdr) -> Option<[u8; TAG_BYTES]> {
    // SAFETY: message was filled by recvmsg; its control buffer is live.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers within the control buffer, or null.
        let header = unsafe { &*at };
        if header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA {
            // SAFETY: data of this type is a tpacket_auxdata; it may be unaligned.
            let data = unsafe {
                std::ptr::read_unaligned(libc::CMSG_DATA(at).cast::<libc::tpacket_auxdata>())
            };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
                return None;
            }
            let kind = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                data.tp_vlan_tpid
            } else {
                libc::ETH_P_8021Q as u16
            };
            let [a, b] = kind.to_be_bytes();
            let [c, d] = data.tp_vlan_tci.to_be_bytes();
            return Some([a, b, c, d]);
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    None
}

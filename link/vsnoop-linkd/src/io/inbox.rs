//! Receives many datagrams with one system call.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockAddr;

use super::udp::{Endpoints, UdpSocket};
use vsnoop_link::session::canonical_address;

/// Most bytes of one receive.
pub const RECEIVE_BYTES: usize = 65_536;

/// Room for the control messages of one receive: the size of segments, our address and the traffic
/// class.
type ControlMessages = [u64; 14];

/// Buffers for several receives at once.
pub struct Inbox {
    buffers: Box<[u8]>,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[ControlMessages]>,
    messages: Vec<ReceivedDatagrams>,
}

/// Datagrams of one size from one sender, one behind the other, the last perhaps shorter.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedDatagrams {
    pub ends: Endpoints,
    /// Where in the inbox.
    pub begin: usize,
    pub length: usize,
    pub segment_bytes: usize,
    /// Their traffic class: DSCP and ECN.
    pub class: u8,
}

impl Inbox {
    pub fn new(receives: usize) -> Self {
        // SAFETY: all zeroes is a valid sockaddr_storage.
        let name: libc::sockaddr_storage = unsafe { zeroed() };
        Self {
            buffers: vec![0; receives * RECEIVE_BYTES].into_boxed_slice(),
            names: vec![name; receives].into_boxed_slice(),
            controls: vec![ControlMessages::default(); receives].into_boxed_slice(),
            messages: Vec::with_capacity(receives),
        }
    }

    /// Receives what is there, without waiting; `false`: nothing.
    pub fn receive_datagrams(&mut self, socket: &UdpSocket) -> io::Result<bool> {
        self.messages.clear();
        let count = self.names.len();
        let mut parts: [libc::iovec; MAX_RECEIVES] =
            // SAFETY: all zeroes is a valid iovec.
            unsafe { zeroed() };
        // SAFETY: all zeroes is a valid mmsghdr.
        let mut headers: [libc::mmsghdr; MAX_RECEIVES] = unsafe { zeroed() };
        let count = count.min(MAX_RECEIVES);
        for at in 0..count {
            parts[at].iov_base = self.buffers[at * RECEIVE_BYTES..].as_mut_ptr().cast();
            parts[at].iov_len = RECEIVE_BYTES;
            let header = &mut headers[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
            header.msg_iov = &mut parts[at];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[at].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&self.controls[at]) as _;
        }
        // SAFETY: each header points to live buffers of the lengths it names.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Some(received) = super::nonblocking::again(nix::Error::result(received))? else {
            return Ok(false);
        };
        for (at, header) in headers.iter().enumerate().take(received as usize) {
            let length = header.msg_len as usize;
            let Some(from) = address_of(&self.names[at]) else { continue };
            if length == 0 || header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                continue;
            }
            let Described { segment_bytes, to: local, class } = describe_message(&header.msg_hdr);
            let ends = Endpoints { peer: from, local };
            let segment_bytes = segment_bytes.unwrap_or(length).max(1);
            let begin = at * RECEIVE_BYTES;
            self.messages.push(ReceivedDatagrams { ends, begin, length, segment_bytes, class });
        }
        Ok(true)
    }

    /// The received datagrams, and the buffer that contains them.
    pub fn parts(&mut self) -> (&[ReceivedDatagrams], &mut [u8]) {
        (&self.messages, &mut self.buffers)
    }
}

const MAX_RECEIVES: usize = 16;

/// The kernel's control messages about merged datagrams.
#[derive(Default)]
struct Described {
    /// The size of each.
    segment_bytes: Option<usize>,
    /// Our address that they were sent to.
    to: Option<IpAddr>,
    class: u8,
}

fn describe_message(message: &libc::msghdr) -> Described {
    let mut described = Described::default();
    // SAFETY: message was filled by recvmmsg; its control buffer is live.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers within the control buffer, or null.
        let header = unsafe { &*at };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(at) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: data of this type is an int; it may be unaligned.
                let size = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                described.segment_bytes = usize::try_from(size).ok();
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: data of this type is an in_pktinfo; it may be unaligned.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                described.to = Some(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: data of this type is an in6_pktinfo; it may be unaligned.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                described.to = Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: data of this type is a byte.
                described.class = unsafe { data.read() };
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: data of this type is an int; it may be unaligned.
                let class = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                described.class = class as u8;
            }
            _ => {}
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    described
}

/// The sender, as an IPv4 address where it is one.
fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the kernel filled in an address of the family that it names; the storage is larger
    // than any.
    let address = unsafe {
        let length = match i32::from(name.ss_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return None,
        };
        let ((), address) = SockAddr::try_init(|storage, size| {
            storage.cast::<libc::sockaddr_storage>().write(*name);
            *size = length as u32;
            Ok(())
        })
        .ok()?;
        address.as_socket()?
    };
    Some(canonical_address(address))
}

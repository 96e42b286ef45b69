//! A UDP socket that sends and receives many datagrams with one system call.
//!
//! `UDP_SEGMENT` sends up to 64 datagrams of one size from one buffer, the last may be shorter;
//! `UDP_GRO` gives what the kernel kept or put together likewise. Datagrams are never fragmented by
//! the network (`IP_PMTUDISC_PROBE`: the link finds the path's MTU itself).

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use vsnoop_link::session::canonical;

/// Datagrams that one send may carry (`UDP_MAX_SEGMENTS` of older kernels).
pub const MAX_SEGMENTS: usize = 64;
/// Bytes that one send may carry: an IPv4 packet less its headers, of IPv6 a little more.
pub const MAX_SEND_BYTES: usize = 65_507;
/// Most bytes of one receive.
pub const RECEIVE_BYTES: usize = 65_536;
const BUFFER_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    v6: bool,
}

/// Whether datagrams to a destination leave many at a time, or one by one for a while: the device
/// by which they leave does no checksums, or takes so long ones no more. It may be another one
/// later.
#[derive(Debug, Default)]
pub struct Segmenting {
    /// Sends until it is tried again.
    one_by_one: u32,
}

/// Sends that go one by one after one that could not be segmented: the trial costs little then.
const TRY_AGAIN_SENDS: u32 = 1000;

impl Segmenting {
    fn is_worth_a_try(&mut self) -> bool {
        self.one_by_one = self.one_by_one.saturating_sub(1);
        self.one_by_one == 0
    }

    fn has_failed(&mut self) {
        self.one_by_one = TRY_AGAIN_SENDS;
    }
}

impl UdpSocket {
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // One socket for both families, unless it is bound to an IPv6 address.
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        let fd = socket.as_raw_fd();
        if address.is_ipv6() {
            option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        }
        // Also for IPv4 through an IPv6 socket.
        option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        for name in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            // Refused without privilege over the initial namespace: the host's own limits hold
            // then.
            let _ = option(fd, libc::SOL_SOCKET, name, BUFFER_BYTES as i32);
        }
        socket.bind(&address.into())?;
        Ok(Self { socket, v6: address.is_ipv6() })
    }

    /// Sends `bytes` as datagrams of `segment_bytes`, the last perhaps shorter. Waits for room.
    pub fn send(
        &self,
        to: SocketAddr,
        bytes: &[u8],
        segment_bytes: usize,
        segmenting: &mut Segmenting,
    ) -> io::Result<()> {
        let to = self.mapped(to);
        if bytes.len() <= segment_bytes {
            return self.socket.send_to(bytes, &to).map(|_| ());
        }
        if segmenting.is_worth_a_try() {
            match self.send_segmented(&to, bytes, segment_bytes) {
                // The device does no checksums, the kernel knows no segmentation here, or the
                // segments are longer than the device takes: then each is refused alone, too
                // (`EMSGSIZE`).
                Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                    segmenting.has_failed();
                }
                other => return other,
            }
        }
        bytes.chunks(segment_bytes).try_for_each(|part| {
            let sent = self.socket.send_to(part, &to).map(|_| ());
            sent.inspect_err(|error| {
                if error.raw_os_error() == Some(libc::EMSGSIZE) {
                    // Once they are shorter, many at a time may go again.
                    *segmenting = Segmenting::default();
                }
            })
        })
    }

    fn mapped(&self, to: SocketAddr) -> SockAddr {
        match to {
            SocketAddr::V4(v4) if self.v6 => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()).into()
            }
            other => other.into(),
        }
    }

    fn send_segmented(&self, to: &SockAddr, bytes: &[u8], segment: usize) -> io::Result<()> {
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 4];
        // SAFETY: all zeroes is a valid msghdr.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: only computes a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
        // SAFETY: the control buffer is longer than one header with a u16, and aligned for it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment as u16);
        }
        // SAFETY: message points to live buffers of the lengths it names; sendmsg does not write to
        // them.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &message, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The MTU of the way to an address, as far as this host knows. Nothing is sent.
pub fn route_mtu(to: SocketAddr) -> io::Result<u16> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    let (level, name) = if to.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as u32;
    // SAFETY: value and length are live, and length says how long value is.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut length)
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u16::try_from(value).unwrap_or(u16::MAX))
}

fn option(fd: i32, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: value is live and as long as is said.
    let set = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as u32,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Buffers for several receives at once.
pub struct Inbox {
    buffers: Box<[u8]>,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[[u64; 4]]>,
    messages: Vec<Received>,
}

/// Datagrams of one size from one sender, one behind the other, the last perhaps shorter.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub from: SocketAddr,
    /// Where in the inbox.
    pub begin: usize,
    pub length: usize,
    pub segment_bytes: usize,
}

impl Inbox {
    pub fn new(receives: usize) -> Self {
        // SAFETY: all zeroes is a valid sockaddr_storage.
        let name: libc::sockaddr_storage = unsafe { zeroed() };
        Self {
            buffers: vec![0; receives * RECEIVE_BYTES].into_boxed_slice(),
            names: vec![name; receives].into_boxed_slice(),
            controls: vec![[0; 4]; receives].into_boxed_slice(),
            messages: Vec::with_capacity(receives),
        }
    }

    /// Receives what is there, without waiting; `false`: nothing.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<bool> {
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
            header.msg_controllen = size_of_val(&self.controls[at]);
        }
        // SAFETY: each header points to live buffers of the lengths it names.
        let received = unsafe {
            libc::recvmmsg(
                socket.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
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
            let segment_bytes = segment_of(&header.msg_hdr).unwrap_or(length).max(1);
            let begin = at * RECEIVE_BYTES;
            self.messages.push(Received { from, begin, length, segment_bytes });
        }
        Ok(true)
    }

    /// The received datagrams, and the buffer that contains them.
    pub fn parts(&mut self) -> (&[Received], &mut [u8]) {
        (&self.messages, &mut self.buffers)
    }
}

const MAX_RECEIVES: usize = 16;

fn segment_of(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: message was filled by recvmmsg; its control buffer is live.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers within the control buffer, or null.
        let header = unsafe { &*at };
        if header.cmsg_level == libc::SOL_UDP && header.cmsg_type == libc::UDP_GRO {
            // SAFETY: data of this type is an int; it may be unaligned.
            let size =
                unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(at).cast::<libc::c_int>()) };
            return usize::try_from(size).ok();
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    None
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
    Some(canonical(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sending_one_by_one_comes_to_an_end() {
        let mut segmenting = Segmenting::default();
        assert!(segmenting.is_worth_a_try());
        segmenting.has_failed();
        let tries = (0..2 * TRY_AGAIN_SENDS).filter(|_| segmenting.is_worth_a_try()).count();
        assert_eq!(tries, TRY_AGAIN_SENDS as usize + 1);
    }

    #[test]
    fn what_is_too_long_for_the_device_alone_does_not_end_segmentation() {
        let local = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let socket = UdpSocket::bind(local).expect("a socket");
        let to = socket.socket.local_addr().expect("bound").as_socket().expect("an IP address");
        let mut segmenting = Segmenting::default();
        // One byte more than the loopback's 65536 take with their headers.
        let too_long = vec![0; 65_509 + 10];
        let refused = socket.send(to, &too_long, 65_509, &mut segmenting);
        assert_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::EMSGSIZE)));
        assert!(segmenting.is_worth_a_try());
        socket.send(to, &[0; 3000], 1000, &mut segmenting).expect("room");
        let mut inbox = Inbox::new(1);
        while !inbox.receive(&socket).expect("a datagram") {}
        assert_eq!(inbox.parts().0[0].segment_bytes, 1000);
    }
}

//! A UDP socket that sends and receives many datagrams with one system call.
//!
//! `UDP_SEGMENT` sends up to 64 datagrams of one size from one buffer, the last may be shorter;
//! `UDP_GRO` gives what the kernel kept or put together likewise. Datagrams are never fragmented by
//! the network (`IP_PMTUDISC_PROBE`: the link finds the path's MTU itself).

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

/// Datagrams that one send may carry (`UDP_MAX_SEGMENTS` of older kernels).
pub const MAX_SEGMENTS: usize = 64;
/// Bytes that one send may carry: an IPv4 packet less its headers, of IPv6 a little more.
pub const MAX_SEND_BYTES: usize = 65_507;
const BUFFER_BYTES: usize = 8 << 20;

/// A socket at a link's port ([`UdpPort`](super::udp_port::UdpPort)), or one that only sends from
/// it ([`UdpSocket::open_sender`]). None waits.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    v6: bool,
}

/// The addresses of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub peer: SocketAddr,
    /// Ours; `None`: not known, or whichever the host's routes say.
    pub local: Option<IpAddr>,
}

/// Marks of a datagram's IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// DSCP and ECN.
    pub class: u8,
    /// The flow label of IPv6; 0: the host's own.
    pub label: u32,
}

/// Where datagrams go, and how.
#[derive(Debug)]
pub struct Destination {
    ends: Endpoints,
    /// The mark of datagrams that are sent from now on.
    pub mark: Mark,
    /// Whether many may leave with one system call.
    pub gso: bool,
    /// Sends until GSO is tried again: the outgoing device does no checksums, or refuses long
    /// super-packets. The route may use another device later.
    one_by_one: u32,
}

/// Sends that go one by one after one that could not be segmented: the trial costs little then.
const TRY_AGAIN_SENDS: u32 = 1000;

impl Destination {
    pub fn new(ends: Endpoints) -> Self {
        Self { ends, mark: Mark::default(), gso: true, one_by_one: 0 }
    }

    fn is_segmenting_worth_a_try(&mut self) -> bool {
        if !self.gso {
            return false;
        }
        self.one_by_one = self.one_by_one.saturating_sub(1);
        self.one_by_one == 0
    }
}

impl UdpSocket {
    /// Receives at an address alone.
    #[cfg(test)]
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Self::open_receiver(address)?;
        socket.bind_to(address)?;
        Ok(socket)
    }

    /// Takes the address, so that others can join it ([`Self::join`]).
    pub(super) fn bind_to(&self, address: SocketAddr) -> io::Result<()> {
        self.socket.bind(&address.into())
    }

    /// A socket that is to receive at an address.
    pub(super) fn open_receiver(address: SocketAddr) -> io::Result<Self> {
        let socket = Self::open_unbound(address)?;
        let fd = socket.socket.as_raw_fd();
        // To which of our addresses datagrams come; also of IPv4 through an IPv6 socket.
        if address.is_ipv6() {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        } else {
            set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        // Also of IPv4 through an IPv6 socket.
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        for name in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            // Refused without privilege over the initial namespace: the host's own limits hold
            // then.
            let _ = set_option(fd, libc::SOL_SOCKET, name, BUFFER_BYTES as i32);
        }
        Ok(socket)
    }

    /// A socket that is to send from an address, and receives nothing.
    pub(super) fn only_sending(address: SocketAddr) -> io::Result<Self> {
        let sender = Self::open_unbound(address)?;
        // Each socket at the port gets what is sent to a broadcast or multicast address.
        sender.attach_program(
            libc::SO_ATTACH_FILTER,
            &mut [bpf_statement(libc::BPF_RET | libc::BPF_K, 0)],
        )?;
        Ok(sender)
    }

    /// Another socket at the same port, which only sends, and has a send buffer of its own: what
    /// stands in the host's queues is charged to it (`sk_wmem_alloc`).
    ///
    /// It must belong to the same user (`SO_REUSEPORT`).
    pub fn open_sender(&self) -> io::Result<Self> {
        let sender = Self::only_sending(self.local_address()?)?;
        self.admit(&sender)?;
        Ok(sender)
    }

    /// The address that it is bound to.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?)
    }

    /// Binds another socket to the address of this one, as the last of its group.
    pub(super) fn admit(&self, other: &Self) -> io::Result<()> {
        other.set_shared()?;
        other.socket.bind(&self.socket.local_addr()?)
    }

    /// Sockets of the same user may be bound to its address, too, if they are set so as well.
    pub(super) fn set_shared(&self) -> io::Result<()> {
        self.socket.set_reuse_port(true)
    }

    /// Makes it the first of a group of sockets at one port, of which `program` says which one
    /// gets a datagram: it sees the datagram's payload and returns the socket's place in the group.
    pub(super) fn found_group(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        self.set_shared()?;
        self.attach_program(libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    fn open_unbound(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // One socket for both families, unless it is bound to an IPv6 address.
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        let fd = socket.as_raw_fd();
        if address.is_ipv6() {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            // Flow labels of destinations count.
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
        }
        // Also for IPv4 through an IPv6 socket.
        set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        // Of each socket of a group: the kernel may ask any of them.
        set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        Ok(Self { socket, v6: address.is_ipv6() })
    }

    /// Attaches a classic BPF program by this option.
    fn attach_program(
        &self,
        option: libc::c_int,
        program: &mut [libc::sock_filter],
    ) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        option_of(self.socket.as_raw_fd(), libc::SOL_SOCKET, option, &program)
    }

    /// Bounds the bytes that stand in the host's queues, as far as the host allows.
    pub fn hold_at_most(&self, bytes: usize) {
        // The kernel doubles it, and counts its own structures (socket(7)).
        let bytes = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
        let fd = self.socket.as_raw_fd();
        if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes).is_err() {
            // If this is refused, too, it stays as it was.
            let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        }
    }

    /// Sends `bytes` as datagrams of `segment_bytes`, the last perhaps shorter. Returns how many
    /// bytes were sent: fewer than were given if the socket has no room for more.
    pub fn send_datagrams(
        &self,
        destination: &mut Destination,
        bytes: &[u8],
        segment_bytes: usize,
    ) -> io::Result<usize> {
        if bytes.len() <= segment_bytes {
            return self.transmit_once(destination, bytes, None);
        }
        if destination.is_segmenting_worth_a_try() {
            match self.transmit_once(destination, bytes, Some(segment_bytes)) {
                // The device does no checksums, the kernel knows no segmentation here, or the
                // segments are longer than the device takes: then each is refused alone, too
                // (`EMSGSIZE`).
                Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                    destination.one_by_one = TRY_AGAIN_SENDS;
                }
                other => return other,
            }
        }
        let mut sent = 0;
        for part in bytes.chunks(segment_bytes) {
            let done = self.transmit_once(destination, part, None).inspect_err(|error| {
                if error.raw_os_error() == Some(libc::EMSGSIZE) {
                    // Once they are shorter, many at a time may go again.
                    destination.one_by_one = 0;
                }
            })?;
            sent += done;
            if done < part.len() {
                break;
            }
        }
        Ok(sent)
    }

    /// Sends all or nothing; from any address if the source address is no longer this host's.
    fn transmit_once(
        &self,
        destination: &mut Destination,
        bytes: &[u8],
        segment_bytes: Option<usize>,
    ) -> io::Result<usize> {
        use nix::errno::Errno::{EADDRNOTAVAIL, EHOSTUNREACH, EINVAL, ENETUNREACH};
        let Destination { ends: Endpoints { peer, local }, mark, .. } = *destination;
        let to = self.map_address(peer, mark.label);
        let mut sent = self.send_message(&to, local, bytes, segment_bytes, mark.class);
        let may_be_gone = [EINVAL, EADDRNOTAVAIL, ENETUNREACH, EHOSTUNREACH];
        if destination.ends.local.is_some() && sent.is_err_and(|error| may_be_gone.contains(&error))
        {
            sent = self.send_message(&to, None, bytes, segment_bytes, mark.class);
            if sent.is_ok() {
                destination.ends.local = None;
            }
        }
        Ok(super::nonblocking::again(sent)?.unwrap_or(0))
    }

    /// Also for IPv4 through an IPv6 socket.
    fn map_address(&self, to: SocketAddr, label: u32) -> SockaddrStorage {
        match to {
            SocketAddr::V4(v4) if self.v6 => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()).into()
            }
            SocketAddr::V6(v6) if label != 0 && v6.ip().to_ipv4_mapped().is_none() => {
                let info = label.to_be();
                SocketAddrV6::new(*v6.ip(), v6.port(), info, v6.scope_id()).into()
            }
            other => other.into(),
        }
    }

    fn send_message(
        &self,
        to: &SockaddrStorage,
        from: Option<IpAddr>,
        bytes: &[u8],
        segment_bytes: Option<usize>,
        class: u8,
    ) -> nix::Result<usize> {
        let segment = segment_bytes.map(|bytes| bytes as u16);
        let segment = segment.as_ref().map(ControlMessage::UdpGsoSegments);
        let (v4, v6);
        let source = match from {
            Some(IpAddr::V4(from)) => {
                v4 = source_v4(from);
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            Some(IpAddr::V6(from)) => {
                v6 = source_v6(from);
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
            None => None,
        };
        let parts = [IoSlice::new(bytes)];
        let fd = self.socket.as_raw_fd();
        let send = |control: &[ControlMessage<'_>]| {
            sendmsg(fd, &parts, control, MsgFlags::MSG_DONTWAIT, Some(to))
        };
        let wide_class = i32::from(class);
        let is_v4 = to.as_sockaddr_in6().is_none_or(|to| to.ip().to_ipv4_mapped().is_some());
        let class = match class {
            0 => None,
            _ if is_v4 => Some(ControlMessage::Ipv4Tos(&class)),
            _ => Some(ControlMessage::Ipv6TClass(&wide_class)),
        };
        match (segment, source, class) {
            (None, None, None) => send(&[]),
            (Some(one), None, None) | (None, Some(one), None) => send(&[one]),
            (Some(segment), Some(source), None) => send(&[segment, source]),
            (segment, source, class) => {
                let all: Vec<_> = [segment, source, class].into_iter().flatten().collect();
                send(&all)
            }
        }
    }
}

/// A statement of a classic BPF program.
pub(super) fn bpf_statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn source_v4(from: Ipv4Addr) -> libc::in_pktinfo {
    let from = libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
    libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: libc::in_addr { s_addr: 0 } }
}

fn source_v6(from: Ipv6Addr) -> libc::in6_pktinfo {
    libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_option(fd: i32, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    option_of(fd, level, name, &value)
}

fn option_of<T>(fd: i32, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: value is live and as long as is said.
    let set = unsafe {
        libc::setsockopt(fd, level, name, (&raw const *value).cast(), size_of::<T>() as u32)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::inbox::Inbox;

    fn bound() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a socket");
        let at = socket.socket.local_addr().expect("bound").as_socket().expect("an IP address");
        (socket, at)
    }

    fn to(peer: SocketAddr) -> Destination {
        Destination::new(Endpoints { peer, local: None })
    }

    #[test]
    fn sending_one_by_one_comes_to_an_end() {
        let mut destination = to(SocketAddr::from(([127, 0, 0, 1], 9)));
        assert!(destination.is_segmenting_worth_a_try());
        destination.one_by_one = TRY_AGAIN_SENDS;
        let tries =
            (0..2 * TRY_AGAIN_SENDS).filter(|_| destination.is_segmenting_worth_a_try()).count();
        assert_eq!(tries, TRY_AGAIN_SENDS as usize + 1);
    }

    #[test]
    fn without_gso_datagrams_leave_one_by_one() {
        let (socket, at) = bound();
        for gso in [true, false] {
            let mut destination = Destination { gso, ..to(at) };
            assert_eq!(
                socket.send_datagrams(&mut destination, &[0; 3000], 1000).expect("room"),
                3000
            );
            let mut inbox = Inbox::new(1);
            while !inbox.receive_datagrams(&socket).expect("a datagram") {}
            let together = inbox.parts().0[0].length;
            assert_eq!(together, if gso { 3000 } else { 1000 });
            for _ in 0..(3000 - together) / 1000 {
                while !inbox.receive_datagrams(&socket).expect("a datagram") {}
            }
        }
    }

    #[test]
    fn what_is_too_long_for_the_device_alone_does_not_end_segmentation() {
        let (socket, at) = bound();
        let mut destination = to(at);
        // One byte more than the loopback's 65536 take with their headers.
        let too_long = vec![0; 65_509 + 10];
        let refused = socket.send_datagrams(&mut destination, &too_long, 65_509);
        assert_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::EMSGSIZE)));
        assert!(destination.is_segmenting_worth_a_try());
        let sent = socket.send_datagrams(&mut destination, &[0; 3000], 1000).expect("room");
        assert_eq!(sent, 3000);
        let mut inbox = Inbox::new(1);
        while !inbox.receive_datagrams(&socket).expect("a datagram") {}
        assert_eq!(inbox.parts().0[0].segment_bytes, 1000);
    }

    #[test]
    fn datagrams_leave_from_the_address_that_is_given_while_it_is_ours() {
        let any = UdpSocket::bind("[::]:0".parse().expect("an address")).expect("a socket");
        let (far, at) = bound();
        let mut inbox = Inbox::new(1);
        for (source, seen) in [("127.0.0.9", "127.0.0.9"), ("192.0.2.1", "127.0.0.1")] {
            let mut destination =
                Destination::new(Endpoints { peer: at, local: source.parse().ok() });
            for bytes in [&b"one"[..], &[0; 3000]] {
                any.send_datagrams(&mut destination, bytes, 1000).expect("room");
                while !inbox.receive_datagrams(&far).expect("a datagram") {}
                assert_eq!(inbox.parts().0[0].ends.peer.ip().to_string(), seen);
            }
        }
    }
}

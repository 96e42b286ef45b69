//! The UDP port of a link: a receiving socket for each pair of threads. The first sends the
//! sessions' own messages, too.
//!
//! All sockets at the port are a group (`SO_REUSEPORT`), which processes of the same user alone
//! could join. A classic BPF program chooses the socket that gets a datagram by the session in the
//! record's first four bytes, modulo the number of receivers: so all records of a session are
//! received by one thread, in their order, and one replay window is enough for them. The kernel
//! numbers the sockets in the order in which they join, and gives the number of one that leaves to
//! the last: receivers join first, and stay.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::udp::{UdpSocket, bpf_statement};

/// The sockets at a link's UDP port.
pub struct UdpPort {
    /// By the pair of threads. The first one sends the messages of sessions, too, and sockets that
    /// send frames join by it ([`UdpSocket::open_sender`]).
    pub receivers: Vec<Arc<UdpSocket>>,
}

impl UdpPort {
    /// Takes an address, which no other process has, for this number of receivers, at least one.
    pub fn bind(address: SocketAddr, receivers: usize) -> io::Result<Self> {
        // Another process that has the port, and would share it, is not joined.
        UdpSocket::open_receiver(address)?.bind_to(address)?;
        let first = UdpSocket::open_receiver(address)?;
        first.found_group(&mut steering_program(receivers as u32))?;
        first.bind_to(address)?;
        let address = first.local_address()?;
        let other = || {
            let other = UdpSocket::open_receiver(address)?;
            first.admit(&other)?;
            Ok(Arc::new(other))
        };
        let others: io::Result<Vec<_>> = (1..receivers).map(|_| other()).collect();
        let mut receivers = others?;
        receivers.insert(0, Arc::new(first));
        Ok(Self { receivers })
    }
}

/// Chooses the receiver of a datagram by its session. A datagram that is shorter goes to the first:
/// then the load fails, and the program returns 0.
fn steering_program(receivers: u32) -> [libc::sock_filter; 3] {
    [
        bpf_statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        bpf_statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, receivers),
        bpf_statement(libc::BPF_RET | libc::BPF_A, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::inbox::Inbox;
    use crate::io::udp::{Destination, Endpoints};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn any(family: &str) -> SocketAddr {
        family.parse().expect("an address")
    }

    fn to(peer: SocketAddr) -> Destination {
        Destination::new(Endpoints { peer, local: None })
    }

    /// A free port of both families, as far as anybody can say.
    fn free() -> u16 {
        let socket = std::net::UdpSocket::bind("[::]:0").expect("a socket");
        socket.local_addr().expect("bound").port()
    }

    #[test]
    fn each_session_has_one_receiver_whoever_sends_and_whatever_joins() {
        for family in ["0.0.0.0", "[::]"] {
            let address = any(&format!("{family}:{}", free()));
            let port = UdpPort::bind(address, 3).expect("a port");
            let mut senders: Vec<_> =
                (0..3).map(|_| port.receivers[0].open_sender().expect("a socket")).collect();
            let near = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let mut inbox = Inbox::new(1);
            for (round, session) in (0..60u32).enumerate() {
                if round == 30 {
                    // The last of the group gets its place.
                    senders.remove(0);
                }
                let record = session.to_be_bytes();
                near.send_to(&record, (Ipv4Addr::LOCALHOST, address.port())).expect("room");
                let receiver = &port.receivers[session as usize % 3];
                while !inbox.receive_datagrams(receiver).expect("a datagram") {}
                let (received, bytes) = inbox.parts();
                assert_eq!(bytes[received[0].begin..][..4], record);
                let others = port.receivers.iter().filter(|other| !Arc::ptr_eq(other, receiver));
                for other in others.map(|other| &**other).chain(&senders) {
                    assert!(!Inbox::new(1).receive_datagrams(other).expect("nothing"), "{session}");
                }
            }
            near.send_to(&[7], (Ipv4Addr::LOCALHOST, address.port())).expect("room");
            while !inbox.receive_datagrams(&port.receivers[0]).expect("a datagram") {}
        }
    }

    #[test]
    fn senders_share_the_port_and_only_the_first_socket_receives() {
        for local in ["0.0.0.0:0", "[::]:0"] {
            let socket = UdpPort::bind(any(local), 1).expect("a port").receivers.remove(0);
            let at = socket.local_address().expect("bound");
            let senders = [(); 3].map(|()| socket.open_sender().expect("another socket"));
            let port = at.port();
            assert!(UdpPort::bind(at, 1).is_err(), "the port is taken");
            let far = UdpSocket::bind(any("127.0.0.1:0")).expect("a socket");
            let (mut inbox, mut far_inbox) = (Inbox::new(1), Inbox::new(1));
            let us = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let (mut to_us, mut to_far) = (to(us), to(far.local_address().expect("bound")));
            for sender in &senders {
                sender.send_datagrams(&mut to_far, b"out", 3).expect("room");
                while !far_inbox.receive_datagrams(&far).expect("a datagram") {}
                assert_eq!(far_inbox.parts().0[0].ends.peer.port(), port);
            }
            for number in 0..20u8 {
                // Of many senders: a hash would spread them.
                let near = UdpSocket::bind(any("127.0.0.1:0")).expect("a socket");
                near.send_datagrams(&mut to_us, &[number], 1).expect("room");
                while !inbox.receive_datagrams(&socket).expect("a datagram") {}
                let (received, bytes) = inbox.parts();
                assert_eq!(bytes[received[0].begin], number);
                assert_eq!(received[0].ends.local, Some(Ipv4Addr::LOCALHOST.into()));
            }
        }
    }

    #[test]
    fn a_port_that_another_process_has_is_not_shared_with_it() {
        for (family, receivers) in [("0.0.0.0", 1), ("0.0.0.0", 3), ("[::]", 1), ("[::]", 3)] {
            let address = any(&format!("{family}:{}", free()));
            let other = UdpSocket::only_sending(address).expect("a socket");
            other.set_shared().expect("an option");
            other.bind_to(address).expect("it is free");
            assert!(UdpPort::bind(address, receivers).is_err(), "{family}, {receivers}");
        }
    }

    /// Each socket of a group, too, gets a broadcast; nothing would ever read it there.
    #[test]
    fn a_sender_does_not_get_what_is_broadcast() {
        let socket = UdpPort::bind(any("0.0.0.0:0"), 1).expect("a port").receivers.remove(0);
        let sender = socket.open_sender().expect("another socket");
        let at = socket.local_address().expect("bound");
        let unknown = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        unknown.set_broadcast(true).expect("an option");
        unknown.send_to(&[7], ("127.255.255.255", at.port())).expect("room");
        let mut inbox = Inbox::new(1);
        while !inbox.receive_datagrams(&socket).expect("a datagram") {}
        assert!(!Inbox::new(1).receive_datagrams(&sender).expect("nothing"));
    }

    #[test]
    fn answers_leave_from_the_port_by_every_socket() {
        let port = UdpPort::bind(any("127.0.0.1:0"), 2).expect("a port");
        let at = port.receivers[0].local_address().expect("bound");
        let far = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        far.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
        let peer = far.local_addr().expect("bound");
        let sender = port.receivers[0].open_sender().expect("a socket");
        for socket in port.receivers.iter().map(|socket| &**socket).chain([&sender]) {
            socket.send_datagrams(&mut to(peer), b"out", 3).expect("room");
            assert_eq!(far.recv_from(&mut [0; 3]).expect("a datagram").1, at);
        }
    }
}

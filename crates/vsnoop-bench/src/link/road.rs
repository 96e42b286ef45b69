//! The network under the carriers: two namespaces joined by a veth of the usual MTU, and a connected
//! UDP socket in each, whose buffers are alike for all carriers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_lab::testbed::net::{Netns, owned_name};

use crate::stage::PREFIX;

const MTU_BYTES: usize = 1500;
const PREFIX_LENGTH: u8 = 30;

/// Of both directions of every socket. The kernel doubles it, and bounds it by net.core.rmem_max.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

const SENDER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 7000);
pub const RECEIVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), 7000);

pub struct Road {
    pub sender: Netns,
    pub receiver: Netns,
}

impl Road {
    pub fn build() -> Result<Self> {
        let sender = Netns::create(&owned_name(PREFIX, "near"))?;
        let receiver = Netns::create(&owned_name(PREFIX, "far"))?;
        sender.veth("road", &receiver, "road")?;
        for (netns, address) in [(&sender, SENDER), (&receiver, RECEIVER)] {
            netns.set_mtu("road", MTU_BYTES)?;
            netns.add_address("road", address.ip(), PREFIX_LENGTH)?;
            netns.up("road")?;
        }
        Ok(Self { sender, receiver })
    }

    /// The sender's socket and the receiver's; unless `connected`, they send where they are told.
    pub fn sockets(&self, connected: bool) -> Result<(UdpSocket, UdpSocket)> {
        let make = |netns: &Netns, own, other| {
            netns.run(|| {
                let socket = socket(own)?;
                if connected {
                    socket.connect(other).with_context(|| format!("connect to {other}"))?;
                }
                Ok(socket)
            })
        };
        Ok((make(&self.sender, SENDER, RECEIVER)?, make(&self.receiver, RECEIVER, SENDER)?))
    }
}

fn socket(address: SocketAddr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    let granted = (socket.send_buffer_size()?, socket.recv_buffer_size()?);
    ensure!(
        granted == (2 * SOCKET_BUFFER_BYTES, 2 * SOCKET_BUFFER_BYTES),
        "the kernel grants buffers of {granted:?} bytes; raise net.core.rmem_max and wmem_max"
    );
    socket.bind(&address.into()).with_context(|| format!("bind {address}"))?;
    Ok(socket.into())
}

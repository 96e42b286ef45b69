//! Says which Ethernet addresses bridges learn, without polling: the kernel's notifications of
//! their forwarding databases. One comes when an address is learned, or moves to another port.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Error;
use crate::notifications::Notifications;

/// RTNLGRP_NEIGH.
const NEIGHBOURS: u32 = 1 << 2;
/// A notification of a neighbour has a few hundred bytes; none is lost if one does not fit, but it
/// is not understood.
const BUFFER_BYTES: usize = 8 << 10;

/// A bridge has learned where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Indices of the bridge and of its port.
    pub bridge: u32,
    pub port: u32,
    pub mac: [u8; 6],
    /// 0 on a bridge that does not filter VLANs.
    pub vlan: u16,
}

/// Addresses that bridges have learned between two calls of [`BridgeEvents::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub learned: Vec<Learned>,
    /// Some notifications were lost: the bridges must be asked.
    pub is_incomplete: bool,
}

/// Notifications of the network namespace in which it was made; it keeps that alive.
pub struct BridgeEvents(Notifications);

impl BridgeEvents {
    /// Listens in the calling thread's network namespace, from now on.
    pub fn listen() -> Result<Self, Error> {
        Notifications::listen(NEIGHBOURS).map(Self)
    }

    pub fn take(&self) -> Result<Heard, Error> {
        let mut all = Vec::new();
        let is_incomplete = self.0.take(BUFFER_BYTES, |one| all.extend(learned(one)))?;
        Ok(Heard { learned: all, is_incomplete })
    }
}

impl AsFd for BridgeEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Notifications have a datagram each.
fn learned(datagram: &[u8]) -> Option<Learned> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram).ok()?;
    match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => of_entry(&entry),
        _ => None,
    }
}

/// Not of the addresses of a bridge itself and of its ports.
fn of_entry(entry: &NeighbourMessage) -> Option<Learned> {
    let header = &entry.header;
    if header.family != AddressFamily::Bridge || header.state == NeighbourState::Permanent {
        return None;
    }
    let (mut bridge, mut mac, mut vlan) = (None, None, 0);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::Controller(index) => bridge = Some(*index),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes[..].try_into().ok(),
            NeighbourAttribute::Vlan(id) => vlan = *id,
            _ => {}
        }
    }
    Some(Learned { bridge: bridge?, port: header.ifindex, mac: mac?, vlan })
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::neighbour::NeighbourHeader;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn notification(family: AddressFamily, state: NeighbourState) -> Vec<u8> {
        let mut entry = NeighbourMessage::default();
        entry.header = NeighbourHeader { family, state, ifindex: 7, ..Default::default() };
        entry.attributes = vec![
            NeighbourAttribute::LinkLayerAddress(MAC.to_vec()),
            NeighbourAttribute::Controller(3),
            NeighbourAttribute::Vlan(10),
        ];
        let payload = NetlinkPayload::from(RouteNetlinkMessage::NewNeighbour(entry));
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn an_address_that_a_bridge_learns_has_bridge_port_and_vlan() {
        let bytes = notification(AddressFamily::Bridge, NeighbourState::Reachable);
        assert_eq!(learned(&bytes), Some(Learned { bridge: 3, port: 7, mac: MAC, vlan: 10 }));
    }

    #[test]
    fn own_addresses_of_bridges_and_neighbours_of_the_host_are_none() {
        let own = notification(AddressFamily::Bridge, NeighbourState::Permanent);
        let of_host = notification(AddressFamily::Inet, NeighbourState::Reachable);
        assert_eq!([learned(&own), learned(&of_host), learned(&own[..9])], [None; 3]);
    }
}

//! The forwarding database of a bridge: where it has learned an Ethernet address.

use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{Error, Result, netlink};

/// Where a bridge sends frames for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Up the stack of this host.
    Host,
    /// Out of the port with this index.
    Port(u32),
}

/// Looks an address up in the bridge with this index; `None` if it has no entry. A bridge that
/// filters VLANs has entries per VLAN, and shows none but its own addresses.
pub fn find(bridge: u32, address: [u8; 6]) -> Result<Option<Place>> {
    let mut request = NeighbourMessage::default();
    request.header = NeighbourHeader { family: AddressFamily::Bridge, ..Default::default() };
    request.attributes.push(NeighbourAttribute::LinkLayerAddress(address.to_vec()));
    request.attributes.push(NeighbourAttribute::Controller(bridge));
    match netlink::ask(RouteNetlinkMessage::GetNeighbour(request), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(place)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(source) => Err(Error::Fdb { bridge, source }),
    }
}

fn place(answer: RouteNetlinkMessage) -> Option<Place> {
    let RouteNetlinkMessage::NewNeighbour(entry) = answer else { return None };
    // The kernel's word for an address of the bridge itself or of one of its ports.
    let is_local = entry.header.state == NeighbourState::Permanent;
    Some(if is_local { Place::Host } else { Place::Port(entry.header.ifindex) })
}

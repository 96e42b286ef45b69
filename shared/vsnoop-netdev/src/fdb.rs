//! The forwarding database of a bridge: where it has learned an Ethernet address.

use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask, LinkMessage,
};
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

/// Looks an address up in the bridge with this index; `None` if it has no entry. `vlan`: a bridge
/// that filters VLANs has entries in each of them apart; 0 of any other.
pub fn find(bridge: u32, address: [u8; 6], vlan: u16) -> Result<Option<Place>> {
    let mut request = NeighbourMessage::default();
    request.header = NeighbourHeader { family: AddressFamily::Bridge, ..Default::default() };
    request.attributes.push(NeighbourAttribute::LinkLayerAddress(address.to_vec()));
    request.attributes.push(NeighbourAttribute::Controller(bridge));
    if vlan != 0 {
        request.attributes.push(NeighbourAttribute::Vlan(vlan));
    }
    match netlink::ask(RouteNetlinkMessage::GetNeighbour(request), 0) {
        Ok(answers) => Ok(answers.into_iter().find_map(place)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(source) => Err(Error::Fdb { bridge, source }),
    }
}

/// The VLAN of frames without a tag that come in by this port of a bridge that filters VLANs; 0:
/// they are dropped.
pub fn port_vlan(port: u32) -> Result<u16> {
    let mut request = LinkMessage::default();
    request.header.interface_family = AddressFamily::Bridge;
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
    let answers = netlink::dump(RouteNetlinkMessage::GetLink(request))
        .map_err(|source| Error::PortVlan { port, source })?;
    Ok(answers.into_iter().find_map(|answer| pvid(answer, port)).unwrap_or(0))
}

fn pvid(answer: RouteNetlinkMessage, port: u32) -> Option<u16> {
    let RouteNetlinkMessage::NewLink(link) = answer else { return None };
    if link.header.index != port {
        return None;
    }
    link.attributes.iter().find_map(|attribute| {
        let LinkAttribute::AfSpecBridge(of_port) = attribute else { return None };
        of_port.iter().find_map(|spec| match spec {
            AfSpecBridge::VlanInfo(info) if info.flags.contains(BridgeVlanInfoFlags::Pvid) => {
                Some(info.vid)
            }
            _ => None,
        })
    })
}

fn place(answer: RouteNetlinkMessage) -> Option<Place> {
    let RouteNetlinkMessage::NewNeighbour(entry) = answer else { return None };
    // The kernel's word for an address of the bridge itself or of one of its ports.
    let is_local = entry.header.state == NeighbourState::Permanent;
    Some(if is_local { Place::Host } else { Place::Port(entry.header.ifindex) })
}

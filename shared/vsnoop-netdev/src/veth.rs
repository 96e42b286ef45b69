//! Pairs of veth devices: what is sent on one end arrives at the other.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use crate::netlink::{self, Result};

/// A pair that is to be made. The near end is in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub near: &'a str,
    pub far: &'a str,
    /// The network namespace of the far end.
    pub far_netns: BorrowedFd<'a>,
    /// The Ethernet address of the far end, which resolves none (IFF_NOARP).
    pub far_mac: [u8; 6],
    /// MTU of both ends.
    pub mtu: u32,
}

/// Makes both ends, down, or neither: EEXIST if a name is taken, EOPNOTSUPP if the kernel has no
/// veth devices.
pub fn create(pair: &Pair) -> Result<()> {
    let mut far = LinkMessage::default();
    far.header.flags = LinkFlags::Noarp;
    far.header.change_mask = LinkFlags::Noarp;
    far.attributes = vec![
        LinkAttribute::IfName(pair.far.to_owned()),
        LinkAttribute::Mtu(pair.mtu),
        LinkAttribute::Address(pair.far_mac.to_vec()),
        LinkAttribute::NetNsFd(pair.far_netns.as_raw_fd()),
    ];
    let mut near = LinkMessage::default();
    near.attributes = vec![
        LinkAttribute::IfName(pair.near.to_owned()),
        LinkAttribute::Mtu(pair.mtu),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
        ]),
    ];
    netlink::ask(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL).map(drop)
}

/// Deletes the device with this index, of a veth pair with its other end. No error if there is
/// none.
pub fn delete(index: u32) -> Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    match netlink::ask(RouteNetlinkMessage::DelLink(message), 0) {
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
        deleted => deleted.map(drop),
    }
}

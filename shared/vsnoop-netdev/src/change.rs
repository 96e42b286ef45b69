//! Changes of a network device: up, its MTU, the bridge that it is a port of.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use crate::netlink::{self, Result};

/// Sets the device with this index up.
pub fn set_up(index: u32) -> Result<()> {
    set(index, |message| {
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
    })
}

pub fn set_mtu(index: u32, bytes: u32) -> Result<()> {
    set(index, |message| message.attributes.push(LinkAttribute::Mtu(bytes)))
}

/// Makes the device a port of another one, of a bridge for instance; `None`: of none.
pub fn set_master(index: u32, master: Option<u32>) -> Result<()> {
    let master = LinkAttribute::Controller(master.unwrap_or(0));
    set(index, |message| message.attributes.push(master))
}

fn set(index: u32, change: impl FnOnce(&mut LinkMessage)) -> Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    change(&mut message);
    netlink::ask(RouteNetlinkMessage::SetLink(message), 0).map(drop)
}

//! Routes and rules of a network namespace whose sockets have addresses of others: what arrives is
//! for this host, and what a socket sends leaves by the device that it is bound to.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{self, Result};

/// The table by which all that arrives is for this host.
const ALL_LOCAL: u8 = 100;
/// Places of the rules: after the kernel's table of local addresses, before its main one.
const OWN_BEFORE: u32 = 100;
const OTHERS_AFTER: u32 = 101;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    fn number(self) -> AddressFamily {
        match self {
            Self::V4 => AddressFamily::Inet,
            Self::V6 => AddressFamily::Inet6,
        }
    }
}

/// Takes all packets that arrive at any device of the calling thread's namespace for this host's,
/// whatever their destination. `lo`: index of the loopback device, which must be up.
pub fn take_all_as_local(family: Family, lo: u32) -> Result<()> {
    let mut route = route(family, ALL_LOCAL, lo);
    route.header.kind = RouteType::Local;
    route.header.scope = RouteScope::Host;
    add(RouteNetlinkMessage::NewRoute(route))?;
    // What this host sends has the loopback device as its incoming one.
    let mut own = rule(family, RouteHeader::RT_TABLE_MAIN, OWN_BEFORE);
    own.attributes.push(RuleAttribute::Iifname("lo".to_owned()));
    add(RouteNetlinkMessage::NewRule(own))?;
    add(RouteNetlinkMessage::NewRule(rule(family, ALL_LOCAL, OTHERS_AFTER)))
}

/// A default route by a device that is up, for the sockets that are bound to it. It goes with the
/// device.
pub fn add_default_route(family: Family, device: u32) -> Result<()> {
    let mut route = route(family, RouteHeader::RT_TABLE_MAIN, device);
    route.header.scope = RouteScope::Link;
    // Two routes to one destination need two metrics.
    route.attributes.push(RouteAttribute::Priority(device));
    add(RouteNetlinkMessage::NewRoute(route))
}

fn route(family: Family, table: u8, device: u32) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family.number();
    route.header.table = table;
    route.header.protocol = RouteProtocol::Static;
    route.header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Oif(device));
    route
}

fn rule(family: Family, table: u8, place: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = family.number();
    rule.header.table = table;
    rule.header.action = RuleAction::ToTable;
    rule.attributes.push(RuleAttribute::Priority(place));
    rule
}

/// No error if it is there.
fn add(request: RouteNetlinkMessage) -> Result<()> {
    match netlink::ask(request, NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        added => added.map(drop),
    }
}

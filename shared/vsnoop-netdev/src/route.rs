//! The route to an address, as it is configured.
//!
//! A socket's `IP_MTU` is no answer: the kernel lowers it for a destination by ICMP messages that
//! report a packet as too big, which others may forge (route exceptions). This asks for the device
//! that a packet takes, and for the entry of the table that decides (`RTM_F_FIB_MATCH`), which no
//! message changes.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{Error, Result, find_index, netlink};

/// The MTU towards an address: that of the device, or that which an administrator has given the
/// route (`ip route ... mtu`), if that is smaller. `None`: the device is gone.
pub fn mtu(to: SocketAddr) -> Result<Option<u32>> {
    let failed = |source| Error::Route { to: to.ip(), source };
    let route = ask(to, RouteFlags::empty()).map_err(failed)?;
    let index = route.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    let Some(device) = index.map(find_index).transpose()?.flatten() else { return Ok(None) };
    let entry = ask(to, RouteFlags::FibMatch).map_err(failed)?;
    let metrics = entry.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    });
    let set = metrics.flatten().find_map(|metric| match metric {
        RouteMetric::Mtu(bytes) if *bytes != 0 => Some(*bytes),
        _ => None,
    });
    Ok(Some(set.map_or(device.mtu, |bytes| bytes.min(device.mtu))))
}

fn ask(to: SocketAddr, flags: RouteFlags) -> netlink::Result<Vec<RouteAttribute>> {
    let mut request = RouteMessage::default();
    let (family, bits, address) = match to.ip() {
        IpAddr::V4(ip) => (AddressFamily::Inet, 32, RouteAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(ip)),
    };
    request.header.address_family = family;
    request.header.destination_prefix_length = bits;
    request.header.flags = flags;
    request.attributes.push(RouteAttribute::Destination(address));
    // The interface of a link-local address.
    if let SocketAddr::V6(v6) = to
        && v6.scope_id() != 0
    {
        request.attributes.push(RouteAttribute::Oif(v6.scope_id()));
    }
    let answers = netlink::ask(RouteNetlinkMessage::GetRoute(request), 0)?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route.attributes),
        _ => None,
    });
    Ok(route.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_host_has_the_mtu_of_the_loopback_device() {
        let lo = crate::find("lo").unwrap().expect("every namespace has one");
        for to in ["127.0.0.1:1", "[::1]:1"] {
            match mtu(to.parse().unwrap()) {
                Ok(found) => assert_eq!(found, Some(lo.mtu), "{to}"),
                // A namespace without IPv6, or whose loopback device is down.
                Err(error) => assert!(matches!(error, Error::Route { .. }), "{error}"),
            }
        }
    }
}

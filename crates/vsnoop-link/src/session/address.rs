//! Addresses of peers, as sockets write them.

use std::net::SocketAddr;

/// The address in one form: a dual-stack socket writes IPv4 addresses as IPv6 ones.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 if v4.is_ipv4() => SocketAddr::new(v4, address.port()),
        // An IPv6 address keeps its scope, the interface of a link-local one.
        _ => address,
    }
}

//! Addresses of peers.

use std::net::{IpAddr, SocketAddr};

/// The address in one form: a dual-stack socket writes IPv4 addresses as IPv6 ones.
pub fn canonical_address(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 if v4.is_ipv4() => SocketAddr::new(v4, address.port()),
        // An IPv6 address keeps its scope, the interface of a link-local one.
        _ => address,
    }
}

/// Whether it can be the address of another host, and of one only: none of this host, none of many
/// (RFC 6890, RFC 1112).
pub fn is_of_another_host(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        // 0.0.0.0/8 is this network, 240.0.0.0/4 is reserved.
        IpAddr::V4(ip) => {
            !(ip.is_loopback() || ip.is_multicast() || ip.octets()[0] == 0 || ip.octets()[0] >= 240)
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_and_of_many_are_none_of_another() {
        for none in [
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "240.0.0.1",
            "224.0.0.1",
            "239.255.255.250",
            "::",
            "::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:0.0.0.0",
            "::ffff:255.255.255.255",
        ] {
            assert!(!is_of_another_host(none.parse().unwrap()), "{none}");
        }
        for one in ["192.0.2.1", "10.0.0.255", "169.254.1.1", "2001:db8::1", "fe80::1", "fd00::1"] {
            assert!(is_of_another_host(one.parse().unwrap()), "{one}");
        }
    }
}

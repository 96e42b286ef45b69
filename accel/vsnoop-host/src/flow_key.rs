//! Addresses of a connection from the key of its record.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An end of a connection: `address` has IPv4 as ::ffff:a.b.c.d; `port` is in network byte order.
pub fn socket(address: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::from(address)).to_canonical(), u16::from_be(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_shown_as_ipv4() {
        let mut address = [0; 16];
        address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 7]);
        assert_eq!(socket(address, 443u16.to_be()).to_string(), "10.0.0.7:443");
        let v6 = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(socket(v6, 80u16.to_be()).to_string(), "[2001:db8::1]:80");
    }
}

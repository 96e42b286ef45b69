//! The link's own packets, seen at one of its ports.
//!
//! A port may be the interface that carries the link's own packets; this is known in advance only
//! for peers with a literal address, and routes change. Forwarding these packets to the peer would
//! be a loop. So the link does not carry frames from or to its own sockets, which it tells by this
//! host's addresses and the link's port, and for calls to peers by the peers' addresses.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use nix::ifaddrs::getifaddrs;
use vsnoop_packet::headers::Headers;

use crate::config::Config;

#[derive(Debug, Default)]
pub struct Own {
    listens_at: u16,
    /// Ports of peers that are called, over TCP.
    calls: RwLock<Vec<u16>>,
    addresses: RwLock<HashSet<IpAddr>>,
}

impl Own {
    pub fn new(config: &Config) -> Self {
        let own = Self {
            listens_at: config.listen.port(),
            calls: RwLock::default(),
            addresses: RwLock::default(),
        };
        own.set_calls(config);
        own.refresh_addresses();
        own
    }

    /// Takes the ports of the peers that are called.
    pub fn set_calls(&self, config: &Config) {
        let addresses = config.peers.iter().flat_map(|peer| &peer.addresses);
        let calls = addresses.map(|address| address.port);
        *self.calls.write().unwrap_or_else(PoisonError::into_inner) = calls.collect();
    }

    /// Takes this host's addresses as they are now.
    pub fn refresh_addresses(&self) {
        // Without an answer what was known stays.
        let Ok(all) = getifaddrs() else { return };
        let now = all.filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
        });
        let now: HashSet<_> = now.collect();
        let mut addresses = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        if *addresses != now {
            *addresses = now;
        }
    }

    /// Whether a frame with these headers is one of the link's packets.
    pub fn has_sent_or_gets(&self, headers: &Headers, frame: &[u8]) -> bool {
        let is_tcp = headers.tcp();
        if !is_tcp && !headers.udp() {
            return false;
        }
        let l4 = usize::from(headers.l4);
        let Some(&[a, b, c, d]) = frame.get(l4..l4 + 4) else { return false };
        let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let calls = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let of_call = |theirs| is_tcp && calls.contains(&theirs);
        let may_be_sent = from == self.listens_at || of_call(to);
        let may_be_got = to == self.listens_at || of_call(from);
        if !may_be_sent && !may_be_got {
            return false;
        }
        let Some([source, destination]) = headers.ips(frame) else { return false };
        let known = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        (may_be_sent && known.contains(&source)) || (may_be_got && known.contains(&destination))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u16 = 7757;
    const THEIRS: u16 = 443;
    const EPHEMERAL: u16 = 50_000;

    fn own() -> Own {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        let addresses = RwLock::new(HashSet::from(addresses));
        Own { listens_at: OURS, calls: RwLock::new(vec![THEIRS]), addresses }
    }

    /// A frame between hosts whose addresses end so.
    fn frame(v6: bool, tcp: bool, from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let l4_bytes = if tcp { 20 } else { 8 };
        let protocol = if tcp { 6 } else { 17 };
        let mut frame = vec![2; 12];
        if v6 {
            let host = |last| [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[last]].concat();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, l4_bytes, protocol, 64]);
            frame.extend(host(from.0));
            frame.extend(host(to.0));
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 20 + l4_bytes, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend([192, 0, 2, from.0, 192, 0, 2, to.0]);
        }
        let mut l4 = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        l4.resize(l4_bytes.into(), 0);
        if tcp {
            l4[12] = 0x50;
        }
        frame.extend(l4);
        frame
    }

    #[test]
    fn packets_of_the_link_are_known_and_no_others() {
        let own = own();
        for v6 in [false, true] {
            for (tcp, from, to, expected) in [
                (false, (1, OURS), (2, OURS), true),
                (false, (2, OURS), (1, OURS), true),
                // Through a translator.
                (false, (2, EPHEMERAL), (1, OURS), true),
                (true, (2, EPHEMERAL), (1, OURS), true),
                (true, (2, THEIRS), (1, EPHEMERAL), true),
                (true, (1, EPHEMERAL), (2, THEIRS), true),
                // VMs may use the same port numbers, and other links may pass by.
                (false, (3, OURS), (4, OURS), false),
                (true, (3, THEIRS), (4, EPHEMERAL), false),
                (false, (1, EPHEMERAL), (2, THEIRS), false),
                (false, (2, THEIRS), (1, EPHEMERAL), false),
                (true, (1, EPHEMERAL), (2, EPHEMERAL), false),
                // To a port of ours at another host, from no port of ours.
                (false, (1, EPHEMERAL), (2, OURS), false),
            ] {
                let frame = frame(v6, tcp, from, to);
                let headers = Headers::parse(&frame).expect("IP");
                let said = own.has_sent_or_gets(&headers, &frame);
                assert_eq!(said, expected, "v6 {v6}, TCP {tcp}, {from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn the_hosts_own_addresses_are_found() {
        let own = own();
        own.refresh_addresses();
        assert!(own.addresses.read().unwrap().contains(&[127, 0, 0, 1].into()));
    }
}

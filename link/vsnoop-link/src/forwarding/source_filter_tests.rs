use super::*;
use proptest::prelude::*;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Its link-local address.
const OWN_LOCAL: &str = "fe80::ff:fe00:1";
const FORGED: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn filter() -> SourceFilter {
    let nets = ["10.0.0.5/32", "10.1.0.0/16", "fd00::5/128", "fe80::77/128"];
    SourceFilter {
        macs: vec![Mac(OWN)],
        addresses: nets.iter().map(|net| net.parse().expect("a prefix")).collect(),
        is_dhcp_server: false,
    }
}

fn frame(source: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &source, &kind.to_be_bytes(), packet].concat()
}

/// `place`: the field with the flag and the offset of a fragment.
fn v4_part(source: [u8; 4], protocol: u8, place: u16, rest: &[u8]) -> Vec<u8> {
    let length = (20 + rest.len() as u16).to_be_bytes();
    let place = place.to_be_bytes();
    let head = [0x45, 0, length[0], length[1], 0, 0, place[0], place[1], 64, protocol, 0, 0];
    [&head[..], &source, &[10, 0, 0, 9], rest].concat()
}

fn v4(source: [u8; 4], protocol: u8, rest: &[u8]) -> Vec<u8> {
    v4_part(source, protocol, 0, rest)
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &[0, 8, 0, 0]].concat()
}

fn tcp() -> Vec<u8> {
    vec![0; 20]
}

fn arp_of(operation: u8, mac: [u8; 6], address: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &address, &[0; 6], &target].concat()
}

fn arp(mac: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    arp_of(1, mac, address, [10, 0, 0, 1])
}

fn v6(source: &str, next: u8, rest: &[u8]) -> Vec<u8> {
    let source: Ipv6Addr = source.parse().expect("an address");
    let head = [0x60, 0, 0, 0, 0, rest.len() as u8, next, 255];
    [&head[..], &source.octets(), &[0xff; 16], rest].concat()
}

fn icmp(kind: u8, target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().expect("an address");
    [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets()].concat()
}

/// With a link-layer address in an option of this kind.
fn with_option(message: Vec<u8>, kind: u8, mac: [u8; 6]) -> Vec<u8> {
    [&message[..], &[kind, 1], &mac].concat()
}

#[test]
fn what_the_vm_may_send_passes() {
    let own = [
        frame(OWN, IPV4, &v4([10, 0, 0, 5], 6, &tcp())),
        frame(OWN, IPV4, &v4([10, 1, 200, 1], UDP, &udp(5000, 53))),
        frame(OWN, IPV4, &v4([10, 0, 0, 5], 1, &[8, 0, 0, 0, 0, 0, 0, 0])),
        frame(OWN, IPV4, &v4_part([10, 0, 0, 5], UDP, 100, &[0, 67, 0, 68])),
        frame(OWN, ARP, &arp(OWN, [10, 0, 0, 5])),
        frame(OWN, ARP, &arp_of(2, OWN, [10, 0, 0, 5], [10, 0, 0, 9])),
        // QEMU's announcement after a migration.
        frame(OWN, RARP, &arp_of(3, OWN, [0; 4], [0; 4])),
        frame(OWN, IPV6, &v6("fd00::5", 6, &tcp())),
        frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &icmp(136, "fd00::5"))),
        frame(OWN, IPV6, &v6("fe80::77", ICMPV6, &icmp(136, "fe80::77"))),
        frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &with_option(icmp(136, OWN_LOCAL), 2, OWN))),
        // It asks for another one, and for routers.
        frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &with_option(icmp(135, "fe80::1"), 1, OWN))),
        frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &[133, 0, 0, 0, 0, 0, 0, 0])),
        frame(OWN, IPV6, &v6("fd00::5", ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0])),
        frame(OWN, IPV6, &v6(OWN_LOCAL, UDP, &udp(546, 547))),
        frame(OWN, 0x8100, &[&[0, 7, 8, 0][..], &v4([10, 0, 0, 5], 6, &tcp())].concat()),
    ];
    for (index, frame) in own.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Ok(()), "frame {index}");
    }
}

/// Packets that a VM needs before it has an address.
#[test]
fn the_unspecified_address_passes_for_dhcp_and_dad_and_nothing_else() {
    let passes = [
        frame(OWN, IPV4, &v4([0; 4], UDP, &udp(68, 67))),
        frame(OWN, ARP, &arp_of(1, OWN, [0; 4], [10, 0, 0, 5])),
        frame(OWN, IPV6, &v6("::", ICMPV6, &icmp(135, "fd00::5"))),
        frame(OWN, IPV6, &v6("::", ICMPV6, &icmp(135, OWN_LOCAL))),
        frame(OWN, IPV6, &v6("::", ICMPV6, &[133, 0, 0, 0, 0, 0, 0, 0])),
        // A report comes behind a hop-by-hop header with Router Alert (RFC 3810).
        frame(OWN, IPV6, &v6("::", 0, &[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0])),
    ];
    for (index, frame) in passes.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Ok(()), "frame {index}");
    }
    let refused = [
        frame(OWN, IPV4, &v4([0; 4], 6, &tcp())),
        frame(OWN, IPV4, &v4([0; 4], UDP, &udp(5000, 53))),
        frame(OWN, IPV4, &v4([0; 4], UDP, &udp(67, 68))),
        frame(OWN, IPV4, &v4_part([0; 4], UDP, 100, &udp(68, 67))),
        frame(OWN, ARP, &arp_of(1, OWN, [0; 4], [10, 0, 0, 1])),
        frame(OWN, ARP, &arp_of(2, OWN, [0; 4], [10, 0, 0, 5])),
        frame(OWN, IPV6, &v6("::", 6, &tcp())),
        frame(OWN, IPV6, &v6("::", UDP, &udp(546, 547))),
        frame(OWN, IPV6, &v6("::", ICMPV6, &icmp(135, "fe80::1"))),
        frame(OWN, IPV6, &v6("::", ICMPV6, &icmp(136, "fd00::5"))),
        frame(OWN, IPV6, &v6("::", ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0])),
    ];
    for (index, frame) in refused.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Err(Forged::Ip), "frame {index}");
    }
}

#[test]
fn what_it_forges_does_not() {
    let hop = [58, 0, 0, 0, 0, 0, 0, 0];
    let hidden = [&hop[..], &icmp(134, "::")].concat();
    // A first fragment, of which the next one has the message; a header that is longer than it.
    let first = [&[60, 0, 0, 1, 0, 0, 0, 7][..], &[58, 9, 0, 0, 0, 0, 0, 0]].concat();
    // One whose chain ends where it ends; the same with Ethernet padding, which looks like an
    // echo request.
    let at_end = v6(OWN_LOCAL, 44, &[58, 0, 0, 1, 0, 0, 0, 7]);
    let padded = [&at_end[..], &[128, 0, 0, 0, 0, 0]].concat();
    let forged = [
        (frame(OWN, IPV6, &at_end), Forged::Protocol),
        (frame(OWN, IPV6, &padded), Forged::Protocol),
        (frame(FORGED, IPV4, &v4([10, 0, 0, 5], 6, &tcp())), Forged::Mac),
        (frame(OWN, ARP, &arp(FORGED, [10, 0, 0, 5])), Forged::Mac),
        (frame(OWN, RARP, &arp_of(3, FORGED, [0; 4], [0; 4])), Forged::Mac),
        (frame(OWN, RARP, &arp_of(4, OWN, [0; 4], [0; 4])), Forged::Protocol),
        (frame(OWN, IPV4, &v4([10, 0, 0, 6], 6, &tcp())), Forged::Ip),
        (frame(OWN, ARP, &arp(OWN, [10, 0, 0, 1])), Forged::Ip),
        (frame(OWN, ARP, &arp_of(9, OWN, [10, 0, 0, 5], [10, 0, 0, 9])), Forged::Protocol),
        (frame(OWN, IPV6, &v6("fd00::6", 6, &tcp())), Forged::Ip),
        (frame(OWN, IPV6, &v6(OWN_LOCAL, 0, &hidden)), Forged::Service),
        (frame(OWN, IPV6, &v6(OWN_LOCAL, 44, &first)), Forged::Protocol),
        (frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &icmp(136, "fd00::6"))), Forged::Ip),
        (frame(OWN, 0x88cc, &[0; 40]), Forged::Protocol),
        (frame(OWN, IPV4, &[0x45]), Forged::Protocol),
        (
            frame(OWN, 0x8100, &[&[0, 7, 8, 0][..], &v4([10, 0, 0, 6], 6, &tcp())].concat()),
            Forged::Ip,
        ),
    ];
    for (index, (frame, why)) in forged.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Err(*why), "frame {index}");
    }
}

/// A gateway's link-local address is one that every host knows: it need not be guessed.
#[test]
fn a_vm_is_no_gateway_for_its_neighbours() {
    let fragment = |message: Vec<u8>| [&[58, 0, 0, 0, 0, 0, 0, 7][..], &message].concat();
    let forged = [
        // Advertisements with override, of the gateway and by it.
        (frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &icmp(136, "fe80::1"))), Forged::Ip),
        (frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &icmp(136, "fe80::1"))), Forged::Ip),
        // Solicitations teach the source's link-layer address, too.
        (frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &icmp(135, "fd00::9"))), Forged::Ip),
        (
            frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &with_option(icmp(135, "fd00::9"), 1, FORGED))),
            Forged::Mac,
        ),
        (
            frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &with_option(icmp(136, "fd00::5"), 2, FORGED))),
            Forged::Mac,
        ),
        (
            frame(
                OWN,
                IPV6,
                &v6(OWN_LOCAL, ICMPV6, &[&icmp(135, "fd00::9")[..], &[1, 0]].concat()),
            ),
            Forged::Protocol,
        ),
        // Redirects and advertisements of a router, whatever their source.
        (frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &icmp(134, "::"))), Forged::Service),
        (frame(OWN, IPV6, &v6(OWN_LOCAL, ICMPV6, &icmp(137, "fd00::9"))), Forged::Service),
        (frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &icmp(137, "fd00::9"))), Forged::Ip),
        (frame(OWN, IPV4, &v4([10, 0, 0, 5], 1, &[5, 1, 0, 0, 10, 0, 0, 5])), Forged::Service),
        (frame(OWN, IPV4, &v4([10, 0, 0, 5], 1, &[9, 0, 0, 0, 1, 2, 0, 9])), Forged::Service),
        // RFC 6980.
        (frame(OWN, IPV6, &v6(OWN_LOCAL, 44, &fragment(icmp(136, "fd00::5")))), Forged::Protocol),
    ];
    for (index, (frame, why)) in forged.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Err(*why), "frame {index}");
    }
}

#[test]
fn a_vm_answers_no_dhcp_unless_it_may() {
    let answers = [
        frame(OWN, IPV4, &v4([10, 0, 0, 5], UDP, &udp(67, 68))),
        // A client looks at its own port.
        frame(OWN, IPV4, &v4([10, 0, 0, 5], UDP, &udp(5000, 68))),
        // To a relay.
        frame(OWN, IPV4, &v4([10, 0, 0, 5], UDP, &udp(67, 67))),
        frame(OWN, IPV6, &v6(OWN_LOCAL, UDP, &udp(547, 546))),
        frame(OWN, IPV6, &v6(OWN_LOCAL, UDP, &udp(5000, 546))),
        frame(
            OWN,
            IPV6,
            &v6(OWN_LOCAL, 60, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(547, 546)].concat()),
        ),
    ];
    let server = SourceFilter { is_dhcp_server: true, ..filter() };
    for (index, frame) in answers.iter().enumerate() {
        assert_eq!(filter().check_source(frame), Err(Forged::Service), "frame {index}");
        assert_eq!(server.check_source(frame), Ok(()), "frame {index}");
    }
    // Its header is not whole.
    let short = frame(OWN, IPV4, &v4_part([10, 0, 0, 5], UDP, 0x2000, &[0, 67, 0]));
    assert_eq!(filter().check_source(&short), Err(Forged::Protocol));
}

#[test]
fn a_link_local_address_is_free_where_no_mac_is_fixed_or_all_are_listed() {
    let other = frame(OWN, IPV6, &v6("fe80::1", 6, &tcp()));
    assert_eq!(filter().check_source(&other), Err(Forged::Ip));
    assert_eq!(SourceFilter { macs: vec![], ..filter() }.check_source(&other), Ok(()));
    let mut listed = filter();
    listed.addresses.push("fe80::/64".parse().expect("a prefix"));
    assert_eq!(listed.check_source(&other), Ok(()));
}

#[test]
fn each_list_counts_alone() {
    let macs = SourceFilter { addresses: vec![], ..filter() };
    assert_eq!(macs.check_source(&frame(OWN, IPV4, &v4([1, 2, 3, 4], 6, &tcp()))), Ok(()));
    assert_eq!(macs.check_source(&frame(OWN, 0x88cc, &[])), Ok(()));
    assert_eq!(
        macs.check_source(&frame(FORGED, IPV4, &v4([1, 2, 3, 4], 6, &tcp()))),
        Err(Forged::Mac)
    );
    let addresses = SourceFilter { macs: vec![], ..filter() };
    assert_eq!(addresses.check_source(&frame(FORGED, IPV4, &v4([10, 0, 0, 5], 6, &tcp()))), Ok(()));
    assert!(SourceFilter::default().check_source(&[]).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_checked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = filter().check_source(&bytes);
        let mut own = bytes;
        if own.len() >= 14 {
            own[6..12].copy_from_slice(&OWN);
            for kind in [IPV4, ARP, RARP, IPV6] {
                own[12..14].copy_from_slice(&kind.to_be_bytes());
                let _ = filter().check_source(&own);
            }
        }
    }
}

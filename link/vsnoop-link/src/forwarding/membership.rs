//! Messages by which hosts join multicast groups, and by which queriers ask for them: IGMPv1 to v3
//! (RFC 1112, 2236, 9776) and MLDv1 and v2 (RFC 2710, 9777).

use etherparse::{IgmpSlice, Ipv6Slice, NetSlice, SlicedPacket, TransportSlice, igmp, ip_number};

use super::mac::Mac;

/// Types of MLD messages: the Internet's registry of ICMPv6 types.
const MLD_QUERY: u8 = 130;
const MLD_REPORT_V1: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_V2: u8 = 143;
/// Header of a record in an MLDv2 report, bytes: RFC 9777, section 5.2.
const MLD_RECORD_BYTES: usize = 20;

const MS_NS: u64 = 1_000_000;

/// 224.0.0.1.
const ALL_HOSTS_V4: Mac = Mac([0x01, 0, 0x5e, 0, 0, 1]);
/// ff02::1.
const ALL_HOSTS_V6: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// The protocol of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// The group of all hosts, to which general queries go.
    pub fn all_hosts(self) -> Mac {
        match self {
            Self::V4 => ALL_HOSTS_V4,
            Self::V6 => ALL_HOSTS_V6,
        }
    }

    /// The family of the groups with this MAC address, if hosts report that they have joined them.
    /// Groups of a link alone (224.0.0.0/24, ff02::/16 as far as the address shows them) are not
    /// reported: they reach every host.
    pub fn of_reported(mac: Mac) -> Option<Self> {
        match mac.0 {
            [0x01, 0, 0x5e, 0, 0, _] | [0x33, 0x33, 0, 0, 0, _] | [0x33, 0x33, 0xff, ..] => None,
            // ff02::1:2 and ff02::1:3: DHCPv6, LLMNR.
            [0x33, 0x33, 0, 1, 0, 2 | 3] => None,
            [0x01, 0, 0x5e, 0..=0x7f, ..] => Some(Self::V4),
            [0x33, 0x33, ..] => Some(Self::V6),
            _ => None,
        }
    }
}

/// A host's report about a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Join,
    Leave,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipMessage {
    /// A querier asks all hosts for all groups. Each host reports its groups within this time (Max
    /// Resp Time), ns.
    GeneralQuery(Family, u64),
    /// A querier asks for one group.
    GroupQuery,
    /// Groups, by their MAC addresses, that a host has joined or left.
    Report(Family, Vec<(Mac, Change)>),
}

impl MembershipMessage {
    /// The message in a frame, if it has one that every host would accept: correct checksums, and
    /// a hop limit of 1.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let group = Mac(*frame.first_chunk()?);
        if !group.is_group() {
            return None;
        }
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        // Under two tags the VLAN that counts is not the one of its hosts.
        if packet.is_ip_payload_fragmented() || packet.link_exts.len() > 1 {
            return None;
        }
        match (packet.net?, packet.transport?) {
            (NetSlice::Ipv4(ip), TransportSlice::Igmp(message)) => {
                let header = ip.header();
                let is_right =
                    header.header_checksum() == header.to_header().calc_header_checksum();
                let source = header.source_addr();
                let is_possible = !source.is_loopback() && !source.is_multicast();
                let is_for_group = mac_of_v4(header.destination()) == Some(group);
                let is_right = is_right && is_possible && is_for_group;
                if !is_right || header.ttl() != 1 || !message.is_checksum_valid() {
                    return None;
                }
                of_igmp(&message, group)
            }
            (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(message)) => {
                let header = ip.header();
                let source = header.source_addr();
                let is_right = message.is_checksum_valid(header.source(), header.destination());
                let is_local = source.is_unicast_link_local() || source.is_unspecified();
                let is_for_group = mac_of_v6(header.destination()) == Some(group);
                let is_alert = has_router_alert(&ip);
                let is_right = is_right && is_local && is_for_group && is_alert;
                if !is_right || header.hop_limit() != 1 {
                    return None;
                }
                of_mld(message.slice(), group, !source.is_unspecified())
            }
            _ => None,
        }
    }
}

/// A querier may have the source 0.0.0.0: Linux bridges do, and hosts answer them.
fn of_igmp(message: &IgmpSlice<'_>, to: Mac) -> Option<MembershipMessage> {
    let one = |group: [u8; 4], change| {
        let changes = mac_v4(group).map(|mac| (mac, change)).into_iter().collect();
        Some(MembershipMessage::Report(Family::V4, changes))
    };
    let query = |group: [u8; 4], tenths: u16| match group {
        [0, 0, 0, 0] if to == ALL_HOSTS_V4 => {
            // IGMPv1 says none: 10 s.
            let tenths = if tenths == 0 { 100 } else { u64::from(tenths) };
            Some(MembershipMessage::GeneralQuery(Family::V4, tenths * 100 * MS_NS))
        }
        _ => Some(MembershipMessage::GroupQuery),
    };
    match message {
        IgmpSlice::MembershipQuery(found) => {
            query(found.group_address().octets, found.max_response_time().into())
        }
        IgmpSlice::MembershipQueryWithSources(found) => {
            query(found.group_address().octets, found.max_response_code().as_10th_secs())
        }
        IgmpSlice::MembershipReportV1(found) => one(found.group_address().octets, Change::Join),
        IgmpSlice::MembershipReportV2(found) => one(found.group_address().octets, Change::Join),
        IgmpSlice::LeaveGroup(found) => one(found.group_address().octets, Change::Leave),
        IgmpSlice::MembershipReportV3(found) => {
            let records = found.group_records().filter_map(Result::ok);
            let changes = records.filter_map(|record| {
                let igmp::ReportGroupRecordType(kind) = record.record_type();
                let change = change_of(kind, record.num_of_sources())?;
                Some((mac_v4(record.multicast_address())?, change))
            });
            Some(MembershipMessage::Report(Family::V4, changes.collect()))
        }
        IgmpSlice::Unknown(_) => None,
    }
}

/// `message`: from its type on. `is_querier`: its source may be that of a querier.
fn of_mld(message: &[u8], to: Mac, is_querier: bool) -> Option<MembershipMessage> {
    let address = |at: usize| message.get(at..)?.first_chunk::<16>().copied();
    let one = |change| {
        let changes = mac_v6(address(8)?).map(|mac| (mac, change)).into_iter().collect();
        Some(MembershipMessage::Report(Family::V6, changes))
    };
    match *message.first()? {
        MLD_QUERY if address(8)? == [0; 16] && to == ALL_HOSTS_V6 && is_querier => {
            let code = u16::from_be_bytes(*message.get(4..)?.first_chunk()?);
            Some(MembershipMessage::GeneralQuery(Family::V6, mld_response_ms(code) * MS_NS))
        }
        MLD_QUERY => Some(MembershipMessage::GroupQuery),
        MLD_REPORT_V1 => one(Change::Join),
        MLD_DONE => one(Change::Leave),
        MLD_REPORT_V2 => {
            let mut changes = Vec::new();
            let mut at = 8;
            for _ in 0..u16::from_be_bytes(*message.get(6..)?.first_chunk()?) {
                let [kind, auxiliary_words, sources @ ..] =
                    *message.get(at..)?.first_chunk::<4>()?;
                let sources = u16::from_be_bytes(sources);
                let group = address(at + 4)?;
                if let (Some(mac), Some(change)) = (mac_v6(group), change_of(kind, sources)) {
                    changes.push((mac, change));
                }
                at +=
                    MLD_RECORD_BYTES + 16 * usize::from(sources) + 4 * usize::from(auxiliary_words);
            }
            Some(MembershipMessage::Report(Family::V6, changes))
        }
        _ => None,
    }
}

/// The Maximum Response Delay of a query, ms: RFC 9777, section 5.1.3.
fn mld_response_ms(code: u16) -> u64 {
    match u64::from(code) {
        code @ ..0x8000 => code,
        code => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
    }
}

/// Meaning of a record type (RFC 9776, section 4.2.13, and the same for MLD). Sources are
/// not looked at: a host that wants some of a group's senders gets all.
fn change_of(kind: u8, sources: u16) -> Option<Change> {
    match (kind, sources) {
        // MODE_IS_EXCLUDE, CHANGE_TO_EXCLUDE_MODE.
        (2 | 4, _) => Some(Change::Join),
        // MODE_IS_INCLUDE, CHANGE_TO_INCLUDE_MODE, ALLOW_NEW_SOURCES.
        (1 | 3 | 5, 1..) => Some(Change::Join),
        (3, 0) => Some(Change::Leave),
        _ => None,
    }
}

/// The MAC address of a group that is reported.
fn mac_v4(group: [u8; 4]) -> Option<Mac> {
    mac_of_v4(group).filter(|mac| Family::of_reported(*mac).is_some())
}

fn mac_v6(group: [u8; 16]) -> Option<Mac> {
    mac_of_v6(group).filter(|mac| Family::of_reported(*mac).is_some())
}

/// The MAC address of a group: RFC 1112, section 6.4.
fn mac_of_v4([a, b, c, d]: [u8; 4]) -> Option<Mac> {
    (a & 0xf0 == 0xe0).then_some(Mac([0x01, 0, 0x5e, b & 0x7f, c, d]))
}

/// Likewise, RFC 2464, section 7.
fn mac_of_v6(group: [u8; 16]) -> Option<Mac> {
    let [0xff, .., a, b, c, d] = group else { return None };
    Some(Mac([0x33, 0x33, a, b, c, d]))
}

/// Hosts accept MLD messages with this option only (RFC 9777, section 5).
fn has_router_alert(ip: &Ipv6Slice<'_>) -> bool {
    const ROUTER_ALERT_FOR_MLD: [u8; 4] = [5, 2, 0, 0];
    let options = ip.extensions();
    options.first_header() == Some(ip_number::IPV6_HEADER_HOP_BY_HOP)
        && options.slice().windows(4).any(|option| option == ROUTER_ALERT_FOR_MLD)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// An IGMP message of 8 bytes in a frame.
    pub fn igmp_frame(kind: u8, to: Ipv4Addr, group: Ipv4Addr) -> Vec<u8> {
        let message = [&[kind, 0, 0, 0], &group.octets()[..]].concat();
        ipv4(to, message, 1)
    }

    fn ipv4(to: Ipv4Addr, mut message: Vec<u8>, ttl: u8) -> Vec<u8> {
        let sum = !vsnoop_packet::checksum::sum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let [_, b, c, d] = to.octets();
        let builder = PacketBuilder::ethernet2(HOST, [0x01, 0, 0x5e, b & 0x7f, c, d]);
        let builder = builder.ipv4([10, 0, 0, 7], to.octets(), ttl);
        let mut frame = Vec::new();
        builder.write(&mut frame, etherparse::ip_number::IGMP, &message).expect("a frame");
        frame
    }

    fn ipv6(to: Ipv6Addr, kind: u8, rest: &[u8]) -> Vec<u8> {
        let [.., a, b, c, d] = to.octets();
        let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7).octets();
        let builder = PacketBuilder::ethernet2(HOST, [0x33, 0x33, a, b, c, d]);
        let first = rest.first_chunk().copied().expect("four bytes");
        let builder = builder.ipv6(source, to.octets(), 1).icmpv6_raw(kind, 0, first);
        let mut frame = Vec::new();
        builder.write(&mut frame, &rest[4..]).expect("a frame");
        // Hop-by-hop options, with the router alert; the payload is 8 bytes longer.
        let next = std::mem::replace(&mut frame[20], 0);
        frame[19] += 8;
        frame.splice(54..54, [next, 0, 5, 2, 0, 0, 1, 0]);
        frame
    }

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 129, 2, 3);
    const GROUP_MAC: Mac = Mac([0x01, 0, 0x5e, 0x01, 2, 3]);

    fn report(family: Family, changes: &[(Mac, Change)]) -> Option<MembershipMessage> {
        Some(MembershipMessage::Report(family, changes.to_vec()))
    }

    #[test]
    fn igmp_is_understood() {
        let all = Ipv4Addr::new(224, 0, 0, 1);
        let none = Ipv4Addr::UNSPECIFIED;
        for joins in [0x12, 0x16] {
            let message = MembershipMessage::parse(&igmp_frame(joins, GROUP, GROUP));
            assert_eq!(message, report(Family::V4, &[(GROUP_MAC, Change::Join)]));
        }
        let leave = igmp_frame(0x17, Ipv4Addr::new(224, 0, 0, 2), GROUP);
        let message = MembershipMessage::parse(&leave);
        assert_eq!(message, report(Family::V4, &[(GROUP_MAC, Change::Leave)]));
        let query = MembershipMessage::parse(&igmp_frame(0x11, all, none));
        let expected = MembershipMessage::GeneralQuery(Family::V4, 10_000 * MS_NS);
        assert_eq!(query, Some(expected), "IGMPv1");
        let query = MembershipMessage::parse(&igmp_frame(0x11, GROUP, GROUP));
        assert_eq!(query, Some(MembershipMessage::GroupQuery));
        // Every host must get a query that counts.
        let aside = MembershipMessage::parse(&igmp_frame(0x11, GROUP, none));
        assert_eq!(aside, Some(MembershipMessage::GroupQuery));
        let own = MembershipMessage::parse(&igmp_frame(0x16, all, Ipv4Addr::new(224, 0, 0, 251)));
        assert_eq!(own, report(Family::V4, &[]), "such a group is flooded");
    }

    #[test]
    fn records_of_igmpv3_and_mldv2_join_and_leave() {
        let record = |kind: u8, sources: u16, group: &[u8]| {
            let address = vec![9; group.len() * usize::from(sources)];
            [&[kind, 0], &sources.to_be_bytes()[..], group, &address].concat()
        };
        let records = |group: &dyn Fn(u8) -> Vec<u8>| -> Vec<u8> {
            let all = [(2, 0), (4, 1), (3, 0), (5, 2), (6, 1), (1, 1), (3, 2)];
            let each = all.iter().zip(1..);
            each.flat_map(|(&(kind, sources), n)| record(kind, sources, &group(n))).collect()
        };
        let expected = [
            (1, Change::Join),
            (2, Change::Join),
            (3, Change::Leave),
            (4, Change::Join),
            (6, Change::Join),
            (7, Change::Join),
        ];

        let head = [0x22, 0, 0, 0, 0, 0, 0, 7];
        let message = [&head[..], &records(&|n| vec![239, 1, 1, n])].concat();
        let frame = ipv4(Ipv4Addr::new(224, 0, 0, 22), message, 1);
        let macs = expected.map(|(n, change)| (Mac([0x01, 0, 0x5e, 1, 1, n]), change));
        assert_eq!(MembershipMessage::parse(&frame), report(Family::V4, &macs));

        let group = |n| Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 2, n).octets().to_vec();
        let rest = [&[0, 0, 0, 7][..], &records(&|n| group(n.into()))].concat();
        let frame = ipv6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16), MLD_REPORT_V2, &rest);
        let macs = expected.map(|(n, change)| (Mac([0x33, 0x33, 0, 2, 0, n]), change));
        assert_eq!(MembershipMessage::parse(&frame), report(Family::V6, &macs));
    }

    #[test]
    fn mldv1_is_understood() {
        let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 2, 3);
        let mac = Mac([0x33, 0x33, 0, 2, 0, 3]);
        let body = |group: Ipv6Addr| [&[0; 4][..], &group.octets()].concat();
        let joins = ipv6(group, MLD_REPORT_V1, &body(group));
        assert_eq!(MembershipMessage::parse(&joins), report(Family::V6, &[(mac, Change::Join)]));
        let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
        let leaves = ipv6(routers, MLD_DONE, &body(group));
        assert_eq!(MembershipMessage::parse(&leaves), report(Family::V6, &[(mac, Change::Leave)]));
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let query = ipv6(all, MLD_QUERY, &body(Ipv6Addr::UNSPECIFIED));
        let general = Some(MembershipMessage::GeneralQuery(Family::V6, 0));
        assert_eq!(MembershipMessage::parse(&query), general);
        assert_eq!(
            [0, 0x7fff, 0x8000, 0xffff].map(mld_response_ms),
            [0, 32_767, 32_768, 8_387_584]
        );
    }

    #[test]
    fn what_no_host_would_accept_is_no_message() {
        let query = |ttl| ipv4(Ipv4Addr::new(224, 0, 0, 1), vec![0x11, 0, 0, 0, 0, 0, 0, 0], ttl);
        assert!(MembershipMessage::parse(&query(1)).is_some());
        assert_eq!(MembershipMessage::parse(&query(2)), None, "it may have been routed");
        for at in 14..query(1).len() {
            let mut wrong = query(1);
            wrong[at] ^= 0x10;
            assert_eq!(MembershipMessage::parse(&wrong), None, "byte {at}");
        }
        let mut tagged = query(1);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert!(MembershipMessage::parse(&tagged).is_some());
        tagged.splice(12..12, [0x88, 0xa8, 0, 5]);
        assert_eq!(MembershipMessage::parse(&tagged), None, "of an inner VLAN");
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let mut mld = ipv6(all, MLD_QUERY, &[0; 20]);
        assert!(MembershipMessage::parse(&mld).is_some());
        mld[56] = 1;
        assert_eq!(MembershipMessage::parse(&mld), None, "no router alert");
        let elsewhere = ipv4(Ipv4Addr::new(224, 0, 0, 9), vec![0x11, 0, 0, 0, 0, 0, 0, 0], 1);
        let mut elsewhere = [&query(1)[..6], &elsewhere[6..]].concat();
        assert_eq!(MembershipMessage::parse(&elsewhere), None, "another destination");
        elsewhere[5] = 9;
        assert_eq!(MembershipMessage::parse(&elsewhere), Some(MembershipMessage::GroupQuery));
        let mut unicast = query(1);
        unicast[..6].copy_from_slice(&HOST);
        assert_eq!(MembershipMessage::parse(&unicast), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(
            mut frame in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0..3usize,
        ) {
            let start: &[u8] = [
                &[0x01, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1, 8, 0, 0x45][..],
                &[0x33, 0x33, 0, 1, 2, 3, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60][..],
                &[][..],
            ][kind];
            frame.splice(0..0, start.iter().copied());
            MembershipMessage::parse(&frame);
            of_mld(&frame, ALL_HOSTS_V6, true);
        }
    }
}

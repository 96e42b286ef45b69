//! The RSTs with which user space ends a connection, and probes.
//!
//! The RST to the VM has SEQ = its RCV.NXT, as if from the sender; the RST to the sender has SEQ =
//! the VM's SND.NXT. Both are exact, as RFC 5961 demands, unless the record is behind the
//! connection: while it was split, the hooks did not see its segments.
//!
//! A probe is one byte that its receiver has acknowledged (RFC 1122, section 4.2.3.6). An end that
//! still has the connection answers with an ACK (RFC 9293, section 3.10.7.4), and the hooks answer
//! that with a RST that is exact. Without a byte Linux may ignore it, as an ACK that came late.

use vsnoop_flow::types::{self, flow, flow_key};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::format::{ACK, RST, Tag};

const TTL_MOST: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSegment {
    ResetVm,
    ResetSender,
    ProbeVm,
    ProbeSender,
}

impl EndSegment {
    pub fn is_for_sender(self) -> bool {
        matches!(self, Self::ResetSender | Self::ProbeSender)
    }

    fn is_reset(self) -> bool {
        matches!(self, Self::ResetVm | Self::ResetSender)
    }
}

/// A segment for the sender with another Ethernet address than the VM's. Switches learn from it
/// where that address is: the VM may be at another host by now, and must not be looked for here.
pub fn frame_of_host(key: &flow_key, flow: &flow, mac: [u8; 6], segment: EndSegment) -> Vec<u8> {
    frame(&flow_key { vm_mac: mac, ..*key }, flow, segment)
}

/// A segment for the VM with another Ethernet address than the sender's; see [`frame_of_host`].
/// Also one for the sender, as a bridge passes it up the stack of its host, whose address is `mac`.
pub fn frame_by_way_of(key: &flow_key, flow: &flow, mac: [u8; 6], segment: EndSegment) -> Vec<u8> {
    frame(key, &vsnoop_flow::types::flow { next_hop: mac, ..*flow }, segment)
}

/// A segment for the sender as an IP packet.
pub fn packet(key: &flow_key, flow: &flow, segment: EndSegment) -> Vec<u8> {
    const ETHERNET_BYTES: usize = 14;
    let untagged = flow_key { vlan_outer: 0, vlan_inner: 0, ..*key };
    frame(&untagged, flow, segment).split_off(ETHERNET_BYTES)
}

/// An Ethernet frame with the segment.
pub fn frame(key: &flow_key, flow: &flow, segment: EndSegment) -> Vec<u8> {
    // The key has ports in network byte order.
    let sender = (key.sender_addr, u16::from_be(key.sender_port), flow.next_hop);
    let vm = (key.vm_addr, u16::from_be(key.vm_port), key.vm_mac);
    let (from, to) = if segment.is_for_sender() { (vm, sender) } else { (sender, vm) };
    let (sequence, acknowledgment) = match segment {
        EndSegment::ResetVm => (flow.vm_seq.v, flow.snd_nxt.v),
        EndSegment::ResetSender => (flow.snd_nxt.v, flow.next_seq.v),
        EndSegment::ProbeVm => (flow.vm_seq.v.wrapping_sub(1), flow.snd_nxt.v),
        EndSegment::ProbeSender => (flow.snd_una.v.wrapping_sub(1), flow.next_seq.v),
    };
    let ethernet = Ethernet { source: from.2, destination: to.2, tags: tags(key) };
    // The VM's own towards the sender: a peer may refuse what came over a router (RFC 5082). The
    // sender's is not in the record; the VM refuses the largest least.
    let ttl = if segment.is_for_sender() { flow.ttl } else { TTL_MOST };
    let mut route = Route::new(ethernet, Addresses::of_mapped(from.0, to.0));
    if ttl > 0 {
        route.ttl = ttl;
    }
    let flags = if segment.is_reset() { RST | ACK } else { ACK };
    let stamp = (!segment.is_reset()).then(|| timestamps(flow, segment)).flatten();
    let options = stamp.as_ref().map_or(&[][..], |stamp| stamp);
    TcpFrame { sequence, acknowledgment, flags, options, ..TcpFrame::new(route, from.1, to.1) }
        .build(if segment.is_reset() { &[] } else { &[0] })
}

/// The option without which an end may ignore a segment (RFC 7323, section 3.2); a RST needs none.
fn timestamps(flow: &flow, segment: EndSegment) -> Option<[u8; 12]> {
    if u32::from(flow.flags) & types::FLOW_F_TIMESTAMPS == 0 {
        return None;
    }
    let (tsval, tsecr) = match segment.is_for_sender() {
        true => (flow.vm_tsval, flow.ts_recent),
        false => (flow.ts_recent, flow.vm_tsval),
    };
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&tsval.to_be_bytes());
    option[8..].copy_from_slice(&tsecr.to_be_bytes());
    Some(option)
}

fn tags(key: &flow_key) -> [Option<Tag>; 2] {
    let id = |tag: u16| (u32::from(tag) & types::VLAN_PRESENT != 0).then_some(tag & 0x0fff);
    match (id(key.vlan_outer), id(key.vlan_inner)) {
        (Some(outer), Some(inner)) => [Some(Tag::service(outer)), Some(Tag::customer(inner))],
        (outer, _) => [outer.map(Tag::customer), None],
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_flow::types::seq;
    use vsnoop_packet::checksum;
    use vsnoop_packet::headers::Headers;

    use super::*;

    fn key(v4: bool) -> flow_key {
        let address = |last: u8| {
            let mut address = [0; 16];
            if v4 {
                address[10..].copy_from_slice(&[255, 255, 10, 0, 0, last]);
            } else {
                address[0] = 0xfd;
                address[15] = last;
            }
            address
        };
        flow_key {
            sender_addr: address(1),
            vm_addr: address(2),
            sender_port: 5000u16.to_be(),
            vm_port: 80u16.to_be(),
            vm_mac: [2; 6],
            ..Default::default()
        }
    }

    fn record() -> flow {
        flow {
            next_seq: seq::new(2000),
            vm_seq: seq::new(1000),
            snd_nxt: seq::new(77),
            snd_una: seq::new(66),
            ts_recent: 0xaaaa_0001,
            vm_tsval: 0xbbbb_0002,
            next_hop: [4; 6],
            ..Default::default()
        }
    }

    #[test]
    fn each_end_is_reset_with_the_sequence_number_that_it_expects() {
        for v4 in [true, false] {
            for (segment, sequence, acknowledged, ports, to) in [
                (EndSegment::ResetVm, 1000, 77, [5000, 80], [2; 6]),
                (EndSegment::ResetSender, 77, 2000, [80, 5000], [4; 6]),
            ] {
                let bytes = frame(&key(v4), &record(), segment);
                assert_eq!(bytes[..6], to);
                assert_eq!(checksum::tcp_is_right(&bytes), Some(true));
                let headers = Headers::parse(&bytes).unwrap();
                let tcp = headers.tcp_header(&bytes).unwrap();
                assert_eq!(tcp.flags, RST | ACK);
                assert_eq!(tcp.sequence.get(), sequence);
                assert_eq!(tcp.acknowledgment.get(), acknowledged);
                assert_eq!(headers.ports(&bytes), Some(ports));
            }
        }
    }

    #[test]
    fn a_probe_is_an_old_byte_with_the_options_of_the_connection() {
        let stamped = flow { flags: types::FLOW_F_TIMESTAMPS as u16, ..record() };
        for v4 in [true, false] {
            for (segment, sequence, acknowledged) in
                [(EndSegment::ProbeVm, 999, 77), (EndSegment::ProbeSender, 65, 2000)]
            {
                for (flow, header_bytes) in [(record(), 20), (stamped, 32)] {
                    let bytes = frame(&key(v4), &flow, segment);
                    assert_eq!(checksum::tcp_is_right(&bytes), Some(true));
                    let headers = Headers::parse(&bytes).unwrap();
                    let tcp = headers.tcp_header(&bytes).unwrap();
                    assert_eq!((tcp.flags, tcp.sequence.get()), (ACK, sequence));
                    assert_eq!(tcp.acknowledgment.get(), acknowledged);
                    assert_eq!(tcp.data_offset, header_bytes << 2);
                }
                let bytes = frame(&key(v4), &stamped, segment);
                let (vm, sender) = (0xbbbb_0002_u32.to_be_bytes(), 0xaaaa_0001_u32.to_be_bytes());
                let pair = if segment.is_for_sender() { [vm, sender] } else { [sender, vm] };
                assert_eq!(bytes[bytes.len() - 9..bytes.len() - 1], pair.concat());
            }
        }
    }

    #[test]
    fn a_rst_has_the_vms_ttl_or_the_largest() {
        for v4 in [true, false] {
            let at = if v4 { 22 } else { 21 };
            for (segment, known, sent) in [
                (EndSegment::ResetSender, 255, 255),
                (EndSegment::ResetSender, 63, 63),
                (EndSegment::ResetSender, 0, 64),
                (EndSegment::ResetVm, 64, 255),
            ] {
                let bytes = frame(&key(v4), &flow { ttl: known, ..record() }, segment);
                assert_eq!(bytes[at], sent, "{segment:?}");
            }
        }
    }

    #[test]
    fn tags_are_put_back() {
        let present = types::VLAN_PRESENT as u16;
        for segment in [EndSegment::ResetVm, EndSegment::ResetSender] {
            let tagged = flow_key { vlan_outer: present | 5, ..key(true) };
            let bytes = frame(&tagged, &record(), segment);
            assert_eq!(bytes[12..16], [0x81, 0x00, 0, 5]);
            let both = flow_key { vlan_inner: present | 6, ..tagged };
            let bytes = frame(&both, &record(), segment);
            assert_eq!(bytes[12..20], [0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6]);
        }
    }
}

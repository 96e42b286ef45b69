//! The segments that user space makes to end a connection: two RSTs.
//!
//! A RST goes to the VM with SEQ = its RCV.NXT, as if the sender had sent it, and to the sender
//! with SEQ = the VM's SND.NXT: both exact, as RFC 5961 demands.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder,
    TcpHeader, VlanId,
};
use vsnoop_bpf::types::{self, flow, flow_key};

use crate::flow_key::socket;

const HOPS: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    ResetVm,
    ResetSender,
}

impl Segment {
    pub fn is_for_sender(self) -> bool {
        self == Self::ResetSender
    }

    fn header(self, flow: &flow, from_port: u16, to_port: u16) -> TcpHeader {
        let (seq, ack) = match self {
            Self::ResetVm => (flow.vm_seq.v, flow.snd_nxt.v),
            Self::ResetSender => (flow.snd_nxt.v, flow.next_seq.v),
        };
        let mut tcp = TcpHeader::new(from_port, to_port, seq, 0);
        tcp.ack = true;
        tcp.acknowledgment_number = ack;
        tcp.rst = true;
        tcp
    }
}

/// An Ethernet frame with the segment.
pub fn frame(key: &flow_key, flow: &flow, segment: Segment) -> Result<Vec<u8>> {
    let sender = (socket(key.sender_addr, key.sender_port), flow.next_hop);
    let vm = (socket(key.vm_addr, key.vm_port), key.vm_mac);
    let (from, to) = if segment.is_for_sender() { (vm, sender) } else { (sender, vm) };
    let tcp = segment.header(flow, from.0.port(), to.0.port());

    let ip = ip(from.0.ip(), to.0.ip())?;
    let ethernet = PacketBuilder::ethernet2(from.1, to.1);
    let packet = match (vlan(key.vlan_outer)?, vlan(key.vlan_inner)?) {
        (None, _) => ethernet.ip(ip),
        (Some(id), None) => ethernet.single_vlan(id).ip(ip),
        (Some(outer), Some(inner)) => ethernet.double_vlan(outer, inner).ip(ip),
    };
    let mut bytes = Vec::new();
    packet
        .tcp_header(tcp)
        .write_to_vec(&mut bytes, &[])
        .with_context(|| format!("write a frame for {segment:?}"))?;
    Ok(bytes)
}

/// Length, protocol and checksum are filled in by the builder.
fn ip(from: IpAddr, to: IpAddr) -> Result<IpHeaders> {
    Ok(match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(0, HOPS, IpNumber::TCP, from.octets(), to.octets())
                .context("an IPv4 header")?;
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                hop_limit: HOPS,
                next_header: IpNumber::TCP,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Ipv6Extensions::default())
        }
        _ => bail!("a flow between {from} and {to}, of different versions of IP"),
    })
}

fn vlan(tag: u16) -> Result<Option<VlanId>> {
    if u32::from(tag) & types::VLAN_PRESENT == 0 {
        return Ok(None);
    }
    Ok(Some(VlanId::try_new(tag & 0x0fff).context("a VLAN id")?))
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TcpSlice, TransportSlice};
    use vsnoop_bpf::types::seq;

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

    fn tcp(bytes: &[u8]) -> TcpSlice<'_> {
        assert_eq!(vsnoop_packet::checksum::tcp_is_right(bytes), Some(true));
        match SlicedPacket::from_ethernet(bytes).unwrap().transport {
            Some(TransportSlice::Tcp(tcp)) => tcp,
            other => panic!("no TCP: {other:?}"),
        }
    }

    #[test]
    fn each_end_is_reset_with_the_sequence_number_that_it_expects() {
        for v4 in [true, false] {
            for (segment, sequence, acknowledged, ports, to) in [
                (Segment::ResetVm, 1000, 77, (5000, 80), [2; 6]),
                (Segment::ResetSender, 77, 2000, (80, 5000), [4; 6]),
            ] {
                let bytes = frame(&key(v4), &record(), segment).unwrap();
                assert_eq!(bytes[..6], to);
                let tcp = tcp(&bytes);
                assert!(tcp.rst() && tcp.ack() && !tcp.syn());
                assert_eq!(tcp.sequence_number(), sequence);
                assert_eq!(tcp.acknowledgment_number(), acknowledged);
                assert_eq!((tcp.source_port(), tcp.destination_port()), ports);
            }
        }
    }

    #[test]
    fn tags_are_put_back() {
        let present = types::VLAN_PRESENT as u16;
        for segment in [Segment::ResetVm, Segment::ResetSender] {
            let tagged = flow_key { vlan_outer: present | 5, ..key(true) };
            let bytes = frame(&tagged, &record(), segment).unwrap();
            assert_eq!(bytes[12..16], [0x81, 0x00, 0, 5]);
            let both = flow_key { vlan_inner: present | 6, ..tagged };
            let bytes = frame(&both, &record(), segment).unwrap();
            assert_eq!(bytes[12..20], [0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6]);
        }
    }
}

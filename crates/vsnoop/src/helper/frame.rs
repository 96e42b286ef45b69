//! The segments that the helper makes itself: the two RSTs that end a connection, and the question
//! to a VM.
//!
//! A RST goes to the VM with SEQ = its RCV.NXT, as if the sender had sent it, and to the sender with
//! SEQ = the VM's SND.NXT: both exact, as RFC 5961 demands.
//!
//! The question is the keep-alive of RFC 9293, section 3.8.4: no data, SEQ one below what the VM has
//! acknowledged, ACK what the sender has acknowledged, so that it tells the VM nothing new. Its
//! timestamp is one that the VM accepts and has seen. Its window is of no concern to a TCP that
//! follows section 3.10.7.4 and drops an old segment once it has answered it; one that reads it all
//! the same (stacks that trim old segments) is told neither to stop nor to send more than any sender
//! can take, until the sender's next segment.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder,
    TcpHeader, TcpOptionElement, VlanId,
};
use vsnoop_bpf::types::{self, flow, flow_key};

use crate::command::flows::socket;

const HOPS: u8 = 64;
/// The question's window; its scale is the sender's, which no record knows.
const WINDOW: u16 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    ResetVm,
    ResetSender,
    Question,
}

impl Segment {
    pub fn is_for_sender(self) -> bool {
        self == Self::ResetSender
    }

    fn header(self, flow: &flow, from_port: u16, to_port: u16) -> Result<TcpHeader> {
        let (seq, ack) = match self {
            Self::ResetVm => (flow.vm_seq.v, flow.snd_nxt.v),
            Self::ResetSender => (flow.snd_nxt.v, flow.next_seq.v),
            Self::Question => (flow.vm_seq.v.wrapping_sub(1), known_ack(flow)),
        };
        let mut tcp = TcpHeader::new(from_port, to_port, seq, 0);
        tcp.ack = true;
        tcp.acknowledgment_number = ack;
        if self != Self::Question {
            tcp.rst = true;
            return Ok(tcp);
        }
        tcp.window_size = WINDOW;
        if u32::from(flow.flags) & types::FLOW_F_TIMESTAMPS != 0 {
            let timestamp = TcpOptionElement::Timestamp(flow.ts_recent, flow.vm_tsval);
            tcp.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, timestamp])
                .context("the timestamps option")?;
        }
        Ok(tcp)
    }
}

/// An ACK that the sender has sent before, or could have. A record that was made in mid-stream began
/// with the VM's own SEQ, of which the sender may not have had everything: before that.
fn known_ack(flow: &flow) -> u32 {
    let mid_flow = u32::from(flow.flags) & types::FLOW_F_MID_FLOW != 0;
    flow.snd_una.v.wrapping_sub(if mid_flow { u16::MAX.into() } else { 0 })
}

/// An Ethernet frame with the segment.
pub fn frame(key: &flow_key, flow: &flow, segment: Segment) -> Result<Vec<u8>> {
    let sender = (socket(key.sender_addr, key.sender_port), flow.next_hop);
    let vm = (socket(key.vm_addr, key.vm_port), key.vm_mac);
    let (from, to) = if segment.is_for_sender() { (vm, sender) } else { (sender, vm) };
    let tcp = segment.header(flow, from.0.port(), to.0.port())?;

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
pub fn ip(from: IpAddr, to: IpAddr) -> Result<IpHeaders> {
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

pub fn vlan(tag: u16) -> Result<Option<VlanId>> {
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
        assert_eq!(vsnoop_frame::checksum::tcp_is_right(bytes), Some(true));
        match SlicedPacket::from_ethernet(bytes).unwrap().transport {
            Some(TransportSlice::Tcp(tcp)) => tcp,
            other => panic!("no TCP: {other:?}"),
        }
    }

    fn options(tcp: &TcpSlice<'_>) -> Vec<TcpOptionElement> {
        tcp.options_iterator().map(Result::unwrap).collect()
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
    fn the_question_is_an_old_segment_of_the_sender_that_tells_nothing_new() {
        for v4 in [true, false] {
            let bytes = frame(&key(v4), &record(), Segment::Question).unwrap();
            assert_eq!((&bytes[..6], &bytes[6..12]), (&[2; 6][..], &[4; 6][..]));
            let tcp = tcp(&bytes);
            assert!(tcp.ack() && !tcp.rst() && !tcp.syn() && !tcp.fin() && !tcp.psh());
            assert_eq!((tcp.sequence_number(), tcp.acknowledgment_number()), (999, 66));
            assert_eq!((tcp.source_port(), tcp.destination_port()), (5000, 80));
            assert_ne!(tcp.window_size(), 0);
            assert!(tcp.payload().is_empty());
            assert_eq!(options(&tcp), []);
        }
    }

    #[test]
    fn the_question_carries_timestamps_where_the_connection_does() {
        let flow = flow { flags: types::FLOW_F_TIMESTAMPS as u16, ..record() };
        let bytes = frame(&key(true), &flow, Segment::Question).unwrap();
        let tcp = tcp(&bytes);
        let timestamp = TcpOptionElement::Timestamp(0xaaaa_0001, 0xbbbb_0002);
        assert_eq!(options(&tcp), [TcpOptionElement::Noop, TcpOptionElement::Noop, timestamp]);
        assert!(tcp.payload().is_empty());
    }

    #[test]
    fn the_question_wraps_around_with_the_sequence_numbers() {
        let flow = flow { vm_seq: seq::new(0), ..record() };
        let bytes = frame(&key(true), &flow, Segment::Question).unwrap();
        assert_eq!(tcp(&bytes).sequence_number(), u32::MAX);
    }

    #[test]
    fn tags_are_put_back() {
        let present = types::VLAN_PRESENT as u16;
        for segment in [Segment::ResetVm, Segment::ResetSender, Segment::Question] {
            let tagged = flow_key { vlan_outer: present | 5, ..key(true) };
            let bytes = frame(&tagged, &record(), segment).unwrap();
            assert_eq!(bytes[12..16], [0x81, 0x00, 0, 5]);
            let both = flow_key { vlan_inner: present | 6, ..tagged };
            let bytes = frame(&both, &record(), segment).unwrap();
            assert_eq!(bytes[12..20], [0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6]);
        }
    }
}

//! The two RST segments that end a connection, and sending them.
//!
//! To the VM with SEQ = its RCV.NXT, as if the sender had sent it; to the sender with SEQ = the VM's
//! SND.NXT: both exact, as RFC 5961 demands. Should one be lost or meet a receiver that is further on,
//! the record stays as a tombstone and whatever either end sends next is answered with RST.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder,
    TcpHeader, VlanId,
};
use vsnoop_bpf::Port;
use vsnoop_bpf::types::{self, flow, flow_key};

use crate::command::flows::socket;

const HOPS: u8 = 64;

/// Resets the connection at both ends; false when the VM has acknowledged something since `flow` was
/// read. The calling thread must be in the tap's network namespace.
pub fn reset(port: &Port, key: &flow_key, flow: &flow) -> Result<bool> {
    if !port.mark_reset(key, flow)? {
        return Ok(false);
    }
    let lost_bytes = flow.next_seq.diff(flow.vm_seq).max(0) as u64;
    port.count_helper_resets(1, lost_bytes)?;
    send(port, key, flow);
    Ok(true)
}

/// Sends the RST to both ends, also again: one may be lost like any segment, and an end that only
/// reads would wait for ever. A frame that cannot be sent is made up for by the tombstone.
pub fn send(port: &Port, key: &flow_key, flow: &flow) {
    for (to_sender, direction) in [(false, "VM"), (true, "sender")] {
        if let Err(error) =
            frame(key, flow, to_sender).and_then(|frame| Ok(port.inject(&frame, to_sender)?))
        {
            tracing::debug!("RST to the {direction}: {error:#}");
        }
    }
}

/// Sends the RST to the sender by way of the bridge: the tap, and the VM behind it, have gone.
pub fn send_by_bridge(port: &Port, bridge: u32, key: &flow_key, flow: &flow) -> Result<()> {
    Ok(port.send_out_of(bridge, &frame(key, flow, true)?)?)
}

/// An Ethernet frame with the RST for one end.
fn frame(key: &flow_key, flow: &flow, to_sender: bool) -> Result<Vec<u8>> {
    let sender = socket(key.sender_addr, key.sender_port);
    let vm = socket(key.vm_addr, key.vm_port);
    let (from, to, seq, ack) = if to_sender {
        ((vm, key.vm_mac), (sender, flow.sender_mac), flow.snd_nxt, flow.next_seq)
    } else {
        ((sender, flow.sender_mac), (vm, key.vm_mac), flow.vm_seq, flow.snd_nxt)
    };
    let mut tcp = TcpHeader::new(from.0.port(), to.0.port(), seq.v, 0);
    tcp.rst = true;
    tcp.ack = true;
    tcp.acknowledgment_number = ack.v;

    let ip = ip(from.0.ip(), to.0.ip())?;
    let ethernet = PacketBuilder::ethernet2(from.1, to.1);
    let packet = match (vlan(key.vlan_outer)?, vlan(key.vlan_inner)?) {
        (None, _) => ethernet.ip(ip),
        (Some(id), None) => ethernet.single_vlan(id).ip(ip),
        (Some(outer), Some(inner)) => ethernet.double_vlan(outer, inner).ip(ip),
    };
    let mut bytes = Vec::new();
    packet.tcp_header(tcp).write_to_vec(&mut bytes, &[]).context("write a RST frame")?;
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
    use etherparse::{SlicedPacket, TransportSlice};
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
            sender_mac: [4; 6],
            ..Default::default()
        }
    }

    #[test]
    fn each_end_gets_the_sequence_number_that_it_expects() {
        for v4 in [true, false] {
            for (to_sender, sequence, acknowledged, ports, to) in
                [(false, 1000, 77, (5000, 80), [2; 6]), (true, 77, 2000, (80, 5000), [4; 6])]
            {
                let bytes = frame(&key(v4), &record(), to_sender).unwrap();
                assert_eq!(bytes[..6], to);
                assert_eq!(vsnoop_frame::checksum::tcp_is_right(&bytes), Some(true));
                let parsed = SlicedPacket::from_ethernet(&bytes).unwrap();
                let Some(TransportSlice::Tcp(tcp)) = parsed.transport else { panic!("no TCP") };
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
        let tagged = flow_key { vlan_outer: present | 5, ..key(true) };
        let bytes = frame(&tagged, &record(), true).unwrap();
        assert_eq!(bytes[12..16], [0x81, 0x00, 0, 5]);
        let both = flow_key { vlan_inner: present | 6, ..tagged };
        let bytes = frame(&both, &record(), true).unwrap();
        assert_eq!(bytes[12..20], [0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6]);
    }
}

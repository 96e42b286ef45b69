//! The headers of a frame for the VM, as the sender might have sent it.
//!
//! What was in the sender's headers and matters to the VM's TCP is here: addresses, VLAN tags, ports,
//! what the sender has acknowledged, its window, and timestamps. TSval is the newest that the sender
//! sent, so that nothing looks old to the VM (RFC 7323, section 5); TSecr is the sender's own. The VM
//! takes the time since then for the round trip, and sizes its window by what it reads in one: the
//! VM's newest TSval would tell it that a window for a millisecond will do.

use anyhow::Result;
use etherparse::checksum::Sum16BitWords;
use etherparse::{
    EtherType, Ethernet2Header, IpHeaders, SingleVlanHeader, TcpHeader, TcpOptionElement,
};
use vsnoop_bpf::types::{self, hold};
use vsnoop_frame::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNetHdr};
use vsnoop_hold::Frame;
use zerocopy::IntoBytes;

use crate::command::flows::socket;
use crate::helper::frame::{ip, vlan};

/// What a packet socket reads before the frame: without `num_buffers`.
const VNET_HDR: usize = 10;
const TCP_CHECKSUM: u16 = 16;
/// ECN field of the IP header: congestion experienced (RFC 3168).
const CE: u8 = 3;

/// `virtio_net_hdr` and headers; the payload follows. `marked`: the network has marked what is in it.
pub fn headers(hold: &hold, frame: &Frame, marked: bool) -> Result<Vec<u8>> {
    let key = &hold.key;
    let (sender, vm) = (socket(key.sender_addr, key.sender_port), socket(key.vm_addr, key.vm_port));
    let mut tcp = TcpHeader::new(sender.port(), vm.port(), frame.seq.v, hold.sender_window);
    tcp.ack = true;
    tcp.acknowledgment_number = hold.snd_una.v;
    tcp.psh = frame.len > 0;
    tcp.fin = frame.fin;
    if u32::from(hold.flags) & types::HOLD_TIMESTAMPS != 0 {
        let timestamp = TcpOptionElement::Timestamp(hold.tsval, hold.tsecr);
        tcp.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, timestamp])?;
    }
    let tcp_len = tcp.header_len() as u32 + frame.len;
    let mut ip = ip(sender.ip(), vm.ip())?;
    let mut sum = Sum16BitWords::new().add_2bytes([0, 6]).add_4bytes(tcp_len.to_be_bytes());
    let is_v4 = match &mut ip {
        IpHeaders::Ipv4(header, _) => {
            header.set_payload_len(tcp_len as usize)?;
            if marked {
                header.ecn = CE.try_into()?;
            }
            header.header_checksum = header.calc_header_checksum();
            sum = sum.add_4bytes(header.source).add_4bytes(header.destination);
            true
        }
        IpHeaders::Ipv6(header, _) => {
            header.set_payload_length(tcp_len as usize)?;
            if marked {
                header.traffic_class |= CE;
            }
            sum = sum.add_16bytes(header.source).add_16bytes(header.destination);
            false
        }
    };
    // What is left to be added is the segment itself.
    tcp.checksum = u16::from_be_bytes((!sum.ones_complement()).to_ne_bytes());

    let mut bytes = vec![0; VNET_HDR];
    let ether_type = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let tags: Vec<_> =
        [vlan(key.vlan_outer)?, vlan(key.vlan_inner)?].into_iter().flatten().collect();
    let mut ethernet =
        Ethernet2Header { source: hold.next_hop, destination: key.vm_mac, ether_type };
    if !tags.is_empty() {
        ethernet.ether_type = EtherType(u16::from_be(hold.tag_proto));
    }
    ethernet.write(&mut bytes)?;
    for (index, id) in tags.iter().enumerate() {
        let is_last = index + 1 == tags.len();
        let ether_type = if is_last { ether_type } else { EtherType::VLAN_TAGGED_FRAME };
        SingleVlanHeader { vlan_id: *id, ether_type, ..Default::default() }.write(&mut bytes)?;
    }
    match ip {
        IpHeaders::Ipv4(header, _) => header.write(&mut bytes)?,
        IpHeaders::Ipv6(header, _) => header.write(&mut bytes)?,
    }
    let csum_start = (bytes.len() - VNET_HDR) as u16;
    tcp.write(&mut bytes)?;
    let gso_size = cut(frame.len, u32::from(hold.mss), tags.len());
    let header = VirtioNetHdr {
        flags: NEEDS_CSUM,
        gso_type: match (gso_size, is_v4) {
            (0, _) => GSO_NONE,
            (_, true) => GSO_TCPV4,
            (_, false) => GSO_TCPV6,
        },
        hdr_len: ((bytes.len() - VNET_HDR) as u16).into(),
        gso_size: (gso_size as u16).into(),
        csum_start: csum_start.into(),
        csum_offset: TCP_CHECKSUM.into(),
        num_buffers: 0.into(),
    };
    bytes[..VNET_HDR].copy_from_slice(&header.as_bytes()[..VNET_HDR]);
    Ok(bytes)
}

/// What a frame is to be cut into where the VM takes no super-packets; 0: it is one segment.
///
/// A packet socket allows a single segment one 802.1Q tag beyond the MTU, and no more: a full one with
/// other tags goes as two.
fn cut(len: u32, mss: u32, tags: usize) -> u32 {
    const TAG: u32 = 4;
    if len > mss {
        mss
    } else if tags > 0 && len > 1 && len + tags as u32 * TAG > mss {
        len.div_ceil(2)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_full_segment_with_tags_is_cut_in_two() {
        assert_eq!(cut(64_000, 1448, 0), 1448);
        assert_eq!(cut(1448, 1448, 0), 0);
        assert_eq!(cut(1448, 1448, 2), 724);
        assert_eq!(cut(1441, 1448, 2), 721);
        assert_eq!(cut(1440, 1448, 2), 0);
        assert_eq!(cut(1, 1, 2), 0);
    }
}

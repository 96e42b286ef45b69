//! The headers of a frame for the VM, as the sender might have sent it.
//!
//! They have all fields of the sender's segments that matter to the VM's TCP: addresses, VLAN tags,
//! ports, ACK, window, and timestamps. TSval is the sender's latest, so that no segment looks old
//! to the VM (RFC 7323, section 5). TSecr is the sender's latest TSecr, not the VM's newest TSval:
//! the VM measures its round trip by it, and sizes its window by what it reads in one, so that a
//! round trip of a millisecond would keep the window small.
//!
//! [`headers`] is a pure function of a hold. The engine reads the hold as late as it can, and the
//! hook that the frame passes (`bpf/vsnoop.bpf.c`) replaces ACK and window by the sender's latest.

use vsnoop_flow::types::{HOLD_TIMESTAMPS, VLAN_PRESENT, flow_key, hold};

use crate::flow::Frame;

/// `struct virtio_net_hdr` as a packet socket reads it: without `num_buffers`.
pub const VNET_HDR: usize = 10;

const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_TCPV4: u8 = 1;
const VNET_GSO_TCPV6: u8 = 4;
/// Offset of the checksum in the TCP header.
const TCP_CHECKSUM: u16 = 16;

const ETHERNET: u32 = 14;
const TAG: u32 = 4;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;
const ETHER_VLAN: u16 = 0x8100;
const PROTOCOL_TCP: u8 = 6;
const HOPS: u8 = 64;
/// ECN field of the IP header: congestion experienced (RFC 3168).
const CE: u8 = 3;
const FLAG_FIN: u8 = 0x01;
const FLAG_PSH: u8 = 0x08;
const FLAG_ACK: u8 = 0x10;

/// Builds `virtio_net_hdr` and headers; the payload follows. `marked`: a segment in it had a CE
/// mark. `mtu`: of the device, bytes.
pub fn headers(hold: &hold, frame: &Frame, marked: bool, mtu: u32) -> Vec<u8> {
    let key = &hold.key;
    let is_v4 = is_v4(key);
    let tcp = tcp(hold, frame, is_v4);
    let ip = ip(key, tcp.len() as u32 + frame.len, marked);
    let ethernet = ethernet(hold, is_v4);

    let overhead = (ip.len() + tcp.len()) as u32;
    let gso_size = segment(hold, frame.len, overhead, ethernet.len() as u32, mtu);
    let gso_type = match (gso_size, is_v4) {
        (0, _) => 0,
        (_, true) => VNET_GSO_TCPV4,
        (_, false) => VNET_GSO_TCPV6,
    };
    let csum_start = (ethernet.len() + ip.len()) as u16;
    let header_len = csum_start + tcp.len() as u16;

    let mut bytes = Vec::with_capacity(VNET_HDR + usize::from(header_len));
    bytes.extend([VNET_NEEDS_CSUM, gso_type]);
    for field in [header_len, gso_size as u16, csum_start, TCP_CHECKSUM] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(ethernet);
    bytes.extend(ip);
    bytes.extend(tcp);
    bytes
}

/// Payload of each segment of the frame (gso_size), bytes; 0: the frame is one segment.
///
/// A packet socket accepts a single segment that fits the MTU, not counting one 802.1Q tag;
/// anything larger must be a super-packet.
fn segment(hold: &hold, len: u32, overhead: u32, ethernet: u32, mtu: u32) -> u32 {
    let is_tagged = ethernet > ETHERNET && u16::from_be(hold.tag_proto) == ETHER_VLAN;
    let most = mtu + ETHERNET + if is_tagged { TAG } else { 0 };
    let fits = most.saturating_sub(ethernet + overhead).max(8);
    let size = u32::from(hold.mss).clamp(1, fits);
    if len <= size { 0 } else { size }
}

fn ethernet(hold: &hold, is_v4: bool) -> Vec<u8> {
    let key = &hold.key;
    let tags = [key.vlan_outer, key.vlan_inner].map(vlan);
    let mut bytes = Vec::with_capacity(22);
    bytes.extend(key.vm_mac);
    bytes.extend(hold.next_hop);
    let mut proto = u16::from_be(hold.tag_proto);
    for id in tags.into_iter().flatten() {
        bytes.extend(proto.to_be_bytes());
        bytes.extend(id.to_be_bytes());
        proto = ETHER_VLAN;
    }
    bytes.extend(if is_v4 { ETHER_IPV4 } else { ETHER_IPV6 }.to_be_bytes());
    bytes
}

fn vlan(tag: u16) -> Option<u16> {
    (u32::from(tag) & VLAN_PRESENT != 0).then_some(tag & 0x0fff)
}

fn ip(key: &flow_key, tcp_len: u32, marked: bool) -> Vec<u8> {
    let ecn = if marked { CE } else { 0 };
    if is_v4(key) {
        let mut bytes = vec![0x45, ecn];
        bytes.extend((20 + tcp_len as u16).to_be_bytes());
        // DF is set, so the identification is 0 (RFC 6864).
        bytes.extend([0, 0, 0x40, 0, HOPS, PROTOCOL_TCP, 0, 0]);
        bytes.extend(&key.sender_addr[12..]);
        bytes.extend(&key.vm_addr[12..]);
        let checksum = !sum(&bytes, 0);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    } else {
        let mut bytes = vec![0x60, ecn << 4, 0, 0];
        bytes.extend((tcp_len as u16).to_be_bytes());
        bytes.extend([PROTOCOL_TCP, HOPS]);
        bytes.extend(key.sender_addr);
        bytes.extend(key.vm_addr);
        bytes
    }
}

fn tcp(hold: &hold, frame: &Frame, is_v4: bool) -> Vec<u8> {
    let key = &hold.key;
    let has_timestamps = u32::from(hold.flags) & HOLD_TIMESTAMPS != 0;
    let len: u8 = if has_timestamps { 32 } else { 20 };
    let mut flags = FLAG_ACK;
    flags |= if frame.len > 0 { FLAG_PSH } else { 0 };
    flags |= if frame.fin { FLAG_FIN } else { 0 };
    let mut bytes = Vec::with_capacity(len.into());
    // The key has them in network byte order.
    bytes.extend(key.sender_port.to_ne_bytes());
    bytes.extend(key.vm_port.to_ne_bytes());
    bytes.extend(frame.seq.v.to_be_bytes());
    bytes.extend(hold.snd_una.v.to_be_bytes());
    bytes.extend([(len / 4) << 4, flags]);
    bytes.extend(hold.sender_window.to_be_bytes());
    bytes.extend(pseudo_sum(key, is_v4, u32::from(len) + frame.len).to_be_bytes());
    bytes.extend([0, 0]);
    if has_timestamps {
        bytes.extend([1, 1, 8, 10]);
        bytes.extend(hold.tsval.to_be_bytes());
        bytes.extend(hold.tsecr.to_be_bytes());
    }
    bytes
}

/// Checksum of the pseudo-header; the device adds the segment.
fn pseudo_sum(key: &flow_key, is_v4: bool, tcp_len: u32) -> u16 {
    let skip = if is_v4 { 12 } else { 0 };
    let fixed = u32::from(PROTOCOL_TCP) + (tcp_len >> 16) + (tcp_len & 0xffff);
    sum(&key.vm_addr[skip..], u32::from(sum(&key.sender_addr[skip..], fixed)))
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn is_v4(key: &flow_key) -> bool {
    key.vm_addr[..10] == [0; 10] && key.vm_addr[10..12] == [0xff; 2]
}

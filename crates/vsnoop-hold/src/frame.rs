//! The headers of a frame for the VM, as the sender might have sent it.
//!
//! What was in the sender's headers and matters to the VM's TCP is here: addresses, VLAN tags,
//! ports, what the sender has acknowledged, its window, and timestamps. TSval is the newest that
//! the sender sent, so that nothing looks old to the VM (RFC 7323, section 5); TSecr is the
//! sender's own. The VM takes the time since then for the round trip, and sizes its window by what
//! it reads in one: the VM's newest TSval would tell it that a window for a millisecond will do.
//!
//! [`headers`] is a pure function of a hold: the engine reads the hold as late as it can, and the
//! hook that the frame goes through (`bpf/vsnoop.bpf.c`) replaces ACK, window and timestamps by
//! what the sender has told since.

use vsnoop_flow::types::{HOLD_TIMESTAMPS, VLAN_PRESENT, flow_key, hold};

use crate::flow::Frame;

/// `struct virtio_net_hdr` as a packet socket reads it: without `num_buffers`.
pub const VNET_HDR: usize = 10;

const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_TCPV4: u8 = 1;
const VNET_GSO_TCPV6: u8 = 4;
/// Where the TCP header has its checksum.
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

/// `virtio_net_hdr` and headers; the payload follows. `marked`: the network has marked what is in
/// it. `mtu`: of the device.
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

/// What a frame is to be cut into where the VM takes no super-packets; 0: it is one segment.
///
/// A packet socket allows a single segment that fits the MTU, with one 802.1Q tag beyond it; larger
/// ones only as super-packets.
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
        // No identification: it is not to be cut (RFC 6864).
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

/// Of the pseudo-header: what is left to be added is the segment itself.
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

//! The headers of a frame for the VM, as the sender might have sent it.
//!
//! They have all fields of the sender's segments that matter to the VM's TCP: addresses, VLAN tags,
//! TTL, ports, ACK, window, and timestamps. TSval is the sender's latest, so that no segment looks
//! old to the VM (RFC 7323, section 5). TSecr is the sender's latest TSecr, not the VM's newest
//! TSval: the VM measures its round trip by it, and sizes its window by what it reads in one, so
//! that a round trip of a millisecond would keep the window small.
//!
//! [`headers`] is a pure function of a hold. The engine reads the hold as late as it can, and the
//! hook that the frame passes (`bpf/vsnoop.bpf.c`) replaces ACK and window by the sender's latest.

use vsnoop_flow::types::{HOLD_TIMESTAMPS, VLAN_PRESENT, hold};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::format::{ACK, CE, ETHERNET_BYTES, FIN, PSH, TAG_BYTES, Tag, VLAN};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::{Gso, GsoKind, OffloadState};
use vsnoop_packet::options;
use vsnoop_packet::vnet::VNET_BYTES;
use zerocopy::IntoBytes;

use crate::hold_frame::HoldFrame;
use crate::view::segment_bytes;

/// Builds `virtio_net_hdr` of [`VNET_BYTES`] and headers; the payload follows. `marked`: a segment
/// in it had a CE mark. `mtu`: of the device, bytes.
pub fn headers(hold: &hold, frame: &HoldFrame, marked: bool, mtu: u32) -> Vec<u8> {
    let key = &hold.key;
    let ethernet = ethernet(hold);
    let addresses = Addresses::of_mapped(key.sender_addr, key.vm_addr);
    let route = Route::new(ethernet, addresses);
    let ttl = if hold.sender_ttl > 0 { hold.sender_ttl } else { route.ttl };
    let route = Route { traffic_class: if marked { CE } else { 0 }, ttl, ..route };
    let timestamps = options::timestamps(hold.tsval, hold.tsecr);
    let has_timestamps = u32::from(hold.flags) & HOLD_TIMESTAMPS != 0;
    let mut flags = ACK;
    flags |= if frame.len > 0 { PSH } else { 0 };
    flags |= if frame.fin { FIN } else { 0 };
    let tcp = TcpFrame {
        route,
        // The key has them in network byte order.
        source_port: u16::from_be(key.sender_port),
        destination_port: u16::from_be(key.vm_port),
        sequence: frame.seq.v,
        acknowledgment: hold.snd_una.v,
        flags,
        window: hold.sender_window,
        options: if has_timestamps { &timestamps } else { &[] },
    };
    // Room for the largest headers.
    let mut bytes = Vec::with_capacity(VNET_BYTES + 128);
    bytes.resize(VNET_BYTES, 0);
    tcp.write_headers(frame.len as usize, &mut bytes);

    let headers = Headers::of_start(&bytes[VNET_BYTES..]);
    let gso = headers.and_then(|headers| {
        let kind = if headers.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let size = segment(hold, frame.len, &headers, mtu);
        (size > 0).then_some(Gso { kind, size: size as u16, ecn: false })
    });
    let frame_bytes = bytes.len() - VNET_BYTES + frame.len as usize;
    let mut header =
        OffloadState { needs_checksum: true, gso }.header(headers.as_ref(), frame_bytes);
    // A VM with a small MSS, or behind a small MTU, gets segments of it, however many they are.
    header.gso_size.set(gso.map_or(0, |gso| gso.size));
    // Also for a single segment: the kernel copies `hdr_len` bytes into the linear part.
    header.hdr_len.set((bytes.len() - VNET_BYTES) as u16);
    bytes[..VNET_BYTES].copy_from_slice(&header.as_bytes()[..VNET_BYTES]);
    bytes
}

/// Payload of each segment of the frame (gso_size), bytes; 0: the frame is one segment.
///
/// A packet socket accepts a single segment that fits the MTU, not counting one 802.1Q tag;
/// anything larger must be a super-packet.
fn segment(hold: &hold, len: u32, headers: &Headers, mtu: u32) -> u32 {
    let is_tagged = headers.tags > 0 && u16::from_be(hold.vlan_proto) == VLAN;
    let most = mtu as usize + ETHERNET_BYTES + if is_tagged { TAG_BYTES } else { 0 };
    let fits = most.saturating_sub(headers.payload.into()).max(8);
    let size = segment_bytes(hold).min(fits as u32);
    if len <= size { 0 } else { size }
}

fn ethernet(hold: &hold) -> Ethernet {
    let key = &hold.key;
    let outer = u16::from_be(hold.vlan_proto);
    let tag = |ether_type, tag: u16| {
        (u32::from(tag) & VLAN_PRESENT != 0).then_some(Tag { ether_type, id: tag & 0x0fff })
    };
    Ethernet {
        source: hold.next_hop,
        destination: key.vm_mac,
        tags: [tag(outer, key.vlan_outer), tag(VLAN, key.vlan_inner)],
    }
}

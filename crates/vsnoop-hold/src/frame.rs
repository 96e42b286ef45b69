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

use vsnoop_flow::types::{HOLD_TIMESTAMPS, VLAN_PRESENT, hold};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::format::{ACK, CE, ETHERNET_BYTES, FIN, PSH, TAG_BYTES, Tag, VLAN};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::{Gso, GsoKind, OffloadState};
use vsnoop_packet::options;
use vsnoop_packet::vnet::VNET_BYTES;
use zerocopy::IntoBytes;

use crate::flow::Frame;

/// `virtio_net_hdr` of [`VNET_BYTES`] and headers; the payload follows. `marked`: the network has
/// marked what is in it. `mtu`: of the device.
pub fn headers(hold: &hold, frame: &Frame, marked: bool, mtu: u32) -> Vec<u8> {
    let key = &hold.key;
    let ethernet = ethernet(hold);
    let addresses = Addresses::of_mapped(key.sender_addr, key.vm_addr);
    let route = Route::new(ethernet, addresses);
    let route = Route { traffic_class: if marked { CE } else { 0 }, ..route };
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
    // Of the largest headers.
    let mut bytes = Vec::with_capacity(VNET_BYTES + 128);
    bytes.resize(VNET_BYTES, 0);
    tcp.write_headers(frame.len as usize, &mut bytes);

    let headers = Headers::of_start(&bytes[VNET_BYTES..]);
    let gso = headers.and_then(|headers| {
        let kind = if headers.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let size = segment(hold, frame.len, &headers, mtu);
        (size > 0).then_some(Gso { kind, size: size as u16, ecn: false })
    });
    let mut header = OffloadState { needs_checksum: true, gso }.header(headers.as_ref());
    // Of a segment alone, too: the kernel puts so many bytes into the linear part of its buffer.
    header.hdr_len.set((bytes.len() - VNET_BYTES) as u16);
    bytes[..VNET_BYTES].copy_from_slice(&header.as_bytes()[..VNET_BYTES]);
    bytes
}

/// What a frame is to be cut into where the VM takes no super-packets; 0: it is one segment.
///
/// A packet socket allows a single segment that fits the MTU, with one 802.1Q tag beyond it; larger
/// ones only as super-packets.
fn segment(hold: &hold, len: u32, headers: &Headers, mtu: u32) -> u32 {
    let is_tagged = headers.tags > 0 && u16::from_be(hold.tag_proto) == VLAN;
    let most = mtu as usize + ETHERNET_BYTES + if is_tagged { TAG_BYTES } else { 0 };
    let fits = most.saturating_sub(headers.payload.into()).max(8);
    let size = u32::from(hold.mss).clamp(1, fits as u32);
    if len <= size { 0 } else { size }
}

fn ethernet(hold: &hold) -> Ethernet {
    let key = &hold.key;
    let outer = u16::from_be(hold.tag_proto);
    let tag = |ether_type, tag: u16| {
        (u32::from(tag) & VLAN_PRESENT != 0).then_some(Tag { ether_type, id: tag & 0x0fff })
    };
    Ethernet {
        source: hold.next_hop,
        destination: key.vm_mac,
        tags: [tag(outer, key.vlan_outer), tag(VLAN, key.vlan_inner)],
    }
}

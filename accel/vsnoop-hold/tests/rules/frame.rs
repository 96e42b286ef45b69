//! The headers of frames, byte by byte.

use vsnoop_flow::seq;
use vsnoop_flow::types::{HOLD_TIMESTAMPS, VLAN_PRESENT, flow_key, hold};
use vsnoop_hold::{HoldFrame, headers};
use vsnoop_packet::checksum;
use vsnoop_packet::vnet::VNET_BYTES;

use crate::case::*;

const MTU: u32 = 1_500;

fn hold(mss: u16) -> hold {
    let address = |last: u8| {
        let mut address = [0; 16];
        address[10..].copy_from_slice(&[255, 255, 10, 0, 0, last]);
        address
    };
    let key = flow_key {
        sender_addr: address(1),
        vm_addr: address(2),
        sender_port: 5_000u16.to_be(),
        vm_port: 80u16.to_be(),
        vm_mac: [2; 6],
        ..flow_key::default()
    };
    hold {
        key,
        mss,
        next_hop: [4; 6],
        snd_una: seq::new(0x1122_3344),
        sender_window: 0x5566,
        tsval: 7,
        tsecr: 8,
        flags: HOLD_TIMESTAMPS as u16,
        ..hold::default()
    }
}

fn gso_size(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[4], bytes[5]])
}

fn cut(hold: &hold, len: u32, mtu: u32) -> u16 {
    gso_size(&headers(hold, &handover(0, len), false, mtu))
}

/// Completes the frame's checksum, as a device does.
fn finished(bytes: &[u8], payload: &[u8]) -> Vec<u8> {
    let start = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let offset = u16::from_le_bytes([bytes[8], bytes[9]]);
    let mut frame = bytes[VNET_BYTES..].to_vec();
    frame.extend(payload);
    let end = frame.len();
    assert!(checksum::complete_at(&mut frame, start, end, offset));
    frame
}

#[test]
fn a_frame_is_what_the_sender_might_have_sent() {
    let frame = HoldFrame { fin: true, ..handover(0, 5) };
    let bytes = headers(&hold(1_448), &frame, false, MTU);
    let ip = finished(&bytes, b"hello");
    assert_eq!(ip[..14], [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0]);
    let tcp = &ip[34..];
    assert_eq!(tcp[..4], [0x13, 0x88, 0, 80]);
    assert_eq!(tcp[4..8], at(0).v.to_be_bytes());
    assert_eq!(tcp[8..16], [0x11, 0x22, 0x33, 0x44, 0x80, 0x19, 0x55, 0x66]);
    assert_eq!(tcp[20..32], [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 8]);
    assert_eq!(checksum::tcp_is_right(&ip), Some(true));
}

#[test]
fn a_frame_of_ipv6_has_a_right_checksum_and_the_networks_mark() {
    let mut hold = hold(1_428);
    (hold.key.sender_addr[0], hold.key.vm_addr[0]) = (0xfd, 0xfd);
    for (marked, class) in [(false, 0x00), (true, 0x30)] {
        let frame = finished(&headers(&hold, &handover(0, 5), marked, MTU), b"hello");
        assert_eq!(frame[12..16], [0x86, 0xdd, 0x60, class]);
        assert_eq!(checksum::tcp_is_right(&frame), Some(true));
    }
}

#[test]
fn tags_are_put_back() {
    let present = VLAN_PRESENT as u16;
    let mut hold = hold(1_448);
    hold.key.vlan_outer = present | 5;
    hold.vlan_proto = 0x8100u16.to_be();
    let bytes = headers(&hold, &handover(0, 5), false, MTU);
    assert_eq!(bytes[VNET_BYTES..][12..18], [0x81, 0, 0, 5, 8, 0]);
    hold.key.vlan_inner = present | 6;
    hold.vlan_proto = 0x88a8u16.to_be();
    let bytes = headers(&hold, &handover(0, 5), false, MTU);
    assert_eq!(bytes[VNET_BYTES..][12..22], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]);
}

#[test]
fn a_super_packet_is_cut_into_segments_of_the_sender_that_fit_the_mtu() {
    let hold = hold(1_448);
    assert_eq!(cut(&hold, 64_000, 1_500), 1_448);
    assert_eq!(cut(&hold, 1_448, 1_500), 0);
    // With a lower MTU even a single segment is split.
    assert_eq!(cut(&hold, 64_000, 1_400), 1_348);
    assert_eq!(cut(&hold, 1_448, 1_400), 1_348);
    assert_eq!(cut(&hold, 1_348, 1_400), 0);
    assert_eq!(cut(&hold, 64_000, 9_000), 1_448);
}

#[test]
fn a_full_segment_with_tags_is_cut_where_one_tag_is_all_that_fits() {
    let mut hold = hold(1_448);
    hold.key.vlan_outer = VLAN_PRESENT as u16 | 5;
    hold.vlan_proto = 0x8100u16.to_be();
    assert_eq!(cut(&hold, 1_448, 1_500), 0);
    hold.key.vlan_inner = VLAN_PRESENT as u16 | 6;
    assert_eq!(cut(&hold, 1_448, 1_500), 1_444);
    assert_eq!(cut(&hold, 1_444, 1_500), 0);
}

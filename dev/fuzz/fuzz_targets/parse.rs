//! The hooks' parser and rewriter (accel/bpf/packet.h, accel/bpf/rewrite.h) on arbitrary
//! frames: nothing is read or written outside of the frame, and what is found
//! lies within it. The first bytes say how the hook meets the frame.
//!
//!     cargo +nightly fuzz run parse
#![no_main]

use vsnoop_flow::packets::{Meta, parse, rewrite};
use vsnoop_flow::{ack_fields, seq};
use vsnoop_packet::checksum::complete_ipv4;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((meta, frame)) = input.split_first_chunk::<12>() else { return };
    let ack = u32::from_le_bytes([meta[4], meta[5], meta[6], meta[7]]);
    let meta = Meta {
        to_vm: meta[0] & 1 != 0,
        vlan_tci: (meta[0] & 2 != 0).then_some(u16::from_le_bytes([meta[1], meta[2]])),
        linear: usize::from(meta[3]),
        gso_size: u32::from_le_bytes([meta[8], meta[9], meta[10], meta[11]]),
    };
    // An allocation of its own, so that the sanitizer knows where it ends.
    let mut frame = frame.to_vec().into_boxed_slice();
    if input[0] & 4 != 0 {
        address(&mut frame, input[0] & 8 != 0);
    }
    let Some(parsed) = parse(&mut frame, meta) else { return };
    let end = parsed.tcp() + parsed.tcp_len() + parsed.segment().len as usize;
    assert!(end <= frame.len(), "the segment ends outside of the frame");
    assert!(parsed.segment().scale <= 14);
    let fields = ack_fields { ack: seq::new(ack), window: 7, ..ack_fields::default() };
    let _ = rewrite(&mut frame, meta, &parsed, &fields);
});

/// Makes it TCP over IP, so that the interesting part is reached at once.
fn address(frame: &mut [u8], ipv6: bool) {
    let len = frame.len();
    if len < 14 + 40 {
        return;
    }
    if ipv6 {
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        frame[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
        frame[20] = 6;
    } else {
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        frame[20..22].fill(0);
        frame[23] = 6;
        complete_ipv4(&mut frame[14..34]);
    }
}

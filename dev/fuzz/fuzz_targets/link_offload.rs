//! Frames of guests and of peers that mean harm, through all that reads their headers: cut into
//! segments, merged, restored, cut into fragments and joined again. The input is a tape of frames:
//! good ones, written from it, that it then damages, and noise.
//!
//!     cargo +nightly fuzz run link_offload
#![no_main]

use vsnoop_link::wire::fragment::{Fragment, Fragments, Rejoin};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame, UdpFrame};
use vsnoop_packet::format::Tag;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::mss;
use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::{Gso, GsoKind, Merged, Merger, OffloadState, Split, settle, udp};
use vsnoop_packet::vnet::GSO_UDP_L4;

/// More pieces than this of one frame are as good as these.
const PIECES: usize = 64;

libfuzzer_sys::fuzz_target!(|tape: &[u8]| {
    let mut frames = Vec::new();
    let mut rest = tape;
    while let Some((&[what, length, limit, at], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let frame = if what & 1 == 0 { segment(what, length, bytes) } else { bytes.to_vec() };
        let kind = if what & 2 == 0 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        let gso = (what & 4 != 0).then_some(Gso {
            kind,
            size: 1 + u16::from(limit) * 8,
            ecn: what & 8 != 0,
        });
        let offload = OffloadState { needs_checksum: gso.is_some() || what & 16 != 0, gso };
        alone(offload, &frame, 16 * usize::from(limit), at);
        if Headers::parse(&frame).is_some() && gso.is_some() && what & 32 != 0 {
            frames.extend(pieces(offload, &frame, 16 * usize::from(limit)));
        }
        frames.push((offload, frame));
    }
    merged(&frames);
    rejoined(tape);
});

/// Processing of one frame by a host.
fn alone(offload: OffloadState, frame: &[u8], limit_bytes: usize, at: u8) {
    let headers = Headers::parse(frame);
    // A frame whose end is elsewhere.
    if let Some(start) = Headers::of_start(&frame[..frame.len().min(usize::from(at))]) {
        start.flow_hash(frame);
        start.vlan(frame);
    }
    if let Some(headers) = headers {
        let (ip, l4, payload) = (headers.ip, headers.l4, headers.payload);
        assert!(ip <= l4 && l4 <= payload && u32::from(payload) <= headers.end);
        assert!(headers.end as usize <= frame.len());
        assert!(headers.payload_bytes() <= frame.len());
        mss::clamp(&offload, &headers, &mut frame.to_vec(), limit_bytes as u16);
    }
    let header = offload.header(headers.as_ref(), frame.len());
    settle::settle(&header, headers.as_ref(), &mut frame.to_vec());
    datagrams(frame, limit_bytes as u16);
    for offset in [0, usize::from(at), limit_bytes, u32::MAX as usize] {
        let mut part = frame[..frame.len() - frame.len() / 4 * usize::from(at & 3)].to_vec();
        if let Some(now) = restore(&mut part, offset, offload) {
            assert!(now.gso.is_none() || now.needs_checksum);
            assert!(Headers::parse(&part).is_some());
        }
    }
    for (piece_offload, piece) in pieces(offload, frame, limit_bytes) {
        assert_eq!(piece_offload, Split::OFFLOAD);
        assert!(piece.len() <= limit_bytes && Headers::parse(&piece).is_some());
    }
    if let Some(fragments) = Fragments::new(7, frame, limit_bytes) {
        let mut rejoin = Rejoin::new(1_000_000_000);
        let parts: Vec<_> = fragments.collect();
        let (last, first) = parts.split_last().expect("a part");
        // Whatever comes first.
        for (fragment, part) in first.iter().rev() {
            assert!(part.len() <= limit_bytes);
            assert!(rejoin.push(*fragment, offload, part, 0).is_none());
        }
        assert_eq!(rejoin.push(last.0, offload, last.1, 0), Some((offload, frame)));
    }
}

/// Splits it into datagrams of `bytes` where possible, as the kernel describes such a super-packet.
fn datagrams(frame: &[u8], size: u16) {
    let Some(headers) = Headers::parse(frame) else { return };
    let mut header =
        OffloadState { needs_checksum: true, gso: None }.header(Some(&headers), frame.len());
    header.gso_type = GSO_UDP_L4;
    header.gso_size.set(size);
    let Some(mut datagrams) = udp::UdpSplit::from_header(&header, &headers, frame) else { return };
    let mut out = vec![0; datagrams.longest_bytes()];
    let (mut count, mut bytes) = (0, 0);
    while let Some(length) = datagrams.next(frame, &mut out) {
        let piece = Headers::parse(&out[..length]).expect("a datagram");
        assert!(piece.udp() && piece.end as usize == length);
        (count, bytes) = (count + 1, bytes + piece.payload_bytes());
    }
    assert_eq!((count, bytes), (datagrams.count(), headers.payload_bytes()));
}

fn pieces(offload: OffloadState, frame: &[u8], limit_bytes: usize) -> Vec<(OffloadState, Vec<u8>)> {
    let Some(headers) = Headers::parse(frame) else { return Vec::new() };
    let Some(mut split) = Split::new(offload, &headers, frame, limit_bytes) else {
        return Vec::new();
    };
    let mut out = vec![0; split.piece_bytes()];
    let pieces = std::iter::from_fn(|| split.next(&mut out).map(|bytes| out[..bytes].to_vec()));
    pieces.take(PIECES).map(|piece| (Split::OFFLOAD, piece)).collect()
}

/// Nothing is made up: what comes out is not more than what came in, and whole.
fn merged(frames: &[(OffloadState, Vec<u8>)]) {
    let (mut came, mut count) = (0, 0);
    let mut merger = Merger::new();
    let mut emit = |merged: Merged<'_, '_>| {
        let parts: usize = merged.parts.iter().map(|part| part.len()).sum();
        assert_eq!(merged.head.len() + parts, merged.bytes);
        assert!(merged.offload.gso.is_none() || merged.offload.needs_checksum);
        came += merged.bytes;
        count += 1;
    };
    for (offload, frame) in frames {
        merger.push(*offload, frame, &mut emit);
    }
    merger.flush(&mut emit);
    assert!(count <= frames.len());
    assert!(came <= frames.iter().map(|(_, frame)| frame.len()).sum());
}

/// Parts that no host has made.
fn rejoined(tape: &[u8]) {
    let mut rejoin = Rejoin::new(1000);
    let mut now_ns = 0;
    for part in tape.chunks(16) {
        let Some((&[id, index, count, passes], part)) = part.split_first_chunk() else { return };
        now_ns += u64::from(passes) * 16;
        let fragment = Fragment { id: (id & 7).into(), index: index & 15, count: count & 15 };
        let part = part.repeat(1 + usize::from(passes & 7) * 600);
        if let Some((_, whole)) = rejoin.push(fragment, OffloadState::default(), &part, now_ns) {
            assert!(!whole.is_empty());
        }
    }
}

/// A TCP segment, or a datagram of as many bytes, with some of its bytes written over by the
/// tape's.
fn segment(what: u8, payload: u8, bytes: &[u8]) -> Vec<u8> {
    let addresses = if what & 2 != 0 {
        Addresses::V6([0xfd; 16], [0xfd; 16])
    } else {
        Addresses::V4([10, 0, 0, 1], [10, 0, 0, 2])
    };
    let tag = (what & 64 != 0).then_some(Tag::customer(5));
    let (source, destination) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let ethernet = Ethernet { source, destination, tags: [tag, None] };
    let route = Route { identification: 7, ..Route::new(ethernet, addresses) };
    let payload: Vec<_> = (0..usize::from(payload) * 40).map(|at| at as u8).collect();
    let mut frame = if what & 128 != 0 {
        UdpFrame { route, source_port: 1234, destination_port: 80 }.build(&payload)
    } else {
        TcpFrame { acknowledgment: 77, window: 256, ..TcpFrame::new(route, 1234, 80) }
            .build(&payload)
    };
    let l4 = Headers::parse(&frame).map_or(0, |headers| headers.l4.into());
    // Pairs of a place, most of them in the headers, and what stands there.
    for pair in bytes.chunks_exact(2) {
        let at =
            if pair[0] & 0x80 == 0 { usize::from(pair[0]) } else { l4 + usize::from(pair[0] & 31) };
        if let Some(byte) = frame.get_mut(at) {
            *byte ^= pair[1];
        }
    }
    frame
}

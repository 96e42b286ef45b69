//! Properties of cutting and merging taken together: whatever a network does to the pieces, each
//! flow's bytes come out as they came in, in the order in which they came in.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{Gso, GsoKind, Merged, Merger, OffloadState, Split, settle};
use crate::checksum::{self, complete};
use crate::format::{ACK, CWR, FIN, PSH};
use crate::headers::{FlowHash, Headers, be32};
use crate::mss;
use crate::testing::SegmentBuilder;

/// The pieces of a frame.
fn cut(offload: OffloadState, frame: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let headers = Headers::parse(frame).expect("IP");
    let mut split = Split::new(offload, &headers, frame, limit).expect("can be cut");
    let mut out = vec![0; split.piece_bytes()];
    std::iter::from_fn(|| split.next(&mut out).map(|bytes| out[..bytes].to_vec())).collect()
}

/// The output for `frames`, each as one run of bytes.
fn merge(frames: &[(OffloadState, Vec<u8>)]) -> Vec<(OffloadState, Vec<u8>)> {
    let mut out = Vec::new();
    let mut emit = |merged: Merged<'_, '_>| {
        let mut bytes = merged.head.to_vec();
        merged.parts.iter().for_each(|part| bytes.extend_from_slice(part));
        assert_eq!(bytes.len(), merged.bytes);
        out.push((merged.offload, bytes));
    };
    let mut merger = Merger::new();
    for (offload, frame) in frames {
        merger.push(*offload, frame, &mut emit);
    }
    merger.flush(&mut emit);
    out
}

/// Each flow's bytes with their sequence numbers, in the order in which they stand in `frames`.
fn streams(frames: &[(OffloadState, Vec<u8>)]) -> HashMap<FlowHash, Vec<(u32, u8)>> {
    let mut streams: HashMap<_, Vec<_>> = HashMap::new();
    for (_, frame) in frames {
        let headers = Headers::parse(frame).expect("IP");
        let sequence = be32(frame, usize::from(headers.l4) + 4).expect("a header");
        let payload = &frame[usize::from(headers.payload)..headers.end as usize];
        streams
            .entry(headers.flow_hash(frame))
            .or_default()
            .extend((0..).zip(payload).map(|(at, byte)| (sequence.wrapping_add(at), *byte)));
    }
    streams
}

prop_compose! {
    fn segments()(
        v6: bool,
        tags in 0..3usize,
        sequence: u32,
        identification: u16,
        payload in 1..60_000usize,
        flags in prop::sample::select(vec![ACK, ACK | PSH, ACK | FIN, ACK | CWR, ACK | PSH | CWR]),
    ) -> SegmentBuilder {
        let default = SegmentBuilder::default();
        SegmentBuilder { v6, tags, sequence, identification, payload, flags, ..default }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn cutting_and_merging_gives_back_the_frame(
        spec in segments(), size in 1000..9000u16, limit in 1100..9000usize, done: bool,
    ) {
        let (header, frame) = spec.partial(Some(size));
        let offload = OffloadState::from_header(&header).expect("understood");
        let mut pieces: Vec<_> =
            cut(offload, &frame, limit).into_iter().map(|piece| (Split::OFFLOAD, piece)).collect();
        for (offload, piece) in &mut pieces {
            let headers = Headers::parse(piece).expect("IP");
            prop_assert!(piece.len() <= limit);
            prop_assert!(headers.payload_bytes() <= usize::from(size));
            prop_assert!(checksum::ip_is_right(&headers, piece));
            let mut whole = piece.clone();
            complete(&mut whole);
            prop_assert!(checksum::transport_is_right(&headers, &whole));
            if done {
                (*offload, *piece) = (OffloadState::default(), whole);
            }
        }
        if done && pieces.len() == 1 {
            complete(&mut pieces[0].1);
        }
        let merged = merge(&pieces);
        prop_assert_eq!(merged.len(), pieces.len().div_ceil(64));
        if let [(offload, whole)] = &merged[..] && offload.needs_checksum {
            prop_assert_eq!(whole, &frame);
        }
    }

    #[test]
    fn no_network_makes_the_merger_mix_or_reorder(
        specs in prop::collection::vec((segments(), 0..1500u16), 1..12),
        fates in prop::collection::vec((0..100u8, any::<u16>()), 100),
        window in 1..200u16,
        done: bool,
    ) {
        let mut frames = Vec::new();
        for (at, (spec, port)) in specs.iter().enumerate() {
            let payload = spec.payload % 20_000 + 1;
            let spec = SegmentBuilder { port: port % 5, payload, ..spec.clone() };
            let (header, frame) = spec.partial(Some(1000));
            let offload = OffloadState::from_header(&header).expect("understood");
            if at % 4 == 3 {
                frames.push((offload, frame));
                continue;
            }
            for mut piece in cut(offload, &frame, 1000) {
                if done {
                    complete(&mut piece);
                }
                frames.push((OffloadState { needs_checksum: !done, gso: None }, piece));
            }
        }
        // Loss, duplicates and displacement within `window`.
        let mut arrived = Vec::new();
        for (at, (frame, (fate, shift))) in frames.iter().zip(fates.iter().cycle()).enumerate() {
            let position = at + usize::from(shift % window);
            match fate {
                0..5 => {}
                5..10 => arrived.extend([(position, frame.clone()), (at, frame.clone())]),
                10..15 => arrived.push((position, frame.clone())),
                _ => arrived.push((at, frame.clone())),
            }
        }
        arrived.sort_by_key(|(position, _)| *position);
        let arrived: Vec<_> = arrived.into_iter().map(|(_, frame)| frame).collect();

        let merged = merge(&arrived);
        prop_assert_eq!(streams(&merged), streams(&arrived));
        for (offload, mut frame) in merged {
            let headers = Headers::parse(&frame).expect("IP");
            prop_assert!(checksum::ip_is_right(&headers, &frame));
            if offload.needs_checksum {
                complete(&mut frame);
            }
            prop_assert!(checksum::transport_is_right(&headers, &frame));
        }
    }

    #[test]
    fn corruption_is_never_hidden(
        spec in segments(), flips in prop::collection::vec((0..10usize, any::<u16>()), 1..4),
    ) {
        let spec = SegmentBuilder { payload: spec.payload % 9000 + 1000, ..spec };
        let (header, frame) = spec.partial(Some(1000));
        let mut pieces = cut(OffloadState::from_header(&header).expect("understood"), &frame, 1000);
        assert!(pieces.iter_mut().all(|piece| complete(piece)));
        let good = pieces.clone();
        for (piece, bit) in flips {
            let count = pieces.len();
            let piece = &mut pieces[piece % count];
            // Anywhere behind the Ethernet header, whose checksum a link never sees.
            let ip = 14 + 4 * spec.tags;
            let bit = 8 * ip + usize::from(bit) % (8 * (piece.len() - ip));
            piece[bit / 8] ^= 1 << (bit % 8);
        }
        // What a receiver would have taken, it takes; of what it would have refused, it takes none.
        let frames: Vec<_> =
            pieces.iter().map(|piece| (OffloadState::default(), piece.clone())).collect();
        let taken = |frames: &[(OffloadState, Vec<u8>)]| -> Vec<(OffloadState, Vec<u8>)> {
            frames
                .iter()
                .filter(|(offload, frame)| {
                    Headers::parse(frame).is_some_and(|headers| {
                        headers.tcp()
                            && checksum::ip_is_right(&headers, frame)
                            && (offload.needs_checksum
                                || checksum::transport_is_right(&headers, frame))
                    })
                })
                .cloned()
                .collect()
        };
        let merged = merge(&frames);
        prop_assert_eq!(streams(&taken(&merged)), streams(&taken(&frames)));
        for (at, piece) in pieces.iter().enumerate() {
            if *piece != good[at] && !taken(&frames).iter().any(|(_, frame)| frame == piece) {
                let unchanged = merged.iter().any(|(_, frame)| frame == piece);
                prop_assert!(unchanged, "piece {} passes as it came", at);
            }
        }
    }

    #[test]
    fn no_bytes_make_anything_panic(
        spec in segments(),
        noise in prop::collection::vec((any::<u16>(), any::<u8>()), 0..12),
        cut_at: u16, limit in 0..2000usize, size: u16, needs_checksum: bool, is_super: bool,
    ) {
        let spec = SegmentBuilder { payload: spec.payload % 3000, ..spec };
        let mut frames = Vec::new();
        for index in 0..4u32 {
            let sequence = spec.sequence.wrapping_add(index * spec.payload as u32);
            let mut frame = SegmentBuilder { sequence, ..spec.clone() }.build();
            // Mostly in the headers.
            for (at, byte) in noise.iter().skip(index as usize * 3) {
                let within = if at % 4 == 0 { frame.len() } else { 100.min(frame.len()) };
                frame[usize::from(*at) % within] = *byte;
            }
            if cut_at % 5 == 0 {
                frame.truncate(usize::from(cut_at) % frame.len());
            }
            let kind = if spec.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
            let offload = OffloadState {
                needs_checksum,
                gso: is_super.then_some(Gso { kind, size, ecn: false }),
            };
            frames.push((offload, frame));
        }
        let merged = merge(&frames);
        let bytes = |frames: &[(OffloadState, Vec<u8>)]| -> usize {
            frames.iter().map(|(_, f)| f.len()).sum()
        };
        prop_assert!(bytes(&merged) <= bytes(&frames));
        for (offload, mut frame) in frames {
            let headers = Headers::parse(&frame);
            let header = offload.header(headers.as_ref(), frame.len());
            if let Some(headers) = &headers {
                if let Some(mut split) = Split::new(offload, headers, &frame, limit) {
                    let mut out = vec![0; split.piece_bytes()];
                    prop_assert!(out.len() <= limit);
                    let mut count = 0;
                    while split.next(&mut out).is_some() {
                        count += 1;
                    }
                    prop_assert_eq!(count, split.pieces());
                }
                mss::clamp(&offload, headers, &mut frame, size);
            }
            settle::settle(&header, headers.as_ref(), &mut frame);
        }
    }
}

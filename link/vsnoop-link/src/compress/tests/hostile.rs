//! A decoder that is fed with what no honest sender makes: errors, never a panic, never memory
//! beyond the limits.

use std::sync::Arc;

use proptest::prelude::*;
use zstd_safe::{CCtx, CParameter, FrameFormat};

use super::super::unit::{Cut, Packer};
use super::*;

fn refused(decoder: &mut Decoder, body: &[u8]) -> DecodeError {
    let mut out = b"before".to_vec();
    let error = decoder.decode(body, &mut out).unwrap_err();
    assert_eq!(out, b"before", "nothing of a refused message is left");
    error
}

/// A body with the context begun in slot 0, whose content is `plain` as one magicless frame.
fn forged(original_bytes: u32, window_log: u8, frame_window_log: u32, plain: &[u8]) -> Vec<u8> {
    let mut zstd = CCtx::create();
    zstd.set_parameter(CParameter::Format(FrameFormat::Magicless)).unwrap();
    zstd.set_parameter(CParameter::ContentSizeFlag(false)).unwrap();
    zstd.set_parameter(CParameter::WindowLog(frame_window_log)).unwrap();
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    zstd.compress2(&mut frame, plain).unwrap();
    let length = original_bytes.to_be_bytes();
    let head = [0b0101, length[1], length[2], length[3], 0, 0, window_log];
    [&head[..], &frame].concat()
}

#[test]
fn a_bomb_is_refused_and_takes_no_memory() {
    let bomb = vec![0; 64 << 20];
    let mut decoder = super::decoder(tight());
    let body = forged(1000, 15, 15, &bomb);
    assert!(body.len() < 20_000);
    assert!(matches!(refused(&mut decoder, &body), DecodeError::Content(_)));
    let body = forged(1 << 23, 15, 15, &bomb);
    assert_eq!(refused(&mut decoder, &body), DecodeError::TooLong { bytes: 1 << 23 });
    assert!(decoder.memory_bytes() as u64 <= tight().decoder_bytes_max());

    let lz4 = lz4_flex::block::compress(&bomb);
    let body = [&[0, 0, 3, 232][..], &lz4].concat();
    assert!(matches!(refused(&mut decoder, &body), DecodeError::Content(_)));
}

#[test]
fn a_message_that_is_shorter_than_it_says_is_refused() {
    let mut decoder = super::decoder(tight());
    let body = forged(1000, 15, 15, &[7; 999]);
    assert!(matches!(refused(&mut decoder, &body), DecodeError::Content(_)));
    assert_eq!(decoded(&mut decoder, &forged(1000, 15, 15, &[7; 1000])), [7; 1000]);
    let short = [&[0, 0, 3, 232][..], &lz4_flex::block::compress(&[7; 999])].concat();
    assert!(matches!(refused(&mut decoder, &short), DecodeError::Content(_)));
}

#[test]
fn windows_beyond_what_was_agreed_are_refused() {
    let mut decoder = super::decoder(tight());
    for log in 16..=255 {
        let body = forged(9, log, 10, &[0; 9]);
        assert_eq!(refused(&mut decoder, &body), DecodeError::Window { log });
    }
    // The head says little and the frame much.
    let body = forged(1000, 15, 27, &payload(Kind::Random, 1, 2_000_000)[..1_000_000]);
    assert!(matches!(refused(&mut decoder, &body), DecodeError::Content(_)));
    // And windows that zstd does not have; it reads one of them as another limit than ours.
    for log in 0..10 {
        let body = forged(9, log, 10, &[0; 9]);
        assert_eq!(refused(&mut decoder, &body), DecodeError::Window { log });
    }
}

#[test]
fn a_window_that_is_none_does_not_lift_the_bound() {
    let mut decoder = super::decoder(tight());
    // RFC 8878: no flags, a window of 2^27; a last block, raw, of nine bytes.
    let frame = [0, (27 - 10) << 3, 9 << 3 | 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let body = [&[0b0101, 0, 0, 9, 0, 0, 0][..], &frame].concat();
    let _ = decoder.decode(&body, &mut Vec::new());
    assert!(decoder.memory_bytes() as u64 <= tight().decoder_bytes_max());
}

#[test]
fn contexts_that_were_not_begun_or_not_agreed_are_refused() {
    let mut decoder = super::decoder(CompressionLimits { dictionaries: 0, ..tight() });
    for (tag, number) in [(0b0001, 0u8), (0b0001, 2), (0b0101, 3), (0b0001, 255), (0b1101, 0)] {
        let body = [tag, 0, 0, 9, 0, number, 15, 1, 2, 3];
        assert_eq!(refused(&mut decoder, &body), DecodeError::Context { number: number.into() });
    }
    assert_eq!(decoder.memory_bytes(), 0);
}

#[test]
fn all_contexts_at_their_largest_are_within_the_bound_that_is_promised() {
    let limits = CompressionLimits { flows: 20, flow_window_log: 18, ..tight() };
    let (mut encoder, mut decoder) = (super::encoder(limits), super::decoder(limits));
    for flow in 0..20 {
        for round in 0..8 {
            let message = payload(Kind::Text, round, 65_000);
            let body = body(&mut encoder, flow, &policy("zstd", 1), &message).unwrap();
            decoded(&mut decoder, &body);
        }
    }
    let shared = Policy { dictionary: Some(1 << 20), ..policy("zstd", 1) };
    for round in 0..20 {
        let message = payload(Kind::Random, round, 65_000);
        decoded(&mut decoder, &body(&mut encoder, 0, &shared, &message).unwrap());
    }
    let (taken, most) = (decoder.memory_bytes() as u64, limits.decoder_bytes_max());
    assert!(taken <= most && taken * 2 > most, "{taken} of {most}");
}

#[test]
fn codecs_that_are_not_accepted_are_refused_before_they_are_touched() {
    let lz4 = [&[0, 0, 3, 232][..], &lz4_flex::block::compress(&[7; 1000])].concat();
    let zstd = forged(1000, 15, 15, &[7; 1000]);
    for (name, accepted, body) in [
        ("lz4", Codecs { lz4: false, zstd: true }, &lz4),
        ("zstd", Codecs { lz4: true, zstd: false }, &zstd),
    ] {
        let mut decoder = super::decoder(CompressionLimits { codecs: accepted, ..tight() });
        let error = refused(&mut decoder, body);
        assert_eq!(error, DecodeError::Codec { name });
        assert!(error.is_beyond_limits());
        assert_eq!(decoder.memory_bytes(), 0);
        decoded(&mut super::decoder(tight()), body);
        let unit = [&[u8::from(name == "zstd"), 3, 232][..], b"anything"].concat();
        let mut out = Vec::new();
        let error = super::unpacker().decompress_body(&unit, accepted, &mut out).unwrap_err();
        assert_eq!((error, out.len()), (DecodeError::Codec { name }, 0));
    }
}

#[test]
fn decoders_of_a_peer_share_its_memory_and_give_it_back() {
    // Room for three contexts of 2^15 bytes, of five.
    let one = CompressionLimits { flows: 1, dictionaries: 0, ..tight() }.decoder_bytes_max();
    let memory = Arc::new(DecoderMemory::new(3 * one));
    let new = || Decoder::new(tight(), Arc::clone(&memory), Box::new(|| 0));
    let begin = |number: u8| {
        let mut body = forged(9, 15, 15, &[0; 9]);
        body[5] = number;
        body
    };
    let (mut first, mut second) = (new(), new());
    for number in 0..2 {
        decoded(&mut first, &begin(number));
    }
    decoded(&mut second, &begin(0));
    assert_eq!(memory.taken_bytes(), 3 * one);
    let error = refused(&mut second, &begin(1));
    assert!(error == DecodeError::Memory && error.is_beyond_limits());
    // A context that begins anew in its place takes nothing more.
    decoded(&mut first, &begin(0));
    drop(first);
    assert_eq!(memory.taken_bytes(), one);
    decoded(&mut second, &begin(1));
    drop(second);
    assert_eq!(memory.taken_bytes(), 0);
}

#[test]
fn a_sender_uses_no_codec_that_the_receiver_does_not_accept() {
    let message = payload(Kind::Text, 1, 20_000);
    let (lz4, zstd) = (Codecs { lz4: true, zstd: false }, Codecs { lz4: false, zstd: true });
    let shared = |method| Policy { dictionary: Some(1 << 20), ..policy(method, 1) };
    for (accepted, method, used) in [
        (lz4, "lz4", Some(0)),
        (lz4, "zstd:3", None),
        (lz4, "auto", Some(0)),
        (zstd, "lz4", None),
        (zstd, "zstd:3", Some(1)),
        (zstd, "auto", Some(1)),
        (Codecs::NONE, "lz4", None),
        (Codecs::NONE, "zstd", None),
        (Codecs::NONE, "auto", None),
    ] {
        let limits =
            CompressionLimits::MOST.limit_to(CompressionLimits { codecs: accepted, ..tight() });
        for policy in [policy(method, 1), shared(method)] {
            let mut encoder = super::encoder(limits);
            let mut decoder = super::decoder(limits);
            encoder.set_link_rate(Some(100_000));
            for _ in 0..40 {
                let body = body(&mut encoder, 1, &policy, &message);
                assert_eq!(body.as_ref().map(|body| body[0] & 3), used, "{method} {accepted:?}");
                if let Some(body) = body {
                    assert_eq!(decoded(&mut decoder, &body), message);
                }
            }
        }
        let mut packer = Packer::new(accepted, Box::new(|| 0));
        packer.set_link_rate(Some(100_000));
        let cut = Cut { head: &[], payload: &message, granule_bytes: 1000, limit_bytes: 1200 };
        for _ in 0..40 {
            let mut out = Vec::new();
            packer.pack_frame(FlowHash(1), &policy(method, 1), cut, 0, &mut out);
            assert_eq!(out.first().copied(), used, "{method} {accepted:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_refused_or_bounded(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
    ) {
        let mut decoder = super::decoder(tight());
        for body in &bodies {
            let mut out = Vec::new();
            if decoder.decode(body, &mut out).is_err() {
                prop_assert!(out.is_empty());
            }
            prop_assert!(out.len() <= tight().message_bytes as usize);
        }
        prop_assert!(decoder.memory_bytes() as u64 <= tight().decoder_bytes_max());
    }

    /// Damaged messages (on a link without encryption) are detected or come out at their
    /// length.
    #[test]
    fn cut_flipped_repeated_and_missing_bodies_never_exceed_the_bound(
        damage in prop::collection::vec((0..5u8, any::<prop::sample::Index>(), any::<u8>()), 1..12),
        method in prop::sample::select(vec!["lz4", "zstd", "zstd:3"]),
    ) {
        let (mut encoder, mut decoder) = (super::encoder(tight()), super::decoder(tight()));
        for (round, (what, position, value)) in damage.iter().enumerate() {
            let message = payload(Kind::Text, round as u64, 3000);
            let flow = round as u64 % 2;
            let mut body = body(&mut encoder, flow, &policy(method, 1), &message).unwrap();
            let position = position.index(body.len());
            match what {
                0 => body.truncate(position),
                1 => body[position] ^= 1 << (value % 8),
                2 => body.insert(position, *value),
                3 => body.extend_from_within(position..),
                _ => continue,
            }
            let mut out = Vec::new();
            if decoder.decode(&body, &mut out).is_err() {
                prop_assert!(out.is_empty());
            }
            prop_assert!(out.len() <= tight().message_bytes as usize);
        }
        prop_assert!(decoder.memory_bytes() as u64 <= tight().decoder_bytes_max());
    }
}

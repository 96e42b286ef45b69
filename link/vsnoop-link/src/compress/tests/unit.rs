//! Units: each fits, stands alone, and together they are the payload.

use proptest::prelude::*;

use super::super::unit::{Cut, Packer, count_datagrams};
use super::*;

/// Cuts `payload` into units and puts them together again, last one first.
fn through(
    packer: &mut Packer,
    policy: &Policy,
    head: &[u8],
    payload: &[u8],
    granule_bytes: usize,
    limit_bytes: usize,
) -> Vec<usize> {
    let (mut rest, mut units) = (payload, Vec::new());
    while !rest.is_empty() {
        let mut body = b"before".to_vec();
        let cut = Cut { head, payload: rest, granule_bytes, limit_bytes };
        let packed = packer.pack_frame(FlowHash(1), policy, cut, 0, &mut body);
        assert!(packed.payload_bytes > 0 && packed.payload_bytes <= rest.len());
        let (taken, after) = rest.split_at(packed.payload_bytes);
        let body = body.split_off(6);
        let plain = [head, taken].concat();
        match packed.encoded {
            Encoded::Compressed => {
                assert!(body.len() <= limit_bytes && body.len() < plain.len());
                let at_boundary = taken.len() % granule_bytes == 0 || after.is_empty();
                assert!(at_boundary || taken.len() < granule_bytes);
                units.push((body, plain));
            }
            Encoded::Raw => {
                assert!(body.is_empty());
                assert!(plain.len() <= limit_bytes || taken.len() == 1);
                units.push((Vec::new(), plain));
            }
        }
        rest = after;
    }
    // In any order: a receiver that has seen nothing but this unit.
    for (body, plain) in units.iter().rev().filter(|(body, _)| !body.is_empty()) {
        let mut out = Vec::new();
        super::unpacker().decompress_body(body, Codecs::ALL, &mut out).unwrap();
        assert_eq!(&out, plain);
    }
    units.iter().map(|(_, plain)| plain.len()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_unit_fits_and_stands_alone(
        method in prop::sample::select(vec!["off", "lz4", "zstd", "zstd:3", "auto"]),
        kind in prop::sample::select(vec![Kind::Text, Kind::Random, Kind::Zeros]),
        bytes in 0..65_000usize,
        head_bytes in 0..100usize,
        granule_bytes in 1..3000usize,
        limit_bytes in 200..12_000usize,
    ) {
        let mut packer = super::packer();
        packer.set_link_rate(Some(1_000_000));
        let payload = payload(kind, 1, bytes);
        let (policy, head) = (policy(method, 1), vec![3; head_bytes]);
        through(&mut packer, &policy, &head, &payload, granule_bytes, limit_bytes);
    }

    #[test]
    fn arbitrary_units_are_refused_or_bounded(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut out = Vec::new();
        if super::unpacker().decompress_body(&body, Codecs::ALL, &mut out).is_err() {
            prop_assert!(out.is_empty());
        }
        prop_assert!(out.len() <= 65_535);
    }
}

#[test]
fn a_unit_carries_far_more_text_than_a_datagram_has_room() {
    let text = payload(Kind::Text, 1, 60_000);
    let mut packer = super::packer();
    let single = through(&mut packer, &policy("zstd", 1), &[0; 66], &text, 1, 1380);
    assert!(single.len() < 60_000 / 1380 / 2, "{}", single.len());
    let fours = through(&mut packer, &policy("zstd", 1), &[0; 66], &text, 1, 4 * 1380);
    assert!(fours.len() * 4 < single.len() + 4, "larger units take fewer datagrams in all");
}

#[test]
fn a_small_unit_is_compressed_as_it_is_if_that_fits() {
    let (mut packer, mut body) = (super::packer(), Vec::new());
    let text = payload(Kind::Text, 1, 1000);
    let method = Method::Zstd { level: 1 };
    assert_eq!(packer.compress_parts(method, &[&text], 100, &mut body), Encoded::Raw);
    assert!(body.is_empty());
    assert_eq!(
        packer.compress_parts(method, &[&text[..9], &text[9..]], 999, &mut body),
        Encoded::Compressed
    );
    let mut out = Vec::new();
    super::unpacker().decompress_body(&body, Codecs::ALL, &mut out).unwrap();
    assert_eq!(out, text);
    assert_eq!(packer.compress_parts(Method::Off, &[&text], 9999, &mut body), Encoded::Raw);
    assert_eq!(packer.compress_parts(method, &[&[0; 70_000]], 9999, &mut body), Encoded::Raw);
}

#[test]
fn a_unit_bomb_is_refused() {
    let bomb = vec![0; 10 << 20];
    let lz4 = lz4_flex::block::compress(&bomb);
    let body = [&[0, 0xff, 0xff][..], &lz4].concat();
    let mut out = Vec::new();
    assert!(super::unpacker().decompress_body(&body, Codecs::ALL, &mut out).is_err());
    assert!(out.is_empty());
}

#[test]
fn the_more_is_lost_the_less_is_lost_at_once() {
    let sizes: Vec<_> = [0.0, 0.002, 0.01, 0.05, 1.0].map(count_datagrams).into();
    assert_eq!(sizes, [8, 4, 2, 1, 1]);
    assert_eq!(count_datagrams(f64::NAN), 1);
}

//! Speed of the hot path: `cargo test --release -p vsnoop-packet --lib offload::bench -- --ignored
//! --nocapture`.

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::time::Instant;

use super::{Merger, OffloadState, Split};
use crate::checksum;
use crate::headers::Headers;
use crate::testing::SegmentBuilder;

/// Prints bytes per nanosecond of `work`, which handles `bytes` each time; the best of
/// short rounds, since the others were interrupted.
fn measure(name: &str, bytes: usize, mut work: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..200 {
        let begin = Instant::now();
        for _ in 0..64 {
            work();
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / 64.0);
    }
    println!("{name}: {best:.0} ns, {:.2} GB/s", bytes as f64 / best);
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let spec = SegmentBuilder { payload: 64_000, ..SegmentBuilder::default() };
    let (header, frame) = spec.partial(Some(1448));
    let offload = OffloadState::from_header(&header).expect("understood");
    let complete = spec.build();
    let limit = 1382 + 66;
    measure("checksum of 64 KB", frame.len(), || {
        black_box(checksum::sum(black_box(&frame)));
    });
    measure("checksum of 1448 B", 1448, || {
        black_box(checksum::sum(black_box(&frame[66..1514])));
    });
    measure("copy of 64 KB", frame.len(), {
        let mut out = vec![0; frame.len()];
        let frame = &frame;
        move || black_box(&mut out).copy_from_slice(black_box(frame))
    });
    measure("headers and flow hash", 66, || {
        let headers = Headers::parse(black_box(&frame)).expect("IP");
        black_box(headers.flow_hash(&frame));
    });
    let mut out = vec![0; 70_000];
    for (name, offload, frame) in
        [("partial", offload, &frame), ("complete", OffloadState::default(), &complete)]
    {
        measure(&format!("split of 64 KB, {name}"), frame.len(), || {
            let headers = Headers::parse(frame).expect("IP");
            let mut split = Split::new(offload, &headers, frame, limit).expect("can be cut");
            let mut at = 0;
            while let Some(bytes) = split.next(&mut out[at..]) {
                at += bytes;
            }
            black_box(&out);
        });
    }
    let headers = Headers::parse(&frame).expect("IP");
    let mut split = Split::new(offload, &headers, &frame, limit).expect("can be cut");
    let mut partial = Vec::new();
    while let Some(bytes) = split.next(&mut out) {
        partial.push(out[..bytes].to_vec());
    }
    let mut whole = partial.clone();
    whole.iter_mut().for_each(|frame| {
        checksum::complete(frame);
    });
    for (name, offload, pieces) in
        [("partial", Split::OFFLOAD, &partial), ("complete", OffloadState::default(), &whole)]
    {
        measure(&format!("merge of {} pieces, {name}", pieces.len()), frame.len(), || {
            let mut merger = Merger::new();
            let mut out = 0;
            for piece in pieces {
                merger.push(offload, piece, &mut |merged| out += merged.bytes);
            }
            merger.flush(&mut |merged| out += merged.bytes);
            assert_eq!(black_box(out), frame.len());
        });
    }
    measure("an empty merger", 0, || {
        let mut merger = Merger::new();
        merger.flush(&mut |_| ());
        black_box(&merger);
    });
}

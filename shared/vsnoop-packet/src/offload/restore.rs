//! A part of a TCP super-packet that travelled with the headers of the whole.
//!
//! Compression cuts a super-packet where the result fits a datagram, which it knows only
//! afterwards. So each part goes with the headers as they were and its offset; the receiver makes
//! the headers of a piece of them, as [`super::split`] would have.

use super::state::OffloadState;
use crate::checksum::{complete_ipv4, make_partial};
use crate::format::{CWR, FIN, PSH};
use crate::headers::{Headers, be16, be32};

/// Makes a frame of a part of a super-packet, and returns its offload state.
///
/// `frame` has the headers of the super-packet and the part at `offset` of its payload. `None`: it
/// is no such part.
pub fn restore(frame: &mut [u8], offset: usize, offload: OffloadState) -> Option<OffloadState> {
    let whole = Headers::of_start(frame)?;
    let (ip, l4, payload) =
        (usize::from(whole.ip), usize::from(whole.l4), usize::from(whole.payload));
    let part_bytes = frame.len().checked_sub(payload)?;
    let total = whole.payload_bytes();
    let size = usize::from(offload.gso?.size);
    if !whole.tcp() || !whole.plain() || size == 0 || part_bytes == 0 || offset + part_bytes > total
    {
        return None;
    }
    let ip_bytes = u16::try_from(frame.len() - ip).ok()?;
    let sequence = be32(frame, l4 + 4)?.wrapping_add(offset as u32);
    frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
    if offset + part_bytes < total {
        frame[l4 + 13] &= !(FIN | PSH);
    }
    if offset > 0 {
        frame[l4 + 13] &= !CWR;
    }
    if whole.v6 {
        let bytes = u16::try_from(frame.len() - ip - 40).ok()?;
        frame[ip + 4..ip + 6].copy_from_slice(&bytes.to_be_bytes());
    } else {
        let identification = be16(frame, ip + 4)?.wrapping_add((offset / size) as u16);
        frame[ip + 2..ip + 4].copy_from_slice(&ip_bytes.to_be_bytes());
        frame[ip + 4..ip + 6].copy_from_slice(&identification.to_be_bytes());
        complete_ipv4(&mut frame[ip..l4]);
    }
    let headers = Headers::parse(frame)?;
    make_partial(&headers, frame);
    let gso = offload.gso.filter(|_| part_bytes > size);
    Some(OffloadState { needs_checksum: true, gso })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{complete, transport_is_right};
    use crate::offload::Split;
    use crate::testing::SegmentBuilder;
    use proptest::prelude::*;

    #[test]
    fn parts_are_the_pieces_that_a_split_makes() {
        for v6 in [false, true] {
            for tags in 0..3 {
                let spec =
                    SegmentBuilder { v6, tags, payload: 10_000, ..SegmentBuilder::default() };
                let (header, frame) = spec.partial(Some(1000));
                let headers = Headers::parse(&frame).unwrap();
                let offload = OffloadState::from_header(&header).unwrap();
                let at = usize::from(headers.payload);
                let mut split = Split::new(offload, &headers, &frame, at + 1000).unwrap();
                for index in 0..10 {
                    let mut expected = vec![0; at + 1000];
                    assert_eq!(split.next(&mut expected), Some(at + 1000));
                    let part = &frame[at + index * 1000..][..1000];
                    let mut restored = [&frame[..at], part].concat();
                    let piece = restore(&mut restored, index * 1000, offload);
                    assert_eq!(piece, Some(Split::OFFLOAD));
                    assert_eq!(restored, expected, "piece {index}");
                    complete(&mut restored);
                    let headers = Headers::parse(&restored).unwrap();
                    assert!(transport_is_right(&headers, &restored));
                }
            }
        }
    }

    #[test]
    fn a_part_of_several_segments_stays_a_super_packet() {
        let (header, frame) =
            SegmentBuilder { payload: 10_000, ..SegmentBuilder::default() }.partial(Some(1000));
        let offload = OffloadState::from_header(&header).unwrap();
        let at = usize::from(Headers::parse(&frame).unwrap().payload);
        let mut part = frame[..at + 3000].to_vec();
        assert_eq!(restore(&mut part, 0, offload), Some(offload));
        assert_eq!(restore(&mut frame[..at + 3000].to_vec(), 7001, offload), None);
    }

    proptest! {
        #[test]
        fn arbitrary_parts_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            offset in 0usize..70_000,
        ) {
            let offload = OffloadState { needs_checksum: true, gso: Some(crate::offload::Gso {
                kind: crate::offload::GsoKind::TcpV4, size: 1000, ecn: false,
            }) };
            let spec = SegmentBuilder { payload: 10_000, ..SegmentBuilder::default() };
            let (_, mut frame) = spec.partial(Some(1000));
            let length = bytes.len().min(frame.len());
            frame[..length].copy_from_slice(&bytes[..length]);
            let _ = restore(&mut frame[..length], offset, offload);
            let _ = restore(&mut frame, offset, offload);
        }
    }
}

//! Cutting a super-packet (or any TCP segment) into smaller segments, as a network card would: by
//! [`Split`], into packets of their own, whose checksums are complete afterwards.

use crate::checksum;
use crate::headers::Headers;
use crate::offload::{OffloadState, Split};
use crate::packet::{Packet, Pool};

/// Appends to `segments` what a packet becomes with at most `segment_bytes` of payload in each.
///
/// A packet that is small enough, or that [`Split`] does not take, comes out whole, its checksum
/// complete unless it is a super-packet. The packet itself goes back to the pool.
pub fn segment(packet: Packet, segment_bytes: usize, pool: &mut Pool, segments: &mut Vec<Packet>) {
    cut(packet, Some(segment_bytes), pool, segments);
}

/// Cuts as [`segment()`] does, at the size that the super-packet itself names; others come out
/// whole.
pub fn segment_as_named(packet: Packet, pool: &mut Pool, segments: &mut Vec<Packet>) {
    cut(packet, None, pool, segments);
}

fn cut(
    mut packet: Packet,
    segment_bytes: Option<usize>,
    pool: &mut Pool,
    segments: &mut Vec<Packet>,
) {
    let Some(mut split) = split(&packet, segment_bytes) else {
        if !packet.header.is_super_packet() {
            packet.complete_checksum();
        }
        return segments.push(packet);
    };
    loop {
        let mut segment = pool.take();
        let Some(length) = split.next(segment.buffer_mut()) else {
            pool.give_back(segment);
            break;
        };
        segment.header = packet.header;
        segment.header.settle();
        segment.set_length(length);
        checksum::complete(segment.frame_mut());
        segments.push(segment);
    }
    pool.give_back(packet);
}

/// `None`: there is nothing to cut, or it is not to be cut.
fn split(packet: &Packet, segment_bytes: Option<usize>) -> Option<Split<'_>> {
    let frame = packet.frame();
    let headers = Headers::parse(frame)?;
    let mut offload = OffloadState::from_header(&packet.header)?;
    let size = match (segment_bytes, offload.gso.take()) {
        (Some(size), Some(_)) => size,
        (Some(size), None) if headers.payload_bytes() > size.max(1) => size,
        (None, Some(gso)) => gso.size.into(),
        _ => return None,
    };
    Split::of_size(offload, &headers, frame, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ACK, CWR, FIN, PSH};
    use crate::headers::be16;
    use crate::testing::SegmentBuilder;
    use crate::vnet::VirtioNetHdr;

    fn cut(spec: &SegmentBuilder, segment_bytes: u16) -> Vec<Packet> {
        let mut pool = Pool::default();
        let mut packet = pool.take();
        let (header, frame) = spec.partial(Some(segment_bytes));
        packet.fill(header, &frame);
        let mut segments = Vec::new();
        segment_as_named(packet, &mut pool, &mut segments);
        segments
    }

    fn headers(packet: &Packet) -> Headers {
        Headers::parse(packet.frame()).expect("IP")
    }

    #[test]
    fn segments_hold_all_bytes_in_order_with_right_checksums() {
        for v6 in [false, true] {
            for payload in [1, 1448, 1449, 10 * 1448, 60_001] {
                for tags in 0..3 {
                    let sequence = u32::MAX - 3000;
                    let spec =
                        SegmentBuilder { v6, payload, tags, sequence, ..SegmentBuilder::default() };
                    let mut bytes = Vec::new();
                    for (index, packet) in (0..).zip(cut(&spec, 1448)) {
                        assert_eq!(packet.header, VirtioNetHdr::default());
                        assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
                        let headers = headers(&packet);
                        let tcp = headers.tcp_header(packet.frame()).expect("TCP");
                        let begin = spec.sequence.wrapping_add(index * 1448);
                        assert_eq!(tcp.sequence.get(), begin, "all but the last are full");
                        bytes.extend_from_slice(headers.payload_of(packet.frame()));
                    }
                    assert_eq!(bytes, spec.payload_bytes());
                }
            }
        }
    }

    #[test]
    fn another_size_than_the_named_one_may_be_asked_for() {
        for (asked, expected) in [(500, 6), (2000, 2), (9000, 1)] {
            let (header, frame) =
                SegmentBuilder { payload: 3000, ..SegmentBuilder::default() }.partial(Some(1000));
            let mut pool = Pool::default();
            let mut packet = pool.take();
            packet.fill(header, &frame);
            let mut segments = Vec::new();
            segment(packet, asked, &mut pool, &mut segments);
            assert_eq!(segments.len(), expected);
            assert!(!segments[0].header.is_super_packet());
        }
    }

    #[test]
    fn flags_stay_where_they_mean_something_and_identifications_go_on() {
        let flags = ACK | FIN | PSH | CWR;
        let segments =
            cut(&SegmentBuilder { payload: 3000, flags, ..SegmentBuilder::default() }, 1000);
        let flags: Vec<_> = segments
            .iter()
            .map(|packet| headers(packet).tcp_header(packet.frame()).map(|tcp| tcp.flags))
            .collect();
        assert_eq!(flags, [Some(ACK | CWR), Some(ACK), Some(ACK | PSH | FIN)]);
        let ids: Vec<_> = segments.iter().map(|packet| be16(packet.frame(), 14 + 4)).collect();
        assert_eq!(ids, [Some(7), Some(8), Some(9)]);
    }

    #[test]
    fn what_is_no_tcp_segment_comes_out_whole() {
        let mut pool = Pool::default();
        let mut packet = pool.take();
        packet.fill(Default::default(), &[0xaa; 60]);
        let mut segments = Vec::new();
        segment(packet, 8, &mut pool, &mut segments);
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].frame(), [0xaa; 60]);
    }
}

//! Does the offloads of a frame that its receiver cannot do.
//!
//! A guest with a tunnel may leave the checksum of an inner packet to its device. An
//! [`OffloadState`] cannot describe that, so the checksum is filled in here.

use super::state::OffloadState;
use crate::checksum;
use crate::headers::Headers;
use crate::vnet::VirtioNetHdr;

/// The offload state of a frame that was read from a tap, after an offload that it cannot describe
/// was done.
///
/// `None`: the header asks for something unknown or impossible; the caller drops the frame.
pub fn settle(
    header: &VirtioNetHdr,
    headers: Option<&Headers>,
    frame: &mut [u8],
) -> Option<OffloadState> {
    let offload = OffloadState::from_header(header)?;
    if !offload.needs_checksum
        || headers.is_some_and(|headers| OffloadState::stands_at(header, headers))
    {
        let fits = offload.gso.is_none_or(|gso| headers.is_some_and(|headers| gso.fits(headers)));
        return fits.then_some(offload);
    }
    if offload.gso.is_some() {
        return None;
    }
    let (start, offset) = (header.csum_start.get(), header.csum_offset.get());
    let end = headers.map_or(frame.len(), |headers| headers.end as usize);
    checksum::complete_at(frame, start.into(), end, offset).then(OffloadState::default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{complete, transport_is_right};
    use crate::testing::SegmentBuilder;
    use proptest::prelude::*;

    #[test]
    fn a_partial_checksum_is_left_to_whoever_gets_the_frame() {
        for v6 in [false, true] {
            for payload in [0, 1, 2, 1447, 1448] {
                let spec = SegmentBuilder { v6, payload, tags: 1, ..SegmentBuilder::default() };
                let (header, mut frame) = spec.partial(None);
                frame.extend([0xee; 5]);
                let headers = Headers::parse(&frame).expect("IP");
                let offload = settle(&header, Some(&headers), &mut frame).expect("understood");
                assert!(offload.needs_checksum && !transport_is_right(&headers, &frame));
                complete(&mut frame);
                assert_eq!(frame[..frame.len() - 5], spec.build());
            }
        }
    }

    #[test]
    fn the_checksum_of_an_inner_packet_is_done_at_once() {
        // The guest's tunnel: an outer UDP header without a checksum, then a whole frame.
        let inner = SegmentBuilder { payload: 100, ..SegmentBuilder::default() };
        let (mut header, partial) = inner.partial(None);
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((28 + partial.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        frame.extend([0; 8]);
        header.csum_start.set(header.csum_start.get() + frame.len() as u16);
        frame.extend(&partial);
        let headers = Headers::parse(&frame).expect("IP");
        assert_eq!(settle(&header, Some(&headers), &mut frame), Some(OffloadState::default()));
        assert_eq!(frame[14 + 28..], inner.build());
    }

    proptest! {
        #[test]
        fn no_header_makes_it_look_outside(
            flags: u8, gso_type: u8, size: u16, start in 0..200u16, offset in 0..100u16,
            payload in 0..50usize,
        ) {
            let header = VirtioNetHdr {
                flags, gso_type,
                gso_size: size.into(),
                csum_start: start.into(),
                csum_offset: offset.into(),
                ..VirtioNetHdr::default()
            };
            let mut frame = SegmentBuilder { payload, ..SegmentBuilder::default() }.build();
            let length = frame.len();
            let headers = Headers::parse(&frame);
            settle(&header, headers.as_ref(), &mut frame);
            settle(&header, None, &mut frame);
            prop_assert_eq!(frame.len(), length);
        }
    }
}

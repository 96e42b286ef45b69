//! What has to be done to a frame here, because it cannot be left to whoever gets it.
//!
//! A guest may have left the checksum of an inner packet to do (a tunnel in the guest), which a link has no
//! way to describe.

use vsnoop_frame::vnet::VirtioNetHdr;

use super::checksum::sum;
use super::headers::Headers;
use super::owed::{Owed, UDP_CHECKSUM};

/// What a frame that was read from a tap owes, after whatever cannot be described was done.
///
/// `None`: the header asks for something unknown or impossible; the frame is to be dropped.
pub fn settle(header: &VirtioNetHdr, headers: Option<&Headers>, frame: &mut [u8]) -> Option<Owed> {
    let owed = Owed::of(header)?;
    if !owed.checksum || headers.is_some_and(|headers| Owed::stands_at(header, headers)) {
        let fits = owed.gso.is_none_or(|gso| headers.is_some_and(|headers| gso.fits(headers)));
        return fits.then_some(owed);
    }
    if owed.gso.is_some() {
        return None;
    }
    let start = usize::from(header.csum_start.get());
    fill_in(frame, headers, start, usize::from(header.csum_offset.get())).then(Owed::default)
}

/// Sums from `start` to the end of the IP packet into the field at `start + offset`.
fn fill_in(frame: &mut [u8], headers: Option<&Headers>, start: usize, offset: usize) -> bool {
    let end = headers.map_or(frame.len(), |headers| headers.end as usize);
    let Some(summed) = frame.get_mut(start..end) else { return false };
    let mut value = !sum(summed);
    // In UDP a 0 would mean that there is no checksum (RFC 768).
    if value == 0 && offset == usize::from(UDP_CHECKSUM) {
        value = 0xffff;
    }
    let Some(field) = summed.get_mut(offset..offset + 2) else { return false };
    field.copy_from_slice(&value.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::checksum::transport_is_right;
    use crate::offload::testing::{Segment, complete};
    use proptest::prelude::*;

    #[test]
    fn a_partial_checksum_is_left_to_whoever_gets_the_frame() {
        for v6 in [false, true] {
            for payload in [0, 1, 2, 1447, 1448] {
                let spec = Segment { v6, payload, tags: 1, ..Segment::default() };
                let (header, mut frame) = spec.partial(None);
                frame.extend([0xee; 5]);
                let headers = Headers::of(&frame).expect("IP");
                let owed = settle(&header, Some(&headers), &mut frame).expect("understood");
                assert!(owed.checksum && !transport_is_right(&headers, &frame));
                complete(&mut frame);
                assert_eq!(frame[..frame.len() - 5], spec.build());
            }
        }
    }

    #[test]
    fn the_checksum_of_an_inner_packet_is_done_at_once() {
        // The guest's tunnel: an outer UDP header without a checksum, then a whole frame.
        let inner = Segment { payload: 100, ..Segment::default() };
        let (mut header, partial) = inner.partial(None);
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((28 + partial.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        frame.extend([0; 8]);
        header.csum_start.set(header.csum_start.get() + frame.len() as u16);
        frame.extend(&partial);
        let headers = Headers::of(&frame).expect("IP");
        assert_eq!(settle(&header, Some(&headers), &mut frame), Some(Owed::default()));
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
            let mut frame = Segment { payload, ..Segment::default() }.build();
            let length = frame.len();
            let headers = Headers::of(&frame);
            settle(&header, headers.as_ref(), &mut frame);
            settle(&header, None, &mut frame);
            prop_assert_eq!(frame.len(), length);
        }
    }
}

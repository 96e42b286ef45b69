//! The MSS that two TCPs tell each other, lowered to what fits the link.
//!
//! The option stands in SYN and SYN-ACK only (RFC 9293, 3.7.1). A checksum that is complete is
//! corrected by the difference (RFC 1624), so that one that was wrong stays wrong; a partial one
//! covers no options yet.

use crate::checksum::{add, subtract};
use crate::format::{SYN, TCP_BYTES, TCP_CHECKSUM};
use crate::headers::{Headers, be16};
use crate::offload::OffloadState;
use crate::options::MSS;

/// Lowers the MSS that a frame announces to `limit_bytes`; whether it was larger.
pub fn clamp(
    offload: &OffloadState,
    headers: &Headers,
    frame: &mut [u8],
    limit_bytes: u16,
) -> bool {
    let l4 = usize::from(headers.l4);
    if headers.tcp_header(frame).is_none_or(|tcp| tcp.flags & SYN == 0) {
        return false;
    }
    let mut options = headers.tcp_options(frame);
    let option = options.find(|option| option.kind == MSS && option.value.len() == 2);
    let Some(at) = option.map(|option| l4 + TCP_BYTES + option.at) else { return false };
    let field = l4 + usize::from(TCP_CHECKSUM);
    let (Some(value), Some(held)) = (be16(frame, at), be16(frame, field)) else { return false };
    if value <= limit_bytes {
        return false;
    }
    frame[at..at + 2].copy_from_slice(&limit_bytes.to_be_bytes());
    if !offload.needs_checksum {
        // At an odd offset each byte of the value counts in the other half of a word.
        let counted = |value: u16| if (at - l4) % 2 == 0 { value } else { value.swap_bytes() };
        let summed = add(subtract(!held, counted(value)), counted(limit_bytes));
        frame[field..field + 2].copy_from_slice(&(!summed).to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{complete, transport_is_right};
    use crate::format::ACK;
    use crate::testing::SegmentBuilder;
    use proptest::prelude::*;

    /// A SYN with these options instead of the timestamps, 12 bytes; checksum left to do.
    fn syn(v6: bool, flags: u8, options: &[u8; 12]) -> (Headers, Vec<u8>) {
        let (_, mut frame) =
            SegmentBuilder { v6, flags, tags: 1, ..SegmentBuilder::default() }.partial(None);
        let headers = Headers::parse(&frame).expect("IP");
        let at = usize::from(headers.l4) + TCP_BYTES;
        frame[at..at + 12].copy_from_slice(options);
        (headers, frame)
    }

    const PARTIAL: OffloadState = OffloadState { needs_checksum: true, gso: None };

    /// The options at an even and at an odd offset.
    const EVEN: [u8; 12] = [2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2];
    const ODD: [u8; 12] = [1, 2, 4, 0x05, 0xb4, 3, 3, 7, 1, 1, 4, 2];

    #[test]
    fn a_larger_mss_is_lowered_and_the_checksum_follows() {
        for v6 in [false, true] {
            for flags in [SYN, SYN | ACK] {
                for (options, shift) in [(EVEN, 2), (ODD, 3)] {
                    let (headers, frame) = syn(v6, flags, &options);
                    let at = usize::from(headers.l4) + TCP_BYTES + shift;

                    let mut partial = frame.clone();
                    assert!(clamp(&PARTIAL, &headers, &mut partial, 1300));
                    assert_eq!(be16(&partial, at), Some(1300));
                    complete(&mut partial);
                    assert!(transport_is_right(&headers, &partial));

                    let mut whole = frame;
                    complete(&mut whole);
                    assert!(clamp(&OffloadState::default(), &headers, &mut whole, 1300));
                    assert_eq!(whole, partial);
                }
            }
        }
    }

    #[test]
    fn a_wrong_checksum_stays_wrong() {
        let (headers, mut frame) = syn(false, SYN, &EVEN);
        assert!(clamp(&OffloadState::default(), &headers, &mut frame, 1300));
        assert!(!transport_is_right(&headers, &frame));
    }

    #[test]
    fn a_smaller_mss_and_a_frame_without_syn_stay() {
        for (flags, limit) in [(SYN, 1460), (SYN, 9000), (ACK, 1300)] {
            let (headers, frame) = syn(false, flags, &EVEN);
            let mut after = frame.clone();
            assert!(!clamp(&PARTIAL, &headers, &mut after, limit));
            assert_eq!(after, frame);
        }
    }

    proptest! {
        #[test]
        fn any_options_keep_their_length_and_the_checksum(options: [u8; 12], limit: u16) {
            let (headers, mut frame) = syn(false, SYN, &options);
            complete(&mut frame);
            let before = frame.clone();
            let changed = clamp(&OffloadState::default(), &headers, &mut frame, limit);
            prop_assert_eq!(changed, before != frame);
            prop_assert!(transport_is_right(&headers, &frame));
        }
    }
}

//! The two addresses of a frame, the VLAN that they count in, and its length.

use vsnoop_packet::format::is_tag;

use super::mac::Mac;

/// Fields of a frame that forwarding uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameAddresses {
    pub destination: Mac,
    pub source: Mac,
    /// The number in the outermost tag; 0 without a tag and in one that only gives a priority.
    pub vlan: u16,
    /// There is another tag behind that one.
    pub is_stacked: bool,
    /// Length of the whole frame.
    pub bytes: usize,
}

impl FrameAddresses {
    /// Reads a frame of this length; `frame` is its first part.
    #[inline]
    pub fn parse(frame: &[u8], bytes: usize) -> Option<Self> {
        let header = frame.first_chunk::<14>()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, kind @ ..] = *header;
        let (vlan, is_stacked) = match u16::from_be_bytes(kind) {
            kind if is_tag(kind) => {
                let [a, b, inner @ ..] = *frame.get(14..)?.first_chunk::<4>()?;
                (u16::from_be_bytes([a, b]) & 0xfff, is_tag(u16::from_be_bytes(inner)))
            }
            _ => (0, false),
        };
        let (destination, source) = (Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l]));
        Some(Self { destination, source, vlan, is_stacked, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_tag_counts() {
        let mut frame = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2];
        frame.extend([8, 0, 0, 0]);
        assert_eq!(FrameAddresses::parse(&frame, 64).map(|addresses| addresses.vlan), Some(0));
        frame.splice(12..12, [0x81, 0, 0xe0, 7]);
        assert_eq!(FrameAddresses::parse(&frame, 64).map(|addresses| addresses.vlan), Some(7));
        frame.splice(12..12, [0x88, 0xa8, 0x0f, 0xff]);
        assert_eq!(FrameAddresses::parse(&frame, 64).map(|addresses| addresses.vlan), Some(0xfff));
        let addresses = FrameAddresses::parse(&frame, 64).expect("a header");
        assert_eq!((addresses.destination, addresses.source), (Mac([1; 6]), Mac([2; 6])));
    }

    #[test]
    fn a_cut_header_is_none() {
        let frame = [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 0x81, 0, 0, 7, 8, 0];
        for end in 0..frame.len() {
            assert_eq!(FrameAddresses::parse(&frame[..end], 64), None);
        }
        assert!(FrameAddresses::parse(&frame, 64).is_some());
    }
}

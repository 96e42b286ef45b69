//! The two addresses of a frame and the VLAN that they count in.

use std::fmt;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Multicast or broadcast.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// One of the addresses that no bridge hands on.
    #[inline]
    pub fn is_control(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(to, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// What forwarding reads of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub destination: Mac,
    pub source: Mac,
    /// The number in the outermost tag; 0 without a tag and in one that only gives a priority.
    pub vlan: u16,
}

impl Ends {
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let header = frame.first_chunk::<14>()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, kind @ ..] = *header;
        let vlan = match u16::from_be_bytes(kind) {
            0x8100 | 0x88a8 | 0x9100 => {
                u16::from_be_bytes(*frame.get(14..)?.first_chunk()?) & 0xfff
            }
            _ => 0,
        };
        Some(Self { destination: Mac([a, b, c, d, e, f]), source: Mac([g, h, i, j, k, l]), vlan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_tag_counts() {
        let mut frame = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2];
        frame.extend([8, 0, 0, 0]);
        assert_eq!(Ends::of(&frame).map(|ends| ends.vlan), Some(0));
        frame.splice(12..12, [0x81, 0, 0xe0, 7]);
        assert_eq!(Ends::of(&frame).map(|ends| ends.vlan), Some(7));
        frame.splice(12..12, [0x88, 0xa8, 0x0f, 0xff]);
        assert_eq!(Ends::of(&frame).map(|ends| ends.vlan), Some(0xfff));
        let ends = Ends::of(&frame).expect("a header");
        assert_eq!((ends.destination, ends.source), (Mac([1; 6]), Mac([2; 6])));
    }

    #[test]
    fn a_cut_header_is_none() {
        let frame = [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 0x81, 0, 0, 7];
        for end in 0..frame.len() {
            assert_eq!(Ends::of(&frame[..end]), None);
        }
        assert!(Ends::of(&frame).is_some());
    }

    #[test]
    fn addresses_of_control_are_known() {
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0]).is_control());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).is_control());
        assert!(!Mac([1, 0x80, 0xc2, 0, 0, 0x10]).is_control());
        assert!(!Mac([0xff; 6]).is_control());
        assert_eq!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).to_string(), "01:80:c2:00:00:0f");
    }
}

//! The traffic class of a packet and that of the datagram that carries it: DSCP (RFC 2474) and ECN
//! (RFC 3168).
//!
//! A link is a tunnel. Its DSCP is that of the packet (the uniform model of RFC 2983), and ECN is
//! that of RFC 6040: the outer field is a copy of the inner one, and what a router has written into
//! it on the path comes back by this table (figure 4 there):
//!
//! | inner, outer | Not-ECT | ECT(0) | ECT(1) | CE |
//! |---|---|---|---|---|
//! | Not-ECT | Not-ECT | Not-ECT | Not-ECT | dropped |
//! | ECT(0) | ECT(0) | ECT(0) | ECT(1) | CE |
//! | ECT(1) | ECT(1) | ECT(1) | ECT(1) | CE |
//! | CE | CE | CE | CE | CE |

use vsnoop_packet::headers::Headers;

/// Lower two bits of a traffic class.
const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;
/// Congestion experienced.
pub const CE: u8 = 0b11;

/// Parts of a packet's traffic class that its datagram copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub dscp: bool,
    /// Only towards a peer that reads it.
    pub ecn: bool,
}

impl Copied {
    /// The traffic class of a datagram for a packet with `inner`.
    pub fn outer_class(self, inner: u8) -> u8 {
        let dscp = if self.dscp { inner & !ECN } else { 0 };
        let ecn = if self.ecn { inner & ECN } else { NOT_ECT };
        dscp | ecn
    }
}

/// The traffic class of the packet in a frame; 0 of a frame without one.
pub fn class_of(headers: Option<&Headers>, frame: &[u8]) -> u8 {
    let Some(headers) = headers else { return 0 };
    match frame.get(usize::from(headers.ip)..) {
        Some([first, second, ..]) if headers.v6 => first << 4 | second >> 4,
        Some([_, class, ..]) => *class,
        _ => 0,
    }
}

/// Whether an outer field with this class may change the inner one.
pub fn may_change(outer: u8) -> bool {
    matches!(outer & ECN, ECT_1 | CE)
}

/// Whether a router has marked it.
pub fn is_congested(outer: u8) -> bool {
    outer & ECN == CE
}

/// A packet has met congestion that its ends are not told of: the router would have dropped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// Brings what routers have written into the outer traffic class into the packet of a frame;
/// whether that has changed it.
pub fn decapsulate(frame: &mut [u8], outer: u8) -> Result<bool, Dropped> {
    if !may_change(outer) {
        return Ok(false);
    }
    let Some(headers) = Headers::of_start(frame) else { return Ok(false) };
    let inner = class_of(Some(&headers), frame) & ECN;
    let ecn = match (inner, outer & ECN) {
        (NOT_ECT, CE) => return Err(Dropped),
        (ECT_0, ECT_1) => ECT_1,
        (ECT_0 | ECT_1, CE) => CE,
        _ => return Ok(false),
    };
    set_ecn(&headers, frame, ecn);
    Ok(true)
}

fn set_ecn(headers: &Headers, frame: &mut [u8], ecn: u8) {
    let Some(ip) = frame.get_mut(usize::from(headers.ip)..) else { return };
    if headers.v6 {
        if let Some(byte) = ip.get_mut(1) {
            *byte = (*byte & !(ECN << 4)) | (ecn << 4);
        }
        return;
    }
    let Some([first, class, rest @ ..]) = ip.get_mut(..12) else { return };
    let before = u16::from_be_bytes([*first, *class]);
    *class = (*class & !ECN) | ecn;
    let after = u16::from_be_bytes([*first, *class]);
    // RFC 1624, equation 3. The checksum is at 10.
    let [high, low] = [&rest[8], &rest[9]].map(|byte| *byte);
    let sum = u32::from(!u16::from_be_bytes([high, low])) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    rest[8..10].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::testing::SegmentBuilder;

    use super::*;

    /// A frame of TCP over IPv4 whose packet has this class; its header's checksum is right.
    fn frame(class: u8) -> Vec<u8> {
        let mut frame = SegmentBuilder { payload: 10, ..SegmentBuilder::default() }.build();
        frame[15] = class;
        frame[24..26].fill(0);
        let sum = header_sum(&frame);
        frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
        frame
    }

    fn header_sum(frame: &[u8]) -> u16 {
        let words = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn the_table_of_rfc_6040_holds_and_the_dscp_stays() {
        const DSCP: u8 = 0b1011_1000;
        for (inner, row) in [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE); 4]),
        ] {
            for (outer, wanted) in [NOT_ECT, ECT_0, ECT_1, CE].into_iter().zip(row) {
                let mut frame = frame(DSCP | inner);
                let before = frame.clone();
                let decapsulated = decapsulate(&mut frame, outer);
                let Some(wanted) = wanted else {
                    assert_eq!(decapsulated, Err(Dropped));
                    continue;
                };
                assert_eq!(decapsulated, Ok(frame != before), "{inner} in {outer}");
                assert_eq!(frame, self::frame(DSCP | wanted), "{inner} in {outer}");
                assert_eq!(header_sum(&frame), 0xffff);
            }
        }
    }

    #[test]
    fn of_ipv6_the_ecn_bits_alone_change() {
        let mut frame = vec![0; 14 + 40];
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x6b, 0xa7]);
        (frame[20], frame[21]) = (59, 64);
        let headers = Headers::parse(&frame).expect("IPv6");
        assert_eq!(class_of(Some(&headers), &frame), 0xba);
        assert_eq!(decapsulate(&mut frame, CE), Ok(true));
        assert_eq!(frame[14..16], [0x6b, 0xb7]);
    }

    #[test]
    fn only_what_is_to_be_copied_is_outside() {
        let all = Copied { dscp: true, ecn: true };
        assert_eq!(all.outer_class(0xb9), 0xb9);
        assert_eq!(Copied { dscp: false, ..all }.outer_class(0xb9), 1);
        assert_eq!(Copied { ecn: false, ..all }.outer_class(0xb9), 0xb8);
        assert_eq!(Copied::default().outer_class(0xff), 0);
        assert_eq!(decapsulate(&mut [0; 60], CE), Ok(false), "no IP");
    }
}

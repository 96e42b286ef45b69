//! Items: a record carries one.
//!
//! ```text
//! | kind: u8 | flags: u8 ... |
//! FRAME       1  | flags | frame
//!                an Ethernet frame; padding may follow an IP packet
//! SUPER       2  | flags | gso size: u16 | frame
//!                a super-packet, whole
//! FRAGMENT    3  | flags | gso size: u16 | which: 4 bytes | part
//!                of a frame (crate::wire::fragment)
//! COMPRESSED  4  | body (crate::compress)
//!                items, each after its length, on ordered transports
//! UNIT        5  | flags | gso size: u16 | offset: u32 | body (crate::compress::unit)
//!                headers of a super-packet, and its payload from the offset on
//! UNIT_PART   7  | which: 4 bytes | part
//!                of a unit, if it is longer than a datagram
//! SESSION     6  | message (crate::session::message)
//! INTRODUCTION 8 | message (crate::introduction)
//! ```
//! Numbers are big-endian. Flags of a frame: partial checksum; IPv6; ECN. The highest bit of the
//! kind of a frame, or of what it was made into (1, 2, 3, 5), says that it was diverted ([`Way`]):
//! a peer without support for diversion sees an unknown kind.

use vsnoop_packet::offload::state::{Gso, GsoKind, OffloadState};

use crate::wire::fragment::Fragment;

pub const FRAME: u8 = 1;
pub const SUPER: u8 = 2;
pub const FRAGMENT: u8 = 3;
pub const COMPRESSED: u8 = 4;
pub const UNIT: u8 = 5;
pub const SESSION: u8 = 6;
pub const UNIT_PART: u8 = 7;
pub const INTRODUCTION: u8 = 8;

/// In the kind of a frame.
const DIVERTED: u8 = 0x80;
const NEEDS_CHECKSUM: u8 = 1;
const TCP_V6: u8 = 2;
const ECN: u8 = 4;

/// Bytes before the frame, at most.
pub const FRAME_HEADER_BYTES: usize = 4;

/// How a frame came into the link; it leaves by the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// Through a port, by the forwarding table.
    #[default]
    Forwarded,
    /// By a hook of the kernel, to be routed by the far host.
    Diverted,
}

impl Way {
    /// Reads the way of an item that [`Item::parse`] takes for a frame, or a piece of one.
    pub fn read(item: &[u8]) -> Self {
        match item.first() {
            Some(kind) if kind & DIVERTED != 0 => Self::Diverted,
            _ => Self::Forwarded,
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Forwarded => 0,
            Self::Diverted => DIVERTED,
        }
    }
}

/// The start of a frame's item.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader {
    bytes: [u8; FRAME_HEADER_BYTES],
    length: usize,
}

impl FrameHeader {
    pub fn new(offload: OffloadState, way: Way) -> Self {
        let mut bytes = [FRAME | way.bit(), 0, 0, 0];
        bytes[1] |= if offload.needs_checksum { NEEDS_CHECKSUM } else { 0 };
        let Some(gso) = offload.gso else { return Self { bytes, length: 2 } };
        bytes[0] = SUPER | way.bit();
        bytes[1] |= if gso.kind == GsoKind::TcpV6 { TCP_V6 } else { 0 };
        bytes[1] |= if gso.ecn { ECN } else { 0 };
        bytes[2..].copy_from_slice(&gso.size.to_be_bytes());
        Self { bytes, length: 4 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// An item, parsed.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Frame(OffloadState, &'a [u8]),
    Fragment(OffloadState, Fragment, &'a [u8]),
    Compressed(&'a [u8]),
    Unit { offload: OffloadState, offset: usize, body: &'a [u8] },
    UnitPart(Fragment, &'a [u8]),
    Session(&'a [u8]),
    Introduction(&'a [u8]),
}

impl<'a> Item<'a> {
    /// `None`: not understood; a newer peer may send what this one does not know.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let bare = kind & !DIVERTED;
        match if matches!(bare, FRAME | SUPER | FRAGMENT | UNIT) { bare } else { kind } {
            FRAME => {
                let (&flags, frame) = rest.split_first()?;
                Some(Self::Frame(
                    OffloadState { needs_checksum: flags & NEEDS_CHECKSUM != 0, gso: None },
                    frame,
                ))
            }
            SUPER => {
                let (&offload, frame) = rest.split_first_chunk()?;
                let offload = offload_state_of(offload)?;
                offload.gso.is_some().then_some(Self::Frame(offload, frame))
            }
            FRAGMENT => {
                let (&offload, rest) = rest.split_first_chunk()?;
                let (&fragment, part) = rest.split_first_chunk()?;
                Some(Self::Fragment(
                    offload_state_of(offload)?,
                    Fragment::from_bytes(fragment),
                    part,
                ))
            }
            COMPRESSED => Some(Self::Compressed(rest)),
            UNIT => {
                let (&offload, rest) = rest.split_first_chunk()?;
                let (&offset, body) = rest.split_first_chunk()?;
                let offset = u32::from_be_bytes(offset) as usize;
                Some(Self::Unit { offload: offload_state_of(offload)?, offset, body })
            }
            UNIT_PART => {
                let (&fragment, part) = rest.split_first_chunk()?;
                Some(Self::UnitPart(Fragment::from_bytes(fragment), part))
            }
            SESSION => Some(Self::Session(rest)),
            INTRODUCTION => Some(Self::Introduction(rest)),
            _ => None,
        }
    }
}

/// The start of a fragment's item.
pub fn fragment_header(offload: OffloadState, fragment: Fragment, way: Way) -> [u8; 8] {
    let [id_high, id_low, index, count] = fragment.to_bytes();
    let [_, flags, size_high, size_low] = FrameHeader::new(offload, way).bytes;
    [FRAGMENT | way.bit(), flags, size_high, size_low, id_high, id_low, index, count]
}

/// The start of a unit's item.
pub fn unit_header(offload: OffloadState, offset: usize, way: Way) -> [u8; 8] {
    let [_, flags, size_high, size_low] = FrameHeader::new(offload, way).bytes;
    let [a, b, c, d] = (offset as u32).to_be_bytes();
    [UNIT | way.bit(), flags, size_high, size_low, a, b, c, d]
}

/// The start of the item of a unit's part.
pub fn unit_part_header(fragment: Fragment) -> [u8; 5] {
    let [a, b, c, d] = fragment.to_bytes();
    [UNIT_PART, a, b, c, d]
}

/// Reads flags and segment size. `None`: a super-packet whose checksum is not partial.
fn offload_state_of([flags, high, low]: [u8; 3]) -> Option<OffloadState> {
    let needs_checksum = flags & NEEDS_CHECKSUM != 0;
    let size = u16::from_be_bytes([high, low]);
    if size == 0 {
        return Some(OffloadState { needs_checksum, gso: None });
    }
    let kind = if flags & TCP_V6 != 0 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    let gso = Some(Gso { kind, size, ecn: flags & ECN != 0 });
    needs_checksum.then_some(OffloadState { needs_checksum, gso })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_keeps_its_offload_state() {
        let gso = |kind, ecn| Some(Gso { kind, size: 1448, ecn });
        let offload = [
            OffloadState { needs_checksum: false, gso: None },
            OffloadState { needs_checksum: true, gso: None },
            OffloadState { needs_checksum: true, gso: gso(GsoKind::TcpV4, true) },
            OffloadState { needs_checksum: true, gso: gso(GsoKind::TcpV6, false) },
        ];
        let ways = [Way::Forwarded, Way::Diverted];
        for (offload, way) in offload.into_iter().flat_map(|offload| ways.map(|way| (offload, way)))
        {
            let mut bytes = FrameHeader::new(offload, way).bytes().to_vec();
            bytes.extend_from_slice(b"frame");
            assert_eq!(Item::parse(&bytes), Some(Item::Frame(offload, b"frame")));
            assert_eq!(Way::read(&bytes), way);
            let fragment = Fragment { id: 7, index: 1, count: 3 };
            let mut bytes = fragment_header(offload, fragment, way).to_vec();
            bytes.extend_from_slice(b"part");
            assert_eq!(Item::parse(&bytes), Some(Item::Fragment(offload, fragment, b"part")));
            assert_eq!(Way::read(&bytes), way);
            let mut bytes = unit_header(offload, 70_000, way).to_vec();
            bytes.extend_from_slice(b"body");
            let unit = Item::Unit { offload, offset: 70_000, body: b"body" };
            assert_eq!(Item::parse(&bytes), Some(unit));
            assert_eq!(Way::read(&bytes), way);
        }
    }

    #[test]
    fn only_frames_are_diverted() {
        for kind in [COMPRESSED, SESSION, UNIT_PART, INTRODUCTION] {
            let bytes = [kind | DIVERTED, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(Item::parse(&bytes), None, "kind {kind}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Item::parse(&bytes);
        }
    }
}

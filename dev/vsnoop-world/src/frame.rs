//! A socket buffer: a packet between the simulated ends, and in the programs.

use vsnoop_packet::checksum::{self, make_partial};
use vsnoop_packet::headers::Headers;

use crate::layout;

/// State of a packet's checksum (CHECKSUM_* of linux/skbuff.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Summed {
    /// Not verified.
    None,
    /// Verified by the device.
    Unnecessary,
    /// The device's sum of all bytes after the Ethernet header.
    Complete(u32),
    /// Not computed yet; the field has the sum of the pseudo-header.
    Partial,
}

/// Bits of `gso_type` in linux/skbuff.h.
pub const GSO_TCPV4: u32 = 1;
pub const GSO_TCPV6: u32 = 1 << 4;
/// Shift from a GSO type to the device feature of the same name (linux/netdev_features.h).
pub const FEATURE_SHIFT: u32 = 16;

/// A packet with its metadata in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Bytes that programs can read without a pull.
    pub linear: u32,
    pub mark: u32,
    /// Payload of one segment of a super-packet (gso_size); 0: not a super-packet.
    pub gso_size: u32,
    pub summed: Summed,
    /// The VLAN tag in the metadata, not in the frame: TCI and protocol.
    pub tag: Option<(u16, u16)>,
    /// The interface that it came in by.
    pub ingress_ifindex: u32,
    pub cb: [u32; 5],
}

impl Frame {
    /// A frame as received from the wire: nothing verified, no tag removed.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            linear: bytes.len() as u32,
            bytes,
            mark: 0,
            gso_size: 0,
            summed: Summed::None,
            tag: None,
            ingress_ifindex: 0,
            cb: [0; 5],
        }
    }

    /// Number of segments of a super-packet.
    pub fn segments(&self) -> u32 {
        if self.gso_size == 0 { 0 } else { self.payload().div_ceil(self.gso_size) }
    }

    /// `gso_type`.
    pub fn gso_type(&self) -> u32 {
        let ipv6 = layout::headers(&self.bytes).is_some_and(|headers| headers.v6);
        match (self.gso_size, ipv6) {
            (0, _) => 0,
            (_, false) => GSO_TCPV4,
            (_, true) => GSO_TCPV6,
        }
    }

    fn payload(&self) -> u32 {
        let headers = layout::headers(&self.bytes).filter(Headers::tcp);
        headers.map_or(0, |headers| headers.payload_bytes() as u32)
    }

    /// Completes the checksum and puts the tag into the frame, as for a receiver without the
    /// sender's metadata.
    pub fn settle(&mut self) {
        if self.summed == Summed::Partial {
            complete_checksum(&mut self.bytes);
            self.summed = Summed::Unnecessary;
        }
        if let Some((tci, protocol)) = self.tag.take() {
            let mut tag = protocol.to_be_bytes().to_vec();
            tag.extend(tci.to_be_bytes());
            self.bytes.splice(12..12, tag);
        }
        self.linear = self.bytes.len() as u32;
        self.mark = 0;
    }
}

/// CHECKSUM_PARTIAL becomes a checksum. The field must have the pseudo-header's sum.
pub fn complete_checksum(bytes: &mut [u8]) {
    let Some(headers) = layout::headers(bytes).filter(Headers::tcp) else { return };
    let mut expected = bytes.to_vec();
    make_partial(&headers, &mut expected);
    assert_eq!(bytes, expected, "the sum of the pseudo-header is wrong");
    assert!(checksum::complete(bytes), "a wrong length: {bytes:02x?}");
}

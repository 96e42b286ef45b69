//! `virtio_net_hdr`: the offloads left to do for a tap frame (virtio specification 1.2, 5.1.6).
//!
//! Fields are little-endian as in virtio 1.0, which is also what a tap uses on little-endian hosts;
//! the 10-byte form of older devices lacks `num_buffers` at the end.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The checksum from `csum_start` on is still to be filled in.
pub const NEEDS_CSUM: u8 = 1;

pub const GSO_NONE: u8 = 0;
pub const GSO_TCPV4: u8 = 1;
pub const GSO_TCPV6: u8 = 4;
/// Datagrams of one size, the last perhaps shorter, with one header.
pub const GSO_UDP_L4: u8 = 5;
/// Set together with a TCP type when the super-packet carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// The size of the header without `num_buffers`, as packet sockets have it, too.
pub const VNET_BYTES: usize = VirtioNetHdr::BYTES - size_of::<U16>();

/// The header, as it stands before each frame.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct VirtioNetHdr {
    pub flags: u8,
    pub gso_type: u8,
    /// Bytes of Ethernet, IP and TCP header of a super-packet; a hint.
    pub hdr_len: U16,
    /// Payload bytes of each segment of a super-packet.
    pub gso_size: U16,
    /// Where the checksum begins, from the start of the frame.
    pub csum_start: U16,
    /// Where the checksum field stands, from `csum_start`.
    pub csum_offset: U16,
    /// Receive buffers that the frame fills; only in the 12-byte form.
    pub num_buffers: U16,
}

impl VirtioNetHdr {
    /// The size with `num_buffers`.
    pub const BYTES: usize = size_of::<Self>();

    pub fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    pub fn is_super_packet(&self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Says that no offload is left to do; the checksum is to be verified like any other.
    pub fn settle(&mut self) {
        *self = Self { num_buffers: self.num_buffers, ..Self::default() };
    }

    /// Follows headers that moved by `bytes` because something was put in before them.
    pub fn shift(&mut self, bytes: i32) {
        let moved = |at: U16| U16::new(at.get().wrapping_add_signed(bytes as i16));
        if self.needs_checksum() {
            self.csum_start = moved(self.csum_start);
        }
        if self.is_super_packet() {
            self.hdr_len = moved(self.hdr_len);
        }
    }
}

//! Frames as they pass a tap, for every user-space part of vsnoop.
//!
//! A tap hands over, in one read, a `virtio_net_hdr` and an Ethernet frame; the header says what
//! the frame still owes: a checksum that was left to the device (`CHECKSUM_PARTIAL`) and the cut of
//! a super-packet into segments. [`tap`] opens taps, [`vnet`] is that header, [`packet`] holds both
//! in buffers that are used again and again, [`layout`] finds the layers of a frame without copying
//! it, [`checksum`] and [`segment`] settle what is owed, and [`edit`] changes a frame in the ways a
//! network may: VLAN tags, CE marks, IP fragments.
//!
//! Formats are read and written by `etherparse` and `zerocopy`; what is here is what they leave to
//! do.

pub mod checksum;
pub mod edit;
pub mod layout;
pub mod packet;
pub mod segment;
pub mod tap;
pub mod vnet;

#[cfg(test)]
mod testing;

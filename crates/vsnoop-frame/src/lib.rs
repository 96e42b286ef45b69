//! Frames as they pass a tap, for every user-space part of vsnoop.
//!
//! A tap hands over, in one read, a `virtio_net_hdr` and an Ethernet frame; the header says what the
//! frame still owes: a checksum that was left to the device (`CHECKSUM_PARTIAL`) and the cut of a
//! super-packet into segments. [`tap`] opens taps, [`vnet`] is that header, [`view`] finds the
//! layers of a frame without copying it, [`checksum`] and [`segment`] settle what is owed, and
//! [`edit`] changes a frame in ways a network may (tags, CE marks, IP fragments).

pub mod tap;

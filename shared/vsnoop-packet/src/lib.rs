//! Ethernet frames as they pass a tap: their headers, checksums and offloads, for every user-space
//! part of vsnoop.
//!
//! A tap hands over, in one read, a `virtio_net_hdr` ([`vnet`]) and a frame; the header says which
//! offloads are left to do: a partial checksum (the kernel's `CHECKSUM_PARTIAL`), and the cut of a
//! super-packet into segments. Nothing here does input or output.
//!
//! [`format`] has the layouts of headers and their numbers, [`headers`] finds the headers of a
//! frame, [`options`] reads TCP's, [`checksum`] sums, [`builder`] writes frames. [`offload`] splits
//! and merges super-packets on borrowed bytes, without allocation. [`packet`] owns frames in
//! buffers that are used again and again; [`segment`] cuts those as a network card would, [`edit`]
//! changes them in the ways a network may, and [`mss`] lowers what a TCP announces.

pub mod builder;
pub mod checksum;
pub mod edit;
pub mod format;
pub mod headers;
pub mod mss;
pub mod offload;
pub mod options;
pub mod packet;
pub mod segment;
pub mod testing;
pub mod vnet;

//! The header beside each frame of a port.

use vsnoop_frame::vnet::VirtioNetHdr;

/// The form of the header without `num_buffers`: what packet sockets have, too.
pub const VNET_BYTES: usize = size_of::<VirtioNetHdr>() - size_of::<u16>();

//! Cuts super-packets into smaller ones, for a path on which a whole one takes long.

use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::state::OffloadState;

use crate::frames::frame::Frame;

/// A super-packet as smaller ones of about `unit_bytes`; `None`: it is small enough, or cannot be
/// cut.
pub fn pieces_of<'s>(
    frame: &Frame<'_>,
    unit_bytes: usize,
    scratch: &'s mut Vec<u8>,
) -> Option<impl Iterator<Item = (OffloadState, Vec<u8>)> + use<'s>> {
    let (gso, headers) = (frame.offload.gso?, frame.headers?);
    let (payload_at, size) = (usize::from(headers.payload), usize::from(gso.size));
    if frame.bytes <= unit_bytes || !headers.tcp() || size == 0 {
        return None;
    }
    frame.gather_into(scratch);
    let end = (headers.end as usize).min(scratch.len());
    let (head, payload) = scratch.get(..end)?.split_at_checked(payload_at)?;
    let step = (unit_bytes.saturating_sub(payload_at) / size).max(2) * size;
    let offload = frame.offload;
    Some(payload.chunks(step).enumerate().filter_map(move |(index, part)| {
        let mut piece = [head, part].concat();
        let offload = restore(&mut piece, index * step, offload)?;
        Some((offload, piece))
    }))
}

//! Frames read from a port, one behind the other in one buffer.
//!
//! Small frames lie close together, so that a batch of them stays in the processor's cache; there is
//! always room for one more of the longest before a read.

use std::io;
use std::ops::Range;

use crate::daemon::io::port::{Port, VNET_BYTES};
use crate::daemon::stats::{LinkStats, PortStats};
use crate::offload::headers::Headers;
use crate::offload::owed::Owed;
use crate::offload::{mss, settle};

const LONGEST_BYTES: usize = 65_536 + 256;
const ARENA_BYTES: usize = 4 * LONGEST_BYTES;
const FRAMES: usize = 128;
/// Without options: the MSS counts them as payload.
const TCP_HEADER_BYTES: usize = 20;
/// Frames of so few bytes are none.
const SHORTEST_BYTES: usize = 14;

/// Takes its memory with the first batch.
#[derive(Default)]
pub struct Arena {
    bytes: Vec<u8>,
    frames: Vec<(Owed, Range<usize>)>,
}

impl Arena {
    /// Reads what waits, up to the room there is; whether nothing waits any more.
    ///
    /// Frames that owe what cannot be described are settled here, or counted and left out. TCP is told
    /// to make no frames longer than `limit_bytes`.
    pub fn fill(
        &mut self,
        port: &Port,
        port_stats: &PortStats,
        stats: &LinkStats,
        limit_bytes: Option<usize>,
    ) -> io::Result<bool> {
        self.frames.clear();
        self.bytes.resize(ARENA_BYTES, 0);
        let (mut end, mut bytes, mut count) = (0, 0, 0);
        let drained = loop {
            if count == FRAMES || self.bytes.len() - end < LONGEST_BYTES {
                break false;
            }
            let Some((header, range)) = port.read(&mut self.bytes[end..])? else { break true };
            let range = end + range.start..end + range.end;
            bytes += range.len() as u64;
            count += 1;
            // Aligned, so that the next header and frame are.
            end = (range.end + VNET_BYTES).next_multiple_of(16);
            let frame = &mut self.bytes[range.clone()];
            let headers = Headers::of(frame);
            let owed = (frame.len() >= SHORTEST_BYTES)
                .then(|| settle::settle(&header, headers.as_ref(), frame))
                .flatten();
            let Some(owed) = owed else {
                stats.malformed_frames.add(1);
                continue;
            };
            if let (Some(limit), Some(headers)) = (limit_bytes, &headers) {
                let mss = limit.saturating_sub(usize::from(headers.l4) + TCP_HEADER_BYTES);
                mss::clamp(&owed, headers, frame, mss.min(u16::MAX.into()) as u16);
            }
            self.frames.push((owed, range));
        };
        port_stats.frames_in.add(count as u64);
        port_stats.bytes_in.add(bytes);
        Ok(drained)
    }

    /// How many were read.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What was read.
    pub fn frames(&self) -> impl Iterator<Item = (Owed, &[u8])> {
        self.frames.iter().map(|(owed, range)| (*owed, &self.bytes[range.clone()]))
    }
}

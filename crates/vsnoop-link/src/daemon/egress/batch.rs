//! Frames read from a port, one behind the other in one buffer.
//!
//! Small frames lie close together, so that a batch of them stays in the processor's cache; there is
//! always room for one more of the longest before a read.

use std::io;
use std::ops::Range;

use vsnoop_frame::vnet::VirtioNetHdr;

use crate::daemon::io::port::{Port, VNET_BYTES};
use crate::daemon::stats::{LinkStats, PortStats};
use crate::offload::owed::Owed;

const LONGEST_BYTES: usize = 65_536 + 256;
const ARENA_BYTES: usize = 4 * LONGEST_BYTES;
const FRAMES: usize = 128;
/// Frames of so few bytes are none.
const SHORTEST_BYTES: usize = 14;

pub struct Arena {
    bytes: Box<[u8]>,
    frames: Vec<(VirtioNetHdr, Range<usize>)>,
}

impl Default for Arena {
    fn default() -> Self {
        Self { bytes: vec![0; ARENA_BYTES].into_boxed_slice(), frames: Vec::with_capacity(FRAMES) }
    }
}

impl Arena {
    /// Reads what waits, up to the room there is; whether nothing waits any more.
    pub fn fill(&mut self, port: &Port, stats: &PortStats) -> io::Result<bool> {
        self.frames.clear();
        let mut end = 0;
        let mut bytes = 0;
        let drained = loop {
            if self.frames.len() == FRAMES || self.bytes.len() - end < LONGEST_BYTES {
                break false;
            }
            let Some((header, range)) = port.read(&mut self.bytes[end..])? else { break true };
            let range = end + range.start..end + range.end;
            bytes += range.len();
            // Aligned, so that the next header and frame are.
            end = (range.end + VNET_BYTES).next_multiple_of(16);
            self.frames.push((header, range));
        };
        stats.frames_in.add(self.frames.len() as u64);
        stats.bytes_in.add(bytes as u64);
        Ok(drained)
    }

    /// What was read. Frames whose header is not understood are counted and left out.
    pub fn frames<'a>(&'a self, stats: &'a LinkStats) -> impl Iterator<Item = (Owed, &'a [u8])> {
        self.frames.iter().filter_map(move |(header, range)| {
            let frame = &self.bytes[range.clone()];
            match Owed::of(header) {
                Some(owed) if frame.len() >= SHORTEST_BYTES => Some((owed, frame)),
                _ => {
                    stats.malformed_frames.add(1);
                    None
                }
            }
        })
    }
}

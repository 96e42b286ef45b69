//! Frames read from a port, one behind the other in one buffer.
//!
//! Small frames lie close together, so that a batch of them stays in the processor's cache; there
//! is always room for one more of the longest before a read.

use std::io;
use std::ops::Range;

use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::state::OffloadState;
use vsnoop_packet::offload::{settle, udp};
use vsnoop_packet::vnet::{VNET_BYTES, VirtioNetHdr};

use crate::counters::stats::{LinkPortStats, LinkStats};
use crate::frames::frame::ParsedFrame;
use crate::io::port::LinkPort;
use crate::ports::own_packets::Own;

const LONGEST_BYTES: usize = 65_536 + 256;
const ARENA_BYTES: usize = 4 * LONGEST_BYTES;
const FRAMES: usize = 128;
/// Frames of so few bytes are none.
const SHORTEST_BYTES: usize = 14;

/// State of the port after a [`BatchBuffer`] was filled.
pub enum ReadEnd {
    Nothing,
    More,
    /// The port has failed; what was read before is there.
    Failed(io::Error),
}

/// Takes its memory with the first batch.
#[derive(Default)]
pub struct BatchBuffer {
    bytes: Vec<u8>,
    frames: Vec<ReadFrame>,
}

struct ReadFrame {
    offload: OffloadState,
    headers: Option<Headers>,
    range: Range<usize>,
}

impl BatchBuffer {
    /// Reads what waits, up to the room there is.
    ///
    /// An offload that [`OffloadState`] cannot describe is done here ([`settle`]), or the frame is
    /// dropped and counted. The link's own packets are dropped and counted, too.
    pub fn fill_from(
        &mut self,
        port: &LinkPort,
        port_stats: &LinkPortStats,
        stats: &LinkStats,
        own: Option<&Own>,
    ) -> ReadEnd {
        self.frames.clear();
        self.bytes.resize(ARENA_BYTES, 0);
        let (mut end, mut bytes, mut count) = (0, 0, 0);
        let left = loop {
            let room = self.bytes.len().saturating_sub(end);
            if count == FRAMES || room < LONGEST_BYTES {
                break ReadEnd::More;
            }
            let (header, range) = match port.read(&mut self.bytes[end..]) {
                Ok(Some(read)) => read,
                Ok(None) => break ReadEnd::Nothing,
                Err(error) if port.is_of_frame(&error) => {
                    count += 1;
                    stats.malformed_frames.add(1);
                    continue;
                }
                Err(error) => break ReadEnd::Failed(error),
            };
            let range = end + range.start..end + range.end;
            bytes += range.len() as u64;
            count += 1;
            // Aligned, so that the next header and frame are.
            end = (range.end + VNET_BYTES).next_multiple_of(16);
            let frame = &mut self.bytes[range.clone()];
            let headers = Headers::parse(frame);
            if let (Some(own), Some(headers)) = (own, &headers)
                && own.has_sent_or_gets(headers, frame)
            {
                stats.dropped_own.add(1);
                continue;
            }
            if udp::is_super_packet(&header) {
                let cut =
                    headers.and_then(|headers| self.cut_packet(&header, &headers, range, &mut end));
                stats.malformed_frames.add(u64::from(cut.is_none()));
                continue;
            }
            let offload = (frame.len() >= SHORTEST_BYTES)
                .then(|| settle::settle(&header, headers.as_ref(), frame))
                .flatten();
            let Some(offload) = offload else {
                stats.malformed_frames.add(1);
                continue;
            };
            self.frames.push(ReadFrame { offload, headers, range });
        };
        port_stats.frames_in.add(count as u64);
        port_stats.bytes_in.add(bytes);
        left
    }

    /// Puts the datagrams of a UDP super-packet behind it, from `end` on, which goes on.
    fn cut_packet(
        &mut self,
        header: &VirtioNetHdr,
        headers: &Headers,
        range: Range<usize>,
        end: &mut usize,
    ) -> Option<()> {
        let mut datagrams =
            udp::UdpSplit::from_header(header, headers, &self.bytes[range.clone()])?;
        // Nearly always there is room for them.
        let most = *end + datagrams.count() * datagrams.longest_bytes().next_multiple_of(16);
        self.bytes.resize(self.bytes.len().max(most), 0);
        let (before, space) = self.bytes.split_at_mut(*end);
        let (frame, mut at) = (&before[range], 0);
        while let Some(length) = datagrams.next(frame, &mut space[at..]) {
            let headers = Headers::parse(&space[at..at + length]);
            let begin = *end + at;
            let (offload, range) = (udp::UdpSplit::OFFLOAD, begin..begin + length);
            self.frames.push(ReadFrame { offload, headers, range });
            at += length.next_multiple_of(16);
        }
        *end = (*end + at + VNET_BYTES).next_multiple_of(16);
        Some(())
    }

    /// How many were read.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames that were read.
    pub fn frames(&self) -> impl Iterator<Item = ParsedFrame<'_>> {
        self.frames.iter().map(|frame| ParsedFrame {
            offload: frame.offload,
            headers: frame.headers,
            bytes: &self.bytes[frame.range.clone()],
        })
    }
}

//! A frame on its way through the link, as it lies in memory, and writing it to a port.

use std::io::IoSlice;

use vsnoop_packet::headers::{Headers, ethernet_hash};
use vsnoop_packet::offload::merge::Merged;
use vsnoop_packet::offload::state::OffloadState;

use super::io::port::{MAX_PARTS, Port};
use super::stats::PortStats;
use crate::queue::Kind;
use crate::wire::item::Way;

/// A frame that lies in parts; the first holds all headers.
pub struct Frame<'a> {
    pub offload: OffloadState,
    pub way: Way,
    head: &'a [u8],
    parts: &'a [&'a [u8]],
    pub bytes: usize,
    pub headers: Option<Headers>,
}

impl<'a> Frame<'a> {
    /// One that lies in one piece, `part[0]`.
    pub fn whole(offload: OffloadState, part: &'a [&'a [u8]; 1]) -> Self {
        let headers = Headers::of(part[0]);
        Self { offload, way: Way::Forwarded, head: &[], parts: part, bytes: part[0].len(), headers }
    }

    pub fn of(merged: &'a Merged<'_, 'a>) -> Self
    where
        'a: 'a,
    {
        let start = if merged.head.is_empty() { merged.parts[0] } else { merged.head };
        Self {
            offload: merged.offload,
            way: Way::Forwarded,
            head: merged.head,
            parts: merged.parts,
            bytes: merged.bytes,
            headers: Headers::of_start(start),
        }
    }

    /// The same on its way past the forwarding table.
    pub fn diverted(self) -> Self {
        Self { way: Way::Diverted, ..self }
    }

    /// The first part: Ethernet header and all that follows it up to the payload.
    pub fn start(&self) -> &'a [u8] {
        if self.head.is_empty() { self.parts[0] } else { self.head }
    }

    pub fn flow(&self) -> u64 {
        match &self.headers {
            Some(headers) => headers.flow_hash(self.start()),
            None => ethernet_hash(self.start()),
        }
    }

    pub fn kind(&self) -> Kind {
        match &self.headers {
            Some(headers) if headers.tcp() || headers.udp() => Kind::Flow,
            _ => Kind::Express,
        }
    }

    /// All bytes in one piece.
    pub fn gather_into(&self, whole: &mut Vec<u8>) {
        whole.clear();
        whole.extend_from_slice(self.head);
        self.parts.iter().for_each(|part| whole.extend_from_slice(part));
    }

    /// The same where it lies, if it lies in one piece; else gathered into `whole`.
    pub fn in_one_piece<'w>(&self, whole: &'w mut Vec<u8>) -> &'w [u8]
    where
        'a: 'w,
    {
        if self.head.is_empty() && self.parts.len() == 1 {
            return self.parts[0];
        }
        self.gather_into(whole);
        whole
    }

    /// All parts, head first, into `slices`; how many.
    pub fn gather<'s>(&'s self, slices: &mut [&'s [u8]]) -> usize {
        let mut count = 0;
        for part in std::iter::once(self.head).chain(self.parts.iter().copied()) {
            if !part.is_empty() && count < slices.len() {
                slices[count] = part;
                count += 1;
            }
        }
        count
    }
}

/// Writes a frame whose first bytes are `front` instead of its own; no more than [`Frame::start`]
/// has.
pub fn write(port: &Port, stats: &PortStats, front: &[u8], frame: &Frame<'_>) {
    let header = frame.offload.header(frame.headers.as_ref());
    let mut slices: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
    let mut count = 0;
    if !front.is_empty() {
        slices[0] = front;
        count = 1;
    }
    let rest = &mut slices[count..];
    count += frame.gather(rest);
    rest[0] = rest[0].get(front.len()..).unwrap_or_default();
    let mut parts = [IoSlice::new(&[]); MAX_PARTS];
    for (part, slice) in parts.iter_mut().zip(&slices[..count]) {
        *part = IoSlice::new(slice);
    }
    match port.write(&header, &parts[..count]) {
        Ok(true) => {
            stats.frames_out.add(1);
            stats.bytes_out.add(frame.bytes as u64);
        }
        // Full, or the device is down: a frame is lost, as on any network.
        Ok(false) | Err(_) => stats.dropped_out.add(1),
    }
}

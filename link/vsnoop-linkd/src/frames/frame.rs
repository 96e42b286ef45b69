//! A frame on its way through the link, as it lies in memory.
//!
//! Its headers are parsed once, where it is read ([`ParsedFrame`]) or handed to the merger, and its
//! flow is hashed at most once; both travel with it.

use std::cell::OnceCell;

use vsnoop_link::introduction::Label;
use vsnoop_link::queue::FrameKind;
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::item::Way;
use vsnoop_packet::format::SYN;
use vsnoop_packet::headers::{FlowHash, Headers, ethernet_hash};
use vsnoop_packet::offload::merge::Merged;
use vsnoop_packet::offload::state::OffloadState;

/// A frame that lies in parts; the first holds all headers.
pub struct Frame<'a> {
    pub offload: OffloadState,
    pub way: Way,
    /// By which the peer that gets it knows the one that has sent it.
    pub label: Option<Label>,
    head: &'a [u8],
    parts: &'a [&'a [u8]],
    pub bytes: usize,
    pub headers: Option<Headers>,
    /// The flow's hash, from when it is needed first.
    flow: OnceCell<FlowHash>,
}

impl<'a> Frame<'a> {
    /// One that lies in one piece, `part[0]`, whose headers have been parsed.
    pub fn parsed(
        offload: OffloadState,
        headers: Option<Headers>,
        part: &'a [&'a [u8]; 1],
    ) -> Self {
        Self {
            offload,
            way: Way::Forwarded,
            label: None,
            head: &[],
            parts: part,
            bytes: part[0].len(),
            headers,
            flow: OnceCell::new(),
        }
    }

    /// One that lies in one piece, `part[0]`.
    pub fn whole(offload: OffloadState, part: &'a [&'a [u8]; 1]) -> Self {
        Self::parsed(offload, Headers::parse(part[0]), part)
    }

    pub fn from_merged(merged: &'a Merged<'_, 'a>) -> Self
    where
        'a: 'a,
    {
        Self {
            offload: merged.offload,
            way: Way::Forwarded,
            label: None,
            head: merged.head,
            parts: merged.parts,
            bytes: merged.bytes,
            headers: merged.headers,
            flow: merged.flow.map_or_else(OnceCell::new, OnceCell::from),
        }
    }

    /// Sets its way: past the forwarding table, or to it.
    pub fn by(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// Sets the label with which a hub relays it.
    pub fn labelled(self, label: Option<Label>) -> Self {
        Self { label, ..self }
    }

    /// The first part: Ethernet header and all that follows it up to the payload.
    pub fn start(&self) -> &'a [u8] {
        if self.head.is_empty() { self.parts[0] } else { self.head }
    }

    /// The hash of the frame's flow; computed at most once.
    pub fn flow(&self) -> FlowHash {
        *self.flow.get_or_init(|| match &self.headers {
            Some(headers) => headers.flow_hash(self.start()),
            None => ethernet_hash(self.start()),
        })
    }

    /// It is the first of a TCP connection in its direction.
    pub fn is_syn(&self) -> bool {
        let tcp = self.headers.as_ref().and_then(|headers| headers.tcp_header(self.start()));
        tcp.is_some_and(|tcp| tcp.flags & SYN != 0)
    }

    pub fn kind(&self) -> FrameKind {
        match &self.headers {
            Some(headers) if headers.tcp() || headers.udp() => FrameKind::Flow,
            _ => FrameKind::Express,
        }
    }

    /// All bytes in one piece.
    pub fn gather_into(&self, whole: &mut Vec<u8>) {
        whole.clear();
        whole.extend_from_slice(self.head);
        self.parts.iter().for_each(|part| whole.extend_from_slice(part));
    }

    /// Borrows the frame where it lies, if it lies in one piece; else gathers it into `space`.
    pub fn in_one_piece<'w>(&self, space: &'w mut Vec<u8>) -> WholeFrame<'w>
    where
        'a: 'w,
    {
        let bytes = if self.head.is_empty() && self.parts.len() == 1 {
            self.parts[0]
        } else {
            self.gather_into(space);
            space
        };
        let Self { offload, way, label, headers, .. } = *self;
        WholeFrame { offload, way, label, headers, bytes }
    }

    /// All parts, head first, into `slices`; how many.
    pub fn gather_parts<'s>(&'s self, slices: &mut [&'s [u8]]) -> usize {
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

/// A frame of a port, with what was parsed of it.
#[derive(Clone, Copy)]
pub struct ParsedFrame<'a> {
    pub offload: OffloadState,
    pub headers: Option<Headers>,
    pub bytes: &'a [u8],
}

/// A frame in one piece.
#[derive(Clone, Copy)]
pub struct WholeFrame<'a> {
    pub offload: OffloadState,
    pub way: Way,
    pub label: Option<Label>,
    pub headers: Option<Headers>,
    pub bytes: &'a [u8],
}

/// Where a frame of a peer comes from. Frames of two peers, or of two ways, are of two flows
/// whatever their headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The peer by whose session it came.
    pub peer: PeerSlot,
    pub way: Way,
    /// The peer that it was relayed from, if its hub says so.
    pub behind: Option<PeerSlot>,
}

/// A frame as it came from a peer.
#[derive(Clone, Copy)]
pub struct ReceivedFrame<'a> {
    pub origin: Origin,
    pub offload: OffloadState,
    pub bytes: &'a [u8],
}

//! A connection's numbers, read from the segments of its ends.

use std::net::SocketAddr;

use vsnoop_split::{Connection, End};

use crate::segment::{ACK, RST, SYN, Segment};

/// The bytes and the fields that an end has sent.
#[derive(Debug, Default)]
pub struct Half {
    /// SEQ of its first byte.
    start: Option<u32>,
    /// All its bytes, in order.
    pub bytes: Vec<u8>,
    pub ack: u32,
    /// SEQ behind the last byte that it has allowed.
    pub edge: u32,
    mss: u16,
    scale: Option<u8>,
    sack: bool,
    tsval: Option<u32>,
    /// Segments with bytes that it had sent before.
    pub repeated: usize,
    /// It has sent a RST.
    pub reset: bool,
}

impl Half {
    pub fn see(&mut self, segment: &Segment) {
        if segment.has(SYN) {
            *self = Self::default();
            self.start = Some(segment.seq.wrapping_add(1));
            self.mss = segment.options.mss.unwrap_or(536);
            self.scale = segment.options.scale;
            self.sack = segment.options.sack;
        }
        self.reset |= segment.has(RST);
        self.tsval = segment.options.tsval.or(self.tsval);
        if segment.has(ACK) && !segment.has(RST) {
            self.see_ack(segment);
        }
        self.see_bytes(segment);
    }

    fn see_ack(&mut self, segment: &Segment) {
        let edge = self.edge_of(segment);
        let first = self.edge == 0;
        if first || before(self.ack, segment.ack) {
            self.ack = segment.ack;
        }
        if first || before(self.edge, edge) {
            self.edge = edge;
        }
    }

    /// SEQ behind the last byte that a segment of this end, or in its place, allows.
    pub fn edge_of(&self, segment: &Segment) -> u32 {
        let scale = if segment.has(SYN) { 0 } else { self.scale() };
        segment.ack.wrapping_add(u32::from(segment.window) << scale)
    }

    pub fn scale(&self) -> u8 {
        self.scale.unwrap_or(0)
    }

    fn see_bytes(&mut self, segment: &Segment) {
        let Some(start) = self.start else { return };
        let known = start.wrapping_add(self.bytes.len() as u32).wrapping_sub(segment.seq);
        if known > 0 && !segment.payload.is_empty() {
            self.repeated += 1;
        }
        if let Some(new) = segment.payload.get(known as usize..) {
            self.bytes.extend_from_slice(new);
        }
    }

    /// SEQ behind its last byte.
    pub fn sent(&self) -> u32 {
        self.start.unwrap_or(0).wrapping_add(self.bytes.len() as u32)
    }

    fn in_flight(&self, acknowledged: u32) -> &[u8] {
        let unacknowledged = self.sent().wrapping_sub(acknowledged) as i32;
        &self.bytes[self.bytes.len() - unacknowledged.max(0) as usize..]
    }

    fn end(&self, address: SocketAddr, other: &Self) -> End<'_> {
        End {
            address,
            ack: self.ack,
            window_bytes: self.edge.wrapping_sub(self.ack),
            shown_bytes: self.edge.wrapping_sub(self.ack),
            in_flight: self.in_flight(other.ack),
            mss: self.mss,
            scale: self.scale(),
            tsval: self.tsval.unwrap_or(0),
        }
    }
}

/// Both ends.
#[derive(Debug, Default)]
pub struct Record {
    pub vm: Half,
    pub peer: Half,
}

impl Record {
    pub fn connection(&self, vm: SocketAddr, peer: SocketAddr) -> Connection<'_> {
        Connection {
            vm: self.vm.end(vm, &self.peer),
            peer: self.peer.end(peer, &self.vm),
            sack: self.vm.sack && self.peer.sack,
            scales: self.vm.scale.is_some() && self.peer.scale.is_some(),
            timestamps: self.vm.tsval.is_some() && self.peer.tsval.is_some(),
        }
    }
}

pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

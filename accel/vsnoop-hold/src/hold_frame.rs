//! A frame that the engine hands to the VM, before it has headers: which bytes.

use vsnoop_flow::types::seq;

use crate::view::View;

/// Largest payload of a frame: an IPv6 packet has 65535 bytes with the TCP header and its options.
const LARGEST: u32 = 65_535 - 60;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes that the VM gets for the first time.
    Handover,
    /// A retransmission.
    Resend,
    /// A pure ACK with the sender's latest ACK and window.
    Ack,
    /// A window probe: with the next byte, or a keep-alive probe without data.
    Probe,
}

/// A segment, or a super-packet, for the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldFrame {
    /// SEQ of the first byte.
    pub seq: seq,
    /// Payload, bytes.
    pub len: u32,
    /// With the sender's FIN.
    pub fin: bool,
    /// Its kind.
    pub kind: Kind,
}

impl HoldFrame {
    /// SEQ after the last byte, or after the FIN.
    pub fn end(&self) -> seq {
        self.seq.add(self.len + u32::from(self.fin))
    }
}

/// Retransmission of the part of these bytes that the VM was handed, within its window.
pub fn again(view: &View, from: seq, until: seq) -> Option<HoldFrame> {
    // A FIN is sent with the last byte, or alone.
    let fin = view.fin && until.diff(view.tail) > 0;
    let until = until.min(view.tail).min(view.right_edge.max(view.vm_seq));
    let bytes = until.diff(from).max(0) as u32;
    let len = bytes.min(largest(view));
    let fin = fin && from.add(len) == view.tail && from.diff(view.tail) <= 0;
    (len > 0 || fin).then_some(HoldFrame { seq: from, len, fin, kind: Kind::Resend })
}

/// Held bytes that fit into the VM's window.
pub fn handover(view: &View) -> Option<HoldFrame> {
    let from = view.handed;
    if view.is_all_handed() || from.diff(view.first) < 0 {
        return None;
    }
    let limit = view.tail.min(view.right_edge);
    let len = (limit.diff(from).max(0) as u32).min(largest(view));
    let end = from.add(len);
    let is_last = end == view.tail;
    // Less than a segment is sent only at the end, or if the VM has nothing to acknowledge that
    // would open its window further (RFC 9293, section 3.8.6.2.1).
    if len < view.mss && !is_last && (len == 0 || from.diff(view.vm_seq) > 0) {
        return None;
    }
    // A FIN needs no room in the window.
    let fin = view.fin && is_last;
    (len > 0 || fin).then_some(HoldFrame { seq: from, len, fin, kind: Kind::Handover })
}

/// Payload of the largest frame: whole segments. The stack splits a super-packet that the tap does
/// not take, and does not tell whether the ring had room for all of its segments.
pub fn largest(view: &View) -> u32 {
    let segments = if view.super_packets { LARGEST / view.mss } else { 1 };
    segments.max(1) * view.mss
}

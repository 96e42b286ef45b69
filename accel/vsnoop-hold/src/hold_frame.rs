//! A frame that the engine hands to the VM, before it has headers.

use vsnoop_flow::types::seq;

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

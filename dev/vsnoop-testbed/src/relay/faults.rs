//! Faults that a relay injects, per direction.

use std::time::Duration;

use super::bottleneck::Bottleneck;

/// Faults of one direction; the default has none. Chances are 0.0 to 1.0, per frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// A frame is thrown away.
    pub loss: f64,
    /// A segment is thrown away. Super-packets are cut only where this hits one of their segments;
    /// those that it spares stay whole.
    pub segment_loss: f64,
    /// A frame is delivered twice.
    pub duplicate: f64,
    /// One bit of a frame, anywhere from the IP header on, is flipped, and the `virtio_net_hdr`
    /// asks the receiver to verify the checksum. A super-packet is cut first and one segment hit.
    /// (The Ethernet header is spared: a real one has a checksum of its own.)
    pub corrupt: f64,
    /// One bit of TCP payload is flipped in a frame whose checksum is left to the receiver, which
    /// therefore trusts it. No network does that: it proves that streams are verified.
    pub falsify: f64,
    /// A UDP datagram is changed, cut short or has a bit flipped, and its checksums made right
    /// again: what a receiver's kernel hands on.
    pub damage: f64,
    /// A copy from another source address follows a UDP datagram, half of the time damaged, as an
    /// attacker on the path could send it.
    pub forge: f64,
    /// A frame is held back by up to `reorder_by` while others pass it.
    pub reorder: f64,
    pub reorder_by: Duration,
    /// Every frame waits this long.
    pub delay: Duration,
    /// Frames that survive the other faults pass a link with a queue before it; super-packets are
    /// cut before that queue.
    pub bottleneck: Option<Bottleneck>,
    /// A frame gets an unused MAC address: a bridge floods it, every receiver drops it.
    pub misdirect: f64,
    /// An ECN-capable frame is marked CE.
    pub mark_ce: f64,
    /// TCP segments are cut to this payload.
    pub segment_bytes: Option<usize>,
    /// IP packets are cut into fragments of this payload.
    pub fragment_bytes: Option<usize>,
    /// IP packets that are longer are dropped without an ICMP message: a black hole, as of a router
    /// whose ICMP does not come through. Super-packets are cut first.
    pub longest_bytes: Option<usize>,
    /// Frames that are thrown away or cut up only if they carry TCP payload; ARP, handshakes and
    /// pure ACKs pass.
    pub data_only: bool,
    pub freeze: Freeze,
}

/// When nothing is read: frames then wait in the tap's ring, and are lost when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freeze {
    #[default]
    Never,
    /// Frozen until the faults are changed.
    Now,
    /// The last `frozen` of every `period`, like a VM that waits for its share of a CPU.
    Periodic { frozen: Duration, period: Duration },
}

impl Faults {
    /// Whether frames pass unchanged and uninspected.
    pub(super) fn leave_frames_alone(&self) -> bool {
        *self == Self { freeze: self.freeze, ..Self::default() }
    }

    /// Whether what happens depends on the packets that a network sees.
    pub(super) fn cut_super_packets(&self) -> bool {
        self.fragment_bytes.is_some() || self.bottleneck.is_some() || self.longest_bytes.is_some()
    }
}

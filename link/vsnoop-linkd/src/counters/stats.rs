//! Counters of a running link. Each is written by one thread and read by the control thread.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::counters::counts::Counter;
use crate::counters::cpu::Stopwatch;
use vsnoop_link::forwarding::DropReason;
use vsnoop_link::queue::QueueStats;

/// Frames dropped for one reason.
#[derive(Debug, Default)]
pub struct Drops {
    pub frames: Counter,
    pub bytes: Counter,
}

impl Drops {
    pub fn add(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }
}

/// Counters of one port.
#[derive(Debug, Default)]
pub struct LinkPortStats {
    /// From the VMs.
    pub frames_in: Counter,
    pub bytes_in: Counter,
    /// To the VMs.
    pub frames_out: Counter,
    pub bytes_out: Counter,
    /// The kernel had no room for them, or the port is down.
    pub dropped_out: Counter,
    /// From the VMs, with a source address that the port's `mac` or `address` does not allow.
    pub forged_in: Counter,
    /// From the VMs, for all, but not copied to peers: beyond `flood_rate`.
    pub flood_in: Counter,
    /// From the VMs, with a source address beyond those that the port may have.
    pub too_many_in: Counter,
    /// From and to the VMs, while the port is stopped because it closes a loop.
    pub stopped: Counter,
}

/// Counters of one peer.
#[derive(Debug, Default)]
pub struct PeerStats {
    /// Frames that the peer's transport took, and their bytes.
    pub frames_out: Counter,
    pub bytes_out: Counter,
    /// Their records on the wire, with headers, after compression.
    pub records_out: Counter,
    pub wire_bytes_out: Counter,
    pub frames_in: Counter,
    pub bytes_in: Counter,
    pub records_in: Counter,
    pub wire_bytes_in: Counter,
    /// For a peer without a session, or one that ended before they were sent.
    pub dropped_down: Drops,
    /// From the queue before the transport, to make room.
    pub dropped_full: Drops,
    /// From the queue before the transport, because they had waited too long.
    pub dropped_late: Drops,
    /// Datagrams that the kernel refused, or that could not be made.
    pub dropped_send: Drops,
    /// From the peer, for all, but not relayed: beyond `flood_rate`.
    pub dropped_flood: Drops,
    /// From the peer, not relayed: too much waited.
    pub dropped_relay: Drops,
    /// Records refused: forged, replayed, malformed.
    pub refused_in: Counter,
    /// Frames that met congestion on the path: their packets were marked, or dropped if their ends
    /// know no ECN.
    pub congested_in: Counter,
    /// Items of the session itself, more than it needs.
    pub excess_in: Counter,
    /// Compressed by what our hello does not accept; each ended its session.
    pub not_accepted_in: Counter,
    pub queue_bytes: Counter,
    /// Time spent in compression and decompression.
    pub compress_ns: Counter,
    pub decompress_ns: Counter,
    /// Time spent in encryption and decryption.
    pub seal: Stopwatch,
    pub open: Stopwatch,
    /// Bytes given to and got from the compressor, of what was compressed.
    pub compressed_from: Counter,
    pub compressed_to: Counter,
    /// Likewise, of what was decompressed.
    pub expanded_from: Counter,
    pub expanded_to: Counter,
}

impl PeerStats {
    /// [`PeerStats::bytes_out`] after compression.
    pub fn after_compression(&self) -> u64 {
        after(&self.bytes_out, &self.compressed_from, &self.compressed_to)
    }

    /// Counts what a queue has dropped between two looks at its counters.
    pub fn count_queue_drops(&self, before: QueueStats, now: QueueStats) {
        self.dropped_full.add(
            now.dropped_full_packets - before.dropped_full_packets,
            now.dropped_full_bytes - before.dropped_full_bytes,
        );
        self.dropped_late.add(
            now.dropped_late_packets - before.dropped_late_packets,
            now.dropped_late_bytes - before.dropped_late_bytes,
        );
    }

    /// [`PeerStats::bytes_in`] before decompression.
    pub fn before_expansion(&self) -> u64 {
        after(&self.bytes_in, &self.expanded_to, &self.expanded_from)
    }
}

/// Counters of the link.
#[derive(Debug, Default)]
pub struct LinkStats {
    /// Dropped by the forwarding table: no other location to go to, control frames.
    pub dropped_forwarding: Counter,
    /// Copies of a source that another location uses, too, beyond their rate.
    pub dropped_loop: Counter,
    /// The source is fixed to a port, and came from elsewhere.
    pub dropped_fixed: Counter,
    /// Datagrams of no session, or of a kind that is not understood.
    pub unknown_datagrams: Counter,
    /// Frames that the parser or the device's header refused.
    pub malformed_frames: Counter,
    /// The link's own packets, seen at a port.
    pub dropped_own: Counter,
}

impl LinkStats {
    /// Counts a frame that the forwarding table drops.
    pub fn count_drop(&self, reason: DropReason) {
        match reason {
            DropReason::Loop => self.dropped_loop.add(1),
            DropReason::Fixed => self.dropped_fixed.add(1),
            _ => self.dropped_forwarding.add(1),
        }
    }
}

/// Counters of one compression rule.
#[derive(Debug, Default)]
pub struct RuleStats {
    /// Frames for peers, and their bytes.
    pub frames: Counter,
    pub bytes: Counter,
    /// Bytes given to and got from the compressor, of what was compressed.
    pub compressed_from: Counter,
    pub compressed_to: Counter,
    /// In records, with their headers. Over UDP those that the kernel refused are included.
    pub wire_bytes: Counter,
    /// Frames, or parts of them over UDP, that went as they were although the rule would compress.
    pub raw: Counter,
    pub compress_ns: Counter,
    /// Flows in use, by what becomes of them: as of the last survey.
    pub flows: Mutex<BTreeMap<String, u64>>,
}

impl RuleStats {
    /// [`RuleStats::bytes`] after compression.
    pub fn after_compression(&self) -> u64 {
        after(&self.bytes, &self.compressed_from, &self.compressed_to)
    }
}

/// Counts `bytes`, of which `from` were compressed to `to`. In these are a few bytes of the
/// link's own with each frame, so that the difference alone could be more than there was.
fn after(bytes: &Counter, from: &Counter, to: &Counter) -> u64 {
    let saved = from.get().saturating_sub(to.get());
    bytes.get().saturating_sub(saved).max(to.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_was_not_compressed_and_what_became_of_the_rest() {
        for (bytes, from, to, left) in [
            (1000, 0, 0, 1000),
            (1000, 600, 100, 500),
            // With four bytes of the link's own in each of 25 frames.
            (1000, 1100, 40, 40),
        ] {
            let [bytes, from, to] = [bytes, from, to].map(|value| {
                let counter = Counter::default();
                counter.set(value);
                counter
            });
            assert_eq!(after(&bytes, &from, &to), left);
        }
    }
}

//! Counters of a relay, per direction.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts so far, of one direction.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Live {
            $(pub $name: AtomicU64,)*
        }

        impl Live {
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames read.
    frames,
    /// Bytes of those frames.
    bytes,
    /// TCP payload of those frames.
    payload_bytes,
    /// Super-packets among the frames read.
    super_packets,
    /// Frames read from another queue than the tap's first.
    other_queues,
    /// Frames written.
    delivered,
    lost,
    duplicated,
    corrupted,
    falsified,
    /// Datagrams that were changed on their way.
    damaged,
    /// Forged datagrams.
    forged,
    reordered,
    misdirected,
    marked,
    /// Segments that echo a mark (ECE without SYN).
    echoes,
    /// Packets that were cut into fragments.
    fragmented,
    /// Packets that a bottleneck had room for.
    queued,
    /// Bytes of those packets.
    queued_bytes,
    /// Packets that a bottleneck had no room for.
    dropped,
    /// Frames without the tags that this side must carry; dropped.
    untagged,
    /// Frames that found the delay line full; dropped.
    overflowed,
    /// Frames that the receiving device did not take, because of their form or its state.
    refused,
}

/// Adds one; only the relay's thread writes.
pub(super) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

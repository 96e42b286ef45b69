//! Numbers that count what passed; those of one session, for its state machine, have one writer.

use std::sync::atomic::{AtomicU64, Ordering};

use vsnoop_link::session::SessionTraffic;

#[derive(Debug, Default)]
pub struct SessionCounts {
    pub received_packets: Tally,
    pub received_bytes: Tally,
    pub expected_packets: Tally,
    pub sent_packets: Tally,
    pub sent_bytes: Tally,
    /// Rate of the path that one connection has measured, for those that have sent nothing yet:
    /// bytes per second, 0 if unknown.
    pub path_bytes_per_s: Tally,
}

/// A number with one writer: no locked instruction.
#[derive(Debug, Default)]
pub struct Tally(AtomicU64);

impl Tally {
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// For numbers that come and go, such as what waits in a queue.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl SessionCounts {
    pub fn traffic(&self) -> SessionTraffic {
        let received_packets = self.received_packets.get();
        SessionTraffic {
            received_packets,
            received_bytes: self.received_bytes.get(),
            expected_packets: self.expected_packets.get().max(received_packets),
            sent_packets: self.sent_packets.get(),
            sent_bytes: self.sent_bytes.get(),
        }
    }
}

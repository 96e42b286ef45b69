//! An unconfirmed connection: until the VM has sent something beyond its SYN-ACK it may have none,
//! because its listener's accept queue is full or because it keeps no state (SYN cookies).
//!
//! Data from ISS + 1 with the handshake's ACK complete the handshake; any other segment may destroy
//! it. So only such data are sent, after pauses of 200, 400, 800 ms and then of a second, by the
//! clock: the VM waits for its application, not for its CPU. They are sent earlier where other
//! connections show that the application accepts again (`listeners.rs`).

use vsnoop_flow::types::seq;

use crate::time::Time;

/// An unconfirmed connection is given up after this time by the clock, and `LIVE_NS` of live time.
const GIVE_UP_NS: u64 = 130_000_000_000;
const LIVE_NS: u64 = 100_000_000_000;
/// Times of the first attempt to confirm a connection and the longest pause between two, by the
/// clock.
const FIRST_NS: u64 = 200_000_000;
const PAUSE_MOST_NS: u64 = 1_000_000_000;

/// Attempts to complete the VM's handshake, by the clock.
#[derive(Clone, Debug)]
pub(crate) struct Confirmation {
    since: Time,
    next_ns: u64,
    attempted_ns: Option<u64>,
    pause_ns: u64,
    /// An attempt is under way, up to here.
    until: Option<seq>,
}

impl Confirmation {
    pub fn new(time: Time) -> Self {
        let next_ns = time.now_ns + FIRST_NS;
        Self { since: time, next_ns, attempted_ns: None, pause_ns: 2 * FIRST_NS, until: None }
    }

    /// Begins with an attempt at once.
    pub fn at_once(time: Time) -> Self {
        Self { next_ns: time.now_ns, ..Self::new(time) }
    }

    /// When the last attempt began, by the clock.
    pub fn attempted_ns(&self) -> Option<u64> {
        self.attempted_ns
    }

    /// The listener accepts again.
    pub fn attempt_at_once(&mut self, time: Time) {
        self.next_ns = time.now_ns;
    }

    /// When the next attempt begins, by the clock.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    pub fn is_over(&self, time: Time) -> bool {
        time.now_ns.saturating_sub(self.since.now_ns) >= GIVE_UP_NS
            && time.live_ns.saturating_sub(self.since.live_ns) >= LIVE_NS
    }

    /// Begins an attempt if it is time: what the VM was handed, up to `handed`, is sent again.
    /// Returns the end of the attempt that is under way.
    pub fn attempt_if_due(&mut self, time: Time, handed: seq, vm_seq: seq) -> Option<seq> {
        if time.now_ns >= self.next_ns {
            self.next_ns = time.now_ns + self.pause_ns;
            self.attempted_ns = Some(time.now_ns);
            self.pause_ns = (self.pause_ns * 2).min(PAUSE_MOST_NS);
            if handed != vm_seq {
                self.until = Some(handed);
            }
        }
        self.until
    }

    /// The attempt has been made, or there is nothing to send.
    pub fn end_attempt(&mut self) {
        self.until = None;
    }
}

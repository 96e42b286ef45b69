//! The interface of a VM's TCP.

use fastrand::Rng;

use crate::frame::Frame;

/// Implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `vsnoop_flow::testing::tcp`, made to be like Linux.
    Linux,
    /// The crate smoltcp.
    Smol,
    /// lwIP; only one such VM at a time.
    Lwip,
}

/// Progress of a connection, as the VM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The VM's TCP has accepted the sender's stream up to this position; the SYN is one.
    pub accepted: u64,
    /// All data and FINs were received and acknowledged, both ways.
    pub is_done: bool,
    /// It has ended in any other way.
    pub is_reset: bool,
    /// It is established, and not over.
    pub is_open: bool,
    /// Position of the sender's FIN, if the VM's TCP took it for the end before it had all bytes
    /// below.
    pub early_fin: Option<u64>,
}

/// A VM's TCP with its application, which checks what it receives.
pub trait Guest: std::fmt::Debug {
    /// Opens connection `c` from the VM.
    fn open(&mut self, c: usize, now: u64);
    fn abort(&mut self, c: usize);
    /// Processes a frame from the ring.
    fn input(&mut self, now: u64, frame: &Frame, rng: &mut Rng);
    /// Serves the timers that have expired.
    fn timers(&mut self, now: u64, rng: &mut Rng);
    fn next_timer(&mut self, now: u64) -> Option<u64>;
    /// It has memory for what comes, or has none; where the VM can be without.
    fn has_memory(&mut self, _now: u64, _has_memory: bool) {}
    /// Two sockets listen for connection `c`, where the VM can have them: the second once the first
    /// has sent a SYN-ACK.
    fn listen_twice(&mut self, _c: usize) {}
    /// Takes its output.
    fn output(&mut self) -> Vec<Frame>;
    fn progress(&self, c: usize) -> Progress;
    /// TCP payload that it has forwarded, lost bytes too.
    fn leg_bytes(&self) -> u64 {
        0
    }
    /// A copy with the same state, where that is possible.
    fn copy(&self) -> Box<dyn Guest>;
}

impl Clone for Box<dyn Guest> {
    fn clone(&self) -> Self {
        self.copy()
    }
}

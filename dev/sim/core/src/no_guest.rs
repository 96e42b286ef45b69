//! Stands where vsnoop-world has the TCP of a VM: here that is a node of ns-3.

use fastrand::Rng;
use vsnoop_world::frame::Frame;
use vsnoop_world::guest::{Guest, Progress};

#[derive(Debug)]
pub struct NoGuest;

impl Guest for NoGuest {
    fn open(&mut self, _c: usize, _now: u64) {}

    fn abort(&mut self, _c: usize) {}

    fn input(&mut self, _now: u64, _frame: &Frame, _rng: &mut Rng) {
        unreachable!("the host hands the ring's frames to ns-3");
    }

    fn timers(&mut self, _now: u64, _rng: &mut Rng) {}

    fn next_timer(&mut self, _now: u64) -> Option<u64> {
        None
    }

    fn output(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn progress(&self, _c: usize) -> Progress {
        unreachable!("ns-3 knows the progress of its connections");
    }

    fn copy(&self) -> Box<dyn Guest> {
        Box::new(NoGuest)
    }
}

//! Verified connections, one after the other by each of some workers, while something else happens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{Side, Topology};

use super::plan::Worker;

/// A VM that is slow to take what comes, so that the host holds it.
const SLOW_READ: Duration = Duration::from_millis(4);
const SLOW_BUFFER_BYTES: usize = 64 << 10;

/// What a worker repeats.
pub fn repeated(worker: &Worker) -> StreamPlan {
    let Worker { to_vm_bytes, from_vm_bytes, slow_vm, vm_opens } = *worker;
    let mut plan = StreamPlan { to_vm_bytes, from_vm_bytes, ..StreamPlan::default() };
    if slow_vm {
        plan.vm_dawdles = SLOW_READ;
        plan.socket.vm_receive_buffer_bytes = Some(SLOW_BUFFER_BYTES);
    }
    if vm_opens {
        plan.opener = Side::Vm;
    }
    plan
}

#[derive(Debug, Default)]
pub struct Load {
    stop: AtomicBool,
    complete: AtomicU64,
    bytes: AtomicU64,
    /// What was wrong with each of the others.
    broken: Mutex<Vec<String>>,
}

impl Load {
    /// Repeats `plan` until [`Load::stop`].
    pub fn work(&self, topology: &Topology, plan: &StreamPlan) {
        let mut seed = plan.seed;
        while !self.stop.load(Ordering::Relaxed) {
            seed += 1;
            let plan = StreamPlan { seed, ..plan.clone() };
            match Stream::run(topology, &plan) {
                Ok(outcome) if outcome.is_complete() => self.count(&plan),
                Ok(outcome) => self.broke(format!("{outcome:?}")),
                Err(error) => self.broke(format!("{error:#}")),
            }
        }
    }

    /// Counts a connection that is complete.
    pub fn count(&self, plan: &StreamPlan) {
        self.complete.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(plan.to_vm_bytes + plan.from_vm_bytes, Ordering::Relaxed);
    }

    /// Counts one that has failed.
    pub fn broke(&self, why: String) {
        eprintln!("a connection failed: {why}");
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    /// Workers end with the connection that they have.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn complete(&self) -> u64 {
        self.complete.load(Ordering::Relaxed)
    }

    /// Of complete connections, both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn broken(&self) -> usize {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

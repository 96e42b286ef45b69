//! A port with its counters, and writing frames to it.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::warn;
use vsnoop_link::forwarding::SourceFilter;

use crate::counters::stats::LinkPortStats;
use crate::frames::frame::Frame;
use crate::io::port::{LinkPort, MAX_PARTS};
use crate::threads::pairs::PairSlot;
use crate::threads::slots::BySlot;

/// Clones are the same port, with sources of their own.
#[derive(Clone)]
pub struct CountedPort {
    /// The queue that a pair of threads reads and writes, or the only one.
    pub port: Arc<LinkPort>,
    /// All queues, by pair; one of a port that has no more.
    queues: Arc<BySlot<PairSlot, Arc<LinkPort>>>,
    pub stats: Arc<LinkPortStats>,
    /// Source addresses that its VMs may use.
    pub sources: SourceFilter,
    /// Whether it carries no frames, because it closes a loop.
    is_stopped: Arc<AtomicBool>,
}

impl CountedPort {
    pub fn new(port: LinkPort) -> Self {
        Self::with_queues(port, Vec::new())
    }

    /// A port with more queues than its first.
    pub fn with_queues(first: LinkPort, others: Vec<LinkPort>) -> Self {
        let port = Arc::new(first);
        let others = others.into_iter().map(Arc::new);
        let queues = std::iter::once(Arc::clone(&port)).chain(others).collect();
        let queues = Arc::new(queues);
        Self {
            port,
            queues,
            stats: Arc::default(),
            sources: SourceFilter::default(),
            is_stopped: Arc::default(),
        }
    }

    /// The port as this pair of threads uses it.
    pub fn for_pair(&self, pair: PairSlot) -> Self {
        let port = self.queues.get(pair).unwrap_or(&self.port);
        Self { port: Arc::clone(port), ..self.clone() }
    }

    /// Whether each pair has a queue of its own.
    pub fn has_queues(&self) -> bool {
        self.queues.len() > 1
    }

    pub fn name(&self) -> &str {
        self.port.name()
    }

    /// Whether the port carries no frames, because it closes a loop.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Stops the port, or lets it carry frames again. A stopped tap has no carrier, so that a
    /// bridge sends its frames by other ports.
    pub fn set_stopped(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
        // Without it frames to a stopped port are lost until the bridge forgets their addresses.
        if let Err(error) = self.port.set_carrier(!is_stopped) {
            warn!("the carrier of port {} stays as it is: {error}", self.name());
        }
    }

    /// Whether a frame from the port has an allowed source; others are counted.
    pub fn allows(&self, frame: &Frame<'_>) -> bool {
        if self.is_stopped() {
            self.stats.stopped.add(1);
            return false;
        }
        let is_allowed = self.sources.check_source(frame.start()).is_ok();
        if !is_allowed {
            self.stats.forged_in.add(1);
        }
        is_allowed
    }

    /// Writes a frame; one that the port does not take is dropped and counted.
    pub fn write(&self, frame: &Frame<'_>) {
        if self.is_stopped() {
            return self.stats.stopped.add(1);
        }
        self.write_with_front(&[], frame);
    }

    /// Writes a frame whose first bytes are `front` instead of its own; no more than
    /// [`Frame::start`] has.
    pub fn write_with_front(&self, front: &[u8], frame: &Frame<'_>) {
        let header = frame.offload.header(frame.headers.as_ref(), frame.bytes);
        let mut slices: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
        let mut count = 0;
        if !front.is_empty() {
            slices[0] = front;
            count = 1;
        }
        let rest = &mut slices[count..];
        count += frame.gather_parts(rest);
        rest[0] = rest[0].get(front.len()..).unwrap_or_default();
        let mut parts = [IoSlice::new(&[]); MAX_PARTS];
        for (part, slice) in parts.iter_mut().zip(&slices[..count]) {
            *part = IoSlice::new(slice);
        }
        match self.port.write(&header, &parts[..count]) {
            Ok(true) => {
                self.stats.frames_out.add(1);
                self.stats.bytes_out.add(frame.bytes as u64);
            }
            // Full, or the device is down: a frame is lost, as on any network.
            Ok(false) | Err(_) => self.stats.dropped_out.add(1),
        }
    }
}

//! Sends frames to a peer over UDP.
//!
//! Frames become records that the receiver can use one by one, in any order. A super-packet is cut
//! into TCP segments that fit the path; a frame that cannot be cut is sent in fragments. With
//! compression it becomes units: of one datagram each on a path with losses, of a few on one
//! without. Records of one size collect in a batch and leave with one system call (`UDP_SEGMENT`).
//! The last record of a super-packet is padded if it is a few bytes shorter than the others, so
//! that the next super-packet can follow in the same call.
//!
//! [`Cutter`] makes items of frames, [`RecordSender`] seals them into batches for the socket.
//!
//! Each session has a socket of its own at the link's port. Its send buffer is small, about what
//! the path takes in a second divided by [`HELD_PARTS_OF_SECOND`], so that a slow peer fills no
//! buffer that others need. Frames that the socket does not take wait in a fair queue (FQ-CoDel,
//! RFC 8290), which may drop them; they are sealed when they leave it. Messages of the session
//! itself leave by the link's socket, ahead of the queue.

mod batch;
mod cutter;
mod sender;
#[cfg(test)]
mod tests;
mod transmitter;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use self::cutter::Cutter;
use self::sender::{FrameRecords, RecordSender};
use super::pieces::pieces_of;
use super::send_context::SendContext;
use crate::config::OuterConfig;
use crate::counters::counts::SessionCounts;
use crate::counters::stats::PeerStats;
use crate::frames::compression_policy::Compression;
use crate::frames::frame::{Frame, WholeFrame};
use crate::io::udp::{Endpoints, MAX_SEND_BYTES, Mark, UdpSocket};
use vsnoop_link::compress::{Codecs, Decision, Policy};
use vsnoop_link::introduction::Label;
use vsnoop_link::queue::{FairQueue, QueueLimits, QueueStats};
use vsnoop_link::wire::item::Way;
use vsnoop_link::wire::seal::Sealer;
use vsnoop_link::wire::traffic_class::{Copied, class_of};
use vsnoop_packet::headers::{FlowHash, Headers};
use vsnoop_packet::offload::state::OffloadState;

/// Number of flow labels (RFC 6437) over which a session spreads its flows.
const FLOW_LABELS: u64 = 64;

/// The socket's send buffer is 1/`HELD_PARTS_OF_SECOND` of what the path takes in a second, at
/// least `LEAST_HELD_BYTES` and at most `MOST_HELD_BYTES`; `FIRST_HELD_BYTES` until the rate is
/// known.
const HELD_PARTS_OF_SECOND: u64 = 250;
const LEAST_HELD_BYTES: usize = 32 << 10;
const MOST_HELD_BYTES: usize = 2 << 20;
const FIRST_HELD_BYTES: usize = 256 << 10;

/// A frame in the queue.
struct QueuedFrame {
    offload: OffloadState,
    way: Way,
    label: Option<Label>,
    bytes: Vec<u8>,
    flow: FlowHash,
    compression: Compression,
}

pub struct DatagramSender {
    cutter: Cutter,
    sender: RecordSender,
    /// Allocated when the first frame has to wait.
    queue: Option<Box<FairQueue<QueuedFrame>>>,
    /// The queue's counters at the last [`Self::count_dropped`].
    queue_stats: QueueStats,
    /// The rate that the socket's send buffer was last set for.
    held_for_bytes_per_s: Option<u64>,
    outer: OuterConfig,
}

impl DatagramSender {
    /// `limit_bytes`: see [`Self::set_limit`]. `accepted`: codecs that the receiver decompresses.
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        accepted: Codecs,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            cutter: Cutter::new(accepted),
            sender: RecordSender::new(sealer, address, limit_bytes, counts),
            queue: None,
            queue_stats: QueueStats::default(),
            held_for_bytes_per_s: None,
            outer: OuterConfig::default(),
        }
    }

    /// Sends by this socket from now on. No other session uses it.
    pub fn open_socket(&mut self, socket: UdpSocket) {
        self.sender.open_socket(socket);
        self.sender.bound_batch(FIRST_HELD_BYTES, MAX_SEND_BYTES);
    }

    /// The session's socket; `None` before [`Self::open_socket`].
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.sender.socket()
    }

    /// Sets which fields of the inner packets the datagrams copy.
    pub fn set_outer(&mut self, outer: OuterConfig) {
        self.outer = outer;
    }

    /// See [`RecordSender::set_gso`].
    pub fn set_gso(&mut self, gso: bool) {
        self.sender.set_gso(gso);
    }

    pub fn set_address(&mut self, ends: Endpoints) {
        self.sender.set_address(ends);
    }

    /// Sets the most bytes of a record.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.sender.set_limit(limit_bytes);
    }

    /// See [`Cutter::set_path`].
    pub fn set_path(&mut self, loss: f64, bytes_per_s: Option<u64>) {
        self.cutter.set_path(loss, bytes_per_s);
    }

    /// See [`RecordSender::is_blocked`].
    pub fn is_blocked(&self) -> bool {
        self.sender.is_blocked()
    }

    /// See [`RecordSender::take_too_long`].
    pub fn take_too_long(&mut self) -> Option<usize> {
        self.sender.take_too_long()
    }

    /// Bytes in the queue, and of records that the socket had no room for.
    pub fn queue_bytes(&self) -> usize {
        self.sender.waiting_bytes() + self.queue.as_ref().map_or(0, |queue| queue.bytes())
    }

    /// Counts the frames and records that wait as dropped, because the session ends.
    pub fn count_waiting_as_dropped(&self, stats: &PeerStats) {
        let waiting = self.queue.as_ref().map_or(0, |queue| queue.len());
        let records = self.sender.waiting_records();
        stats.dropped_down.add((waiting + records) as u64, self.queue_bytes() as u64);
    }

    /// See [`Cutter::find_decision`].
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        self.cutter.find_decision(flow, policy)
    }

    /// Adds a frame to the batch, compressed if its policy says so and that pays. If other frames
    /// wait, it is queued behind them. `scratch` is for a frame that does not lie in one piece.
    pub fn send_frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        if self.is_blocked() || self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            self.queue_frame(context, frame, compression, scratch);
        } else {
            let whole = frame.in_one_piece(scratch);
            self.add(context, &whole, || frame.flow(), compression);
        }
    }

    /// Queues a frame. On a slow path a super-packet is queued in pieces: a drop then costs its
    /// flow less, and other flows wait for a shorter time.
    fn queue_frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        let queue =
            self.queue.get_or_insert_with(|| Box::new(FairQueue::new(QueueLimits::default())));
        let (flow, unit_bytes) = (frame.flow(), queue.unit_bytes());
        let Frame { way, label, .. } = *frame;
        let mut push = |offload, bytes: Vec<u8>| {
            let (length, compression) = (bytes.len(), compression.clone());
            let waiting = QueuedFrame { offload, way, label, bytes, flow, compression };
            queue.push(flow, length, waiting, context.now_ns);
        };
        match pieces_of(frame, unit_bytes, scratch) {
            Some(pieces) => pieces.for_each(|(offload, piece)| push(offload, piece)),
            None => {
                let mut bytes = Vec::with_capacity(frame.bytes);
                frame.gather_into(&mut bytes);
                push(frame.offload, bytes);
            }
        }
        self.count_dropped(context.stats);
    }

    /// Sends what waits, as far as the socket has room.
    pub fn resume_sending(&mut self, context: SendContext<'_>) {
        if !self.sender.send_waiting(context.stats) {
            return;
        }
        while !self.is_blocked()
            && let Some(waiting) = self.queue.as_mut().and_then(|queue| queue.pop(context.now_ns))
        {
            let QueuedFrame { offload, way, label, bytes, flow, compression } = waiting;
            let headers = Headers::parse(&bytes);
            let whole = WholeFrame { offload, way, label, headers, bytes: &bytes };
            self.add(context, &whole, || flow, &compression);
        }
        self.flush(context);
        self.count_dropped(context.stats);
        self.bound_held();
    }

    /// Counts the frames that the queue has dropped since the last call.
    fn count_dropped(&mut self, stats: &PeerStats) {
        let Some(queue) = &self.queue else { return };
        let now = queue.stats();
        let before = std::mem::replace(&mut self.queue_stats, now);
        stats.count_queue_drops(before, now);
    }

    /// Sets the socket's send buffer by the rate at which the queue drains.
    fn bound_held(&mut self) {
        let Some(queue) = self.queue.as_ref().filter(|_| self.sender.socket().is_some()) else {
            return;
        };
        let rate = queue.rate_bytes_per_s();
        if rate == self.held_for_bytes_per_s {
            return;
        }
        self.held_for_bytes_per_s = rate;
        if let Some(rate) = rate {
            let bytes = usize::try_from(rate / HELD_PARTS_OF_SECOND).unwrap_or(usize::MAX);
            let held_bytes = bytes.clamp(LEAST_HELD_BYTES, MOST_HELD_BYTES);
            self.sender.bound_batch(held_bytes, queue.unit_bytes());
        }
    }

    /// Adds a frame that lies in one piece to the batch.
    fn add(
        &mut self,
        context: SendContext<'_>,
        whole: &WholeFrame<'_>,
        flow: impl FnOnce() -> FlowHash,
        compression: &Compression,
    ) {
        let before = self.sender.sealed_bytes();
        let needs_flow = self.outer.flow_label || compression.policy.is_some();
        let flow = if needs_flow { flow() } else { FlowHash(0) };
        let (mark, label) = (self.mark_of(whole, flow), whole.label);
        let mut records = FrameRecords { sender: &mut self.sender, context, mark, label };
        self.cutter.cut_frame(&mut records, whole, flow, compression);
        compression.rule_stats.wire_bytes.add(self.sender.sealed_bytes() - before);
    }

    /// Traffic class and flow label of a frame's datagrams.
    fn mark_of(&self, whole: &WholeFrame<'_>, flow: FlowHash) -> Mark {
        let OuterConfig { dscp, ecn, flow_label } = self.outer;
        let class = Copied { dscp, ecn }.outer_class(class_of(whole.headers.as_ref(), whole.bytes));
        // Records of one batch have one label, so few labels keep batches large.
        let label = if flow_label { 1 + (flow.0 % FLOW_LABELS) as u32 } else { 0 };
        Mark { class, label }
    }

    /// Sends a message of the session; see [`RecordSender::send_message`].
    pub fn send_message(
        &mut self,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        self.sender.send_message(context, item, pad_to, to, self.outer.dscp);
    }

    /// Sends the batch, and keeps the records that the socket has no room for.
    pub fn flush(&mut self, context: SendContext<'_>) {
        self.sender.flush(context.stats);
    }
}

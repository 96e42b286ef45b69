//! Seals records into batches, and keeps those that the session's socket has no room for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::batch::{RecordBatch, Records};
use super::transmitter::Transmitter;
use crate::counters::counts::SessionCounts;
use crate::counters::stats::PeerStats;
use crate::egress::send_context::SendContext;
use crate::io::udp::{Endpoints, MAX_SEND_BYTES, Mark, UdpSocket};
use vsnoop_link::introduction::Label;
use vsnoop_link::wire::seal::{HEADER_BYTES, Sealer};

/// Class selector 6, for network control (RFC 4594), as a traffic class.
const CONTROL_CLASS: u8 = 48 << 2;

/// Records that the socket had no room for.
struct SealedRecords {
    bytes: Vec<u8>,
    segment_bytes: usize,
    mark: Mark,
}

impl SealedRecords {
    fn as_records(&self) -> Records<'_> {
        let Self { segment_bytes, mark, .. } = *self;
        Records { bytes: &self.bytes, segment_bytes, mark }
    }
}

pub struct RecordSender {
    sealer: Sealer,
    batch: RecordBatch,
    transmitter: Transmitter,
    /// Records that the socket had no room for.
    waiting: VecDeque<SealedRecords>,
    /// The longest record: the path MTU without IP and UDP header.
    limit_bytes: usize,
    /// A record of the session itself.
    message: Vec<u8>,
    /// Sum of all records so far.
    sealed_bytes: u64,
}

/// The records of one frame.
pub struct FrameRecords<'a> {
    pub sender: &'a mut RecordSender,
    pub context: SendContext<'a>,
    pub mark: Mark,
    /// The label of the frame's sender at a hub.
    pub label: Option<Label>,
}

impl FrameRecords<'_> {
    /// Most bytes of an item, which is a record without header and tag.
    pub fn item_limit(&self) -> usize {
        self.sender.item_limit()
    }

    /// Adds an item that lies in parts.
    pub fn add_item(&mut self, parts: &[&[u8]]) {
        let item_bytes = parts.iter().map(|part| part.len()).sum();
        self.add_written(item_bytes, |space| {
            let mut rest = space;
            for part in parts {
                let (start, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
                start.copy_from_slice(part);
                rest = behind;
            }
            Some(item_bytes)
        });
    }

    /// Adds an item of at most `most_bytes`, which `write` puts into the batch itself; it returns
    /// the item's length. Returns `false`, and adds nothing, if `write` does. Drops and counts an
    /// item that is longer than a batch, which is an error of the caller.
    pub fn add_written(
        &mut self,
        most_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let Self { context, mark, label, .. } = *self;
        let sender = &mut *self.sender;
        let overhead_bytes = sender.sealer.suite().overhead_bytes();
        let most_record_bytes = most_bytes + overhead_bytes;
        if most_record_bytes > MAX_SEND_BYTES {
            context.stats.dropped_send.add(1, most_record_bytes as u64);
            return true;
        }
        if !sender.batch.admits(most_record_bytes, mark) {
            sender.flush(context.stats);
        }
        let space = sender.batch.record_space(most_record_bytes);
        let Some(bytes) = write(&mut space[HEADER_BYTES..HEADER_BYTES + most_bytes]) else {
            return false;
        };
        let record = &mut space[..bytes + overhead_bytes];
        let (stats, record_bytes) = (context.stats, record.len());
        if stats.seal.time(|| sender.sealer.seal_labelled(record, label.map_or(0, Label::number))) {
            sender.batch.add(record_bytes, mark);
            sender.sealed_bytes += record_bytes as u64;
        } else {
            stats.dropped_send.add(1, record_bytes as u64);
        }
        true
    }
}

impl RecordSender {
    /// `limit_bytes`: see [`set_limit`](Self::set_limit).
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            sealer,
            batch: RecordBatch::new(),
            transmitter: Transmitter::new(address, counts),
            waiting: VecDeque::new(),
            limit_bytes,
            message: Vec::new(),
            sealed_bytes: 0,
        }
    }

    /// Sends by this socket from now on. No other session uses it.
    pub fn open_socket(&mut self, socket: UdpSocket) {
        self.transmitter.socket = Some(socket);
    }

    /// The session's socket; `None` before [`open_socket`](Self::open_socket).
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.transmitter.socket.as_ref().map(UdpSocket::as_fd)
    }

    /// Bounds the kernel's send buffer and the batches.
    pub fn bound_batch(&mut self, held_bytes: usize, batch_bytes: usize) {
        if let Some(socket) = &self.transmitter.socket {
            socket.hold_at_most(held_bytes);
        }
        self.batch.set_limit(batch_bytes);
    }

    /// Whether records of a batch leave with one system call, or one by one.
    pub fn set_gso(&mut self, gso: bool) {
        self.transmitter.gso = gso;
    }

    pub fn set_address(&mut self, ends: Endpoints) {
        self.transmitter.set_address(ends);
    }

    /// Sets the most bytes of a record.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    fn item_limit(&self) -> usize {
        self.limit_bytes.saturating_sub(self.sealer.suite().overhead_bytes())
    }

    /// The sum of all records so far.
    pub fn sealed_bytes(&self) -> u64 {
        self.sealed_bytes
    }

    /// The length of the shortest datagram that the host refused with EMSGSIZE since the last call.
    pub fn take_too_long(&mut self) -> Option<usize> {
        self.transmitter.take_too_long()
    }

    /// Whether the socket had no room; then the caller waits until it is writable.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of records that the socket had no room for.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|sealed| sealed.bytes.len()).sum()
    }

    /// Number of records that the socket had no room for.
    pub fn waiting_records(&self) -> usize {
        let records = |sealed: &SealedRecords| sealed.bytes.len().div_ceil(sealed.segment_bytes);
        self.waiting.iter().map(records).sum()
    }

    /// Sends the records that wait; `false`: the socket has no room for all.
    pub fn send_waiting(&mut self, stats: &PeerStats) -> bool {
        while let Some(sealed) = self.waiting.pop_front() {
            let sent = self.transmitter.transmit_records(stats, sealed.as_records());
            if sent < sealed.bytes.len() {
                let bytes = sealed.bytes[sent..].to_vec();
                self.waiting.push_front(SealedRecords { bytes, ..sealed });
                return false;
            }
        }
        true
    }

    /// Sends the batch, and keeps the records that the socket has no room for.
    pub fn flush(&mut self, stats: &PeerStats) {
        let Some(records) = self.batch.records() else { return };
        let is_blocked = !self.waiting.is_empty();
        let sent = if is_blocked { 0 } else { self.transmitter.transmit_records(stats, records) };
        let Records { bytes, segment_bytes, mark } = records;
        if sent < bytes.len() {
            let bytes = bytes[sent..].to_vec();
            self.waiting.push_back(SealedRecords { bytes, segment_bytes, mark });
        }
        self.batch.clear();
    }

    /// Sends a message of the session at once, in a datagram of its own, padded to `pad_to` bytes.
    /// It leaves by the link's socket, which carries no frames. `to` replaces the session's
    /// address.
    pub fn send_message(
        &mut self,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
        copies_dscp: bool,
    ) {
        let SendContext { udp, stats, .. } = context;
        // Without it, traffic that a VM marks as urgent delays probes, and the peer seems down.
        let class = if copies_dscp { CONTROL_CLASS } else { 0 };
        let control_mark = Mark { class, ..Mark::default() };
        let record_bytes = pad_to.max(item.len() + self.sealer.suite().overhead_bytes());
        let mut record = std::mem::take(&mut self.message);
        record.clear();
        record.resize(HEADER_BYTES, 0);
        record.extend_from_slice(item);
        record.resize(record_bytes, 0);
        if stats.seal.time(|| self.sealer.seal(&mut record)) {
            self.transmitter.send_alone(udp, stats, &record, control_mark, to);
        } else {
            stats.dropped_send.add(1, record_bytes as u64);
        }
        self.message = record;
    }

    /// Has records wait as if the socket had had no room for them.
    #[cfg(test)]
    pub fn push_waiting(&mut self, bytes: Vec<u8>, segment_bytes: usize) {
        self.waiting.push_back(SealedRecords { bytes, segment_bytes, mark: Mark::default() });
    }
}

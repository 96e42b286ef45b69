//! Sends items to a peer over one data connection of an ordered transport.
//!
//! The kernel keeps little that is not yet on the wire (`TCP_NOTSENT_LOWAT`). Items that the socket
//! does not take wait in a fair queue, which drops whole super-packets at its entry before anything
//! waits long. Compression and encryption come after the queue, since their state must follow
//! exactly what is sent. A frame that need not wait goes from the port's buffer through compression
//! and encryption to the socket without another copy.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use socket2::SockRef;

use super::path_rate::PathRate;
use crate::counters::counts::SessionCounts;
use crate::counters::stats::{PeerStats, RuleStats};
use crate::frames::compression_policy::Compression;
use crate::io::tcp::Sending;
use vsnoop_link::compress::{Decision, Encoded, Encoder, Policy};
use vsnoop_link::queue::{FairQueue, QueueLimits, QueueStats};
use vsnoop_link::wire::item::COMPRESSED;
use vsnoop_link::wire::stream::LENGTH_BYTES;
use vsnoop_packet::headers::FlowHash;

/// The kernel holds 2 ms of what the path takes, within these bounds: it must never run dry.
const UNSENT_PARTS_OF_SECOND: u64 = 500;
const LEAST_UNSENT_BYTES: u64 = 16 << 10;
const MOST_UNSENT_BYTES: u64 = 1 << 20;
/// Parts that an item may lie in.
const MAX_PARTS: usize = 80;

/// An item that waits.
struct QueuedItem {
    bytes: Vec<u8>,
    flow: FlowHash,
    compression: Compression,
}

pub struct ConnectionSender {
    socket: TcpStream,
    tls: rustls::Connection,
    queue: FairQueue<QueuedItem>,
    /// The part of the queue's statistics that was counted.
    queue_stats: QueueStats,
    encoder: Encoder,
    /// The socket had no room.
    blocked: bool,
    compressed: Vec<u8>,
    spare: Vec<Vec<u8>>,
    path: PathRate,
    counts: Arc<SessionCounts>,
    /// When something was sent last.
    sent_ns: u64,
}

/// An item to send on a connection.
pub struct Outgoing<'a> {
    /// Hash of the frame's flow and owner; selects the queue and the compression context.
    pub flow: FlowHash,
    pub parts: &'a [&'a [u8]],
    pub compression: &'a Compression,
}

impl ConnectionSender {
    pub fn new(
        socket: TcpStream,
        tls: rustls::Connection,
        limits: QueueLimits,
        encoder: Encoder,
        counts: Arc<SessionCounts>,
    ) -> Self {
        hold_unsent(&socket, LEAST_UNSENT_BYTES);
        Self {
            socket,
            tls,
            queue: FairQueue::new(limits),
            queue_stats: QueueStats::default(),
            encoder,
            blocked: false,
            compressed: Vec::new(),
            spare: Vec::new(),
            path: PathRate::default(),
            counts,
            sent_ns: 0,
        }
    }

    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Nothing was sent for this time, and nothing waits.
    pub fn is_silent(&self, for_ns: u64, now_ns: u64) -> bool {
        !self.blocked && self.queue.is_empty() && now_ns.saturating_sub(self.sent_ns) >= for_ns
    }

    /// How long items should be, see [`FairQueue::unit_bytes`].
    pub fn unit_bytes(&self) -> usize {
        self.queue.unit_bytes()
    }

    pub fn queue_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// See [`Encoder::find_decision`].
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        self.encoder.find_decision(flow, policy)
    }

    /// Measures the path's rate now and then, for the compressor and for the bound of the kernel's
    /// send buffer.
    fn sample_path_rate(&mut self, now_ns: u64) {
        if !self.path.is_due(now_ns) {
            return;
        }
        let changed = self.path.take_sample(self.blocked, Sending::read(&self.socket), now_ns);
        if changed {
            self.counts.path_bytes_per_s.set(self.path.bytes_per_s().unwrap_or(0));
        }
        if changed || self.path.suppose_rate(self.counts.path_bytes_per_s.get()) {
            let rate = self.path.bytes_per_s();
            self.encoder.set_link_rate(rate);
            if let Some(rate) = rate {
                hold_unsent(&self.socket, rate / UNSENT_PARTS_OF_SECOND);
            }
        }
    }

    /// Sends an item, or queues it. An error ends the connection.
    pub fn send(&mut self, item: &Outgoing<'_>, now_ns: u64, stats: &PeerStats) -> io::Result<()> {
        self.sample_path_rate(now_ns);
        if !self.blocked && self.queue.is_empty() {
            self.encode_frame(item.flow, item.compression, item.parts, now_ns, stats)?;
            return self.write(now_ns);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        for part in item.parts {
            bytes.extend_from_slice(part);
        }
        let length = bytes.len();
        let waiting = QueuedItem { bytes, flow: item.flow, compression: item.compression.clone() };
        self.queue.push(item.flow, length, waiting, now_ns);
        self.count_dropped(stats);
        Ok(())
    }

    /// Counts the items that the queue has dropped since the last call.
    fn count_dropped(&mut self, stats: &PeerStats) {
        let now = self.queue.stats();
        let before = std::mem::replace(&mut self.queue_stats, now);
        stats.count_queue_drops(before, now);
    }

    /// Ends the connection; waiting items are dropped.
    pub fn count_waiting_as_dropped(&self, stats: &PeerStats) {
        stats.dropped_down.add(self.queue.len() as u64, self.queue.bytes() as u64);
    }

    /// Goes on when the socket may have room.
    pub fn go_on(&mut self, now_ns: u64, stats: &PeerStats) -> io::Result<()> {
        self.listen()?;
        self.blocked = false;
        self.write(now_ns)?;
        while !self.blocked {
            let waiting = self.queue.pop(now_ns);
            self.count_dropped(stats);
            let Some(waiting) = waiting else { break };
            let QueuedItem { bytes, flow, compression } = waiting;
            self.encode_frame(flow, &compression, &[&bytes], now_ns, stats)?;
            if self.spare.len() < 8 {
                self.spare.push(bytes);
            }
            self.write(now_ns)?;
        }
        Ok(())
    }

    /// Reads what the peer sends on this connection: TLS messages and its end, and no data.
    fn listen(&mut self) -> io::Result<()> {
        let tls = &mut self.tls;
        let ended = loop {
            match tls.read_tls(&mut self.socket) {
                Ok(0) => break true,
                Ok(_) => {
                    let state = tls.process_new_packets().map_err(io::Error::other)?;
                    if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                        break true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => return Err(error),
            }
        };
        if ended { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    /// Compresses the item, where that is wanted and pays, and encrypts it.
    fn encode_frame(
        &mut self,
        flow: FlowHash,
        compression: &Compression,
        parts: &[&[u8]],
        now_ns: u64,
        stats: &PeerStats,
    ) -> io::Result<()> {
        let before = parts.iter().map(|part| part.len()).sum::<usize>() as u64;
        self.path.note_carried(before);
        self.sent_ns = now_ns;
        let rule_stats = &compression.rule_stats;
        if let Some(policy) = &compression.policy {
            self.compressed.clear();
            let before_ns = self.encoder.stats().busy_ns;
            let encoded = self.encoder.encode(flow, policy, parts, now_ns, &mut self.compressed);
            let spent_ns = self.encoder.stats().busy_ns - before_ns;
            stats.compress_ns.add(spent_ns);
            rule_stats.compress_ns.add(spent_ns);
            if encoded == Encoded::Compressed {
                let after = self.compressed.len() as u64;
                stats.compressed_from.add(before);
                stats.compressed_to.add(after);
                rule_stats.compressed_from.add(before);
                rule_stats.compressed_to.add(after);
                let body = std::mem::take(&mut self.compressed);
                let done = self.encrypt_parts(&[&[COMPRESSED], &body], stats, rule_stats);
                self.compressed = body;
                return done;
            }
            rule_stats.raw.add(1);
        }
        self.encrypt_parts(parts, stats, rule_stats)
    }

    fn encrypt_parts(
        &mut self,
        parts: &[&[u8]],
        stats: &PeerStats,
        rule_stats: &RuleStats,
    ) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        stats.records_out.add(1);
        self.counts.sent_packets.add(1);
        self.counts.sent_bytes.add(bytes as u64);
        let length = (bytes as u32).to_be_bytes();
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 1];
        slices[0] = IoSlice::new(&length);
        if parts.len() > MAX_PARTS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        stats.wire_bytes_out.add((LENGTH_BYTES + bytes) as u64);
        rule_stats.wire_bytes.add((LENGTH_BYTES + bytes) as u64);
        let slices = &slices[..=parts.len()];
        let given = stats.seal.time(|| self.tls.writer().write_vectored(slices))?;
        if given == LENGTH_BYTES + bytes {
            Ok(())
        } else {
            Err(io::Error::other("TLS took a part of an item only"))
        }
    }

    /// Writes encrypted bytes, as far as the socket takes them.
    fn write(&mut self, now_ns: u64) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    self.sample_path_rate(now_ns);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Lets the kernel hold so much that is not yet on the wire.
fn hold_unsent(socket: &TcpStream, bytes: u64) {
    let bytes = bytes.clamp(LEAST_UNSENT_BYTES, MOST_UNSENT_BYTES);
    // If it is refused, it stays as it was.
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(bytes as u32);
}

impl AsFd for ConnectionSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;
    use crate::counters::cpu::coding_clock;
    use crate::handshake::tcp_handshake::testing::connected;
    use vsnoop_link::compress::CompressionLimits;

    /// A connection over the loopback interface, and its far end.
    pub fn connection() -> (ConnectionSender, TcpStream) {
        let (near, far) = connected();
        let (socket, mut tls) = (near.stream, near.outcome.tls);
        socket.set_nonblocking(true).unwrap();
        tls.set_buffer_limit(None);
        let encoder = Encoder::new(CompressionLimits::MOST, coding_clock());
        let limits = QueueLimits::default();
        (ConnectionSender::new(socket, tls, limits, encoder, Arc::default()), far.stream)
    }

    pub fn uncompressed() -> Compression {
        Compression { policy: None, rule_stats: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::testing::{connection, uncompressed};
    use super::*;
    use vsnoop_link::compress::{Method, Owner};

    const BYTES: usize = 1000;

    /// Sends items of many flows until the socket is full and this number of items waits.
    fn fill(connection: &mut ConnectionSender, waiting: usize, stats: &PeerStats) {
        let compression = uncompressed();
        for flow in (0..).map(FlowHash) {
            let parts: &[&[u8]] = &[&[0; BYTES]];
            connection
                .send(&Outgoing { flow, parts, compression: &compression }, 0, stats)
                .unwrap();
            if connection.queue.len() >= waiting || stats.dropped_full.frames.get() > 0 {
                return;
            }
        }
    }

    #[test]
    fn a_class_has_the_bytes_on_the_wire_that_its_frames_became_compressed_or_not() {
        let (mut connection, _far) = connection();
        let stats = PeerStats::default();
        let policy = Policy { method: Method::Lz4, owner: Owner::Named(0), dictionary: None };
        let compressed = Compression { policy: Some(policy), rule_stats: Arc::default() };
        let mut sum = 0;
        for compression in [&uncompressed(), &compressed] {
            // The header is the link's own, and not of the frame.
            let parts: &[&[u8]] = &[&[0; 2], &[b'a'; BYTES]];
            connection
                .send(&Outgoing { flow: FlowHash(1), parts, compression }, 0, &stats)
                .unwrap();
            let rule_stats = &compression.rule_stats;
            rule_stats.bytes.add(BYTES as u64);
            let after = rule_stats.after_compression();
            assert_eq!(after == BYTES as u64, compression.policy.is_none(), "{after}");
            let headers = rule_stats.wire_bytes.get() - after;
            assert!((1..100).contains(&headers), "{headers}");
            sum += rule_stats.wire_bytes.get();
            assert_eq!(stats.wire_bytes_out.get(), sum);
        }
        assert!(compressed.rule_stats.wire_bytes.get() < BYTES as u64 / 2);
    }

    #[test]
    fn what_finds_no_room_is_counted_in_frames_and_bytes() {
        let (mut connection, _far) = connection();
        let stats = PeerStats::default();
        fill(&mut connection, usize::MAX, &stats);
        let drops = &stats.dropped_full;
        assert_eq!((drops.frames.get(), drops.bytes.get()), (1, BYTES as u64));
        assert_eq!(stats.dropped_late.frames.get(), 0);
    }

    #[test]
    fn what_has_waited_too_long_is_counted_in_frames_and_bytes() {
        let (mut connection, mut far) = connection();
        let stats = PeerStats::default();
        fill(&mut connection, 100, &stats);
        let waiting = connection.queue.len() as u64;
        far.set_nonblocking(true).unwrap();
        // A minute later there is room again.
        while !connection.queue.is_empty() {
            while matches!(far.read(&mut [0; 65_536]), Ok(1..)) {}
            connection.go_on(60_000_000_000, &stats).unwrap();
        }
        let drops = &stats.dropped_late;
        assert!(waiting > 0 && drops.frames.get() > 0);
        assert_eq!(drops.frames.get() + connection.queue.stats().popped_packets, waiting);
        assert_eq!(drops.bytes.get(), drops.frames.get() * BYTES as u64);
    }

    #[test]
    fn what_waits_when_a_connection_ends_is_counted() {
        let (mut connection, _far) = connection();
        let stats = PeerStats::default();
        fill(&mut connection, 100, &stats);
        connection.count_waiting_as_dropped(&stats);
        let drops = &stats.dropped_down;
        assert_eq!((drops.frames.get(), drops.bytes.get()), (100, 100 * BYTES as u64));
    }
}

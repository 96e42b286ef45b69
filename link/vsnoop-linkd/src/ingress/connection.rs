//! Receives items from a peer over one data connection of an ordered transport.

use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::budget::Budget;
use crate::counters::counts::SessionCounts;
use crate::counters::stats::PeerStats;
use crate::threads::fault::ReceiveError;
use vsnoop_link::compress::{DecodeError, Decoder};
use vsnoop_link::wire::item::{Item, Way};
use vsnoop_link::wire::stream::{Cutter, LENGTH_BYTES, TooLong};
use vsnoop_packet::offload::state::OffloadState;

/// Besides the peer's budget, bounds how long one connection occupies the thread.
const READS_PER_PASS: usize = 16;

/// Most bytes of one read.
const RAW_BYTES: usize = 256 << 10;

/// Data received on a connection.
pub enum ReceivedItem<'a> {
    Frame(OffloadState, Way, &'a [u8]),
    Message(&'a [u8]),
}

/// The reason why [`ConnectionReceiver::receive`] stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing here; the socket may have more.
    Nothing,
    /// Bytes that were read already: the peer's budget of the round is used up.
    Read,
}

pub struct ConnectionReceiver {
    socket: TcpStream,
    tls: rustls::Connection,
    cutter: Cutter,
    decoder: Decoder,
    scratch: Vec<u8>,
    /// The bytes of the last read, and the range that TLS has not taken yet.
    raw: Vec<u8>,
    unread: Range<usize>,
    counts: Arc<SessionCounts>,
}

impl ConnectionReceiver {
    pub fn new(
        socket: TcpStream,
        tls: rustls::Connection,
        decoder: Decoder,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            socket,
            tls,
            cutter: Cutter::default(),
            decoder,
            scratch: Vec::new(),
            raw: Vec::new(),
            unread: 0..0,
            counts,
        }
    }

    /// Reads what the socket holds, up to the peer's budget of the round. An error ends the
    /// connection.
    pub fn receive(
        &mut self,
        budget: &mut Budget,
        stats: &PeerStats,
        got: &mut dyn FnMut(ReceivedItem<'_>),
    ) -> Result<Left, ReceiveError> {
        // First what remains of the last round, or has arrived with the end of the handshake.
        let mut left = self.take_records(budget, stats, got)?;
        for _ in 0..READS_PER_PASS {
            if left == Left::Read || !self.read()? {
                break;
            }
            left = self.take_records(budget, stats, got)?;
        }
        Ok(left)
    }

    /// Reads once. Returns whether there was something.
    fn read(&mut self) -> io::Result<bool> {
        // rustls reads at most 4 KB at a time, so it reads from a larger buffer.
        self.raw.resize(RAW_BYTES, 0);
        let read = pass_would_block(self.socket.read(&mut self.raw))?;
        let Some(bytes) = read else { return Ok(false) };
        if bytes == 0 {
            return Err(end_of_stream());
        }
        self.unread = 0..bytes;
        Ok(true)
    }

    /// Takes the items of what was read.
    fn take_records(
        &mut self,
        budget: &mut Budget,
        stats: &PeerStats,
        got: &mut dyn FnMut(ReceivedItem<'_>),
    ) -> Result<Left, ReceiveError> {
        loop {
            if self.take_items(budget, stats, got)? == Left::Read {
                return Ok(Left::Read);
            }
            match pass_would_block(self.tls.reader().read(self.cutter.free_space()))? {
                None | Some(0) => {}
                Some(bytes) => {
                    self.cutter.note_filled(bytes);
                    continue;
                }
            }
            if !self.decrypt_record(stats)? {
                return Ok(Left::Nothing);
            }
        }
    }

    /// Passes a part of what was read to TLS. Returns whether TLS may have more plaintext.
    fn decrypt_record(&mut self, stats: &PeerStats) -> io::Result<bool> {
        let tls = &mut self.tls;
        let taken = if self.unread.is_empty() {
            0
        } else {
            tls.read_tls(&mut &self.raw[self.unread.clone()])?
        };
        self.unread.start += taken;
        let state = stats.open.time(|| tls.process_new_packets()).map_err(io::Error::other)?;
        while tls.wants_write() {
            // The answer to a key update. If the socket has no room for it, the connection fails.
            tls.write_tls(&mut self.socket)?;
        }
        if taken == 0 && state.plaintext_bytes_to_read() == 0 && state.peer_has_closed() {
            return Err(end_of_stream());
        }
        Ok(taken > 0 || state.plaintext_bytes_to_read() > 0)
    }

    /// Passes on the items that the cutter has whole.
    fn take_items(
        &mut self,
        budget: &mut Budget,
        stats: &PeerStats,
        got: &mut dyn FnMut(ReceivedItem<'_>),
    ) -> Result<Left, ReceiveError> {
        loop {
            if budget.is_used_up() {
                return Ok(Left::Read);
            }
            let next = self.cutter.cut_item();
            let next = next.map_err(|TooLong(bytes)| ReceiveError::OutOfStep { bytes })?;
            let Some(bytes) = next else { return Ok(Left::Nothing) };
            let bytes_in = bytes.len();
            stats.records_in.add(1);
            stats.wire_bytes_in.add((LENGTH_BYTES + bytes.len()) as u64);
            self.counts.received_packets.add(1);
            self.counts.received_bytes.add(bytes.len() as u64);
            let item = &*bytes;
            budget.use_up(bytes_in);
            match Item::parse(item) {
                Some(Item::Compressed(body)) => {
                    expand_body(&mut self.decoder, body, &mut self.scratch, stats)?;
                    budget.use_up(self.scratch.len());
                    match Item::parse(&self.scratch) {
                        Some(Item::Frame(offload, frame)) => {
                            got(ReceivedItem::Frame(offload, Way::read(&self.scratch), frame));
                        }
                        _ => stats.refused_in.add(1),
                    }
                }
                Some(Item::Frame(offload, frame)) => {
                    got(ReceivedItem::Frame(offload, Way::read(item), frame))
                }
                Some(Item::Session(message)) => got(ReceivedItem::Message(message)),
                // A newer version may send kinds of items that this one does not know.
                _ => stats.refused_in.add(1),
            }
        }
    }
}

impl AsFd for ConnectionReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Decompresses `body` into `scratch`.
fn expand_body(
    decoder: &mut Decoder,
    body: &[u8],
    scratch: &mut Vec<u8>,
    stats: &PeerStats,
) -> Result<(), DecodeError> {
    scratch.clear();
    let before_ns = decoder.stats().busy_ns;
    decoder.decode(body, scratch)?;
    stats.decompress_ns.add(decoder.stats().busy_ns - before_ns);
    stats.expanded_from.add(body.len() as u64);
    stats.expanded_to.add(scratch.len() as u64);
    Ok(())
}

fn end_of_stream() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer ended the connection")
}

/// `None`: the socket has no data now.
fn pass_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

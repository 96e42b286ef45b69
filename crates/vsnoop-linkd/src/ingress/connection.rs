//! Receives items from a peer over one data connection of an ordered transport.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::counts::SessionCounts;
use crate::stats::PeerStats;
use vsnoop_link::compress::Decoder;
use vsnoop_link::wire::item::{Item, Way};
use vsnoop_link::wire::seal::Opener;
use vsnoop_link::wire::stream::{Cutter, LENGTH_BYTES};
use vsnoop_packet::offload::state::OffloadState;

/// Bounds how long one connection keeps the thread from the others.
const READS_PER_PASS: usize = 16;

/// Most bytes of one read of a TLS stream.
const RAW_BYTES: usize = 256 << 10;

/// How bytes of the connection's stream become items; see the sending side's `Encryption`.
pub enum Decryption {
    Tls(Box<rustls::Connection>),
    Records(Box<Opener>),
}

/// Data received on a connection.
pub enum Received<'a> {
    Frame(OffloadState, Way, &'a [u8]),
    Message(&'a [u8]),
}

pub struct Connection {
    socket: TcpStream,
    decryption: Decryption,
    cutter: Cutter,
    decoder: Decoder,
    scratch: Vec<u8>,
    raw: Vec<u8>,
    counts: Arc<SessionCounts>,
}

impl Connection {
    pub fn new(
        socket: TcpStream,
        decryption: Decryption,
        decoder: Decoder,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            socket,
            decryption,
            cutter: Cutter::default(),
            decoder,
            scratch: Vec::new(),
            raw: Vec::new(),
            counts,
        }
    }

    /// Reads what the socket holds; an error ends the connection.
    pub fn receive(
        &mut self,
        stats: &PeerStats,
        got: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<()> {
        for _ in 0..READS_PER_PASS {
            let more = match self.decryption {
                Decryption::Tls(_) => self.receive_tls(stats, got)?,
                Decryption::Records(_) => self.receive_records(stats, got)?,
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// One read; whether there may be more.
    fn receive_records(
        &mut self,
        stats: &PeerStats,
        got: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<bool> {
        match waited(self.socket.read(self.cutter.space()))? {
            None => Ok(false),
            Some(0) => Err(ended()),
            Some(bytes) => {
                self.cutter.filled(bytes);
                self.items(stats, got)?;
                Ok(true)
            }
        }
    }

    /// One read. TLS itself would read no more than 4 KB at a time, so it is fed from a larger
    /// buffer.
    fn receive_tls(
        &mut self,
        stats: &PeerStats,
        got: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<bool> {
        let mut raw = std::mem::take(&mut self.raw);
        raw.resize(RAW_BYTES, 0);
        let read = waited(self.socket.read(&mut raw));
        let result = match read {
            Ok(Some(0)) => Err(ended()),
            // What came with the end of the handshake may be in it already.
            Ok(None) => self.feed(&[], stats, got).map(|()| false),
            Ok(Some(bytes)) => self.feed(&raw[..bytes], stats, got).map(|()| true),
            Err(error) => Err(error),
        };
        self.raw = raw;
        result
    }

    fn feed(
        &mut self,
        mut bytes: &[u8],
        stats: &PeerStats,
        got: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<()> {
        loop {
            let Decryption::Tls(tls) = &mut self.decryption else { return Ok(()) };
            if !bytes.is_empty() {
                tls.read_tls(&mut bytes)?;
            }
            let state = stats.open.time(|| tls.process_new_packets()).map_err(io::Error::other)?;
            let closed = state.peer_has_closed();
            while tls.wants_write() {
                // The answer to a key update. A connection without room for it is broken.
                tls.write_tls(&mut self.socket)?;
            }
            while let Decryption::Tls(tls) = &mut self.decryption {
                match waited(tls.reader().read(self.cutter.space()))? {
                    None | Some(0) => break,
                    Some(bytes) => self.cutter.filled(bytes),
                }
                self.items(stats, got)?;
            }
            if closed {
                return Err(ended());
            }
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    fn items(&mut self, stats: &PeerStats, got: &mut dyn FnMut(Received<'_>)) -> io::Result<()> {
        loop {
            let next = self.cutter.cut().map_err(|too_long| {
                io::Error::other(format!("an item of {} bytes: out of step", too_long.0))
            })?;
            let Some(bytes) = next else { return Ok(()) };
            stats.records_in.add(1);
            stats.wire_bytes_in.add((LENGTH_BYTES + bytes.len()) as u64);
            self.counts.received_packets.add(1);
            self.counts.received_bytes.add(bytes.len() as u64);
            let item = match &mut self.decryption {
                Decryption::Tls(_) => bytes,
                Decryption::Records(opener) => {
                    let (item, _) = stats.open.time(|| opener.open(bytes)).map_err(|refused| {
                        io::Error::other(format!("a record was refused: {refused:?}"))
                    })?;
                    // On an ordered transport nothing can be missing but by an attacker's hand.
                    let (received, next) = opener.counts();
                    if received != next {
                        return Err(io::Error::other("records are missing from the stream"));
                    }
                    item
                }
            };
            match Item::parse(item) {
                Some(Item::Compressed(body)) => {
                    self.scratch.clear();
                    let before_ns = self.decoder.stats().busy_ns;
                    self.decoder
                        .decode(body, &mut self.scratch)
                        .map_err(|error| io::Error::other(format!("decompression: {error}")))?;
                    stats.decompress_ns.add(self.decoder.stats().busy_ns - before_ns);
                    stats.expanded_from.add(body.len() as u64);
                    stats.expanded_to.add(self.scratch.len() as u64);
                    match Item::parse(&self.scratch) {
                        Some(Item::Frame(offload, frame)) => {
                            got(Received::Frame(offload, Way::of(&self.scratch), frame));
                        }
                        _ => stats.refused_in.add(1),
                    }
                }
                Some(Item::Frame(offload, frame)) => {
                    got(Received::Frame(offload, Way::of(item), frame))
                }
                Some(Item::Session(message)) => got(Received::Message(message)),
                // A newer peer may send what this one does not know.
                _ => stats.refused_in.add(1),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer ended the connection")
}

/// `None`: nothing there yet.
fn waited(result: io::Result<usize>) -> io::Result<Option<usize>> {
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

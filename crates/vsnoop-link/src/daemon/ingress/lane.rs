//! Receiving from a peer over one ordered connection.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustls::Connection;

use crate::compress::Decoder;
use crate::daemon::stats::PeerStats;
use crate::offload::owed::Owed;
use crate::wire::item::Item;
use crate::wire::seal::Opener;
use crate::wire::stream::{Cutter, LENGTH_BYTES};

/// Bounds how long one lane keeps the thread from the others.
const READS_PER_TURN: usize = 16;

/// How bytes of the stream become items; see the sending side.
pub enum Codec {
    Tls(Box<Connection>),
    Records(Opener),
}

/// What a lane brought.
pub enum Got<'a> {
    Frame(Owed, &'a [u8]),
    Message(&'a [u8]),
}

pub struct Lane {
    socket: TcpStream,
    codec: Codec,
    cutter: Cutter,
    decoder: Decoder,
    scratch: Vec<u8>,
}

impl Lane {
    pub fn new(socket: TcpStream, codec: Codec, decoder: Decoder) -> Self {
        Self { socket, codec, cutter: Cutter::default(), decoder, scratch: Vec::new() }
    }

    /// Takes what waits; an error ends the lane.
    pub fn receive(
        &mut self,
        stats: &PeerStats,
        got: &mut dyn FnMut(Got<'_>),
    ) -> io::Result<()> {
        for _ in 0..READS_PER_TURN {
            let mut more = true;
            if let Codec::Tls(tls) = &mut self.codec {
                match tls.read_tls(&mut self.socket) {
                    Ok(0) => return Err(ended()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => more = false,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
                let state = tls.process_new_packets().map_err(io::Error::other)?;
                let closed = state.peer_has_closed();
                while tls.wants_write() {
                    // An answer to a renewed key; there is room for it, or the lane is of no use.
                    tls.write_tls(&mut self.socket)?;
                }
                loop {
                    match tls.reader().read(self.cutter.space()) {
                        Ok(0) => break,
                        Ok(bytes) => {
                            self.cutter.filled(bytes);
                            self.items(stats, got)?;
                            // Borrowed again by the next turn of this loop.
                            let Codec::Tls(_) = &self.codec else { break };
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    }
                }
                if closed {
                    return Err(ended());
                }
            } else {
                match self.socket.read(self.cutter.space()) {
                    Ok(0) => return Err(ended()),
                    Ok(bytes) => {
                        self.cutter.filled(bytes);
                        self.items(stats, got)?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => more = false,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
            }
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn items(&mut self, stats: &PeerStats, got: &mut dyn FnMut(Got<'_>)) -> io::Result<()> {
        loop {
            let next = self.cutter.next().map_err(|too_long| {
                io::Error::other(format!("an item of {} bytes: out of step", too_long.0))
            })?;
            let Some(bytes) = next else { return Ok(()) };
            stats.records_in.add(1);
            stats.wire_bytes_in.add((LENGTH_BYTES + bytes.len()) as u64);
            let item = match &mut self.codec {
                Codec::Tls(_) => bytes,
                Codec::Records(opener) => {
                    let (item, _) = opener.open(bytes).map_err(|refused| {
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
                    let begun = Instant::now();
                    self.decoder.decode(body, &mut self.scratch).map_err(|error| {
                        io::Error::other(format!("decompression: {error}"))
                    })?;
                    stats.decompress_ns.add(begun.elapsed().as_nanos() as u64);
                    match Item::parse(&self.scratch) {
                        Some(Item::Frame(owed, frame)) => got(Got::Frame(owed, frame)),
                        _ => stats.refused_in.add(1),
                    }
                }
                Some(Item::Frame(owed, frame)) => got(Got::Frame(owed, frame)),
                Some(Item::Session(message)) => got(Got::Message(message)),
                // A newer peer may send what this one does not know.
                _ => stats.refused_in.add(1),
            }
        }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer ended the connection")
}

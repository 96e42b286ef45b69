//! Receiving from peers over UDP.
//!
//! First every datagram of a batch is opened, where it lies; fragments are rejoined and units
//! decompressed into a scratch buffer. Then the frames are handed on by reference.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::super::counts::SessionCounts;
use super::super::event::Event;
use super::super::io::udp::Inbox;
use super::super::io::wake;
use super::super::shared::Shared;
use super::super::stats::PeerStats;
use super::Message;
use crate::compress::unit::Unpacker;
use crate::offload::fragment::Rejoin;
use crate::offload::owed::Owed;
use crate::offload::restore::restore;
use crate::wire::item::{Item, Way};
use crate::wire::replay::Fresh;
use crate::wire::seal::{COUNTER, HEADER_BYTES, Opener, header_of, stream_of};

/// Receives at once: each may be a whole super-packet.
const RECEIVES: usize = 8;
const SCRATCH_BYTES: usize = 4 << 20;
/// What a unit may become.
const MOST_OF_UNIT_BYTES: usize = 65_536;
/// How long a frame may take to arrive in its fragments.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What opens the records of one session.
pub struct DatagramSession {
    /// By stream.
    openers: Vec<Opener>,
    rejoin: Rejoin,
    units: Rejoin,
    /// Where its newest record came from.
    from: Option<std::net::SocketAddr>,
    counts: Arc<SessionCounts>,
}

impl DatagramSession {
    pub fn new(openers: Vec<Opener>, counts: Arc<SessionCounts>) -> Self {
        Self {
            openers,
            rejoin: Rejoin::new(PATIENCE_NS),
            units: Rejoin::new(PATIENCE_NS),
            from: None,
            counts,
        }
    }
}

#[derive(Clone, Copy)]
enum Lies {
    InInbox,
    InScratch,
}

/// A frame of the batch: from which peer, on which way, what it owes, and where it lies.
type Lying = (usize, Way, Owed, Lies, Range<usize>);

pub struct Datagrams {
    inbox: Inbox,
    scratch: Vec<u8>,
    frames: Vec<Lying>,
    sessions: HashMap<u32, (usize, u64, DatagramSession)>,
    unpacker: Unpacker,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self {
            inbox: Inbox::new(RECEIVES),
            scratch: Vec::with_capacity(SCRATCH_BYTES),
            frames: Vec::with_capacity(1024),
            sessions: HashMap::new(),
            unpacker: Unpacker::default(),
        }
    }
}

impl Datagrams {
    pub fn install(&mut self, peer: usize, session: u64, index: u32, opened: DatagramSession) {
        self.sessions.insert(index, (peer, session, opened));
    }

    pub fn retire(&mut self, session: u64) {
        self.sessions.retain(|_, (_, of, _)| *of != session);
    }

    /// Receives and opens one batch; `false`: nothing waits.
    pub fn receive(&mut self, shared: &Shared, events: &wake::Sender<Event>) -> io::Result<bool> {
        self.frames.clear();
        self.scratch.clear();
        if !self.inbox.receive(&shared.udp)? {
            return Ok(false);
        }
        let now_ns = shared.now_ns();
        let (messages, buffer) = self.inbox.parts();
        for message in messages {
            let mut at = message.begin;
            let end = message.begin + message.length;
            while at < end {
                let next = (at + message.segment_bytes).min(end);
                let datagram = at..next;
                at = next;
                let Some((index, number)) = header_of(&buffer[datagram.clone()]) else {
                    shared.stats.unknown_datagrams.add(1);
                    continue;
                };
                let Some((peer, session, opened)) = self.sessions.get_mut(&index) else {
                    shared.stats.unknown_datagrams.add(1);
                    continue;
                };
                let (peer, session) = (*peer, *session);
                let stats = &shared.peers[peer];
                let Some(opener) = opened.openers.get_mut(usize::from(stream_of(number))) else {
                    stats.refused_in.add(1);
                    continue;
                };
                let record = &mut buffer[datagram.clone()];
                let Ok((item, fresh)) = stats.open.time(|| opener.open(record)) else {
                    stats.refused_in.add(1);
                    continue;
                };
                stats.records_in.add(1);
                stats.wire_bytes_in.add(datagram.len() as u64);
                opened.counts.received_packets.add(1);
                opened.counts.received_bytes.add(datagram.len() as u64);
                if fresh == Fresh::Newest {
                    opened.counts.expected_packets.set((number & COUNTER) + 1);
                }
                let item_begin = item.as_ptr().addr();
                let item = &*item;
                if fresh == Fresh::Newest && opened.from != Some(message.from) {
                    opened.from = Some(message.from);
                    let from = message.from;
                    let _ = events.send(Event::Moved { peer, session, from });
                }
                let way = Way::of(item);
                match Item::parse(item) {
                    Some(Item::Frame(owed, frame)) => {
                        // Offsets from the buffer's start, which the slice does not tell any more.
                        let begin =
                            frame.as_ptr().addr() - item_begin + datagram.start + HEADER_BYTES;
                        let range = begin..begin + frame.len();
                        self.frames.push((peer, way, owed, Lies::InInbox, range));
                    }
                    Some(Item::Fragment(owed, fragment, part)) => {
                        if let Some((owed, frame)) =
                            opened.rejoin.push(fragment, owed, part, now_ns)
                            && self.scratch.len() + frame.len() <= SCRATCH_BYTES
                        {
                            let begin = self.scratch.len();
                            self.scratch.extend_from_slice(frame);
                            let range = begin..self.scratch.len();
                            self.frames.push((peer, way, owed, Lies::InScratch, range));
                        }
                    }
                    Some(Item::Unit { .. }) => {
                        let scratch = &mut self.scratch;
                        let unpacked = unpack(&mut self.unpacker, scratch, peer, stats, item);
                        self.frames.extend(unpacked);
                    }
                    Some(Item::UnitPart(fragment, part)) => {
                        let whole = opened.units.push(fragment, Owed::default(), part, now_ns);
                        let Some((_, whole)) = whole else { continue };
                        let scratch = &mut self.scratch;
                        let unpacked = unpack(&mut self.unpacker, scratch, peer, stats, whole);
                        self.frames.extend(unpacked);
                    }
                    Some(Item::Session(_)) => {
                        let datagram = Some((message.from, fresh == Fresh::Newest, datagram.len()));
                        let item = item[1..].to_vec();
                        let _ =
                            events.send(Event::Message(Message { peer, session, item, datagram }));
                    }
                    Some(Item::Compressed(_)) | None => stats.refused_in.add(1),
                }
            }
        }
        Ok(true)
    }

    /// How many frames the batch has.
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// The frames of the batch, in order, with the peer that each came from and the way that it is to go.
    pub fn frames(&mut self) -> impl Iterator<Item = (usize, Way, Owed, &[u8])> {
        let (_, inbox) = self.inbox.parts();
        let inbox = &*inbox;
        let scratch = &self.scratch;
        self.frames.iter().map(move |(peer, way, owed, lies, range)| {
            let bytes = match lies {
                Lies::InInbox => &inbox[range.clone()],
                Lies::InScratch => &scratch[range.clone()],
            };
            (*peer, *way, *owed, bytes)
        })
    }
}

/// Decompresses a unit, an item, into the scratch buffer and makes it a frame.
fn unpack(
    unpacker: &mut Unpacker,
    scratch: &mut Vec<u8>,
    peer: usize,
    stats: &PeerStats,
    item: &[u8],
) -> Option<Lying> {
    let begin = scratch.len();
    if begin + MOST_OF_UNIT_BYTES > SCRATCH_BYTES {
        return None;
    }
    // Another kind of item in a unit's parts is as wrong as one that is no unit.
    let made = match Item::parse(item) {
        Some(Item::Unit { owed, offset, body }) => {
            let before_ns = unpacker.stats().busy_ns;
            let unpacked = unpacker.decompress(body, scratch);
            stats.decompress_ns.add(unpacker.stats().busy_ns - before_ns);
            let owed = unpacked.ok().and_then(|()| restore(&mut scratch[begin..], offset, owed));
            owed.map(|owed| (owed, body.len()))
        }
        _ => None,
    };
    let Some((owed, body_bytes)) = made else {
        scratch.truncate(begin);
        stats.refused_in.add(1);
        return None;
    };
    stats.expanded_from.add(body_bytes as u64);
    stats.expanded_to.add((scratch.len() - begin) as u64);
    Some((peer, Way::of(item), owed, Lies::InScratch, begin..scratch.len()))
}

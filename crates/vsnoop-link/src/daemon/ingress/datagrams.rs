//! Receives frames from peers over UDP.
//!
//! First every datagram of a batch is opened, where it lies; fragments are rejoined and units
//! decompressed into a scratch buffer. Then the frames are handed on by reference, and some of them
//! earlier where that buffer is full: units may become far more than they were.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::state::OffloadState;

use super::super::event::ReceivedMessage;
use super::super::io::udp::Inbox;
use super::super::shared::Shared;
use super::super::stats::PeerStats;
use super::reports::Reports;
use super::session::DatagramSession;
use crate::compress::unit::Unpacker;
use crate::wire::fragment::FRAME_BYTES;
use crate::wire::item::{Item, Way};
use crate::wire::replay::Fresh;
use crate::wire::seal::{COUNTER, HEADER_BYTES, header_of, stream_of};

/// Receives at once: each may be a whole super-packet.
const RECEIVES: usize = 8;
const SCRATCH_BYTES: usize = 4 << 20;
/// What one datagram may complete: a frame of its last fragment, or a unit, which is no longer.
const MOST_OF_DATAGRAM_BYTES: usize = FRAME_BYTES;

#[derive(Clone, Copy)]
enum Lies {
    InInbox,
    InScratch,
}

/// A frame of the batch: its peer, its way, its offload state, and where its bytes lie.
type Lying = (usize, Way, OffloadState, Lies, Range<usize>);

/// A received frame: its peer, its way, its offload state, its bytes.
pub type ReceivedFrame<'a> = (usize, Way, OffloadState, &'a [u8]);

pub struct DatagramReceiver {
    inbox: Inbox,
    batch: Batch,
    sessions: HashMap<u32, (usize, u64, DatagramSession)>,
    unpacker: Unpacker,
}

/// Frames that wait to be handed on.
struct Batch {
    scratch: Vec<u8>,
    frames: Vec<Lying>,
}

impl Batch {
    /// Hands on all frames, in order.
    fn hand_on(
        &mut self,
        inbox: &[u8],
        to: &mut dyn FnMut(&mut dyn Iterator<Item = ReceivedFrame<'_>>),
    ) {
        let mut frames = self.frames.iter().map(|(peer, way, offload, lies, range)| {
            let bytes = match lies {
                Lies::InInbox => &inbox[range.clone()],
                Lies::InScratch => &self.scratch[range.clone()],
            };
            (*peer, *way, *offload, bytes)
        });
        to(&mut frames);
        self.frames.clear();
        self.scratch.clear();
    }
}

impl Default for DatagramReceiver {
    fn default() -> Self {
        Self {
            inbox: Inbox::new(RECEIVES),
            batch: Batch {
                scratch: Vec::with_capacity(SCRATCH_BYTES),
                frames: Vec::with_capacity(1024),
            },
            sessions: HashMap::new(),
            unpacker: Unpacker::default(),
        }
    }
}

impl DatagramReceiver {
    pub fn install(&mut self, peer: usize, session: u64, index: u32, opened: DatagramSession) {
        self.sessions.insert(index, (peer, session, opened));
    }

    pub fn retire(&mut self, session: u64) {
        self.sessions.retain(|_, (_, of, _)| *of != session);
    }

    /// Receives and opens one batch, and hands on its frames, in order, with the peer that each
    /// came from and the way that it is to go; `false`: nothing waits.
    pub fn receive(
        &mut self,
        shared: &Shared,
        reports: &mut Reports,
        hand_on: &mut dyn FnMut(&mut dyn Iterator<Item = ReceivedFrame<'_>>),
    ) -> io::Result<bool> {
        if !self.inbox.receive(&shared.udp)? {
            return Ok(false);
        }
        let now_ns = shared.now_ns();
        let (messages, buffer) = self.inbox.parts();
        let batch = &mut self.batch;
        for message in messages {
            let mut at = message.begin;
            let end = message.begin + message.length;
            while at < end {
                let next = (at + message.segment_bytes).min(end);
                let datagram = at..next;
                at = next;
                if batch.scratch.len() + MOST_OF_DATAGRAM_BYTES > SCRATCH_BYTES {
                    batch.hand_on(buffer, hand_on);
                }
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
                if fresh == Fresh::Newest
                    && opened.from != Some(message.from)
                    && reports.moved(peer, session, message.from, now_ns)
                {
                    opened.from = Some(message.from);
                }
                let way = Way::of(item);
                match Item::parse(item) {
                    Some(Item::Frame(offload, frame)) => {
                        // Offsets from the buffer's start, which the slice does not tell any more.
                        let begin =
                            frame.as_ptr().addr() - item_begin + datagram.start + HEADER_BYTES;
                        let range = begin..begin + frame.len();
                        batch.frames.push((peer, way, offload, Lies::InInbox, range));
                    }
                    Some(Item::Fragment(offload, fragment, part)) => {
                        let whole = opened.rejoin.push(fragment, offload, part, now_ns);
                        let Some((offload, frame)) = whole else { continue };
                        let begin = batch.scratch.len();
                        batch.scratch.extend_from_slice(frame);
                        let range = begin..batch.scratch.len();
                        batch.frames.push((peer, way, offload, Lies::InScratch, range));
                    }
                    Some(Item::Unit { .. }) => {
                        let scratch = &mut batch.scratch;
                        let unpacked = unpack(&mut self.unpacker, scratch, peer, stats, item);
                        batch.frames.extend(unpacked);
                    }
                    Some(Item::UnitPart(fragment, part)) => {
                        let whole =
                            opened.units.push(fragment, OffloadState::default(), part, now_ns);
                        let Some((_, whole)) = whole else { continue };
                        let scratch = &mut batch.scratch;
                        let unpacked = unpack(&mut self.unpacker, scratch, peer, stats, whole);
                        batch.frames.extend(unpacked);
                    }
                    Some(Item::Session(_)) => {
                        let datagram = Some((message.from, fresh == Fresh::Newest, datagram.len()));
                        let item = item[1..].to_vec();
                        let message = ReceivedMessage { peer, session, item, datagram };
                        reports.message(message, stats, now_ns);
                    }
                    Some(Item::Compressed(_)) | None => stats.refused_in.add(1),
                }
            }
        }
        batch.hand_on(buffer, hand_on);
        Ok(true)
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
    // Another kind of item in a unit's parts is as wrong as one that is no unit.
    let made = match Item::parse(item) {
        Some(Item::Unit { offload, offset, body }) => {
            let before_ns = unpacker.stats().busy_ns;
            let unpacked = unpacker.decompress(body, scratch);
            stats.decompress_ns.add(unpacker.stats().busy_ns - before_ns);
            let offload =
                unpacked.ok().and_then(|()| restore(&mut scratch[begin..], offset, offload));
            offload.map(|offload| (offload, body.len()))
        }
        _ => None,
    };
    let Some((offload, body_bytes)) = made else {
        scratch.truncate(begin);
        stats.refused_in.add(1);
        return None;
    };
    stats.expanded_from.add(body_bytes as u64);
    stats.expanded_to.add((scratch.len() - begin) as u64);
    Some((peer, Way::of(item), offload, Lies::InScratch, begin..scratch.len()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::compress::unit::Packer;
    use crate::compress::{Encoded, Method};
    use crate::daemon::event::Event;
    use crate::daemon::io::udp::{MAX_SEGMENTS, Segmenting, UdpSocket};
    use crate::daemon::io::wake;
    use crate::daemon::own::Own;
    use crate::forwarding;
    use crate::wire::item::{SESSION, unit_header};
    use crate::wire::seal::{Material, Opener, Sealer, Suite};
    use vsnoop_packet::offload::state::{Gso, GsoKind};
    use vsnoop_packet::testing::Segment;

    const INDEX: u32 = 7;
    const KEYS: Material = Material { key: [1; 32], nonce: [2; 12] };

    /// Two ends of a session on the loopback interface.
    struct Ends {
        shared: Shared,
        reports: Reports,
        events: wake::Receiver<Event>,
        datagrams: DatagramReceiver,
        sealer: Sealer,
        socket: UdpSocket,
    }

    impl Ends {
        fn new() -> Self {
            let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let udp = UdpSocket::bind(free).unwrap();
            let table = forwarding::TableSettings::default();
            let shared = Shared::new(table, Vec::new(), None, 1, udp, Own::default());
            let opener = Opener::new(Suite::Plain, &KEYS, 0, 0);
            let mut datagrams = DatagramReceiver::default();
            let session = DatagramSession::new(vec![opener], Arc::default());
            datagrams.install(0, 1, INDEX, session);
            let sealer = Sealer::new(Suite::Plain, &KEYS, INDEX, 0, 0);
            let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let (sender, events) = wake::channel().unwrap();
            let reports = Reports::new(sender, 1);
            Self { shared, reports, events, datagrams, sealer, socket }
        }

        /// Sends items; of those of one length several are received at once.
        fn send(&mut self, items: &[Vec<u8>]) {
            let to = socket2::SockRef::from(&self.shared.udp).local_addr().unwrap();
            let to = to.as_socket().unwrap();
            let alike = items.chunk_by(|one, next| one.len() == next.len());
            for items in alike.flat_map(|alike| alike.chunks(MAX_SEGMENTS)) {
                let mut bytes = Vec::new();
                for item in items {
                    let mut record = [&[0; HEADER_BYTES][..], item].concat();
                    assert!(self.sealer.seal(&mut record));
                    bytes.extend(record);
                }
                let segmenting = &mut Segmenting::default();
                self.socket.send(to, &bytes, bytes.len() / items.len(), segmenting).unwrap();
            }
        }

        /// Frames that came.
        fn received(&mut self) -> Vec<Vec<u8>> {
            let mut frames = Vec::new();
            let mut to = |got: &mut dyn Iterator<Item = ReceivedFrame<'_>>| {
                frames.extend(got.map(|(_, _, _, frame)| frame.to_vec()));
            };
            while self.datagrams.receive(&self.shared, &mut self.reports, &mut to).unwrap() {}
            frames
        }
    }

    #[test]
    fn units_that_become_more_than_the_buffer_holds_all_arrive_and_in_order() {
        let mut ends = Ends::new();
        let mut packer = Packer::default();
        let mut sent = Vec::new();
        let items: Vec<_> = (0..300u32)
            .map(|number| {
                let mut frame =
                    Segment { sequence: number, payload: 60_000, ..Segment::default() }.build();
                let headers = frame.len() - 60_000;
                frame[headers..].fill(b'a');
                let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448, ecn: false });
                let offload = OffloadState { needs_checksum: true, gso };
                let mut item = unit_header(offload, 0, Way::Forwarded).to_vec();
                let done = packer.compress(Method::Lz4, &[&frame], 1200, &mut item);
                assert_eq!(done, Encoded::Compressed);
                sent.push(frame);
                item
            })
            .collect();
        ends.send(&items);
        let received = ends.received();
        assert_eq!(received.len(), 300, "of {} bytes in all", 300 * 60_000);
        assert!(ends.datagrams.batch.scratch.capacity() <= SCRATCH_BYTES);
        // Checksums are made anew.
        let sequence = |frame: &Vec<u8>| frame[14 + 20 + 4..14 + 20 + 8].to_vec();
        assert!(received.iter().map(sequence).eq(sent.iter().map(sequence)));
        assert_eq!(ends.shared.peers[0].refused_in.get(), 0);
    }

    #[test]
    fn messages_are_handed_on_or_counted() {
        let mut ends = Ends::new();
        let item = [&[SESSION][..], &[0; 99]].concat();
        ends.send(&vec![item; 3000]);
        assert!(ends.received().is_empty());
        let is_message = |event: &Event| matches!(event, Event::Message(_));
        let heard = ends.events.drain().filter(is_message).count() as u64;
        assert!(heard > 0);
        assert_eq!(heard + ends.shared.peers[0].excess_in.get(), 3000);
    }
}

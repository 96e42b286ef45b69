//! Receives frames from peers over UDP.
//!
//! First all datagrams of a batch are opened in place; fragments are reassembled and units
//! decompressed into a scratch buffer. Then the frames are passed on by reference. If the scratch
//! buffer is full before (units may decompress to far more), the frames so far are passed on
//! earlier.

use std::io;
use std::ops::Range;

use super::super::cpu::coding_clock;
use super::super::event::{MessageKind, ReceivedDatagram, ReceivedMessage};
use super::super::fault::ReceiveError;
use super::super::frame::{Origin, ReceivedFrame};
use super::super::io::udp::{Endpoints, Inbox};
use super::super::shared::Shared;
use super::super::stats::PeerStats;
use super::budget::Budget;
use super::installed::{InstalledSession, InstalledSessions};
use super::reports::Reports;
use super::session::DatagramSession;
use vsnoop_link::compress::unit::Unpacker;
use vsnoop_link::compress::{Codecs, DecodeError};
use vsnoop_link::wire::fragment::FRAME_BYTES;
use vsnoop_link::wire::item::{Item, Way};
use vsnoop_link::wire::replay::Fresh;
use vsnoop_link::wire::seal::{COUNTER, HEADER_BYTES, header_of, stream_of};
use vsnoop_link::wire::traffic_class::{self, CE, is_congested, may_change};
use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::state::OffloadState;

/// Messages of one receive. The kernel may have merged a super-packet's datagrams into one (GRO).
const RECEIVES: usize = 8;
const SCRATCH_BYTES: usize = 4 << 20;
/// Longest data that one datagram can complete: a frame by its last fragment. A unit is not longer.
const MOST_OF_DATAGRAM_BYTES: usize = FRAME_BYTES;

/// Where the bytes of a frame lie.
#[derive(Clone, Copy)]
enum Lies {
    InInbox,
    InScratch,
}

/// A frame of the batch: where it comes from, and where its bytes lie.
struct LyingFrame {
    origin: Origin,
    offload: OffloadState,
    lies: Lies,
    range: Range<usize>,
}

/// Takes frames in order.
pub type HandOn<'a> = &'a mut dyn FnMut(&mut dyn Iterator<Item = ReceivedFrame<'_>>);

pub struct DatagramReceiver {
    inbox: Inbox,
    batch: Batch,
    sessions: InstalledSessions,
    unpacker: Unpacker,
    /// The first datagram in the inbox that no round has handled yet: message, and offset in it.
    left: Option<(usize, usize)>,
}

/// Frames that wait to be handed on.
struct Batch {
    scratch: Vec<u8>,
    frames: Vec<LyingFrame>,
}

impl Batch {
    /// Whether one more datagram may complete more than the scratch buffer has room for.
    fn is_full(&self) -> bool {
        self.scratch.len() + MOST_OF_DATAGRAM_BYTES > SCRATCH_BYTES
    }

    /// Hands on all frames, in order.
    fn hand_on(&mut self, inbox: &[u8], to: HandOn<'_>) {
        let mut frames = self.frames.iter().map(|frame| ReceivedFrame {
            origin: frame.origin,
            offload: frame.offload,
            bytes: match frame.lies {
                Lies::InInbox => &inbox[frame.range.clone()],
                Lies::InScratch => &self.scratch[frame.range.clone()],
            },
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
            sessions: InstalledSessions::default(),
            unpacker: Unpacker::new(coding_clock()),
            left: None,
        }
    }
}

impl DatagramReceiver {
    /// `session`: its number in this process; `index`: that in its records.
    pub fn install(
        &mut self,
        shared: &Shared,
        peer: usize,
        session: u64,
        index: u32,
        opened: DatagramSession,
    ) {
        let is_with_hub = shared.is_hub(peer);
        self.sessions.install(index, InstalledSession { peer, session, opened, is_with_hub });
    }

    pub fn retire(&mut self, session: u64) {
        self.sessions.retire(session);
    }

    /// A reload may have changed which peers are hubs.
    pub fn note_hubs(&mut self, shared: &Shared) {
        self.sessions.note_hubs(|peer| shared.is_hub(peer));
    }

    /// Whether there are received datagrams that no round has handled yet.
    pub fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Receives and opens one batch, and passes on its frames, in order. Returns `false` if there
    /// was none. The next call begins with the datagrams beyond the budget of the round.
    pub fn receive(
        &mut self,
        shared: &Shared,
        budget: &mut Budget,
        reports: &mut Reports,
        hand_on: HandOn<'_>,
    ) -> io::Result<bool> {
        let from = self.left.take();
        if from.is_none() && !self.inbox.receive(shared.receiver())? {
            return Ok(false);
        }
        let (first, skipped) = from.unwrap_or_default();
        let now_ns = shared.now_ns();
        let (messages, buffer) = self.inbox.parts();
        let (batch, unpacker) = (&mut self.batch, &mut self.unpacker);
        let (class, behind) = (0, None);
        let mut opening =
            Opening { batch, unpacker, budget, shared, reports, now_ns, class, behind };
        for (number, message) in messages.iter().enumerate().skip(first) {
            let mut at = message.begin + if number == first { skipped } else { 0 };
            let end = message.begin + message.length;
            while at < end {
                if opening.budget.is_used_up() {
                    opening.batch.hand_on(buffer, hand_on);
                    self.left = Some((number, at - message.begin));
                    return Ok(true);
                }
                let next = (at + message.segment_bytes).min(end);
                let datagram = at..next;
                at = next;
                if opening.batch.is_full() {
                    opening.batch.hand_on(buffer, hand_on);
                }
                opening.class = message.class;
                opening.open(&mut self.sessions, buffer, datagram, message.ends);
            }
        }
        opening.batch.hand_on(buffer, hand_on);
        Ok(true)
    }
}

/// Context of opening the datagrams of a batch.
struct Opening<'a> {
    batch: &'a mut Batch,
    unpacker: &'a mut Unpacker,
    budget: &'a mut Budget,
    shared: &'a Shared,
    reports: &'a mut Reports,
    now_ns: u64,
    /// Of the datagram that is being opened.
    class: u8,
    /// The peer behind a hub that the datagram is of.
    behind: Option<usize>,
}

impl Opening<'_> {
    /// Opens the record in the bytes `datagram` of `buffer` in place, and handles its item. Counts
    /// a record that is refused.
    fn open(
        &mut self,
        sessions: &mut InstalledSessions,
        buffer: &mut [u8],
        datagram: Range<usize>,
        ends: Endpoints,
    ) {
        let shared = self.shared;
        let record = &mut buffer[datagram.clone()];
        let bytes = record.len();
        let Some((index, number)) = header_of(record) else {
            return shared.stats.unknown_datagrams.add(1);
        };
        self.budget.use_up(bytes);
        let owner = sessions.owner(record, index, number);
        let Some((owner, installed)) = owner.and_then(|of| Some((of, sessions.get_mut(of)?)))
        else {
            return shared.stats.unknown_datagrams.add(1);
        };
        self.behind = shared.labelled(installed.peer, owner.label);
        let stats = &shared.peers[installed.peer];
        let opened = &mut installed.opened;
        let Some(opener) = opened.openers.get_mut(usize::from(stream_of(number))) else {
            return stats.refused_in.add(1);
        };
        let Ok((item, fresh)) = stats.open.time(|| opener.open(record)) else {
            return stats.refused_in.add(1);
        };
        let is_kept = !may_change(self.class)
            || decapsulate_item(stats, &mut opened.congested, self.class, item);
        let item = &*item;
        stats.records_in.add(1);
        stats.wire_bytes_in.add(bytes as u64);
        opened.counts.received_packets.add(1);
        opened.counts.received_bytes.add(bytes as u64);
        let is_newest = fresh == Fresh::Newest;
        if is_newest {
            opened.counts.expected_packets.set((number & COUNTER) + 1);
            if opened.from != Some(ends.peer)
                && self.reports.moved(installed.peer, installed.session, ends, self.now_ns)
            {
                opened.from = Some(ends.peer);
            }
        }
        let item_at = datagram.start + HEADER_BYTES;
        if !is_kept {
            return;
        }
        let datagram = ReceivedDatagram { ends, is_newest, bytes };
        if let Err(error) = self.take(installed, item, item_at, datagram) {
            // Later records of the session belong to no session.
            let InstalledSession { peer, session, .. } = *installed;
            self.reports.ended(peer, session, stats, ReceiveError::NotAccepted(error));
            sessions.retire(session);
        }
    }

    /// Handles the item at `item_at` in the inbox. Fails if our hello does not accept it.
    fn take(
        &mut self,
        installed: &mut InstalledSession,
        item: &[u8],
        item_at: usize,
        datagram: ReceivedDatagram,
    ) -> Result<(), DecodeError> {
        let InstalledSession { peer, session, ref mut opened, .. } = *installed;
        let stats = &self.shared.peers[peer];
        let origin = Origin { peer, way: Way::of(item), behind: self.behind };
        let mut report = |kind| {
            let (item, datagram) = (item[1..].to_vec(), Some(datagram));
            let message = ReceivedMessage { peer, session, kind, item, datagram };
            self.reports.message(message, stats, self.now_ns);
        };
        match Item::parse(item) {
            Some(Item::Frame(offload, frame)) => {
                // A reference into the inbox cannot be kept while records in it are opened.
                let begin = frame.as_ptr().addr() - item.as_ptr().addr() + item_at;
                let range = begin..begin + frame.len();
                let lies = Lies::InInbox;
                self.batch.frames.push(LyingFrame { origin, offload, lies, range });
            }
            Some(Item::Fragment(offload, fragment, part)) => {
                let whole = opened.rejoin.push(fragment, offload, part, self.now_ns);
                let Some((offload, frame)) = whole else { return Ok(()) };
                let begin = self.batch.scratch.len();
                self.batch.scratch.extend_from_slice(frame);
                let range = begin..self.batch.scratch.len();
                if opened.congested[0].take_if(|id| *id == fragment.id).is_some()
                    && !decapsulate(stats, CE, &mut self.batch.scratch[range.clone()])
                {
                    return Ok(());
                }
                let lies = Lies::InScratch;
                self.batch.frames.push(LyingFrame { origin, offload, lies, range });
            }
            Some(Item::Unit { .. }) => return self.unpack(peer, opened.accepted, item),
            Some(Item::UnitPart(fragment, part)) => {
                let none = OffloadState::default();
                if let Some((_, whole)) = opened.units.push(fragment, none, part, self.now_ns) {
                    if opened.congested[1].take_if(|id| *id == fragment.id).is_some() {
                        self.class = CE;
                    }
                    return self.unpack(peer, opened.accepted, whole);
                }
            }
            Some(Item::Session(_)) => report(MessageKind::Session),
            Some(Item::Introduction(_)) => report(MessageKind::Introduction),
            Some(Item::Compressed(_)) | None => stats.refused_in.add(1),
        }
        Ok(())
    }

    /// Decompresses a unit into the scratch buffer, and makes a frame of it.
    fn unpack(&mut self, peer: usize, accepted: Codecs, item: &[u8]) -> Result<(), DecodeError> {
        let stats = &self.shared.peers[peer];
        let (unpacker, scratch) = (&mut *self.unpacker, &mut self.batch.scratch);
        let begin = scratch.len();
        // Parts of another kind of item are refused like an item that is no unit.
        let made = match Item::parse(item) {
            Some(Item::Unit { offload, offset, body }) => {
                let before_ns = unpacker.stats().busy_ns;
                let unpacked = unpacker.decompress(body, accepted, scratch);
                stats.decompress_ns.add(unpacker.stats().busy_ns - before_ns);
                if let Some(error) =
                    unpacked.as_ref().err().filter(|error| error.is_beyond_limits())
                {
                    return Err(error.clone());
                }
                let offload =
                    unpacked.ok().and_then(|()| restore(&mut scratch[begin..], offset, offload));
                offload.map(|offload| (offload, body.len()))
            }
            _ => None,
        };
        let Some((offload, body_bytes)) = made else {
            scratch.truncate(begin);
            stats.refused_in.add(1);
            return Ok(());
        };
        let range = begin..scratch.len();
        if !decapsulate(stats, self.class, &mut scratch[range.clone()]) {
            return Ok(());
        }
        self.budget.use_up(range.len());
        stats.expanded_from.add(body_bytes as u64);
        stats.expanded_to.add(range.len() as u64);
        let origin = Origin { peer, way: Way::of(item), behind: self.behind };
        self.batch.frames.push(LyingFrame { origin, offload, lies: Lies::InScratch, range });
        Ok(())
    }
}

/// Copies the CE mark of an item's datagram to the item's frame. If the item is a part of one,
/// notes the mark in `congested` for the whole. Returns `false` if the frame is to be dropped (RFC
/// 6040).
fn decapsulate_item(
    stats: &PeerStats,
    congested: &mut [Option<u16>; 2],
    class: u8,
    item: &mut [u8],
) -> bool {
    let begin = match Item::parse(item) {
        Some(Item::Frame(_, frame)) => frame.as_ptr().addr() - item.as_ptr().addr(),
        Some(Item::Fragment(_, fragment, _)) if is_congested(class) => {
            congested[0] = Some(fragment.id);
            return true;
        }
        Some(Item::UnitPart(fragment, _)) if is_congested(class) => {
            congested[1] = Some(fragment.id);
            return true;
        }
        _ => return true,
    };
    decapsulate(stats, class, &mut item[begin..])
}

/// Copies the CE mark of a datagram to a frame. Returns `false` if the frame is to be dropped.
fn decapsulate(stats: &PeerStats, class: u8, frame: &mut [u8]) -> bool {
    let decapsulated = traffic_class::decapsulate(frame, class);
    stats.congested_in.add(u64::from(decapsulated != Ok(false)));
    decapsulated.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::budget::PEER_BYTES;
    use super::*;
    use crate::event::ControlEvent;
    use crate::io::udp::{Destination, MAX_SEGMENTS, UdpSocket};
    use crate::io::udp_port::UdpPort;
    use crate::io::wake;
    use crate::own::Own;
    use vsnoop_link::compress::unit::Packer;
    use vsnoop_link::compress::{Codecs, Encoded, Method};
    use vsnoop_link::forwarding;
    use vsnoop_link::wire::item::{SESSION, unit_header};
    use vsnoop_link::wire::seal::{Material, Opener, Sealer, Suite};
    use vsnoop_packet::offload::state::{Gso, GsoKind};
    use vsnoop_packet::testing::SegmentBuilder;

    const INDEX: u32 = 7;
    const KEYS: Material = Material { key: [1; 32], nonce: [2; 12] };

    /// Two ends of a session on the loopback interface.
    struct SessionEnds {
        shared: Shared,
        reports: Reports,
        events: wake::Receiver<ControlEvent>,
        datagrams: DatagramReceiver,
        sealer: Sealer,
        socket: UdpSocket,
    }

    impl SessionEnds {
        fn new() -> Self {
            let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let udp = UdpPort::bind(free, 1).unwrap();
            let table = forwarding::TableSettings::default();
            let shared = Shared::new(table, Vec::new(), None, 1, udp, Own::default());
            let opener = Opener::new(Suite::Plain, &KEYS, 0, 0);
            let mut datagrams = DatagramReceiver::default();
            let session = DatagramSession::new(vec![opener], Codecs::ALL, Arc::default());
            datagrams.install(&shared, 0, 1, INDEX, session);
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
                let segment_bytes = bytes.len() / items.len();
                let to = &mut Destination::new(super::Endpoints { peer: to, local: None });
                assert_eq!(self.socket.send(to, &bytes, segment_bytes).unwrap(), bytes.len());
            }
        }

        /// Frames that came.
        fn received(&mut self) -> Vec<Vec<u8>> {
            let mut frames = Vec::new();
            let mut to = |got: &mut dyn Iterator<Item = ReceivedFrame<'_>>| {
                frames.extend(got.map(|frame| frame.bytes.to_vec()));
            };
            let receive = &mut || {
                let budget = &mut Budget::default();
                self.datagrams.receive(&self.shared, budget, &mut self.reports, &mut to)
            };
            while receive().unwrap() {}
            frames
        }
    }

    #[test]
    fn units_that_become_more_than_the_buffer_holds_all_arrive_and_in_order() {
        let mut ends = SessionEnds::new();
        let mut packer = Packer::new(Codecs::ALL, coding_clock());
        let mut sent = Vec::new();
        let items: Vec<_> = (0..300u32)
            .map(|number| {
                let mut frame = SegmentBuilder {
                    sequence: number,
                    payload: 60_000,
                    ..SegmentBuilder::default()
                }
                .build();
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

    /// Units of super-packets with 60,000 zeros.
    fn bombs(count: usize) -> Vec<Vec<u8>> {
        let mut packer = Packer::new(Codecs::ALL, coding_clock());
        let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448, ecn: false });
        let offload = OffloadState { needs_checksum: true, gso };
        let mut item = unit_header(offload, 0, Way::Forwarded).to_vec();
        let mut frame = SegmentBuilder { payload: 60_000, ..SegmentBuilder::default() }.build();
        let headers = frame.len() - 60_000;
        frame[headers..].fill(0);
        let done = packer.compress(Method::Zstd { level: 1 }, &[&frame], 1200, &mut item);
        assert_eq!(done, Encoded::Compressed);
        vec![item; count]
    }

    #[test]
    fn a_round_ends_with_its_budget_and_the_next_goes_on_where_it_was() {
        let mut ends = SessionEnds::new();
        ends.send(&bombs(300));
        let (mut all, mut rounds) = (0, 0);
        loop {
            let mut frames = 0;
            let mut to = |got: &mut dyn Iterator<Item = ReceivedFrame<'_>>| frames += got.count();
            let (budget, reports) = (&mut Budget::default(), &mut ends.reports);
            if !ends.datagrams.receive(&ends.shared, budget, reports, &mut to).unwrap() {
                break;
            }
            assert!(frames * 60_000 <= PEER_BYTES + 60_100, "{frames} frames in a round");
            assert_eq!(budget.is_used_up(), ends.datagrams.has_left());
            (all, rounds) = (all + frames, rounds + 1);
        }
        assert_eq!(all, 300);
        assert!(rounds >= 300 * 60_000 / PEER_BYTES, "{rounds} rounds");
    }

    #[test]
    fn a_unit_that_the_hello_does_not_accept_ends_the_session_and_is_counted_once() {
        let mut ends = SessionEnds::new();
        let opener = Opener::new(Suite::Plain, &KEYS, 0, 0);
        let lz4 = Codecs { lz4: true, zstd: false };
        let session = DatagramSession::new(vec![opener], lz4, Arc::default());
        ends.datagrams.install(&ends.shared, 0, 1, INDEX, session);
        ends.send(&bombs(5));
        assert!(ends.received().is_empty());
        assert_eq!(ends.shared.peers[0].not_accepted_in.get(), 1);
        let ended = |event: &ControlEvent| {
            matches!(
                event,
                ControlEvent::Incoming { peer: 0, session: 1, error: ReceiveError::NotAccepted(_) }
            )
        };
        assert_eq!(ends.events.drain().filter(ended).count(), 1);
        // Records that follow belong to no session.
        assert_eq!(ends.shared.stats.unknown_datagrams.get(), 4);
    }

    #[test]
    fn messages_are_handed_on_or_counted() {
        let mut ends = SessionEnds::new();
        let item = [&[SESSION][..], &[0; 99]].concat();
        ends.send(&vec![item; 3000]);
        assert!(ends.received().is_empty());
        let is_message = |event: &ControlEvent| matches!(event, ControlEvent::Message(_));
        let heard = ends.events.drain().filter(is_message).count() as u64;
        assert!(heard > 0);
        assert_eq!(heard + ends.shared.peers[0].excess_in.get(), 3000);
    }
}

//! Receives frames from peers over UDP.
//!
//! First all datagrams of a batch are opened in place; fragments are reassembled and units
//! decompressed into a scratch buffer. Then the frames are passed on by reference. If the scratch
//! buffer is full before (units may decompress to far more), the frames so far are passed on
//! earlier.

use std::io;
use std::ops::Range;

use crate::counters::cpu::coding_clock;
use crate::counters::stats::PeerStats;
use crate::frames::frame::{Origin, ReceivedFrame};
use crate::ingress::budget::Budget;
use crate::ingress::installed::{InstalledSession, InstalledSessions};
use crate::ingress::reports::Reports;
use crate::ingress::session::DatagramSession;
use crate::io::inbox::Inbox;
use crate::io::udp::Endpoints;
use crate::threads::event::{MessageKind, ReceivedDatagram, ReceivedMessage};
use crate::threads::fault::ReceiveError;
use crate::threads::pairs::SessionNumber;
use crate::threads::shared::Shared;
use vsnoop_link::compress::unit::Unpacker;
use vsnoop_link::compress::{Codecs, DecodeError};
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::PeerSlot;
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
    /// Opens records of a session from now on, which have this number.
    pub fn install_session(
        &mut self,
        shared: &Shared,
        peer: PeerSlot,
        session: SessionId,
        number: SessionNumber,
        opened: DatagramSession,
    ) {
        let is_with_hub = shared.is_hub(peer);
        self.sessions.install(number, InstalledSession { peer, session, opened, is_with_hub });
    }

    pub fn retire_session(&mut self, session: SessionId) {
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
    pub fn receive_datagrams(
        &mut self,
        shared: &Shared,
        budget: &mut Budget,
        reports: &mut Reports,
        hand_on: HandOn<'_>,
    ) -> io::Result<bool> {
        let from = self.left.take();
        if from.is_none() && !self.inbox.receive_datagrams(shared.receiver())? {
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
                opening.open_record(&mut self.sessions, buffer, datagram, message.ends);
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
    /// Traffic class of the datagram that is being opened.
    class: u8,
    /// The peer behind a hub that the datagram is of.
    behind: Option<PeerSlot>,
}

impl Opening<'_> {
    /// Opens the record in the bytes `datagram` of `buffer` in place, and handles its item. Counts
    /// a record that is refused.
    fn open_record(
        &mut self,
        sessions: &mut InstalledSessions,
        buffer: &mut [u8],
        datagram: Range<usize>,
        ends: Endpoints,
    ) {
        let shared = self.shared;
        let record = &mut buffer[datagram.clone()];
        let bytes = record.len();
        let Some((session, counter)) = header_of(record) else {
            return shared.stats.unknown_datagrams.add(1);
        };
        self.budget.use_up(bytes);
        let owner = sessions.find_owner(record, SessionNumber(session), counter);
        let found = owner.and_then(|owner| Some((owner, sessions.get_mut(owner)?)));
        let Some((owner, installed)) = found else {
            return shared.stats.unknown_datagrams.add(1);
        };
        self.behind = owner.label.and_then(|label| shared.find_labelled(installed.peer, label));
        let stats = &shared.peers[installed.peer];
        let opened = &mut installed.opened;
        let Some(opener) = opened.openers.get_mut(usize::from(stream_of(counter))) else {
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
            opened.counts.expected_packets.set((counter & COUNTER) + 1);
            if opened.from != Some(ends.peer)
                && self.reports.report_move(installed.peer, installed.session, ends, self.now_ns)
            {
                opened.from = Some(ends.peer);
            }
        }
        let item_at = datagram.start + HEADER_BYTES;
        if !is_kept {
            return;
        }
        let datagram = ReceivedDatagram { ends, is_newest, bytes };
        if let Err(error) = self.take_item(installed, item, item_at, datagram) {
            // Later records of the session belong to no session.
            let InstalledSession { peer, session, .. } = *installed;
            self.reports.report_end(peer, session, stats, ReceiveError::NotAccepted(error));
            sessions.retire(session);
        }
    }

    /// Handles the item at `item_at` in the inbox. Fails if our hello does not accept it.
    fn take_item(
        &mut self,
        installed: &mut InstalledSession,
        item: &[u8],
        item_at: usize,
        datagram: ReceivedDatagram,
    ) -> Result<(), DecodeError> {
        let InstalledSession { peer, session, ref mut opened, .. } = *installed;
        let stats = &self.shared.peers[peer];
        let origin = Origin { peer, way: Way::read(item), behind: self.behind };
        let mut report = |kind| {
            let (item, datagram) = (item[1..].to_vec(), Some(datagram));
            let message = ReceivedMessage { peer, session, kind, item, datagram };
            self.reports.report_message(message, stats, self.now_ns);
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
                    && !copy_congestion(stats, CE, &mut self.batch.scratch[range.clone()])
                {
                    return Ok(());
                }
                let lies = Lies::InScratch;
                self.batch.frames.push(LyingFrame { origin, offload, lies, range });
            }
            Some(Item::Unit { .. }) => return self.unpack_unit(peer, opened.accepted, item),
            Some(Item::UnitPart(fragment, part)) => {
                let none = OffloadState::default();
                if let Some((_, whole)) = opened.units.push(fragment, none, part, self.now_ns) {
                    if opened.congested[1].take_if(|id| *id == fragment.id).is_some() {
                        self.class = CE;
                    }
                    return self.unpack_unit(peer, opened.accepted, whole);
                }
            }
            Some(Item::Session(_)) => report(MessageKind::Session),
            Some(Item::Introduction(_)) => report(MessageKind::Introduction),
            Some(Item::Compressed(_)) | None => stats.refused_in.add(1),
        }
        Ok(())
    }

    /// Decompresses a unit into the scratch buffer, and makes a frame of it.
    fn unpack_unit(
        &mut self,
        peer: PeerSlot,
        accepted: Codecs,
        item: &[u8],
    ) -> Result<(), DecodeError> {
        let stats = &self.shared.peers[peer];
        let (unpacker, scratch) = (&mut *self.unpacker, &mut self.batch.scratch);
        let begin = scratch.len();
        // Parts of another kind of item are refused like an item that is no unit.
        let made = match Item::parse(item) {
            Some(Item::Unit { offload, offset, body }) => {
                let before_ns = unpacker.stats().busy_ns;
                let unpacked = unpacker.decompress_body(body, accepted, scratch);
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
        if !copy_congestion(stats, self.class, &mut scratch[range.clone()]) {
            return Ok(());
        }
        self.budget.use_up(range.len());
        stats.expanded_from.add(body_bytes as u64);
        stats.expanded_to.add(range.len() as u64);
        let origin = Origin { peer, way: Way::read(item), behind: self.behind };
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
    copy_congestion(stats, class, &mut item[begin..])
}

/// Copies the CE mark of a datagram to a frame. Returns `false` if the frame is to be dropped.
fn copy_congestion(stats: &PeerStats, class: u8, frame: &mut [u8]) -> bool {
    let decapsulated = traffic_class::decapsulate(frame, class);
    stats.congested_in.add(u64::from(decapsulated != Ok(false)));
    decapsulated.is_ok()
}

#[cfg(test)]
mod tests;

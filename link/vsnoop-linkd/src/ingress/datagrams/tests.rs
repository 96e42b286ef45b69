//! Batches of datagrams over the loopback interface.

use std::sync::Arc;

use super::*;
use crate::ingress::budget::PEER_BYTES;
use crate::io::udp::{Destination, MAX_SEGMENTS, UdpSocket};
use crate::io::udp_port::UdpPort;
use crate::io::wake;
use crate::ports::own_packets::Own;
use crate::threads::event::ControlEvent;
use vsnoop_link::compress::unit::Packer;
use vsnoop_link::compress::{Codecs, Encoded, Method};
use vsnoop_link::forwarding;
use vsnoop_link::wire::item::{SESSION, unit_header};
use vsnoop_link::wire::seal::{Material, Opener, Sealer, Suite};
use vsnoop_packet::offload::state::{Gso, GsoKind};
use vsnoop_packet::testing::SegmentBuilder;

const PEER: PeerSlot = PeerSlot(0);
const SESSION_ID: SessionId = SessionId(1);
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
        datagrams.install_session(&shared, PEER, SESSION_ID, SessionNumber(INDEX), session);
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
            let to = &mut Destination::new(Endpoints { peer: to, local: None });
            assert_eq!(self.socket.send_datagrams(to, &bytes, segment_bytes).unwrap(), bytes.len());
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
            self.datagrams.receive_datagrams(&self.shared, budget, &mut self.reports, &mut to)
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
            let mut frame =
                SegmentBuilder { sequence: number, payload: 60_000, ..SegmentBuilder::default() }
                    .build();
            let headers = frame.len() - 60_000;
            frame[headers..].fill(b'a');
            let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448, ecn: false });
            let offload = OffloadState { needs_checksum: true, gso };
            let mut item = unit_header(offload, 0, Way::Forwarded).to_vec();
            let done = packer.compress_parts(Method::Lz4, &[&frame], 1200, &mut item);
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
    assert_eq!(ends.shared.peers[PEER].refused_in.get(), 0);
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
    let done = packer.compress_parts(Method::Zstd { level: 1 }, &[&frame], 1200, &mut item);
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
        if !ends.datagrams.receive_datagrams(&ends.shared, budget, reports, &mut to).unwrap() {
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
    let number = SessionNumber(INDEX);
    ends.datagrams.install_session(&ends.shared, PEER, SESSION_ID, number, session);
    ends.send(&bombs(5));
    assert!(ends.received().is_empty());
    assert_eq!(ends.shared.peers[PEER].not_accepted_in.get(), 1);
    let ended = |event: &ControlEvent| {
        matches!(
            event,
            ControlEvent::Incoming {
                peer: PEER,
                session: SESSION_ID,
                error: ReceiveError::NotAccepted(_),
            }
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
    assert_eq!(heard + ends.shared.peers[PEER].excess_in.get(), 3000);
}

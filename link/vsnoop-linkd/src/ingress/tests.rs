//! Rounds of the thread, with connections over the loopback interface.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::budget::PEER_BYTES;
use super::*;
use crate::counters::cpu::coding_clock;
use crate::handshake::tcp_handshake::testing::connected;
use crate::io::poll::Half;
use crate::io::udp_port::UdpPort;
use crate::ports::own_packets::Own;
use crate::threads::fault::ReceiveError;
use vsnoop_link::compress::{
    Codecs, CompressionLimits, Decoder, DecoderMemory, Encoded, Encoder, Method, Owner, Policy,
};
use vsnoop_link::forwarding::TableSettings;
use vsnoop_link::wire::item::{COMPRESSED, FrameHeader};
use vsnoop_packet::headers::FlowHash;
use vsnoop_packet::offload::state::OffloadState;

const FRAME_BYTES: usize = 65_000;
const BOMBS: usize = 1000;
const HOSTILE: PeerSlot = PeerSlot(0);
const OTHER: PeerSlot = PeerSlot(1);
const SESSION: SessionId = SessionId(1);

struct Fixture {
    ingress: Ingress,
    orders: wake::Sender<Order>,
    events: wake::Receiver<ControlEvent>,
}

impl Fixture {
    fn new(peers: usize) -> Self {
        let udp = UdpPort::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let table = TableSettings::default();
        let shared = Shared::new(table, Vec::new(), None, peers, udp, Own::default());
        let (orders, obeyed) = wake::channel().unwrap();
        let (told, events) = wake::channel().unwrap();
        let watch = Watch::new(&Arc::new(Poll::new().unwrap()), Half::Ingress).unwrap();
        let (handoff, _) = crate::threads::handoff::channels(shared.pairs).unwrap();
        let ingress = Ingress::new(Arc::new(shared), obeyed, told, handoff, watch).unwrap();
        Self { ingress, orders, events }
    }

    /// A connection of a peer, and its far end.
    fn connect(&self, peer: PeerSlot, accepted: CompressionLimits) -> Far {
        let (near, far) = connected();
        near.stream.set_nonblocking(true).unwrap();
        let memory = DecoderMemory::new(accepted.decoder_bytes_max());
        let decoder = Decoder::new(accepted, memory.into(), coding_clock());
        let connections =
            vec![ConnectionReceiver::new(near.stream, near.outcome.tls, decoder, Arc::default())];
        self.orders.send(Order::Connections { peer, session: SESSION, connections });
        Far {
            socket: far.stream,
            tls: far.outcome.tls,
            encoder: Encoder::new(CompressionLimits::MOST, coding_clock()),
        }
    }

    /// One round; `false`: there is nothing to do.
    fn round(&mut self) -> bool {
        let ready = self.ingress.poll().wait(Some(Duration::ZERO)).unwrap();
        self.ingress.begin_round();
        ready.iter().for_each(|token| assert!(self.ingress.handle_token(*token)));
        !ready.is_empty()
    }

    fn expanded(&self, peer: PeerSlot) -> usize {
        self.ingress.shared.peers[peer].expanded_to.get() as usize
    }

    fn frames(&self, peer: PeerSlot) -> u64 {
        self.ingress.shared.peers[peer].frames_in.get()
    }
}

struct Far {
    socket: TcpStream,
    tls: rustls::Connection,
    encoder: Encoder,
}

impl Far {
    fn item(&mut self, item: &[u8]) {
        let length = (item.len() as u32).to_be_bytes();
        self.tls.writer().write_all(&[&length, item].concat()).unwrap();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).unwrap();
        }
    }

    /// A frame that becomes next to nothing. Bytes that the receiver has of it.
    fn bomb(&mut self) -> usize {
        let policy =
            Policy { method: Method::Zstd { level: 1 }, owner: Owner::Named(1), dictionary: None };
        let header = FrameHeader::new(OffloadState::default(), Way::Forwarded);
        let frame = vec![0; FRAME_BYTES];
        let mut item = vec![COMPRESSED];
        let encoded =
            self.encoder.encode(FlowHash(1), &policy, &[header.bytes(), &frame], 0, &mut item);
        assert_eq!(encoded, Encoded::Compressed);
        self.item(&item);
        header.bytes().len() + frame.len()
    }
}

#[test]
fn a_bomb_takes_its_peers_budget_of_a_round_and_others_get_theirs() {
    let mut link = Fixture::new(2);
    // Two connections of the peer have no more than one.
    let mut hostile = [
        link.connect(HOSTILE, CompressionLimits::MOST),
        link.connect(HOSTILE, CompressionLimits::MOST),
    ];
    let mut other = link.connect(OTHER, CompressionLimits::MOST);
    let all: usize = (0..BOMBS).map(|number| hostile[number % 2].bomb()).sum();
    let header = FrameHeader::new(OffloadState::default(), Way::Forwarded);
    let (mut before, mut rounds) = (0, 0);
    loop {
        // It sends a frame before each round, and has it in that round.
        other.item(&[header.bytes(), &[0; 100]].concat());
        link.round();
        rounds += 1;
        assert_eq!(link.frames(OTHER), rounds);
        let expanded = link.expanded(HOSTILE);
        assert!(expanded - before <= PEER_BYTES + FRAME_BYTES + 100, "{}", expanded - before);
        if expanded == before {
            break;
        }
        before = expanded;
    }
    assert_eq!(link.expanded(HOSTILE), all, "after {rounds} rounds");
    assert!(rounds as usize >= all / PEER_BYTES, "{rounds}");
    assert!(!link.round(), "the thread sleeps");
}

#[test]
fn what_the_hello_does_not_accept_ends_the_session_and_is_counted_once() {
    let mut link = Fixture::new(1);
    let lz4 = Codecs { lz4: true, zstd: false };
    let mut hostile =
        link.connect(HOSTILE, CompressionLimits { codecs: lz4, ..CompressionLimits::MOST });
    for _ in 0..3 {
        hostile.bomb();
    }
    while link.round() {}
    assert_eq!(link.expanded(HOSTILE), 0);
    assert_eq!(link.ingress.shared.peers[HOSTILE].not_accepted_in.get(), 1);
    assert!(link.ingress.connections.is_empty());
    let events: Vec<_> = link.events.drain().collect();
    let [ControlEvent::Incoming { peer: HOSTILE, session: SESSION, error }] = &events[..] else {
        panic!("{} events", events.len())
    };
    assert!(matches!(error, ReceiveError::NotAccepted(_)), "{error}");
    let why = error.to_string();
    assert!(why.contains("zstd, which is not accepted here"), "{why}");
}

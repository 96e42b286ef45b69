use std::net::SocketAddr;
use std::sync::Arc;

use super::*;
use crate::io::udp_port::UdpPort;
use vsnoop_link::compress::{Method, Owner};
use vsnoop_link::wire::seal::{Material, Suite};
use vsnoop_packet::testing::SegmentBuilder;

#[test]
fn a_class_has_the_bytes_on_the_wire_that_its_frames_became_compressed_or_not() {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let (port, far) = (UdpPort::bind(here, 1), std::net::UdpSocket::bind(here));
    let (socket, far) = (port.unwrap().receivers.remove(0), far.unwrap().local_addr().unwrap());
    let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
    let mut datagrams = DatagramSender::new(sealer, Some(far), 1472, Codecs::ALL, Arc::default());
    datagrams.open_socket(socket.open_sender().unwrap());
    let stats = PeerStats::default();
    let policy = Policy { method: Method::Lz4, owner: Owner::Named(0), dictionary: None };
    let compressions =
        [None, Some(policy)].map(|policy| Compression { policy, rule_stats: Arc::default() });
    let mut frame = SegmentBuilder { payload: 1300, ..SegmentBuilder::default() }.build();
    let headers = Headers::parse(&frame).unwrap();
    // The sum of zeroes: its checksum is still to be made.
    frame[usize::from(headers.payload)..].fill(0);
    let offload = OffloadState { needs_checksum: true, gso: None };
    let mut sum = 0;
    for compression in &compressions {
        let parts = [&frame[..]];
        let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
        let frame = Frame::whole(offload, &parts);
        datagrams.send_frame(context, &frame, compression, &mut Vec::new());
        datagrams.flush(context);
        let rule_stats = &compression.rule_stats;
        rule_stats.bytes.add(frame.bytes as u64);
        let headers = rule_stats.wire_bytes.get() - rule_stats.after_compression();
        assert!((1..100).contains(&headers), "{headers}");
        sum += rule_stats.wire_bytes.get();
        assert_eq!(stats.wire_bytes_out.get(), sum);
    }
    assert!(compressions[1].rule_stats.wire_bytes.get() < 650, "nothing was compressed");
}

/// A sender for a far socket, and that.
fn ends() -> (Arc<UdpSocket>, DatagramSender, std::net::UdpSocket) {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let (port, far) = (UdpPort::bind(here, 1), std::net::UdpSocket::bind(here));
    let (socket, far) = (port.unwrap().receivers.remove(0), far.unwrap());
    let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
    let to = far.local_addr().unwrap();
    let mut datagrams = DatagramSender::new(sealer, Some(to), 1472, Codecs::ALL, Arc::default());
    datagrams.open_socket(socket.open_sender().unwrap());
    (socket, datagrams, far)
}

#[test]
fn frames_wait_for_room_each_flow_in_its_turn_and_messages_do_not() {
    let (socket, mut datagrams, far) = ends();
    let stats = PeerStats::default();
    let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
    let compression = Compression { policy: None, rule_stats: Arc::default() };
    let send = |datagrams: &mut DatagramSender, port: u16, number: u8| {
        let mut frame = SegmentBuilder { port, payload: 1000, ..SegmentBuilder::default() }.build();
        *frame.last_mut().unwrap() = number;
        let parts = [&frame[..]];
        let frame = Frame::whole(OffloadState::default(), &parts);
        datagrams.send_frame(context, &frame, &compression, &mut Vec::new());
    };
    // As if the socket had had no room for it.
    datagrams.sender.push_waiting(b"before".to_vec(), 6);
    for number in 0..10 {
        send(&mut datagrams, 1, number);
    }
    send(&mut datagrams, 2, 77);
    datagrams.flush(context);
    assert!(datagrams.is_blocked() && datagrams.queue_bytes() > 11 * 1000);
    datagrams.send_message(context, b"probe", 0, None);
    datagrams.resume_sending(context);
    assert!(!datagrams.is_blocked() && datagrams.queue_bytes() == 0);
    let mut buffer = [0; 2048];
    let mut receive = || {
        let length = far.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    };
    assert!(receive().ends_with(b"probe"));
    assert_eq!(receive(), b"before");
    let numbers: Vec<_> = (0..11).map(|_| *receive().last().unwrap()).collect();
    let position = numbers.iter().position(|number| *number == 77).unwrap();
    assert!(position <= 2, "the second flow waits for the first: {numbers:?}");
    let first: Vec<_> = numbers.into_iter().filter(|number| *number != 77).collect();
    assert!(first.iter().copied().eq(0..10), "{first:?}");
}

#[test]
fn what_waits_at_the_end_or_beyond_the_bound_is_counted() {
    let (socket, mut datagrams, _far) = ends();
    let stats = PeerStats::default();
    let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
    let compression = Compression { policy: None, rule_stats: Arc::default() };
    datagrams.sender.push_waiting(vec![0; 250], 100);
    let frame = SegmentBuilder { payload: 1000, ..SegmentBuilder::default() }.build();
    let (parts, most) = ([&frame[..]], QueueLimits::default().packets as u64);
    for _ in 0..most + 5 {
        let frame = Frame::whole(OffloadState::default(), &parts);
        datagrams.send_frame(context, &frame, &compression, &mut Vec::new());
    }
    assert_eq!(stats.dropped_full.frames.get(), 5);
    datagrams.count_waiting_as_dropped(&stats);
    assert_eq!(stats.dropped_down.frames.get(), most + 3);
    assert_eq!(stats.dropped_down.bytes.get(), most * frame.len() as u64 + 250);
}

//! TCP over IPv4 in frames: reading a segment, writing an ACK, changing one.

use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::checksum::make_partial;
use vsnoop_packet::format::{ETHERNET_BYTES, FIN, IPV4_BYTES, RST, SYN};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::OffloadState;
use vsnoop_packet::options::{self, TIMESTAMPS, WINDOW_SCALE};
use vsnoop_packet::packet::Packet;
use vsnoop_packet::vnet::VirtioNetHdr;

use super::rule::{Ack, Segment};

const IP: usize = ETHERNET_BYTES;
const TCP: usize = IP + IPV4_BYTES;

/// One end of a connection, in the order of the wire.
pub type End = ([u8; 4], u16);

/// Both ends, the sending one first, and the segment; `None` for anything but plain TCP over IPv4.
pub fn parse(frame: &[u8]) -> Option<(End, End, Segment)> {
    let headers = Headers::of(frame).filter(is_plain)?;
    let tcp = headers.tcp_header(frame)?;
    let mut segment = Segment {
        seq: tcp.sequence.get(),
        ack: tcp.acknowledgment.get(),
        payload_bytes: headers.payload_bytes() as u32,
        syn: tcp.flags & SYN != 0,
        fin: tcp.flags & FIN != 0,
        rst: tcp.flags & RST != 0,
        window: tcp.window.get(),
        ..Segment::default()
    };
    for option in headers.tcp_options(frame) {
        match option.kind {
            WINDOW_SCALE => segment.window_scale = option.value.first().copied(),
            TIMESTAMPS => segment.timestamps = option.word(0).zip(option.word(1)),
            _ => (),
        }
    }
    let address = |at| <[u8; 4]>::try_from(&frame[at..at + 4]).ok();
    let from = (address(IP + 12)?, tcp.source_port.get());
    let to = (address(IP + 16)?, tcp.destination_port.get());
    Some((from, to, segment))
}

fn is_plain(headers: &Headers) -> bool {
    !headers.v6 && (headers.ip, headers.l4) == (IP as u16, TCP as u16) && headers.tcp()
}

/// Makes `packet` the answer to the frame `data`, back to its sender.
pub fn write_ack(ack: &Ack, data: &[u8], packet: &mut Packet) {
    let Some((from, to, _)) = parse(data) else { return };
    let mac = |at: usize| std::array::from_fn(|i| data[at + i]);
    let ethernet = Ethernet { source: mac(0), destination: mac(6), ..Ethernet::default() };
    let timestamps = ack.timestamps.map(|(value, echo)| options::timestamps(value, echo));
    let frame = TcpFrame {
        sequence: ack.seq,
        acknowledgment: ack.ack,
        window: ack.window,
        options: timestamps.as_ref().map_or(&[], |options| options),
        ..TcpFrame::new(Route::new(ethernet, Addresses::V4(to.0, from.0)), to.1, from.1)
    };
    packet.fill(VirtioNetHdr::default(), &frame.build(&[]));
}

/// Gives a packet that [`parse`] took another acknowledgement and window, and leaves its TCP
/// checksum to who receives it.
pub fn rewrite(packet: &mut Packet, ack: u32, window: u16) {
    let Some(headers) = Headers::of(packet.frame()).filter(is_plain) else { return };
    let frame = packet.frame_mut();
    frame[TCP + 8..TCP + 12].copy_from_slice(&ack.to_be_bytes());
    frame[TCP + 14..TCP + 16].copy_from_slice(&window.to_be_bytes());
    make_partial(&headers, frame);
    let offload = OffloadState { needs_checksum: true, ..OffloadState::default() };
    packet.header = offload.header(Some(&headers));
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::checksum;
    use vsnoop_packet::packet::Pool;

    use super::*;

    const ACK: Ack = Ack { seq: 5, ack: 6, window: 7, timestamps: Some((8, 9)) };

    /// A segment from 10.0.0.1:1000 to 10.0.0.2:2000.
    fn data() -> Packet {
        let addresses = Addresses::V4([10, 0, 0, 1], [10, 0, 0, 2]);
        let route = Route::new(Ethernet::default(), addresses);
        let frame = TcpFrame { sequence: 100, ..TcpFrame::new(route, 1000, 2000) };
        let mut packet = Pool::default().take();
        packet.fill(VirtioNetHdr::default(), &frame.build(&[]));
        packet
    }

    #[test]
    fn an_ack_goes_back_with_all_that_it_was_given_and_a_right_checksum() {
        for timestamps in [None, Some((8, 9))] {
            let mut packet = Pool::default().take();
            write_ack(&Ack { timestamps, ..ACK }, data().frame(), &mut packet);
            let (from, to, segment) = parse(packet.frame()).expect("a segment");
            assert_eq!((from, to), (([10, 0, 0, 2], 2000), ([10, 0, 0, 1], 1000)));
            let expected = Segment { seq: 5, ack: 6, window: 7, timestamps, ..Segment::default() };
            assert_eq!(segment, expected);
            assert!(packet.complete_checksum());
            assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
        }
    }

    #[test]
    fn a_rewritten_segment_has_the_new_fields_and_a_right_checksum() {
        let mut packet = data();
        rewrite(&mut packet, 0xffff_fff0, 0xffff);
        let (_, _, segment) = parse(packet.frame()).expect("a segment");
        assert_eq!((segment.seq, segment.ack, segment.window), (100, 0xffff_fff0, 0xffff));
        assert!(packet.complete_checksum());
        assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
    }
}

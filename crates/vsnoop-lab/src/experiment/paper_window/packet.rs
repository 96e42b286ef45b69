//! TCP over IPv4 in frames: reading a segment, writing an ACK, changing one.

use vsnoop_packet::layout::{self, Layout, Version};
use vsnoop_packet::packet::Packet;
use vsnoop_packet::vnet::{NEEDS_CSUM, VirtioNetHdr};

use super::rule::{Ack, Segment};

const MAC_BYTES: usize = 6;
const IP: usize = 14;
/// Without options.
const IP_BYTES: usize = 20;
const TCP: usize = IP + IP_BYTES;
const TCP_BYTES: usize = 20;
/// NOP, NOP, timestamps.
const TIMESTAMPS_BYTES: usize = 12;
const CHECKSUM: usize = 16;
const PROTOCOL: u8 = 6;
const FLAG_ACK: u8 = 0x10;

/// One end of a connection, in the order of the wire.
pub type End = ([u8; 4], u16);

/// Both ends, the sending one first, and the segment; `None` for anything but plain TCP over IPv4.
pub fn parse(frame: &[u8]) -> Option<(End, End, Segment)> {
    let found = Layout::of(frame)?;
    let (plain, payload) = (is_plain(&found), found.tcp_payload?);
    let tcp = layout::tcp(frame).filter(|_| plain)?;
    let mut segment = Segment {
        seq: tcp.sequence_number(),
        ack: tcp.acknowledgment_number(),
        payload_bytes: (found.ip_end - payload) as u32,
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        window: tcp.window_size(),
        ..Segment::default()
    };
    read_options(tcp.options(), &mut segment);
    let address = |at| <[u8; 4]>::try_from(&frame[at..at + 4]).ok();
    let from = (address(IP + 12)?, tcp.source_port());
    let to = (address(IP + 16)?, tcp.destination_port());
    Some((from, to, segment))
}

fn is_plain(layout: &Layout) -> bool {
    let headers = (layout.ip, layout.ip_payload);
    layout.version == Version::V4 && headers == (IP, TCP) && !layout.fragment
}

fn read_options(mut options: &[u8], segment: &mut Segment) {
    while let [kind, rest @ ..] = options {
        match (kind, rest) {
            (0, _) => return,
            (1, _) => options = rest,
            (_, [length, ..]) => {
                let length = usize::from(*length);
                let Some(value) = options.get(2..length) else { return };
                let word =
                    |at: usize| value.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
                match kind {
                    3 => segment.window_scale = value.first().copied(),
                    8 => segment.timestamps = word(0).zip(word(4)),
                    _ => (),
                }
                options = &options[length..];
            }
            _ => return,
        }
    }
}

/// Makes `packet` the answer to the frame `data`, back to its sender.
pub fn write_ack(ack: &Ack, data: &[u8], packet: &mut Packet) {
    let options = if ack.timestamps.is_some() { TIMESTAMPS_BYTES } else { 0 };
    let length = TCP + TCP_BYTES + options;
    let mut frame = vec![0; length];
    frame[..MAC_BYTES].copy_from_slice(&data[MAC_BYTES..2 * MAC_BYTES]);
    frame[MAC_BYTES..2 * MAC_BYTES].copy_from_slice(&data[..MAC_BYTES]);
    frame[2 * MAC_BYTES..IP].copy_from_slice(&data[2 * MAC_BYTES..IP]);

    let ip = &mut frame[IP..TCP];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((length - IP) as u16).to_be_bytes());
    ip[6] = 0x40; // don't fragment
    ip[8] = 64;
    ip[9] = PROTOCOL;
    ip[12..16].copy_from_slice(&data[IP + 16..IP + 20]);
    ip[16..20].copy_from_slice(&data[IP + 12..IP + 16]);
    let sum = !folded(sum_of(ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let tcp = &mut frame[TCP..];
    tcp[..2].copy_from_slice(&data[TCP + 2..TCP + 4]);
    tcp[2..4].copy_from_slice(&data[TCP..TCP + 2]);
    tcp[4..8].copy_from_slice(&ack.seq.to_be_bytes());
    tcp[12] = (((TCP_BYTES + options) / 4) as u8) << 4;
    tcp[13] = FLAG_ACK;
    if let Some((value, echo)) = ack.timestamps {
        tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
        tcp[24..28].copy_from_slice(&value.to_be_bytes());
        tcp[28..32].copy_from_slice(&echo.to_be_bytes());
    }
    packet.fill(VirtioNetHdr::default(), &frame);
    rewrite(packet, ack.ack, ack.window);
}

/// Gives a packet that [`parse`] took another acknowledgement and window, and leaves its TCP
/// checksum to who receives it.
pub fn rewrite(packet: &mut Packet, ack: u32, window: u16) {
    let Some(layout) = Layout::of(packet.frame()).filter(is_plain) else { return };
    let frame = packet.frame_mut();
    frame[TCP + 8..TCP + 12].copy_from_slice(&ack.to_be_bytes());
    frame[TCP + 14..TCP + 16].copy_from_slice(&window.to_be_bytes());
    let length = (layout.ip_end - TCP) as u32;
    let pseudo = sum_of(&frame[IP + 12..IP + 20]) + u32::from(PROTOCOL) + length;
    let at = TCP + CHECKSUM;
    frame[at..at + 2].copy_from_slice(&folded(pseudo).to_be_bytes());
    packet.header.flags = NEEDS_CSUM;
    packet.header.csum_start.set(TCP as u16);
    packet.header.csum_offset.set(CHECKSUM as u16);
}

fn sum_of(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::checksum;
    use vsnoop_packet::packet::Pool;

    use super::*;

    const ACK: Ack = Ack { seq: 5, ack: 6, window: 7, timestamps: Some((8, 9)) };

    /// A segment from 10.0.0.1:1000 to 10.0.0.2:2000.
    fn data() -> Packet {
        let mut back = vec![0; TCP + TCP_BYTES];
        back[12] = 8;
        back[IP + 12..IP + 20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        back[TCP..TCP + 4].copy_from_slice(&[0x07, 0xd0, 0x03, 0xe8]);
        let mut packet = Pool::default().take();
        write_ack(&Ack { seq: 100, ..ACK }, &back, &mut packet);
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
            assert!(checksum::complete(&mut packet));
            assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
        }
    }

    #[test]
    fn a_rewritten_segment_has_the_new_fields_and_a_right_checksum() {
        let mut packet = data();
        rewrite(&mut packet, 0xffff_fff0, 0xffff);
        let (_, _, segment) = parse(packet.frame()).expect("a segment");
        assert_eq!((segment.seq, segment.ack, segment.window), (100, 0xffff_fff0, 0xffff));
        assert!(checksum::complete(&mut packet));
        assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
    }

    #[test]
    fn options_are_read_whatever_stands_around_them_and_rubbish_ends_them() {
        let read = |options: &[u8]| {
            let mut segment = Segment::default();
            read_options(options, &mut segment);
            (segment.window_scale, segment.timestamps)
        };
        let syn = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7];
        assert_eq!(read(&syn), (Some(7), Some((1, 2))));
        for rubbish in [&[3, 200, 7][..], &[3, 0, 7], &[3, 1, 7], &[3], &[0, 3, 3, 7]] {
            assert_eq!(read(rubbish), (None, None), "{rubbish:?}");
        }
    }
}

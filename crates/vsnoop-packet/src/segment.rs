//! Cutting a super-packet (or any TCP segment) into smaller segments, as a network card would.
//!
//! Follows the kernel's `tcp_gso_segment`: each segment repeats the headers; sequence numbers and
//! IPv4 identifications go on; FIN and PSH stay on the last, CWR on the first; every checksum is
//! complete afterwards.

use etherparse::{Ipv4Header, Ipv6Header, TcpHeader};

use crate::checksum;
use crate::layout::{Layout, Version};
use crate::packet::{Packet, Pool};

/// Appends to `segments` what a packet becomes with at most `segment_bytes` of payload in each.
///
/// A packet that is no TCP segment, or is small enough, comes out whole, its checksum complete. The
/// packet itself goes back to the pool.
pub fn segment(packet: Packet, segment_bytes: usize, pool: &mut Pool, segments: &mut Vec<Packet>) {
    let cut = Layout::of(packet.frame()).and_then(|layout| Cut::plan(&packet, layout));
    match cut {
        Some(cut) if cut.payload_bytes() > segment_bytes.max(1) => {
            cut.perform(&packet, segment_bytes.max(1), pool, segments);
            pool.give_back(packet);
        }
        // Nothing to cut, but a super-packet's header may still stand before a small payload.
        Some(cut) if packet.header.is_super_packet() => {
            cut.perform(&packet, usize::MAX, pool, segments);
            pool.give_back(packet);
        }
        _ => {
            let mut packet = packet;
            checksum::complete(&mut packet);
            segments.push(packet);
        }
    }
}

/// As [`segment()`], at the size that the super-packet itself names; others come out whole.
pub fn segment_as_named(packet: Packet, pool: &mut Pool, segments: &mut Vec<Packet>) {
    let named = usize::from(packet.header.gso_size.get());
    let segment_bytes =
        if packet.header.is_super_packet() && named > 0 { named } else { usize::MAX };
    segment(packet, segment_bytes, pool, segments);
}

enum Ip {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

/// The headers that each segment starts from.
struct Cut {
    layout: Layout,
    payload: usize,
    ip: Ip,
    tcp: TcpHeader,
}

impl Cut {
    fn plan(packet: &Packet, layout: Layout) -> Option<Self> {
        let payload = layout.tcp_payload?;
        let frame = packet.frame();
        let tcp = TcpHeader::from_slice(&frame[layout.ip_payload..]).ok()?.0;
        let ip = match layout.version {
            Version::V4 => Ip::V4(Ipv4Header::from_slice(&frame[layout.ip..]).ok()?.0),
            Version::V6 => Ip::V6(Ipv6Header::from_slice(&frame[layout.ip..]).ok()?.0),
        };
        // SYN and RST carry no data worth a cut, and urgent pointers are relative to a segment.
        (!(tcp.syn || tcp.rst || tcp.urg)).then_some(Self { layout, payload, ip, tcp })
    }

    fn payload_bytes(&self) -> usize {
        self.layout.ip_end - self.payload
    }

    fn perform(
        &self,
        whole: &Packet,
        segment_bytes: usize,
        pool: &mut Pool,
        segments: &mut Vec<Packet>,
    ) {
        let headers = &whole.frame()[..self.payload];
        let payload = &whole.frame()[self.payload..self.layout.ip_end];
        let count = payload.len().div_ceil(segment_bytes).max(1);
        for index in 0..count {
            let begin = index.saturating_mul(segment_bytes);
            let part = &payload[begin..payload.len().min(begin.saturating_add(segment_bytes))];
            let mut packet = pool.take();
            packet.header = whole.header;
            packet.header.settle();
            packet.set_length(headers.len() + part.len());
            let frame = packet.frame_mut();
            frame[..headers.len()].copy_from_slice(headers);
            frame[headers.len()..].copy_from_slice(part);

            let mut tcp = self.tcp.clone();
            tcp.sequence_number = tcp.sequence_number.wrapping_add(begin as u32);
            tcp.cwr &= index == 0;
            tcp.fin &= index == count - 1;
            tcp.psh &= index == count - 1;
            let ip_bytes = frame.len() - self.layout.ip;
            tcp.checksum = match &self.ip {
                Ip::V4(header) => {
                    let mut header = header.clone();
                    header.total_len = ip_bytes as u16;
                    header.identification = header.identification.wrapping_add(index as u16);
                    header.header_checksum = header.calc_header_checksum();
                    put(frame, self.layout.ip, &header.to_bytes());
                    tcp.calc_checksum_ipv4_raw(header.source, header.destination, part)
                }
                Ip::V6(header) => {
                    let mut header = header.clone();
                    header.payload_length = (ip_bytes - Ipv6Header::LEN) as u16;
                    put(frame, self.layout.ip, &header.to_bytes());
                    tcp.calc_checksum_ipv6_raw(header.source, header.destination, part)
                }
            }
            .expect("a part of a packet is shorter than the packet");
            put(frame, self.layout.ip_payload, &tcp.to_bytes());
            segments.push(packet);
        }
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tcp;
    use crate::testing::{TcpFrame, V4, V6};

    fn cut(spec: &TcpFrame, segment_bytes: usize) -> Vec<Packet> {
        let mut pool = Pool::default();
        let mut packet = pool.take();
        spec.build_super_packet(&mut packet, segment_bytes as u16);
        let mut segments = Vec::new();
        segment_as_named(packet, &mut pool, &mut segments);
        segments
    }

    #[test]
    fn segments_hold_all_bytes_in_order_with_right_checksums() {
        for addresses in [V4, V6] {
            for payload in [1, 1448, 1449, 10 * 1448, 60_001] {
                for tags in 0..3 {
                    let spec = TcpFrame { addresses, payload, tags, ..TcpFrame::default() };
                    let mut expected = spec.sequence;
                    let mut bytes = Vec::new();
                    for packet in cut(&spec, 1448) {
                        assert!(
                            !packet.header.is_super_packet() && !packet.header.needs_checksum()
                        );
                        assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
                        let segment = tcp(packet.frame()).expect("TCP");
                        assert_eq!(segment.sequence_number(), expected);
                        assert!(segment.payload().len() <= 1448);
                        expected = expected.wrapping_add(segment.payload().len() as u32);
                        bytes.extend_from_slice(segment.payload());
                    }
                    assert_eq!(bytes, spec.payload_bytes());
                }
            }
        }
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        let spec = TcpFrame { sequence: u32::MAX - 100, payload: 3000, ..TcpFrame::default() };
        let segments = cut(&spec, 1000);
        let second = tcp(segments[1].frame()).expect("TCP").sequence_number();
        assert_eq!(second, 899);
    }

    #[test]
    fn flags_stay_where_they_mean_something() {
        let spec =
            TcpFrame { payload: 3000, fin: true, psh: true, cwr: true, ..TcpFrame::default() };
        let flags: Vec<_> = cut(&spec, 1000)
            .iter()
            .map(|packet| tcp(packet.frame()).map(|tcp| (tcp.cwr(), tcp.psh(), tcp.fin())))
            .collect();
        assert_eq!(
            flags,
            [Some((true, false, false)), Some((false, false, false)), Some((false, true, true))]
        );
    }

    #[test]
    fn identifications_go_on() {
        let spec = TcpFrame { addresses: V4, payload: 3000, ..TcpFrame::default() };
        let ids: Vec<_> = cut(&spec, 1000)
            .iter()
            .map(|packet| {
                Ipv4Header::from_slice(&packet.frame()[14..]).map(|(ip, _)| ip.identification).ok()
            })
            .collect();
        assert_eq!(ids, [Some(7), Some(8), Some(9)]);
    }

    #[test]
    fn what_is_no_tcp_segment_comes_out_whole() {
        let mut pool = Pool::default();
        let mut packet = pool.take();
        packet.fill(Default::default(), &[0xaa; 60]);
        let mut segments = Vec::new();
        segment(packet, 8, &mut pool, &mut segments);
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].frame(), [0xaa; 60]);
    }
}

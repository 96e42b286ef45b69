//! Frames of a VM that are heard beside its tap: its segments at another port, which the hook of
//! the tap gets, and announcements of its address at the bridge.

use vsnoop_packet::checksum;
use vsnoop_packet::format::{FIN, PSH, RST, SYN, TCP, URG};
use vsnoop_packet::headers::Headers;

use crate::moves::Announcement;

/// A segment of a sender's, without its payload and FIN: for its ACK, which the engine's frames
/// must have. `None` of a SYN and a RST.
pub fn ack_of_sender(frame: &[u8]) -> Option<Vec<u8>> {
    ack_without(frame, FIN, SYN | URG | RST)
}

/// The segment without its payload: an ACK with the SEQ that follows it. `None` of a frame that is
/// no segment of a connection, as of a SYN. Only the first bytes of the frame may be there.
pub fn pure_ack(frame: &[u8]) -> Option<Vec<u8>> {
    ack_without(frame, 0, SYN | URG)
}

fn ack_without(frame: &[u8], removed: u8, refused: u8) -> Option<Vec<u8>> {
    let headers = Headers::of_start(frame)?;
    let (l4, payload) = (usize::from(headers.l4), usize::from(headers.payload));
    if headers.protocol != TCP || headers.fragment || payload <= l4 || payload > frame.len() {
        return None;
    }
    let mut ack = frame[..payload].to_vec();
    let flags = &mut ack[l4 + 13];
    if *flags & refused != 0 {
        return None;
    }
    *flags &= !(PSH | removed);
    let length = headers.end - u32::from(headers.payload);
    let sequence = ack[l4 + 4..].first_chunk_mut::<4>()?;
    *sequence = u32::from_be_bytes(*sequence).wrapping_add(length).to_be_bytes();
    let ip = usize::from(headers.ip);
    if headers.v6 {
        let bytes = (payload - ip - 40) as u16;
        ack[ip + 4..ip + 6].copy_from_slice(&bytes.to_be_bytes());
    } else {
        let bytes = (payload - ip) as u16;
        ack[ip + 2..ip + 4].copy_from_slice(&bytes.to_be_bytes());
        checksum::complete_ipv4(&mut ack[ip..l4]);
    }
    let headers = Headers::parse(&ack)?;
    let is_summed = checksum::make_partial(&headers, &mut ack) && checksum::complete(&mut ack);
    is_summed.then_some(ack)
}

/// An Ethernet frame without a VLAN tag that says which IP address its sender has: ARP (RFC 826),
/// or a neighbour advertisement (RFC 4861). `None` of any other.
pub fn announcement(frame: &[u8]) -> Option<Announcement> {
    const ARP: [u8; 2] = [0x08, 0x06];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    const ICMPV6: u8 = 58;
    const ADVERTISEMENT: u8 = 136;
    let mac = *frame.get(6..)?.first_chunk::<6>()?;
    let payload = frame.get(14..)?;
    match *frame.get(12..)?.first_chunk::<2>()? {
        // Ethernet, IPv4, and the lengths of their addresses.
        ARP if payload.starts_with(&[0, 1, 8, 0, 6, 4]) => {
            let sender = payload.get(14..)?.first_chunk::<4>()?;
            // A probe (RFC 5227) has none.
            let mut address = [0; 16];
            address[10..12].copy_from_slice(&[0xff, 0xff]);
            address[12..].copy_from_slice(sender);
            (*sender != [0; 4]).then_some(Announcement { mac, address })
        }
        IPV6 if *payload.get(6)? == ICMPV6 && *payload.get(40)? == ADVERTISEMENT => {
            let address = *payload.get(48..)?.first_chunk::<16>()?;
            Some(Announcement { mac, address })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
    use vsnoop_packet::format::ACK;

    use super::*;

    fn segment(flags: u8, payload: &[u8]) -> Vec<u8> {
        let ethernet = Ethernet { source: [2; 6], destination: [4; 6], tags: [None; 2] };
        let mut addresses = [[0; 16]; 2];
        for (last, address) in addresses.iter_mut().enumerate() {
            address[10..].copy_from_slice(&[255, 255, 10, 0, 0, last as u8]);
        }
        let route = Route::new(ethernet, Addresses::of_mapped(addresses[0], addresses[1]));
        let fields = TcpFrame::new(route, 80, 5000);
        let options = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        TcpFrame { sequence: u32::MAX - 1, acknowledgment: 7, flags, options, ..fields }
            .build(payload)
    }

    #[test]
    fn of_a_segment_the_ack_is_left_with_the_seq_that_follows() {
        let whole = segment(ACK | PSH, &[0; 1000]);
        let ack = pure_ack(&whole[..256]).unwrap();
        assert_eq!(checksum::tcp_is_right(&ack), Some(true));
        let headers = Headers::parse(&ack).unwrap();
        let tcp = headers.tcp_header(&ack).unwrap();
        assert_eq!((tcp.sequence.get(), tcp.acknowledgment.get(), tcp.flags), (998, 7, ACK));
        assert_eq!(u32::from(headers.payload), headers.end);
    }

    #[test]
    fn a_fin_and_a_rst_stay_and_a_syn_is_none() {
        for flags in [ACK, FIN | ACK, RST | ACK] {
            let ack = pure_ack(&segment(flags, &[])).unwrap();
            assert_eq!(ack, segment(flags, &[]));
        }
        assert_eq!(ack_of_sender(&segment(FIN | ACK, &[])), Some(segment(ACK, &[])));
        assert_eq!(ack_of_sender(&segment(RST | ACK, &[])), None);
        assert_eq!(pure_ack(&segment(SYN | ACK, &[])), None);
        assert_eq!(pure_ack(&[0; 60]), None);
    }

    #[test]
    fn arp_and_neighbour_advertisements_say_whose_an_address_is() {
        let ethernet = |kind: [u8; 2]| [&[0xff; 6][..], &[2; 6], &kind].concat();
        let arp = |sender: [u8; 4]| {
            let head = [0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2];
            [ethernet([8, 6]), head.to_vec(), sender.to_vec(), vec![0; 10]].concat()
        };
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 9];
        let announced = Announcement { mac: [2; 6], address: mapped };
        assert_eq!(announcement(&arp([10, 0, 0, 9])), Some(announced));
        assert_eq!(announcement(&arp([0; 4])), None, "a probe");

        let mut advertisement = [ethernet([0x86, 0xdd]), vec![0; 64]].concat();
        (advertisement[20], advertisement[54]) = (58, 136);
        advertisement[62..].fill(7);
        let announced = Announcement { mac: [2; 6], address: [7; 16] };
        assert_eq!(announcement(&advertisement), Some(announced));
        advertisement[54] = 135;
        assert_eq!(announcement(&advertisement), None, "a solicitation");
        for length in 0..advertisement.len() {
            announcement(&advertisement[..length]);
        }
        assert_eq!(announcement(&segment(ACK, &[])), None);
    }
}

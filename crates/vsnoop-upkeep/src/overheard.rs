//! Segments of a VM that were heard at another port than its tap, for the hook of the tap.

use vsnoop_packet::checksum;
use vsnoop_packet::format::{PSH, SYN, TCP, URG};
use vsnoop_packet::headers::Headers;

/// The segment without its payload: an ACK with the SEQ that follows it. `None` of a frame that is
/// no segment of a connection, as of a SYN. Only the first bytes of the frame may be there.
pub fn pure_ack(frame: &[u8]) -> Option<Vec<u8>> {
    let headers = Headers::of_start(frame)?;
    let (l4, payload) = (usize::from(headers.l4), usize::from(headers.payload));
    if headers.protocol != TCP || headers.fragment || payload <= l4 || payload > frame.len() {
        return None;
    }
    let mut ack = frame[..payload].to_vec();
    let flags = &mut ack[l4 + 13];
    if *flags & (SYN | URG) != 0 {
        return None;
    }
    *flags &= !PSH;
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
    let headers = Headers::of(&ack)?;
    let is_summed = checksum::make_partial(&headers, &mut ack) && checksum::complete(&mut ack);
    is_summed.then_some(ack)
}

#[cfg(test)]
mod tests {
    use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
    use vsnoop_packet::format::{ACK, FIN, RST};

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
        let headers = Headers::of(&ack).unwrap();
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
        assert_eq!(pure_ack(&segment(SYN | ACK, &[])), None);
        assert_eq!(pure_ack(&[0; 60]), None);
    }
}

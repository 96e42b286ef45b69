//! A UDP super-packet as the datagrams that it stands for.
//!
//! A sender that uses `UDP_SEGMENT` hands its kernel many datagrams of one size, the last perhaps
//! shorter, behind one header; packet sockets get them so. Unlike TCP the size is not free: each
//! datagram is a message. Follows the kernel's `__udp_gso_segment`: each has its own length and
//! checksum, IPv4 identifications go on. The checksum is left to do.

use super::state::OffloadState;
use super::state::PIECES_LIMIT;
use crate::checksum::{add, complete_ipv4, pseudo_header};
use crate::format::UDP_CHECKSUM;
use crate::headers::{Headers, be16};
use crate::vnet::{GSO_ECN, GSO_UDP_L4, VirtioNetHdr};

/// Whether this is the header of one.
pub fn is_super_packet(header: &VirtioNetHdr) -> bool {
    header.gso_type & !GSO_ECN == GSO_UDP_L4
}

/// Cuts a super-packet of UDP into datagrams; its bytes stay with the caller.
#[derive(Debug)]
pub struct UdpSplit {
    headers: Headers,
    /// Payload bytes of all datagrams but the last.
    size: usize,
    count: usize,
    index: usize,
    identification: u16,
    /// Sum of the pseudo-header without the length.
    pseudo: u16,
}

impl UdpSplit {
    /// The offload state of every datagram.
    pub const OFFLOAD: OffloadState = OffloadState { needs_checksum: true, gso: None };

    /// `None` if the frame is no such super-packet, whatever its header says, or one of more than
    /// [`PIECES_LIMIT`] datagrams; kernels put up to 128 together.
    pub fn from_header(header: &VirtioNetHdr, headers: &Headers, frame: &[u8]) -> Option<Self> {
        let size = usize::from(header.gso_size.get());
        let is_whole = headers.udp() && headers.end as usize <= frame.len();
        // A device must leave the checksum to do in a super-packet (virtio 1.2, 5.1.6.2).
        let needs_checksum = header.needs_checksum() && OffloadState::stands_at(header, headers);
        if !is_super_packet(header) || !is_whole || !needs_checksum || size == 0 {
            return None;
        }
        let count = headers.payload_bytes().div_ceil(size).max(1);
        let identification = if headers.v6 { 0 } else { be16(frame, usize::from(headers.ip) + 4)? };
        (count <= PIECES_LIMIT).then_some(Self {
            headers: *headers,
            size,
            count,
            index: 0,
            identification,
            pseudo: pseudo_header(headers, frame),
        })
    }

    /// How many there are, written or not; at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the longest, with its headers.
    pub fn longest_bytes(&self) -> usize {
        usize::from(self.headers.payload) + self.size.min(self.headers.payload_bytes())
    }

    /// Writes the next one of `frame`, the super-packet, to the start of `out`; returns its length.
    ///
    /// `None` after the last, or if `out` is shorter.
    pub fn next(&mut self, frame: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.index == self.count {
            return None;
        }
        let (ip, l4) = (usize::from(self.headers.ip), usize::from(self.headers.l4));
        let payload = usize::from(self.headers.payload);
        let begin = self.index * self.size;
        let bytes = self.size.min(self.headers.payload_bytes() - begin);
        let length = payload + bytes;
        let (head, body) = out.get_mut(..length)?.split_at_mut(payload);
        head.copy_from_slice(frame.get(..payload)?);
        body.copy_from_slice(frame.get(payload + begin..payload + begin + bytes)?);
        let mut put = |at: usize, value: u16| {
            head[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        let udp_bytes = (length - l4) as u16;
        put(l4 + 4, udp_bytes);
        put(l4 + usize::from(UDP_CHECKSUM), add(self.pseudo, udp_bytes));
        if self.headers.v6 {
            put(ip + 4, (length - ip - 40) as u16);
        } else {
            put(ip + 2, (length - ip) as u16);
            put(ip + 4, self.identification.wrapping_add(self.index as u16));
            complete_ipv4(&mut head[ip..l4]);
        }
        self.index += 1;
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::complete;
    use crate::testing::{Datagram, SegmentBuilder};

    fn pieces(header: &VirtioNetHdr, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
        let headers = Headers::parse(frame)?;
        let mut split = UdpSplit::from_header(header, &headers, frame)?;
        let mut all = Vec::new();
        let mut out = vec![0; split.longest_bytes()];
        while let Some(length) = split.next(frame, &mut out) {
            all.push(out[..length].to_vec());
        }
        assert_eq!(all.len(), split.count());
        Some(all)
    }

    #[test]
    fn datagrams_are_what_the_sender_would_have_sent_one_by_one() {
        for v6 in [false, true] {
            for tags in 0..3 {
                for bytes in [1, 999, 1000, 1001, 2000, 2001, 60_000] {
                    let payload: Vec<_> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
                    let whole = Datagram { v6, tags, identification: u16::MAX, payload };
                    let (header, mut frame) = whole.partial(1000);
                    // Ethernet padding is no payload.
                    frame.extend([0xee; 3]);
                    let pieces = pieces(&header, &frame).expect("can be cut");
                    let expected: Vec<_> = whole.payload.chunks(1000).collect();
                    assert_eq!(pieces.len(), expected.len());
                    for (index, (mut piece, part)) in pieces.into_iter().zip(expected).enumerate() {
                        complete(&mut piece);
                        let alone = Datagram {
                            identification: whole.identification.wrapping_add(index as u16),
                            payload: part.to_vec(),
                            ..whole
                        };
                        assert_eq!(piece, alone.build(), "piece {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_super_packet_of_udp_is_not_cut() {
        let whole = Datagram { payload: vec![1; 5000], ..Datagram::default() };
        let (header, frame) = whole.partial(1000);
        assert!(pieces(&header, &frame).is_some());
        for wrong in [
            VirtioNetHdr { gso_type: 1, ..header },
            VirtioNetHdr { gso_size: 0.into(), ..header },
            VirtioNetHdr { flags: 0, ..header },
            VirtioNetHdr { csum_start: 20.into(), ..header },
            // More pieces than anybody makes.
            VirtioNetHdr { gso_size: 1.into(), ..header },
        ] {
            assert_eq!(pieces(&wrong, &frame), None);
        }
        let tcp = SegmentBuilder { payload: 5000, ..SegmentBuilder::default() }.build();
        assert_eq!(pieces(&header, &tcp), None);
        assert_eq!(pieces(&header, &frame[..frame.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_frames_do_not_panic(
            start in proptest::collection::vec(any::<u8>(), 0..80),
            v6: bool, size: u16, csum_start in 0..100u16, room in 0..3000usize,
        ) {
            let spec = Datagram { v6, payload: vec![5; 2000], ..Datagram::default() };
            let (mut header, mut frame) = spec.partial(size);
            header.csum_start = csum_start.into();
            for l4 in [csum_start, 34, 54] {
                header.csum_start = l4.into();
                let headers = Headers::parse(&frame);
                let split = headers.and_then(|headers| UdpSplit::from_header(&header, &headers, &frame));
                if let Some(mut split) = split {
                    let mut out = vec![0; room];
                    while split.next(&frame, &mut out).is_some() {}
                }
                let length = start.len().min(frame.len());
                frame[..length].copy_from_slice(&start[..length]);
            }
        }
    }
}

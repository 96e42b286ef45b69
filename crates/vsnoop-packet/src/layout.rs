//! Where the layers of a frame begin and end.
//!
//! `etherparse` slices the frame; this turns its slices into offsets, which stay usable while the
//! frame is changed. A frame whose headers are not whole and consistent has no layout, and whoever
//! meets one passes it on untouched.

use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};

/// Offsets from the start of an Ethernet frame that carries IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// VLAN tags, outermost first in the frame.
    pub tags: usize,
    pub version: Version,
    /// The IP header.
    pub ip: usize,
    /// What the IP header and its extension headers carry.
    pub ip_payload: usize,
    /// The end of the IP packet; Ethernet padding may follow.
    pub ip_end: usize,
    /// One fragment of a larger IP packet.
    pub fragment: bool,
    /// The TCP payload, if this is a whole TCP segment; its header begins at `ip_payload`.
    pub tcp_payload: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

impl Layout {
    /// The layout of a frame that carries an IP packet.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let sliced = SlicedPacket::from_ethernet(frame).ok()?;
        let within = |part: &[u8]| part.as_ptr().addr() - frame.as_ptr().addr();
        let (version, ip, payload) = match sliced.net.as_ref()? {
            NetSlice::Ipv4(ipv4) => (Version::V4, within(ipv4.header().slice()), ipv4.payload()),
            NetSlice::Ipv6(ipv6) => (Version::V6, within(ipv6.header().slice()), ipv6.payload()),
            NetSlice::Arp(_) => return None,
        };
        let ip_payload = within(payload.payload);
        let tcp_payload = match sliced.transport {
            Some(TransportSlice::Tcp(tcp)) => Some(ip_payload + tcp.header_slice().len()),
            _ => None,
        };
        Some(Self {
            tags: sliced.link_exts.len(),
            version,
            ip,
            ip_payload,
            ip_end: ip_payload + payload.payload.len(),
            fragment: payload.fragmented,
            tcp_payload,
        })
    }
}

/// The TCP segment in a frame, header and payload, if it is whole.
pub fn tcp(frame: &[u8]) -> Option<TcpSlice<'_>> {
    match SlicedPacket::from_ethernet(frame).ok()?.transport {
        Some(TransportSlice::Tcp(tcp)) => Some(tcp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TcpFrame, V4, V6};

    #[test]
    fn layers_are_found_behind_any_number_of_tags() {
        for (addresses, ip_header) in [(V4, 20), (V6, 40)] {
            for tags in 0..3 {
                let frame =
                    TcpFrame { addresses, tags, payload: 100, ..TcpFrame::default() }.build();
                let layout = Layout::of(&frame).expect("a layout");
                let ip = 14 + 4 * tags;
                assert_eq!(layout.tags, tags);
                assert_eq!(layout.ip, ip);
                assert_eq!(layout.ip_payload, ip + ip_header);
                assert_eq!(layout.tcp_payload, Some(ip + ip_header + 32));
                assert_eq!(layout.ip_end, frame.len());
            }
        }
    }

    #[test]
    fn ethernet_padding_is_not_part_of_the_packet() {
        let mut frame = TcpFrame { payload: 1, ..TcpFrame::default() }.build();
        let end = frame.len();
        frame.resize(end + 9, 0xee);
        assert_eq!(Layout::of(&frame).expect("a layout").ip_end, end);
    }

    #[test]
    fn a_cut_frame_has_no_layout() {
        let frame = TcpFrame { payload: 50, ..TcpFrame::default() }.build();
        for end in 0..frame.len() {
            assert_eq!(Layout::of(&frame[..end]), None, "cut at {end}");
        }
    }
}

//! TCP segments, as a tun device has them.

use std::net::{IpAddr, Ipv6Addr};

/// A segment's fields.
#[derive(Debug)]
pub struct Segment<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub payload: &'a [u8],
    pub options: Options,
}

#[derive(Debug, Default)]
pub struct Options {
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack: bool,
    pub tsval: Option<u32>,
}

pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

impl<'a> Segment<'a> {
    /// `None` if the packet is not TCP.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let (source, destination, tcp) = addresses(packet)?;
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("4 bytes"));
        let header = usize::from(tcp[12] >> 4) * 4;
        Some(Self {
            source,
            destination,
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            window: u16::from_be_bytes([tcp[14], tcp[15]]),
            payload: &tcp[header..],
            options: Options::parse(&tcp[20..header]),
        })
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn is_bare_ack(&self) -> bool {
        self.flags == ACK && self.payload.is_empty()
    }
}

fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let v6 = |at: usize| {
        let bytes: [u8; 16] = packet[at..at + 16].try_into().expect("16 bytes");
        IpAddr::from(Ipv6Addr::from(bytes))
    };
    let v4 = |at: usize| IpAddr::from([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
    match (packet[0] >> 4, packet[6], packet[9]) {
        (4, _, 6) => Some((v4(12), v4(16), &packet[usize::from(packet[0] & 15) * 4..])),
        (6, 6, _) => Some((v6(8), v6(24), &packet[40..])),
        _ => None,
    }
}

impl Options {
    fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            if *kind == 1 {
                bytes = rest;
                continue;
            }
            let [length, value @ ..] = rest else { break };
            let size = usize::from(*length).saturating_sub(2);
            if *kind == 0 || size > value.len() {
                break;
            }
            match kind {
                2 => options.mss = Some(u16::from_be_bytes([value[0], value[1]])),
                3 => options.scale = Some(value[0]),
                4 => options.sack = true,
                8 => options.tsval = Some(u32::from_be_bytes(value[..4].try_into().expect("4"))),
                _ => {}
            }
            bytes = &value[size..];
        }
        options
    }
}

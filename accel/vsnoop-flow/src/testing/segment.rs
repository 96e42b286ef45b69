//! A segment on the simulated network, and the contents of streams.
//!
//! Positions in a stream count from the SYN: position 0 is the SYN, position n the n-th byte, the
//! position after the last byte the FIN. Positions are `u64`, so that the checks never wrap where
//! the code under test must.

use std::rc::Rc;

use crate::types::*;

/// One TCP segment, or a super-packet of several.
#[derive(Clone, Debug)]
pub struct Seg {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub data: Rc<[u8]>,
    /// Payload bytes of one segment of a super-packet.
    pub unit: u16,
    pub ts: Option<(u32, u32)>,
    pub sack: Vec<(u32, u32)>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub foreign: bool,
    pub ce: bool,
    /// The checksum is wrong: a TCP must ignore the segment.
    pub corrupt: bool,
    /// Queue of the tap that it is in.
    pub queue: u8,
}

pub const FIN: u8 = TCP_FIN as u8;
pub const SYN: u8 = TCP_SYN as u8;
pub const RST: u8 = TCP_RST as u8;
pub const PSH: u8 = TCP_PSH as u8;
pub const ACK: u8 = TCP_ACK as u8;
pub const URG: u8 = TCP_URG as u8;
pub const ECE: u8 = TCP_ECE as u8;
pub const CWR: u8 = TCP_CWR as u8;

impl Seg {
    /// An empty segment.
    pub fn bare(seq: u32, ack: u32, flags: u8) -> Self {
        Seg {
            seq,
            ack,
            flags,
            window: 0,
            data: Rc::from([]),
            unit: 0,
            ts: None,
            sack: Vec::new(),
            scale: None,
            sack_permitted: false,
            foreign: false,
            ce: false,
            corrupt: false,
            queue: 0,
        }
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Payload, bytes.
    #[allow(clippy::len_without_is_empty, reason = "a length in bytes; no segment is a container")]
    pub fn len(&self) -> u32 {
        self.data.len() as u32
    }

    /// The segment as the parser (bpf/packet.h) would fill it in.
    pub fn view(&self) -> segment {
        let mut bits = 0;
        let mut set = |on: bool, bit: u32| bits |= if on { bit as u16 } else { 0 };
        set(self.ts.is_some(), SEG_TIMESTAMPS);
        set(!self.sack.is_empty(), SEG_SACK);
        set(self.sack_permitted, SEG_SACK_PERMITTED);
        set(self.scale.is_some(), SEG_SCALE);
        set(self.foreign, SEG_FOREIGN);
        set(self.ce, SEG_CE);
        let sack_end = self.sack.iter().map(|&(_, right)| seq::new(right));
        let (tsval, tsecr) = self.ts.unwrap_or_default();
        segment {
            seq: seq::new(self.seq),
            ack: seq::new(self.ack),
            len: self.len(),
            tsval,
            tsecr,
            sack_end: sack_end
                .reduce(|a, b| if b.diff(a) > 0 { b } else { a })
                .unwrap_or(seq::new(0)),
            window: self.window,
            unit_len: if self.unit != 0 && u32::from(self.unit) < self.len() {
                self.unit
            } else {
                self.len() as u16
            },
            tcp_flags: self.flags,
            scale: self.scale.unwrap_or(0),
            bits,
            ..segment::default()
        }
    }
}

/// The byte at a position of a stream.
pub fn content(stream: u64, position: u64) -> u8 {
    let mut x = (position ^ stream << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    (x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

/// The position nearest to `near` that has the sequence number `seq`.
pub fn position(seq: u32, iss: u32, near: u64) -> i64 {
    let near_seq = iss.wrapping_add(near as u32);
    near as i64 + i64::from(seq.wrapping_sub(near_seq) as i32)
}

/// A set of positions, as sorted disjoint ranges.
#[derive(Clone, Debug, Default)]
pub struct Ranges(pub Vec<(u64, u64)>);

impl Ranges {
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        self.0.retain(|&(s, e)| {
            let apart = e < start || s > end;
            if !apart {
                start = start.min(s);
                end = end.max(e);
            }
            apart
        });
        let at = self.0.partition_point(|&(s, _)| s < start);
        self.0.insert(at, (start, end));
    }

    /// End of the range that contains `from`; `from` if none does.
    pub fn reach(&self, from: u64) -> u64 {
        self.0.iter().find(|&&(s, e)| s <= from && from < e).map_or(from, |&(_, e)| e)
    }

    /// Forgets everything below `position`.
    pub fn forget_below(&mut self, position: u64) {
        self.0.retain_mut(|r| {
            r.0 = r.0.max(position);
            r.0 < r.1
        });
    }

    /// The start of the first range at or above `position`.
    pub fn next_start(&self, position: u64) -> Option<u64> {
        self.0.iter().map(|r| r.0).find(|&s| s >= position)
    }
}

/// A segment in one line, for traces.
pub fn brief(s: &Seg) -> String {
    let names = ["F", "S", "R", "P", "A", "U", "E", "C"];
    let flags: String =
        (0..8).filter(|b| s.flags & 1 << b != 0).map(|b| names[b as usize]).collect();
    let mut line = format!("{flags} {}+{} ack {} win {}", s.seq, s.len(), s.ack, s.window);
    if !s.sack.is_empty() {
        line += &format!(" sack {:?}", s.sack);
    }
    if let Some((v, e)) = s.ts {
        line += &format!(" ts {v}/{e}");
    }
    for (on, what) in [(s.corrupt, " CORRUPT"), (s.ce, " CE"), (s.foreign, " FOREIGN")] {
        if on {
            line += what;
        }
    }
    line
}

//! Frames that do not fit a datagram and cannot be cut as TCP: sent in fragments and rejoined.
//!
//! A frame's fragments share an identification, which counts up by one with every frame that is
//! sent in fragments; they may arrive in any order and more than once. What misses one is given up:
//! after a time, when 256 later frames have begun, or when there is no room for more. So neither
//! loss nor a hostile peer can hold more than [`FRAMES`] frames and [`BYTES`], and a number that
//! comes round again meets nothing of its former frame.

use vsnoop_packet::offload::OffloadState;

/// Frames under way at once.
pub const FRAMES: usize = 64;
/// Bytes under way at once.
pub const BYTES: usize = 1 << 20;
/// The largest frame: an IP packet of 64 KB with its Ethernet header and tags, rounded up.
pub const FRAME_BYTES: usize = 65_664;
/// Fragments of a frame.
pub const FRAGMENTS: u8 = 128;
/// How far identifications of frames under way may lie apart.
const WINDOW: u16 = 256;

/// Which fragment of which frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    pub id: u16,
    pub index: u8,
    pub count: u8,
}

impl Fragment {
    pub const BYTES: usize = 4;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [high, low] = self.id.to_be_bytes();
        [high, low, self.index, self.count]
    }

    pub fn from_bytes([high, low, index, count]: [u8; Self::BYTES]) -> Self {
        Self { id: u16::from_be_bytes([high, low]), index, count }
    }
}

/// The fragments of a frame, in order.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    rest: &'a [u8],
    size: usize,
    next: Fragment,
}

impl<'a> Fragments<'a> {
    /// Fragments of nearly equal size, none with more than `limit_bytes` of the frame; `None` if
    /// that would be too many, or the frame is too large or empty.
    pub fn new(id: u16, frame: &'a [u8], limit_bytes: usize) -> Option<Self> {
        if limit_bytes == 0 || frame.is_empty() || frame.len() > FRAME_BYTES {
            return None;
        }
        let size = frame.len().div_ceil(frame.len().div_ceil(limit_bytes));
        let count = u8::try_from(frame.len().div_ceil(size)).ok()?;
        (count <= FRAGMENTS).then_some(Self {
            rest: frame,
            size,
            next: Fragment { id, index: 0, count },
        })
    }
}

impl<'a> Iterator for Fragments<'a> {
    type Item = (Fragment, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (part, rest) = self.rest.split_at(self.size.min(self.rest.len()));
        self.rest = rest;
        let fragment = self.next;
        self.next.index += 1;
        Some((fragment, part))
    }
}

/// Rejoins the fragments that one peer sends under one counter; a new session needs a new one.
#[derive(Debug)]
pub struct Rejoin {
    /// How long a frame may take to arrive.
    patience_ns: u64,
    /// Oldest first.
    waiting: Vec<Reassembly>,
    bytes: usize,
    /// The frame that was handed out last; the buffer is used again.
    whole: Vec<u8>,
    spare: Vec<Reassembly>,
}

#[derive(Debug, Default)]
struct Reassembly {
    id: u16,
    count: u8,
    offload: OffloadState,
    begun_ns: u64,
    /// The bytes in the order of their arrival.
    bytes: Vec<u8>,
    /// Where each fragment lies in `bytes`; empty if it has not arrived.
    spans: Vec<(u32, u32)>,
    arrived: u8,
}

impl Rejoin {
    pub fn new(patience_ns: u64) -> Self {
        Self { patience_ns, waiting: Vec::new(), bytes: 0, whole: Vec::new(), spare: Vec::new() }
    }

    /// Takes a fragment; returns the frame if it is whole now.
    pub fn push(
        &mut self,
        fragment: Fragment,
        offload: OffloadState,
        part: &[u8],
        now_ns: u64,
    ) -> Option<(OffloadState, &[u8])> {
        let Fragment { id, index, count } = fragment;
        if index >= count || count > FRAGMENTS || part.is_empty() || part.len() > FRAME_BYTES {
            return None;
        }
        self.give_up(|frame, patience_ns| {
            let distance = (frame.id.wrapping_sub(id) as i16).unsigned_abs();
            let age_ns = now_ns.saturating_sub(frame.begun_ns);
            distance > WINDOW
                || age_ns > patience_ns
                // The same number for something else: the counter began anew.
                || (frame.id == id && (frame.count, frame.offload) != (count, offload))
        });
        let known = self.waiting.iter().position(|frame| frame.id == id);
        let at = known.unwrap_or_else(|| self.begin_frame(id, count, offload, now_ns));
        let frame = &mut self.waiting[at];
        let span = &mut frame.spans[usize::from(index)];
        if span.1 > 0 {
            return None;
        }
        if frame.bytes.len() + part.len() > FRAME_BYTES {
            self.remove_frame(at);
            return None;
        }
        *span = (frame.bytes.len() as u32, part.len() as u32);
        frame.bytes.extend_from_slice(part);
        frame.arrived += 1;
        self.bytes += part.len();
        if frame.arrived < count {
            // There is one frame left at the end, which is smaller than the bound.
            while self.bytes > BYTES && self.waiting.len() > 1 {
                self.remove_frame(0);
            }
            return None;
        }
        self.join_fragments(at);
        Some((offload, &self.whole))
    }

    /// A new frame, of which nothing has arrived. Returns its place among those that wait.
    fn begin_frame(&mut self, id: u16, count: u8, offload: OffloadState, now_ns: u64) -> usize {
        if self.waiting.len() == FRAMES {
            self.remove_frame(0);
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        (frame.id, frame.count, frame.offload) = (id, count, offload);
        (frame.begun_ns, frame.arrived) = (now_ns, 0);
        frame.bytes.clear();
        frame.spans.clear();
        frame.spans.resize(usize::from(count), (0, 0));
        self.waiting.push(frame);
        self.waiting.len() - 1
    }

    /// Moves a frame whose fragments have all arrived to `whole`, in the order of their numbers.
    fn join_fragments(&mut self, at: usize) {
        let mut frame = self.waiting.remove(at);
        self.bytes -= frame.bytes.len();
        if frame.spans.is_sorted() {
            std::mem::swap(&mut self.whole, &mut frame.bytes);
        } else {
            self.whole.clear();
            for (from, bytes) in &frame.spans {
                let from = *from as usize;
                self.whole.extend_from_slice(&frame.bytes[from..from + *bytes as usize]);
            }
        }
        self.keep_frame(frame);
    }

    fn give_up(&mut self, is_over: impl Fn(&Reassembly, u64) -> bool) {
        let mut at = 0;
        while at < self.waiting.len() {
            if is_over(&self.waiting[at], self.patience_ns) {
                self.remove_frame(at);
            } else {
                at += 1;
            }
        }
    }

    fn remove_frame(&mut self, at: usize) {
        let frame = self.waiting.remove(at);
        self.bytes -= frame.bytes.len();
        self.keep_frame(frame);
    }

    /// Keeps a few buffers, so that a steady flow of fragments allocates nothing.
    fn keep_frame(&mut self, frame: Reassembly) {
        if self.spare.len() < 4 {
            self.spare.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE_NS: u64 = 1_000_000_000;
    const NOTHING: OffloadState = OffloadState { needs_checksum: false, gso: None };

    fn frame(id: u16, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 + usize::from(id) * 7) as u8).collect()
    }

    #[test]
    fn fragments_are_few_and_of_nearly_equal_size() {
        let frame = frame(1, 9014);
        let parts: Vec<_> =
            Fragments::new(1, &frame, 1400).expect("fits").map(|(_, part)| part.len()).collect();
        assert_eq!(parts, [1288, 1288, 1288, 1288, 1288, 1288, 1286]);
        assert!(Fragments::new(1, &frame, 50).is_none());
        assert!(Fragments::new(1, &frame, 0).is_none());
        assert!(Fragments::new(1, &[], 100).is_none());
    }

    #[test]
    fn a_missing_fragment_costs_its_frame_only() {
        let mut rejoin = Rejoin::new(PATIENCE_NS);
        let mut whole = 0;
        for id in 0..1000 {
            let frame = frame(id, 3000);
            for (fragment, part) in Fragments::new(id, &frame, 1400).expect("fits") {
                if id % 10 == 3 && fragment.index == 1 {
                    continue;
                }
                if let Some((_, bytes)) = rejoin.push(fragment, NOTHING, part, u64::from(id)) {
                    assert_eq!(bytes, frame);
                    whole += 1;
                }
            }
        }
        assert_eq!(whole, 900);
        assert!(rejoin.waiting.len() <= FRAMES);
    }

    #[test]
    fn a_number_that_comes_round_again_meets_nothing_old() {
        let mut rejoin = Rejoin::new(PATIENCE_NS);
        let fragment = |id, index| Fragment { id, index, count: 2 };
        assert!(rejoin.push(fragment(5, 0), NOTHING, b"old", 0).is_none());
        assert!(rejoin.push(fragment(40_000, 0), NOTHING, b"between", 1).is_none());
        assert!(rejoin.push(fragment(5, 1), NOTHING, b"new", 2).is_none());
        let whole = rejoin.push(fragment(5, 0), NOTHING, b"the ", 3);
        assert_eq!(whole.map(|(_, bytes)| bytes), Some(b"the new".as_slice()));
    }

    #[test]
    fn patience_ends() {
        let mut rejoin = Rejoin::new(PATIENCE_NS);
        let fragment = |index| Fragment { id: 5, index, count: 2 };
        assert!(rejoin.push(fragment(0), NOTHING, b"old", 0).is_none());
        assert!(rejoin.push(fragment(1), NOTHING, b"new", PATIENCE_NS + 1).is_none());
        assert_eq!(rejoin.waiting.len(), 1, "the first was given up");
    }

    #[test]
    fn a_frame_of_other_fragments_is_not_mixed_in() {
        let mut rejoin = Rejoin::new(PATIENCE_NS);
        let offload = OffloadState { needs_checksum: true, gso: None };
        assert!(rejoin.push(Fragment { id: 5, index: 0, count: 2 }, NOTHING, b"a", 0).is_none());
        assert!(rejoin.push(Fragment { id: 5, index: 1, count: 2 }, offload, b"b", 0).is_none());
        assert!(rejoin.push(Fragment { id: 5, index: 1, count: 3 }, offload, b"c", 0).is_none());
        assert_eq!(rejoin.waiting.len(), 1, "two were given up");
    }

    proptest! {
        #[test]
        fn frames_come_back_in_any_order(
            bytes in 1..9000usize,
            limit in 100..1500usize,
            order in proptest::collection::vec(any::<u16>(), 300),
        ) {
            let frames: Vec<_> = (0..3).map(|id| frame(id, bytes)).collect();
            let mut parts = Vec::new();
            for (id, frame) in frames.iter().enumerate() {
                parts.extend(Fragments::new(id as u16, frame, limit).expect("fits"));
            }
            // Some twice.
            let copies: Vec<_> = parts.iter().step_by(3).copied().collect();
            parts.extend(copies);
            let mut keyed: Vec<_> = order.iter().cycle().zip(parts).collect();
            keyed.sort_by_key(|(key, _)| **key);
            let mut rejoin = Rejoin::new(PATIENCE_NS);
            let mut whole = [0; 3];
            for (_, (fragment, part)) in keyed {
                if let Some((_, bytes)) = rejoin.push(fragment, NOTHING, part, 0) {
                    prop_assert_eq!(bytes, &frames[usize::from(fragment.id)]);
                    whole[usize::from(fragment.id)] += 1;
                }
            }
            // A copy that comes after its frame was whole may begin the frame again.
            prop_assert!(whole.iter().all(|times| (1..=2).contains(times)));
        }

        #[test]
        fn a_hostile_peer_gets_no_more_than_the_bounds(
            pushes in proptest::collection::vec(
                (any::<[u8; 4]>(), 0..70_000usize, any::<u32>()),
                200,
            ),
        ) {
            let zeros = vec![0; 70_000];
            let mut rejoin = Rejoin::new(PATIENCE_NS);
            for (bytes, length, now) in pushes {
                let mut fragment = Fragment::from_bytes(bytes);
                prop_assert_eq!(fragment.to_bytes(), bytes);
                fragment.id %= 300;
                rejoin.push(fragment, NOTHING, &zeros[..length], u64::from(now));
                prop_assert!(rejoin.waiting.len() <= FRAMES && rejoin.bytes <= BYTES);
                let held: usize = rejoin.waiting.iter().map(|frame| frame.bytes.len()).sum();
                prop_assert_eq!(held, rejoin.bytes);
            }
        }
    }
}

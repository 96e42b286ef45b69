//! Where the bytes of a stream are: following a flow's chain of chunks while the hooks change it.
//!
//! The hooks add chunks at the end and take acknowledged ones from the front, at any time and
//! without asking. The front says what the first chunk holds. A chunk's successor may be read only
//! while the chunk is in the chain; whether it was is known afterwards, when the front has not
//! moved past it.

use std::collections::VecDeque;

use vsnoop_flow::types::{HOLD_CHUNK, seq};

/// The chunks' memory.
pub trait Chunks {
    /// SEQ of the first chunk's first byte, and that chunk.
    fn front(&mut self) -> (seq, u32);
    /// The chunk after this one; anything if it is the last, or in no chain.
    fn next(&mut self, chunk: u32) -> u32;
}

/// Some bytes within one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which chunk.
    pub chunk: u32,
    /// Where in it the bytes begin.
    pub offset: u32,
    /// How many there are, at least 1.
    pub len: u32,
}

/// Attempts to read a chain that moves; then the VM acknowledges faster than it is read, and there
/// will be another occasion.
const TRIES: u32 = 8;

/// What is known of one flow's chain.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    base: seq,
    chunks: VecDeque<u32>,
}

impl Chain {
    /// Where `len` bytes from `from` are, all of which are kept. `None` when they are not there any
    /// more, because the VM has acknowledged them.
    pub fn find(&mut self, memory: &mut impl Chunks, from: seq, len: u32) -> Option<Vec<Slice>> {
        let end = from.add(len);
        for _ in 0..TRIES {
            self.follow_front(memory);
            if from.diff(self.base) < 0 {
                return None;
            }
            let known = self.chunks.len();
            while self.end().diff(end) < 0 {
                let last = *self.chunks.back()?;
                self.chunks.push_back(memory.next(last));
            }
            let read_from = self.base.add((known as u32 - 1) * HOLD_CHUNK);
            if memory.front().0.diff(read_from) <= 0 {
                return Some(self.cut(from, len));
            }
            self.chunks.truncate(known);
        }
        None
    }

    /// Forgets the chunks that have gone; begins anew when this is another chain than the last
    /// time.
    fn follow_front(&mut self, memory: &mut impl Chunks) {
        let (base, first) = memory.front();
        let gone = base.diff(self.base);
        if gone >= 0 && gone % HOLD_CHUNK as i32 == 0 {
            self.chunks.drain(..self.chunks.len().min((gone as u32 / HOLD_CHUNK) as usize));
        } else {
            self.chunks.clear();
        }
        if self.chunks.front() != Some(&first) {
            self.chunks.clear();
            self.chunks.push_back(first);
        }
        self.base = base;
    }

    fn end(&self) -> seq {
        self.base.add(self.chunks.len() as u32 * HOLD_CHUNK)
    }

    fn cut(&self, from: seq, len: u32) -> Vec<Slice> {
        let mut slices = Vec::with_capacity(len.div_ceil(HOLD_CHUNK) as usize + 1);
        let (mut at, mut left) = (from.diff(self.base) as u32, len);
        while left > 0 {
            let offset = at % HOLD_CHUNK;
            let part = left.min(HOLD_CHUNK - offset);
            let chunk = self.chunks[(at / HOLD_CHUNK) as usize];
            slices.push(Slice { chunk, offset, len: part });
            at += part;
            left -= part;
        }
        slices
    }
}

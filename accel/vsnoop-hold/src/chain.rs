//! Finds the bytes of a stream: follows a flow's chain of chunks while the hooks change it.
//!
//! The hooks append chunks and free acknowledged ones at the front, at any time and without a lock.
//! `front` gives the SEQ of the first chunk. A chunk's successor is valid only while the chunk is
//! in the chain: the reader follows the link, and discards the result if `front` has moved past the
//! chunk meanwhile.

use std::collections::VecDeque;

use vsnoop_flow::types::{HOLD_CHUNK, seq};

/// Access to the chain in shared memory.
pub trait Chunks {
    /// SEQ of the first chunk's first byte, and that chunk.
    fn front(&mut self) -> (seq, u32);
    /// The successor of a chunk; undefined for the last chunk, and for one in no chain.
    fn next(&mut self, chunk: u32) -> u32;
}

/// A range of bytes within one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Number of the chunk.
    pub chunk: u32,
    /// Offset of the first byte in the chunk.
    pub offset: u32,
    /// Length in bytes, at least 1.
    pub len: u32,
}

/// Attempts to read a chain that moves. After that the VM acknowledges faster than the chain is
/// read; the caller tries again later.
const TRIES: u32 = 8;

/// The part of one flow's chain that was read so far.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    base: seq,
    chunks: VecDeque<u32>,
}

impl Chain {
    /// Finds `len` bytes from `from`, all of which are kept. `None` if the VM has acknowledged them
    /// meanwhile.
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

    /// Forgets chunks that were freed; starts over if the chain is not the one read before.
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

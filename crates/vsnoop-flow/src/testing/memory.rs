//! The hold's memory as hooks and engine share it: the code of bpf/hold.h, run natively.
//!
//! What is given back is overwritten at once, as another flow might: whoever still reads it is found
//! out. [`Memory::check`] counts what there is.

use std::collections::HashSet;

use crate::types::{self, *};

const CHUNK: usize = HOLD_CHUNK as usize;
/// What free memory reads as.
const POISON: u8 = 0xdb;

/// One port's pool and holds, and what the programs have beside them.
#[derive(Debug)]
pub struct Memory {
    pub port: port_state,
    pub policy: policy,
    /// The time, ns.
    pub now: u64,
    chunks: Vec<hold_chunk>,
    holds: Vec<hold>,
    pool: Vec<u8>,
    /// As [`Self::poison`] left them.
    owners: Vec<u32>,
}

impl Memory {
    /// As much memory as the policy says.
    pub fn new(policy: policy, holds: usize) -> Self {
        let count = policy.hold_chunks as usize;
        Self {
            port: port_state::default(),
            policy,
            now: 0,
            chunks: vec![hold_chunk { owner: 0, next: u32::MAX }; count],
            holds: vec![hold::default(); holds],
            pool: vec![POISON; (count + 1) * CHUNK],
            owners: vec![0; count],
        }
    }

    /// A hold; numbers are from 1.
    pub fn hold(&self, number: u32) -> &hold {
        &self.holds[number as usize - 1]
    }

    /// The same, as the engine writes to it.
    pub fn hold_mut(&mut self, number: u32) -> &mut hold {
        &mut self.holds[number as usize - 1]
    }

    /// What a decision is made from.
    pub fn parts(&mut self, number: u32) -> (&mut hold, &port_state, &policy) {
        (&mut self.holds[number as usize - 1], &self.port, &self.policy)
    }

    /// No hold with a higher number was ever used.
    pub fn highest(&self) -> u32 {
        self.port.holds_high.min(self.holds.len() as u32)
    }

    /// SEQ of the first chunk's first byte, and that chunk.
    pub fn front(&self, number: u32) -> (seq, u32) {
        let front = self.hold(number).front;
        (seq::new((front >> 32) as u32), front as u32)
    }

    /// The chunk after this one; chunks that there are not have none.
    pub fn next(&self, chunk: u32) -> u32 {
        self.chunks.get(chunk as usize).map_or(u32::MAX, |chunk| chunk.next)
    }

    /// A chunk's bytes; those of one out of range are the first's, as for the engine.
    pub fn bytes(&self, chunk: u32) -> &[u8] {
        let at = if (chunk as usize) < self.chunks.len() { chunk as usize * CHUNK } else { 0 };
        &self.pool[at..at + CHUNK]
    }

    /// Copies `bytes`, which begin at `from` in the stream. The caller has the claim.
    pub fn copy(&mut self, number: u32, from: seq, bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len() as u32);
        let call = |maps: &native_maps| {
            // SAFETY: `maps` describes live memory; the C code stays within its lengths, which
            // hold_copy() checks, and keeps no pointer.
            unsafe { types::native_hold_copy(maps, start, len, number, from.v) }
        };
        self.with(None, call) == 0
    }

    /// Gives back what the VM has acknowledged, or all. The caller has the claim; it ends.
    pub fn release(&mut self, number: u32, all: bool) {
        // SAFETY: as in copy().
        self.with(None, |maps| unsafe { types::native_hold_release(maps, number, all) });
    }

    /// A hold for this flow.
    pub fn take(&mut self, key: &flow_key, f: &mut flow) -> bool {
        // SAFETY: as in copy().
        self.with(Some((key, f)), |maps| unsafe { types::native_hold_take(maps) }) != 0
    }

    /// Looks after a hold for the engine; `flow` is the one of its key, if there is one. 0: the flow
    /// has it, 1: it can be ended, 2: it is free.
    pub fn tend(&mut self, number: u32, end: bool, flow: Option<&mut flow>) -> i32 {
        let key = self.hold(number).key;
        let flow = flow.map(|flow| (&key, flow));
        // SAFETY: as in copy().
        self.with(flow, |maps| unsafe { types::native_hold_tend(maps, number, end.into()) })
    }

    fn with(
        &mut self,
        flow: Option<(&flow_key, &mut flow)>,
        call: impl Fn(&native_maps) -> i32,
    ) -> i32 {
        let (key, flow) = match flow {
            Some((key, flow)) => (std::ptr::from_ref(key), std::ptr::from_mut(flow)),
            None => (std::ptr::null(), std::ptr::null_mut()),
        };
        let chunk_count = self.chunks.len() as u32;
        let result = call(&native_maps {
            port: &mut self.port,
            policy: &self.policy,
            sizes: hold_sizes {
                pool_bytes: chunk_count * HOLD_CHUNK,
                holds: self.holds.len() as u32,
            },
            chunk_count,
            chunks: self.chunks.as_mut_ptr(),
            holds: self.holds.as_mut_ptr(),
            pool: self.pool.as_mut_ptr(),
            key,
            flow,
            now: self.now,
        });
        self.poison();
        result
    }

    fn poison(&mut self) {
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            if chunk.owner == 0 && self.owners[index] != 0 {
                self.pool[index * CHUNK..(index + 1) * CHUNK].fill(POISON);
                chunk.next = u32::MAX - index as u32;
            }
            self.owners[index] = chunk.owner;
        }
    }

    /// The bytes of the stream from `from`, by way of the chain; all must be kept.
    pub fn stream(&self, number: u32, from: seq, len: u32) -> Vec<u8> {
        let (base, mut chunk) = self.front(number);
        let skip = from.diff(base);
        assert!(skip >= 0, "{} bytes from {} are not in the chain any more", -skip, from.v);
        let mut skip = skip as usize;
        let mut bytes = Vec::with_capacity(len as usize);
        for _ in 0..self.hold(number).chunks {
            let wanted = (len as usize - bytes.len()).min(CHUNK.saturating_sub(skip));
            bytes.extend_from_slice(&self.bytes(chunk)[skip.min(CHUNK)..][..wanted]);
            skip = skip.saturating_sub(CHUNK);
            chunk = self.next(chunk);
        }
        assert_eq!(bytes.len(), len as usize, "the chain of hold {number} ends too soon");
        bytes
    }

    /// Every chunk is free, or in the chain of its owner and in no other; all are counted, and there
    /// are no more than the port may have.
    pub fn check(&self) {
        let mut seen = HashSet::new();
        for (number, hold) in (1..).zip(&self.holds) {
            let mut chunk = hold.front as u32;
            for place in 0..hold.chunks {
                let owner = self.chunks[chunk as usize].owner;
                assert_eq!(owner, number, "chunk {chunk} in the chain of hold {number}");
                assert!(seen.insert(chunk), "chunk {chunk} is in two places");
                if place + 1 == hold.chunks {
                    assert_eq!(hold.last, chunk, "the last chunk of hold {number}");
                }
                chunk = self.chunks[chunk as usize].next;
            }
        }
        let owned = self.chunks.iter().filter(|chunk| chunk.owner != 0).count();
        assert_eq!(owned, seen.len(), "chunks in no chain are not free");
        assert_eq!(owned as u32, self.port.chunks_used, "miscounted");
        assert!(self.port.chunks_used <= self.policy.hold_chunks, "beyond the bound");
    }

    /// Chunks that are not free.
    pub fn used(&self) -> u32 {
        self.port.chunks_used
    }
}

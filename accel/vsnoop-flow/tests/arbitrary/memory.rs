//! Memory for the hold of one flow: a copy of its stream, with gaps.
//!
//! The real layout is in bpf/hold_memory.h. Here freed bytes are dropped, so that a later use of
//! them fails.

use vsnoop_flow::types::{HOLD_CHUNK, hold};
use vsnoop_flow::{flow, seq};

#[derive(Default)]
pub struct ModelHold {
    pub hold: hold,
    /// The stream from [`Self::front`] on; `None` where nothing was copied.
    bytes: Vec<Option<u8>>,
}

impl ModelHold {
    /// Gives the hold to a flow that has none.
    pub fn take(&mut self, f: &mut flow) {
        assert_eq!(self.hold.used, 0, "two flows have one hold");
        self.hold.used = 1;
        vsnoop_flow::hold::begin(f, &mut self.hold, 1);
    }

    /// Frees the hold.
    pub fn give_back(&mut self) {
        *self = Self::default();
    }

    fn front(&self) -> seq {
        seq::new((self.hold.front >> 32) as u32)
    }

    fn set_front(&mut self, front: seq) {
        self.hold.front = u64::from(front.v) << 32;
    }

    /// Copies `bytes`, which begin at `from` in the stream. The caller has the claim. `false`: the
    /// place has been given back, or is beyond `most` bytes.
    pub fn copy(
        &mut self,
        from: seq,
        bytes: impl ExactSizeIterator<Item = u8>,
        most: usize,
    ) -> bool {
        let h = &self.hold;
        if h.chunks == 0 || (h.first == h.tail && h.range_count == 0) {
            self.bytes.clear();
            self.hold.chunks = 0;
            self.set_front(self.hold.tail);
        }
        let Ok(start) = usize::try_from(from.diff(self.front())) else { return false };
        let end = start + bytes.len();
        if end > most {
            return false;
        }
        self.hold.chunks = self.hold.chunks.max((end as u32).div_ceil(HOLD_CHUNK));
        self.bytes.resize(self.bytes.len().max(end), None);
        for (place, byte) in self.bytes[start..end].iter_mut().zip(bytes) {
            *place = Some(byte);
        }
        true
    }

    /// Frees chunks that the VM has acknowledged, `most` of them at most, and ends the caller's
    /// claim.
    pub fn free(&mut self, most: u32) {
        let h = &self.hold;
        let is_all = h.vm_seq.diff(h.tail) >= 0 && h.range_count == 0;
        let count = if is_all { h.chunks } else { self.chunks_acknowledged() }.min(most);
        let bytes = count * HOLD_CHUNK;
        self.bytes.drain(..self.bytes.len().min(bytes as usize));
        self.set_front(self.front().add(bytes));
        self.hold.chunks -= count;
        self.hold.claimed = 0;
    }

    /// At the front of the chain, without its last chunk.
    fn chunks_acknowledged(&self) -> u32 {
        let bytes = self.hold.vm_seq.diff(self.front()).max(0) as u32;
        (bytes / HOLD_CHUNK).min(self.hold.chunks.saturating_sub(1))
    }

    /// The bytes from `from` to `to`; `None` if the memory does not reach so far.
    pub fn stream(&self, from: seq, to: seq) -> Option<&[Option<u8>]> {
        let start = usize::try_from(from.diff(self.front())).ok()?;
        let end = usize::try_from(to.diff(self.front())).ok()?;
        self.bytes.get(start..end)
    }
}

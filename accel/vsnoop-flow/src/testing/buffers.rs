//! Buffers between an endpoint and an application outside of it.

use std::rc::Rc;

/// Bytes that the application has written, and bytes that were received for it. Position 1 is the
/// first byte of both.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    pub sent: Vec<u8>,
    pub received: Vec<u8>,
    pub is_finished: bool,
}

impl Buffers {
    /// Notes bytes that arrive at position `start`; those before `known` are there.
    pub fn receive(&mut self, start: i64, bytes: &[u8], known: u64) {
        let end = start + bytes.len() as i64;
        let from = start.max(known.max(1) as i64);
        if end <= from {
            return;
        }
        let to = end as usize - 1;
        self.received.resize(self.received.len().max(to), 0);
        self.received[from as usize - 1..to].copy_from_slice(&bytes[(from - start) as usize..]);
    }

    pub fn payload(&self, start: u64, len: u64) -> Rc<[u8]> {
        self.sent[start as usize - 1..][..len as usize].into()
    }
}

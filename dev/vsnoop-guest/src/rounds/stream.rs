//! The senders' data: a [`Pattern`], whose bytes encode their offset, so that each is verified
//! where it arrives.

use std::sync::Arc;

use crate::pattern::Pattern;

/// A prime: no size of a round, and no segment, falls into step with it.
const PERIOD: usize = 65_521;
/// Result of a read that does not block.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The stream of every connection, the same for all but for its beginning.
#[derive(Clone, Debug)]
pub struct Stream(Arc<[u8]>);

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

impl Stream {
    pub fn new() -> Self {
        let mut period = vec![0; PERIOD];
        Pattern::new(1).fill(&mut period);
        Self(period.iter().copied().cycle().take(PERIOD + CHUNK_BYTES).collect())
    }

    /// At most `length` bytes of a connection's stream, from `offset` on; never none of some.
    pub fn at(&self, connection: usize, offset: u64, length: usize) -> &[u8] {
        let begin = (offset + connection as u64 * 4099) % PERIOD as u64;
        &self.0[begin as usize..][..length.min(CHUNK_BYTES)]
    }

    /// Whether these bytes are what the connection's stream has at `offset`.
    pub fn is_at(&self, connection: usize, mut offset: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let expected = self.at(connection, offset, bytes.len());
            let (now, later) = bytes.split_at(expected.len());
            if now != expected {
                return false;
            }
            offset += now.len() as u64;
            bytes = later;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_a_shift_and_another_connection_are_noticed() {
        let stream = Stream::new();
        let mut bytes = Vec::new();
        while bytes.len() < 3 * CHUNK_BYTES {
            let chunk = stream.at(3, bytes.len() as u64, CHUNK_BYTES).to_vec();
            bytes.extend(chunk);
        }
        assert!(stream.is_at(3, 0, &bytes));
        assert!(stream.is_at(3, 70_000, &bytes[70_000..]));
        assert!(!stream.is_at(3, 1448, &bytes));
        assert!(!stream.is_at(4, 0, &bytes));
        bytes[150_000] ^= 1;
        assert!(!stream.is_at(3, 0, &bytes));
    }
}

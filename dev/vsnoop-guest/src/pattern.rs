//! A byte stream that depends on a seed and on the position, so that a byte that is wrong, missing,
//! doubled or out of place is found at its offset.
//!
//! The stream is a sequence of 64-bit little-endian words, each a mix of seed and word index: cheap
//! enough (one multiplication for eight bytes) for an emulated CPU to verify at line rate, and
//! without state, so that both ends can begin anywhere.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// A position in the stream of one seed.
#[derive(Clone, Debug)]
pub struct Pattern {
    seed: u64,
    offset_bytes: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Self {
        Self { seed, offset_bytes: 0 }
    }

    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    fn word(&self, index: u64) -> [u8; 8] {
        let mut x = self.seed.wrapping_add(index.wrapping_mul(GOLDEN));
        x ^= x >> 32;
        x = x.wrapping_mul(MIX);
        x ^= x >> 32;
        x.to_le_bytes()
    }

    /// Writes the next `buffer.len()` bytes of the stream and moves on.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        let mut rest = buffer;
        while !rest.is_empty() {
            let word = self.word(self.offset_bytes / 8);
            let from = (self.offset_bytes % 8) as usize;
            let n = rest.len().min(8 - from);
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&word[from..from + n]);
            rest = tail;
            self.offset_bytes += n as u64;
        }
    }

    /// Compares `received` with the next bytes of the stream and moves on; an error is the offset
    /// in the stream of the first byte that differs.
    pub fn verify(&mut self, received: &[u8]) -> Result<(), u64> {
        let mut rest = received;
        while !rest.is_empty() {
            let word = self.word(self.offset_bytes / 8);
            let from = (self.offset_bytes % 8) as usize;
            let n = rest.len().min(8 - from);
            if rest[..n] != word[from..from + n] {
                let at = (0..n).find(|&i| rest[i] != word[from + i]).unwrap_or(0);
                return Err(self.offset_bytes + at as u64);
            }
            rest = &rest[n..];
            self.offset_bytes += n as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Pattern::new(seed).fill(&mut bytes);
        bytes
    }

    #[test]
    fn pieces_of_any_size_give_the_same_stream() {
        let whole = stream(7, 1000);
        let mut pattern = Pattern::new(7);
        let mut pieces = Vec::new();
        for size in [1, 2, 3, 5, 8, 13, 100, 868] {
            let mut piece = vec![0; size];
            pattern.fill(&mut piece);
            pieces.extend(piece);
        }
        assert_eq!(whole, pieces);
        assert_eq!(pattern.offset_bytes(), 1000);
    }

    #[test]
    fn a_wrong_byte_is_found_at_its_offset() {
        for at in [0, 7, 8, 500, 999] {
            let mut bytes = stream(7, 1000);
            bytes[at] ^= 0x10;
            let mut pattern = Pattern::new(7);
            let result = bytes.chunks(37).try_for_each(|chunk| pattern.verify(chunk));
            assert_eq!(result, Err(at as u64));
        }
    }

    #[test]
    fn a_shifted_or_foreign_stream_is_refused() {
        let bytes = stream(7, 4096);
        assert!(Pattern::new(7).verify(&bytes[8..]).is_err());
        assert!(Pattern::new(8).verify(&bytes).is_err());
        assert_eq!(Pattern::new(7).verify(&bytes), Ok(()));
    }
}

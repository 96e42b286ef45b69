//! The transfer protocol: the paper's TCP application, with every byte verified.
//!
//! The client opens a connection and sends a [`Header`]. The whole stream of an upload, header
//! included, is `size_bytes` long and the header is the beginning of its first write, so that the
//! smallest upload is one write and `size_bytes` is what TCP carries. The bytes behind the header
//! are the [`Pattern`](crate::pattern::Pattern) of the seed. The receiver verifies each byte as it
//! comes and answers with one [`Verdict`] when it has all of them or finds a wrong one.
//!
//! A download is the mirror image: the client sends a header alone, the server sends the same
//! stream (header and pattern) and the client verifies and answers.

use std::io::{self, Read, Write};

use crate::pattern::Pattern;

/// The port on which a guest serves transfers.
pub const PORT: u16 = 5001;

const MAGIC: u64 = u64::from_le_bytes(*b"vsnoopT1");

/// Bytes that are written or read in one call.
pub const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to server.
    Upload,
    /// Server to client.
    Download,
}

/// The beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub direction: Direction,
    /// Length of the stream, this header included.
    pub size_bytes: u64,
    pub seed: u64,
}

impl Header {
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let direction = match self.direction {
            Direction::Upload => 0u64,
            Direction::Download => 1,
        };
        words([MAGIC, direction, self.size_bytes, self.seed])
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> io::Result<Self> {
        let [magic, direction, size_bytes, seed] = unwords(bytes);
        if magic != MAGIC {
            return Err(invalid(format!("not a transfer header: magic {magic:#x}")));
        }
        let direction = match direction {
            0 => Direction::Upload,
            1 => Direction::Download,
            other => return Err(invalid(format!("unknown transfer direction {other}"))),
        };
        if size_bytes < Self::BYTES as u64 {
            return Err(invalid(format!(
                "transfer of {size_bytes} bytes is shorter than a header"
            )));
        }
        Ok(Self { direction, size_bytes, seed })
    }

    pub fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes)?;
        Self::decode(&bytes)
    }
}

/// The receiver's verdict on the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All bytes came and all are right.
    Exact { received_bytes: u64 },
    /// The byte at this offset behind the header is wrong.
    Mismatch { offset_bytes: u64 },
    /// The stream ended early.
    Short { received_bytes: u64 },
}

impl Verdict {
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, value) = match *self {
            Self::Exact { received_bytes } => (0u64, received_bytes),
            Self::Mismatch { offset_bytes } => (1, offset_bytes),
            Self::Short { received_bytes } => (2, received_bytes),
        };
        words([MAGIC, kind, value, 0])
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> io::Result<Self> {
        let [magic, kind, value, _] = unwords(bytes);
        match (magic, kind) {
            (MAGIC, 0) => Ok(Self::Exact { received_bytes: value }),
            (MAGIC, 1) => Ok(Self::Mismatch { offset_bytes: value }),
            (MAGIC, 2) => Ok(Self::Short { received_bytes: value }),
            _ => Err(invalid(format!("not a verdict: magic {magic:#x}, kind {kind}"))),
        }
    }

    pub fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes)?;
        Self::decode(&bytes)
    }
}

/// Produces the writes of one stream, header first.
pub struct Sender {
    header: Header,
    pattern: Pattern,
    sent_bytes: u64,
    buffer: Vec<u8>,
}

impl Sender {
    pub fn new(header: Header) -> Self {
        let buffer = vec![0; CHUNK_BYTES];
        Self { header, pattern: Pattern::new(header.seed), sent_bytes: 0, buffer }
    }

    /// The next bytes to write and whether they are the last; `None` when all were given.
    pub fn next_chunk(&mut self) -> Option<(&[u8], bool)> {
        let left = self.header.size_bytes - self.sent_bytes;
        if left == 0 {
            return None;
        }
        let n = left.min(CHUNK_BYTES as u64) as usize;
        let mut at = 0;
        if self.sent_bytes == 0 {
            self.buffer[..Header::BYTES].copy_from_slice(&self.header.encode());
            at = Header::BYTES;
        }
        self.pattern.fill(&mut self.buffer[at..n]);
        self.sent_bytes += n as u64;
        Some((&self.buffer[..n], self.sent_bytes == self.header.size_bytes))
    }

    pub fn send(mut self, stream: &mut impl Write) -> io::Result<()> {
        while let Some((chunk, _)) = self.next_chunk() {
            stream.write_all(chunk)?;
        }
        Ok(())
    }
}

/// Reads what follows `header` and verifies it, calling `progress` with the bytes received so far
/// (header included). An error is one of the connection, such as a reset.
pub fn receive(
    header: Header,
    stream: &mut impl Read,
    mut progress: impl FnMut(u64),
) -> io::Result<Verdict> {
    let mut pattern = Pattern::new(header.seed);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut received_bytes = Header::BYTES as u64;
    while received_bytes < header.size_bytes {
        let want = (header.size_bytes - received_bytes).min(CHUNK_BYTES as u64) as usize;
        let n = stream.read(&mut buffer[..want])?;
        if n == 0 {
            return Ok(Verdict::Short { received_bytes });
        }
        if let Err(offset_bytes) = pattern.verify(&buffer[..n]) {
            return Ok(Verdict::Mismatch { offset_bytes });
        }
        received_bytes += n as u64;
        progress(received_bytes);
    }
    Ok(Verdict::Exact { received_bytes })
}

fn words(words: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn unwords(bytes: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(word)
    })
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(header: Header) -> Vec<u8> {
        let mut bytes = Vec::new();
        Sender::new(header).send(&mut bytes).expect("a vector takes all");
        bytes
    }

    fn verdict(bytes: &[u8]) -> Verdict {
        let mut stream = bytes;
        let header = Header::read(&mut stream).expect("header");
        receive(header, &mut stream, |_| ()).expect("a slice does not fail")
    }

    #[test]
    fn the_stream_has_exactly_the_announced_size() {
        for size_bytes in [Header::BYTES as u64, 10_000, CHUNK_BYTES as u64, 1_000_000] {
            let header = Header { direction: Direction::Upload, size_bytes, seed: 3 };
            let bytes = sent(header);
            assert_eq!(bytes.len() as u64, size_bytes);
            assert_eq!(verdict(&bytes), Verdict::Exact { received_bytes: size_bytes });
        }
    }

    #[test]
    fn a_cut_stream_is_short_and_a_changed_one_is_a_mismatch() {
        let header = Header { direction: Direction::Upload, size_bytes: 100_000, seed: 3 };
        let mut bytes = sent(header);
        assert_eq!(verdict(&bytes[..99_999]), Verdict::Short { received_bytes: 99_999 });
        bytes[70_000] ^= 1;
        let offset_bytes = 70_000 - Header::BYTES as u64;
        assert_eq!(verdict(&bytes), Verdict::Mismatch { offset_bytes });
    }

    #[test]
    fn header_and_verdict_survive_the_wire_and_rubbish_does_not() {
        let header = Header { direction: Direction::Download, size_bytes: 77, seed: u64::MAX };
        assert_eq!(Header::decode(&header.encode()).ok(), Some(header));
        let verdict = Verdict::Mismatch { offset_bytes: 9 };
        assert_eq!(Verdict::decode(&verdict.encode()).ok(), Some(verdict));
        assert!(Header::decode(&[0; 32]).is_err());
        assert!(Verdict::decode(&header.encode().map(|b| !b)).is_err());
        assert!(Header::decode(&words([MAGIC, 0, 31, 0])).is_err());
    }
}

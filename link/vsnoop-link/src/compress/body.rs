//! How a compressed message looks: a small head that says all that its receiver must know.
//!
//! ```text
//! byte 0     tag: bits 0-1 codec (0 lz4 block, 1 zstd), bit 2 NEW, bit 3 DICTIONARY, others zero
//! bytes 1-3  original length of the message, big endian
//! bytes 4-5  zstd: number of the context, big endian (flows and dictionaries are counted apart)
//! byte 6     zstd with NEW: the window's logarithm. The context starts empty here
//! rest       lz4: one block. zstd: what the stream of this context adds for this message, flushed
//! ```
//!
//! zstd frames are magicless, without content size and checksum: length and integrity are the
//! link's.

use super::CompressionLimits;
use super::stream::StreamError;

const CODEC_MASK: u8 = 0b0011;
const CODEC_LZ4: u8 = 0;
const CODEC_ZSTD: u8 = 1;
const FLAG_NEW: u8 = 0b0100;
const FLAG_DICTIONARY: u8 = 0b1000;

/// A body that no sender within the limits makes. The connection must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("a compressed message is cut in its head")]
    Truncated,
    #[error("a compressed message of unknown kind {tag:#04x}")]
    Unknown { tag: u8 },
    /// By a codec that the receiver does not accept.
    #[error("{name}, which is not accepted here")]
    Codec { name: &'static str },
    #[error("a compressed message of {bytes} bytes")]
    TooLong { bytes: u32 },
    #[error("compression context {number}, which was not begun or is not accepted here")]
    Context { number: u16 },
    #[error("a compression window of 2^{log} bytes, which is not accepted here")]
    Window { log: u8 },
    /// More contexts than the peer may have over all its connections.
    #[error("more contexts than the peer has memory for")]
    Memory,
    #[error("a compressed message is damaged: {0}")]
    Content(#[from] StreamError),
}

impl DecodeError {
    /// Whether the sender has used what the receiver's [`CompressionLimits`] do not allow; other
    /// bodies are damaged.
    pub fn is_beyond_limits(&self) -> bool {
        match self {
            Self::Codec { .. }
            | Self::TooLong { .. }
            | Self::Context { .. }
            | Self::Window { .. }
            | Self::Memory => true,
            Self::Truncated | Self::Unknown { .. } | Self::Content(_) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Lz4,
    Zstd { context: ContextId, new_window_log: Option<u8> },
}

/// Which context of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextId {
    pub dictionary: bool,
    pub number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub codec: Codec,
    pub original_bytes: usize,
}

impl Head {
    pub fn write(&self, out: &mut Vec<u8>) {
        let tag = match self.codec {
            Codec::Lz4 => CODEC_LZ4,
            Codec::Zstd { context, new_window_log } => {
                CODEC_ZSTD
                    | if new_window_log.is_some() { FLAG_NEW } else { 0 }
                    | if context.dictionary { FLAG_DICTIONARY } else { 0 }
            }
        };
        out.push(tag);
        out.extend_from_slice(&(self.original_bytes as u32).to_be_bytes()[1..]);
        if let Codec::Zstd { context, new_window_log } = self.codec {
            out.extend_from_slice(&context.number.to_be_bytes());
            out.extend(new_window_log);
        }
    }

    /// The head of `body` and what follows it, if both are within `limits`.
    pub fn read<'a>(
        body: &'a [u8],
        limits: &CompressionLimits,
    ) -> Result<(Self, &'a [u8]), DecodeError> {
        let (&[tag, a, b, c], rest) = body.split_first_chunk().ok_or(DecodeError::Truncated)?;
        let original_bytes = u32::from_be_bytes([0, a, b, c]);
        if original_bytes > limits.message_bytes {
            return Err(DecodeError::TooLong { bytes: original_bytes });
        }
        let original_bytes = original_bytes as usize;
        match tag & CODEC_MASK {
            CODEC_LZ4 if tag == CODEC_LZ4 && !limits.codecs.lz4 => {
                Err(DecodeError::Codec { name: "lz4" })
            }
            CODEC_LZ4 if tag == CODEC_LZ4 => Ok((Self { codec: Codec::Lz4, original_bytes }, rest)),
            CODEC_ZSTD if tag & !(CODEC_MASK | FLAG_NEW | FLAG_DICTIONARY) == 0 => {
                if !limits.codecs.zstd {
                    return Err(DecodeError::Codec { name: "zstd" });
                }
                let (&number, mut rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
                let context = ContextId {
                    dictionary: tag & FLAG_DICTIONARY != 0,
                    number: u16::from_be_bytes(number),
                };
                let mut new_window_log = None;
                if tag & FLAG_NEW != 0 {
                    let (&log, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
                    (new_window_log, rest) = (Some(log), after);
                }
                Ok((Self { codec: Codec::Zstd { context, new_window_log }, original_bytes }, rest))
            }
            _ => Err(DecodeError::Unknown { tag }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_never_when_cut() {
        let flow = ContextId { dictionary: false, number: 0x1234 };
        let dictionary = ContextId { dictionary: true, number: 1 };
        for codec in [
            Codec::Lz4,
            Codec::Zstd { context: flow, new_window_log: None },
            Codec::Zstd { context: flow, new_window_log: Some(17) },
            Codec::Zstd { context: dictionary, new_window_log: Some(27) },
        ] {
            let head = Head { codec, original_bytes: 65_000 };
            let mut bytes = Vec::new();
            head.write(&mut bytes);
            for cut in 0..bytes.len() {
                let error = Head::read(&bytes[..cut], &CompressionLimits::MOST).unwrap_err();
                assert_eq!(error, DecodeError::Truncated);
            }
            bytes.push(7);
            assert_eq!(Head::read(&bytes, &CompressionLimits::MOST).unwrap(), (head, &[7][..]));
        }
    }

    #[test]
    fn an_unknown_tag_is_refused() {
        let known = [CODEC_LZ4, CODEC_ZSTD, CODEC_ZSTD | 4, CODEC_ZSTD | 8, CODEC_ZSTD | 12];
        for tag in (0..=255).filter(|tag| !known.contains(tag)) {
            let error =
                Head::read(&[tag, 0, 0, 9, 0, 0, 17, 0], &CompressionLimits::MOST).unwrap_err();
            assert_eq!(error, DecodeError::Unknown { tag });
        }
    }
}

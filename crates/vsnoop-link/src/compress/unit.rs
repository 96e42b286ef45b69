//! Units that stand alone: one datagram each, deliverable whatever became of the others.
//!
//! A body is a tag (0 lz4, 1 zstd), the original length (two bytes, big endian, units are below 64 KB)
//! and one block or one magicless zstd frame.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective, compress_bound};

use super::encoder::{joined, lz4_block};
use super::{DecodeError, Encoded, Method, decoder};

const TAG_LZ4: u8 = 0;
const TAG_ZSTD: u8 = 1;

/// The sender's scratch: units do not depend on each other, memory is only kept.
pub struct Packer {
    zstd: CCtx<'static>,
    scratch: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Self {
        Self { zstd: CCtx::create(), scratch: Vec::new() }
    }
}

impl Packer {
    /// Appends a body of at most `limit_bytes` that is smaller than the parts, or nothing.
    pub fn compress(
        &mut self,
        method: Method,
        parts: &[&[u8]],
        limit_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Encoded {
        let start = out.len();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let Ok(length) = u16::try_from(bytes) else { return Encoded::Raw };
        let whole = joined(parts, &mut self.scratch);
        let (tag, level) = match method {
            Method::Off => return Encoded::Raw,
            Method::Lz4 => (TAG_LZ4, 0),
            Method::Zstd { level } => (TAG_ZSTD, level),
            Method::Auto => (TAG_ZSTD, 1),
        };
        out.push(tag);
        out.extend_from_slice(&length.to_be_bytes());
        let made = match tag {
            TAG_LZ4 => lz4_block(whole, out),
            _ => zstd_frame(&mut self.zstd, level, whole, out),
        };
        let body_bytes = out.len() - start;
        if made && body_bytes <= limit_bytes && body_bytes < bytes {
            return Encoded::Compressed;
        }
        out.truncate(start);
        Encoded::Raw
    }
}

fn zstd_frame(zstd: &mut CCtx<'static>, level: i32, whole: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + compress_bound(whole.len()), 0);
    let parameters = [
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::CompressionLevel(level),
    ];
    let set = zstd.reset(ResetDirective::SessionOnly).is_ok()
        && parameters.into_iter().all(|parameter| zstd.set_parameter(parameter).is_ok());
    let made = if set { zstd.compress2(&mut out[start..], whole).ok() } else { None };
    out.truncate(start + made.unwrap_or(0));
    made.is_some()
}

/// The receiver's scratch.
pub struct Unpacker {
    zstd: DCtx<'static>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Self { zstd: DCtx::create() }
    }
}

impl Unpacker {
    /// Appends what `body` was made from, at most 65,535 bytes. An error costs this unit alone.
    pub fn decompress(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let (&[tag, a, b], content) = body.split_first_chunk().ok_or(DecodeError::Truncated)?;
        let start = out.len();
        out.resize(start + usize::from(u16::from_be_bytes([a, b])), 0);
        let result = match tag {
            TAG_LZ4 => decoder::lz4_block(content, &mut out[start..]),
            TAG_ZSTD => self.zstd_frame(content, &mut out[start..]),
            _ => Err(DecodeError::Unknown { tag }),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn zstd_frame(&mut self, content: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        let failed = |code| DecodeError::Content(zstd_safe::get_error_name(code));
        self.zstd.reset(ResetDirective::SessionOnly).map_err(failed)?;
        self.zstd.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(failed)?;
        match self.zstd.decompress(out, content).map_err(failed)? {
            bytes if bytes == out.len() => Ok(()),
            _ => Err(DecodeError::Content("not of the length it has said")),
        }
    }
}

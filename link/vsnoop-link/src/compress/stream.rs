//! One zstd stream in pieces: what a message adds is flushed, so that its receiver has all of it at
//! once, and what earlier messages said is still referred to.

use zstd_safe::zstd_sys::ZSTD_EndDirective::{ZSTD_e_continue, ZSTD_e_flush};
use zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, ErrorCode, FrameFormat, InBuffer, OutBuffer,
    ResetDirective, SafeResult, compress_bound,
};

/// A failure of the library: memory, or bytes that are no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// In the words of zstd.
    #[error("{0}")]
    Zstd(&'static str),
    #[error("no lz4 block")]
    Lz4,
    #[error("no memory for a context")]
    NoMemory,
    #[error("no contexts are allowed")]
    NoContexts,
    #[error("no progress")]
    NoProgress,
    #[error("more than the bound")]
    BeyondBound,
    #[error("not of the length it has said")]
    Length,
}

impl StreamError {
    pub fn of_zstd(code: ErrorCode) -> Self {
        Self::Zstd(zstd_safe::get_error_name(code))
    }
}

fn check_result(result: SafeResult) -> Result<usize, StreamError> {
    result.map_err(StreamError::of_zstd)
}

/// Parameters of a sender's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub level: i32,
    pub window_log: u8,
    /// Find repetitions that are far back, in a window far larger than the tables.
    pub long_distance: bool,
}

/// A message is one block. zstd's own limit is twice that, and takes half a megabyte more of
/// memory.
const BLOCK_BYTES: u32 = 66 << 10;

const LONG_HASH_RATE_LOG: u8 = 9;

pub struct Compressor {
    stream: CCtx<'static>,
    parameters: Parameters,
}

impl Compressor {
    pub fn new(parameters: Parameters) -> Result<Self, StreamError> {
        let stream = CCtx::try_create().ok_or(StreamError::NoMemory)?;
        let mut this = Self { stream, parameters };
        this.restart(parameters)?;
        Ok(this)
    }

    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Forgets all that was sent. Its memory is kept for what follows.
    pub fn restart(&mut self, parameters: Parameters) -> Result<(), StreamError> {
        let stream = &mut self.stream;
        check_result(stream.reset(ResetDirective::SessionAndParameters))?;
        for parameter in [
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
            CParameter::CompressionLevel(parameters.level),
            CParameter::WindowLog(parameters.window_log.into()),
            CParameter::EnableLongDistanceMatching(parameters.long_distance),
            CParameter::MaxBlockSize(BLOCK_BYTES),
        ] {
            check_result(stream.set_parameter(parameter))?;
        }
        if parameters.long_distance {
            // An entry for each 512 bytes, and as many entries as the window needs: measured, that
            // finds a file again as well as zstd's own choice, whose table does not fit a cache.
            let hash_log = parameters.window_log.saturating_sub(LONG_HASH_RATE_LOG).max(10);
            for parameter in [
                CParameter::LdmHashRateLog(LONG_HASH_RATE_LOG.into()),
                CParameter::LdmHashLog(hash_log.into()),
                CParameter::LdmMinMatch(64),
            ] {
                check_result(stream.set_parameter(parameter))?;
            }
        }
        self.parameters = parameters;
        Ok(())
    }

    /// Appends what `parts`, one after the other, add to the stream.
    pub fn compress_message(
        &mut self,
        parts: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        let start = out.len();
        let total_bytes: usize = parts.iter().map(|part| part.len()).sum();
        // Beyond the bound of a frame only the flush's own few bytes are possible.
        out.reserve(compress_bound(total_bytes) + 64);
        let mut output = OutBuffer::around_pos(out, start);
        for part in parts {
            let mut input = InBuffer::around(part);
            while input.pos() < part.len() {
                let before = (input.pos(), output.pos());
                check_result(self.stream.compress_stream2(
                    &mut output,
                    &mut input,
                    ZSTD_e_continue,
                ))?;
                if (input.pos(), output.pos()) == before {
                    return Err(StreamError::NoProgress);
                }
            }
        }
        let mut nothing = InBuffer::around(&[]);
        while check_result(self.stream.compress_stream2(&mut output, &mut nothing, ZSTD_e_flush))?
            != 0
        {
            if output.pos() == output.capacity() {
                return Err(StreamError::BeyondBound);
            }
        }
        Ok(())
    }

    pub fn memory_bytes(&self) -> usize {
        self.stream.sizeof()
    }
}

pub struct Decompressor {
    stream: DCtx<'static>,
}

impl Decompressor {
    /// A stream whose window has at most 2^`window_log` bytes, whatever it asks for.
    pub fn new(window_log: u8) -> Result<Self, StreamError> {
        let stream = DCtx::try_create().ok_or(StreamError::NoMemory)?;
        let mut this = Self { stream };
        this.restart(window_log)?;
        Ok(this)
    }

    pub fn restart(&mut self, window_log: u8) -> Result<(), StreamError> {
        check_result(self.stream.reset(ResetDirective::SessionAndParameters))?;
        check_result(self.stream.set_parameter(DParameter::Format(FrameFormat::Magicless)))?;
        check_result(self.stream.set_parameter(DParameter::WindowLogMax(window_log.into())))?;
        Ok(())
    }

    /// The message that `body` adds must fill `out`, no more and no less.
    pub fn decompress_message(&mut self, body: &[u8], out: &mut [u8]) -> Result<(), StreamError> {
        let full = out.len();
        let mut input = InBuffer::around(body);
        let mut output = OutBuffer::around(out);
        while input.pos() < body.len() || output.pos() < full {
            let before = (input.pos(), output.pos());
            check_result(self.stream.decompress_stream(&mut output, &mut input))?;
            if (input.pos(), output.pos()) == before {
                return Err(StreamError::Length);
            }
        }
        Ok(())
    }

    pub fn memory_bytes(&self) -> usize {
        self.stream.sizeof()
    }
}

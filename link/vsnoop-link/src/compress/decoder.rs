//! The receiver's side of one ordered connection.
//!
//! A decoder keeps the contexts that the sender has begun, each in the slot that the sender named.
//! It believes nothing: numbers, windows and lengths are held against its own [`CompressionLimits`]
//! before memory is touched, and new contexts against the memory that the peer has left. Whatever
//! does not come out at exactly the length it has said is an error. After an error the two sides'
//! contexts are out of step, so the connection must end.

use std::sync::Arc;

use super::body::{Codec, ContextId, DecodeError, Head};
use super::clock::CodingClock;
use super::limits::{LEAST_WINDOW_LOG, context_bytes};
use super::stream::{Decompressor, StreamError};
use super::{CompressionLimits, CompressionStats, DecoderMemory};

/// Receiver's side of one ordered connection.
pub struct Decoder {
    limits: CompressionLimits,
    flows: Vec<Option<Context>>,
    dictionaries: Vec<Option<Context>>,
    memory: Arc<DecoderMemory>,
    clock_ns: CodingClock,
    stats: CompressionStats,
}

struct Context {
    stream: Decompressor,
    /// Bytes of the peer's memory that it has: those of its largest window, which zstd keeps.
    taken_bytes: u64,
}

impl Decoder {
    /// `memory` is shared by all decoders of the peer.
    pub fn new(
        limits: CompressionLimits,
        memory: Arc<DecoderMemory>,
        clock_ns: CodingClock,
    ) -> Self {
        let (flows, dictionaries) = (Vec::new(), Vec::new());
        Self { limits, flows, dictionaries, memory, clock_ns, stats: CompressionStats::default() }
    }

    pub fn stats(&self) -> &CompressionStats {
        &self.stats
    }

    /// Appends the message that `body` was made from. After an error, `out` is as it was and the
    /// connection must end.
    pub fn decode(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let began = (self.clock_ns)();
        let (head, content) = Head::read(body, &self.limits)?;
        let start = out.len();
        out.resize(start + head.original_bytes, 0);
        if let Err(error) = self.decode_content(&head, content, &mut out[start..]) {
            out.truncate(start);
            return Err(error);
        }
        self.stats.messages += 1;
        self.stats.bytes_in += body.len() as u64;
        self.stats.bytes_out += head.original_bytes as u64;
        self.stats.busy_ns += (self.clock_ns)().saturating_sub(began);
        Ok(())
    }

    fn decode_content(
        &mut self,
        head: &Head,
        body: &[u8],
        out: &mut [u8],
    ) -> Result<(), DecodeError> {
        match head.codec {
            Codec::Lz4 => lz4_block(body, out),
            Codec::Zstd { context, new_window_log } => Ok(self
                .find_context(context, new_window_log)?
                .stream
                .decompress_message(body, out)?),
        }
    }

    fn find_context(
        &mut self,
        id: ContextId,
        new_window_log: Option<u8>,
    ) -> Result<&mut Context, DecodeError> {
        let limits = &self.limits;
        let (slots, count, window_log_max) = match id.dictionary {
            false => (&mut self.flows, limits.flows, limits.flow_window_log),
            true => (&mut self.dictionaries, limits.dictionaries, limits.dictionary_window_log),
        };
        let missing = DecodeError::Context { number: id.number };
        if id.number >= count {
            return Err(missing);
        }
        let index = usize::from(id.number);
        if let Some(log) = new_window_log {
            if !(LEAST_WINDOW_LOG..=window_log_max).contains(&log) {
                return Err(DecodeError::Window { log });
            }
            // Numbers come in no order that could be relied on: at most `count` empty slots.
            if slots.len() <= index {
                slots.resize_with(index + 1, || None);
            }
            let wanted_bytes = context_bytes(log);
            match &mut slots[index] {
                Some(context) => {
                    let more_bytes = wanted_bytes.saturating_sub(context.taken_bytes);
                    if !self.memory.take_memory(more_bytes) {
                        return Err(DecodeError::Memory);
                    }
                    context.taken_bytes += more_bytes;
                    context.stream.restart(log)?;
                }
                slot => {
                    let stream = Decompressor::new(log)?;
                    if !self.memory.take_memory(wanted_bytes) {
                        return Err(DecodeError::Memory);
                    }
                    *slot = Some(Context { stream, taken_bytes: wanted_bytes });
                    self.stats.contexts += 1;
                }
            }
        }
        slots.get_mut(index).and_then(Option::as_mut).ok_or(missing)
    }

    /// Memory of the contexts, bytes.
    pub fn memory_bytes(&self) -> usize {
        let contexts = self.flows.iter().chain(&self.dictionaries).flatten();
        contexts.map(|context| context.stream.memory_bytes()).sum()
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let contexts = self.flows.iter().chain(&self.dictionaries).flatten();
        self.memory.give_back(contexts.map(|context| context.taken_bytes).sum());
    }
}

pub(super) fn lz4_block(body: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    match lz4_flex::block::decompress_into(body, out) {
        Ok(bytes) if bytes == out.len() => Ok(()),
        Ok(_) => Err(StreamError::Length.into()),
        Err(_) => Err(StreamError::Lz4.into()),
    }
}

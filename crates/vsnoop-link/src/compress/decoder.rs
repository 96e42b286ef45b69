//! The receiver's side of one ordered connection.
//!
//! A decoder keeps the contexts that the sender has begun, each in the slot that the sender named.
//! It believes nothing: numbers, windows and lengths are held against its own [`Limits`] before
//! memory is touched, and whatever does not come out at exactly the length it has said is an error.
//! After an error the two sides' contexts are out of step, so the connection must end.

use super::body::{Codec, ContextId, DecodeError, Head};
use super::clock::Clock;
use super::stream::Decompressor;
use super::{Limits, Stats};

/// zstd's least window (ZSTD_WINDOWLOG_ABSOLUTEMIN). Zero it takes for its default, which is 128
/// MB.
const LEAST_WINDOW_LOG: u8 = 10;

/// Receiver's side of one ordered connection.
pub struct Decoder {
    limits: Limits,
    flows: Vec<Option<Decompressor>>,
    dictionaries: Vec<Option<Decompressor>>,
    clock_ns: Clock,
    stats: Stats,
}

impl Decoder {
    pub fn new(limits: Limits, clock_ns: Clock) -> Self {
        let (flows, dictionaries) = (Vec::new(), Vec::new());
        Self { limits, flows, dictionaries, clock_ns, stats: Stats::default() }
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Appends the message that `body` was made from. After an error, `out` is as it was and the
    /// connection must end.
    pub fn decode(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let began = (self.clock_ns)();
        let (head, content) = Head::read(body, &self.limits)?;
        let start = out.len();
        out.resize(start + head.original_bytes, 0);
        if let Err(error) = self.content(&head, content, &mut out[start..]) {
            out.truncate(start);
            return Err(error);
        }
        self.stats.messages += 1;
        self.stats.bytes_in += body.len() as u64;
        self.stats.bytes_out += head.original_bytes as u64;
        self.stats.busy_ns += (self.clock_ns)().saturating_sub(began);
        Ok(())
    }

    fn content(&mut self, head: &Head, body: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        match head.codec {
            Codec::Lz4 => lz4_block(body, out),
            Codec::Zstd { context, new_window_log } => {
                Ok(self.context(context, new_window_log)?.message(body, out)?)
            }
        }
    }

    fn context(
        &mut self,
        id: ContextId,
        new_window_log: Option<u8>,
    ) -> Result<&mut Decompressor, DecodeError> {
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
            match &mut slots[index] {
                Some(context) => context.restart(log)?,
                slot => {
                    *slot = Some(Decompressor::new(log)?);
                    self.stats.contexts += 1;
                }
            }
        }
        slots.get_mut(index).and_then(Option::as_mut).ok_or(missing)
    }

    /// What the contexts hold, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let contexts = self.flows.iter().chain(&self.dictionaries).flatten();
        contexts.map(Decompressor::memory_bytes).sum()
    }
}

pub(super) fn lz4_block(body: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    match lz4_flex::block::decompress_into(body, out) {
        Ok(bytes) if bytes == out.len() => Ok(()),
        Ok(_) => Err(DecodeError::Content("not of the length it has said")),
        Err(_) => Err(DecodeError::Content("no lz4 block")),
    }
}

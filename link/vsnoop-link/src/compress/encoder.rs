//! The sender's side of one ordered connection.
//!
//! Each flow that uses zstd has a *context*, the stream of its earlier data, and the receiver has
//! its counterpart under the same number. [`CompressionLimits`] bounds their number; a further flow
//! takes the slot of the flow that was idle longest, and the flag NEW tells the receiver. A message
//! that did not become smaller is sent raw, and its context, which has taken it in already, starts
//! anew with the next one. A dictionary is not
//! thrown away for that: it carries the few bytes more.

use std::collections::HashMap;

use vsnoop_packet::headers::FlowHash;

use super::auto::{Judge, Measured};
use super::body::{Codec, ContextId, Head};
use super::clock::CodingClock;
use super::stream::{Compressor, Parameters, StreamError};
use super::{
    CompressionLimits, CompressionStats, DEFAULT_ZSTD_LEVEL, Decision, Method, Owner, Policy,
};

/// Result of encoding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// Nothing was appended: the caller sends the parts as they are.
    Raw,
    Compressed,
}

/// Messages below are headers and little else: a context of their own costs more than they do.
const MESSAGE_BYTES_MIN: usize = 128;

/// The flow, or the owner, whose bytes a context has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Flow { owner: Owner, flow: FlowHash },
    All { owner: Owner, window_log: u8 },
}

struct Context {
    whose: Whose,
    compressor: Compressor,
    /// The receiver has the counterpart of this context.
    known: bool,
    used: u64,
}

/// Sender's side of one ordered connection: contexts of flows.
pub struct Encoder {
    limits: CompressionLimits,
    flows: ContextSlots,
    dictionaries: ContextSlots,
    judge: Judge,
    clock_ns: CodingClock,
    /// Counts messages; orders contexts by their last use.
    clock: u64,
    scratch: Vec<u8>,
    stats: CompressionStats,
}

impl Encoder {
    /// `limits` are within those that the receiver has stated in its hello.
    pub fn new(limits: CompressionLimits, clock_ns: CodingClock) -> Self {
        Self {
            flows: ContextSlots::new(limits.flows),
            dictionaries: ContextSlots::new(limits.dictionaries),
            judge: Judge::new(limits.codecs),
            clock_ns,
            limits,
            clock: 0,
            scratch: Vec::new(),
            stats: CompressionStats::default(),
        }
    }

    pub fn stats(&self) -> &CompressionStats {
        &self.stats
    }

    /// Rate of the path, for `auto`; `None`, also in the beginning, if the path is not what slows
    /// the connection or is not known: then `auto` sends everything raw.
    pub fn set_link_rate(&mut self, bytes_per_s: Option<u64>) {
        self.judge.set_link_rate(bytes_per_s);
    }

    /// The decision for a flow, and the time of its last message; `None`: unknown, or belongs to a
    /// dictionary, where nothing is decided.
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        self.judge.find_decision((policy.owner, flow), policy.method)
    }

    /// Appends to `out` the compressed form of the message that `parts` make up, or nothing if it
    /// does not become smaller that way.
    ///
    /// `Compressed` messages must be sent, in this order: the context depends on it.
    pub fn encode(
        &mut self,
        flow: FlowHash,
        policy: &Policy,
        parts: &[&[u8]],
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Encoded {
        let method = policy.method.accepted_by(self.limits.codecs);
        if method == Method::Off {
            return Encoded::Raw;
        }
        let policy = &Policy { method, ..*policy };
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.clock += 1;
        self.stats.messages += 1;
        self.stats.bytes_in += bytes as u64;
        let start = out.len();
        let fits = bytes >= MESSAGE_BYTES_MIN && bytes <= self.limits.message_bytes as usize;
        if fits && self.try_encode(flow, policy, parts, bytes, now_ns, out) {
            self.stats.bytes_out += (out.len() - start) as u64;
            return Encoded::Compressed;
        }
        out.truncate(start);
        self.stats.bytes_out += bytes as u64;
        self.stats.raw_messages += 1;
        Encoded::Raw
    }

    fn try_encode(
        &mut self,
        flow: FlowHash,
        policy: &Policy,
        parts: &[&[u8]],
        bytes: usize,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let began = (self.clock_ns)();
        let start = out.len();
        // A dictionary is for what came before, also if it is random in itself: there is no probe.
        let level = match policy.method {
            Method::Zstd { level } => Some(level),
            Method::Auto => Some(DEFAULT_ZSTD_LEVEL),
            Method::Off | Method::Lz4 => None,
        };
        if let (Some(window), Some(level)) = (policy.dictionary, level)
            && self.limits.dictionaries > 0
            && self.limits.codecs.zstd
        {
            if policy.method == Method::Auto && !self.judge.dictionary_keeps_up(bytes, now_ns) {
                self.stats.busy_ns += (self.clock_ns)().saturating_sub(began);
                return false;
            }
            let log = window_log_of(window).min(self.limits.dictionary_window_log);
            let whose = Whose::All { owner: policy.owner, window_log: log };
            let parameters = Parameters { level, window_log: log, long_distance: true };
            let done = self.compress_zstd(whose, parameters, parts, bytes, out);
            let ns = (self.clock_ns)().saturating_sub(began);
            self.stats.busy_ns += ns;
            if policy.method == Method::Auto {
                self.judge.measured_dictionary(bytes, ns);
            }
            return done;
        }
        let key = (policy.owner, flow);
        let method = self.judge.choose_method(key, policy.method, parts, now_ns, &mut self.stats);
        let smaller = match method {
            Method::Off | Method::Auto => {
                self.stats.busy_ns += (self.clock_ns)().saturating_sub(began);
                return false;
            }
            Method::Lz4 => self.compress_lz4(parts, bytes, out),
            Method::Zstd { level } => {
                let window_log = self.limits.flow_window_log;
                let whose = Whose::Flow { owner: policy.owner, flow };
                let parameters = Parameters { level, window_log, long_distance: false };
                self.compress_zstd(whose, parameters, parts, bytes, out)
            }
        };
        let ns = (self.clock_ns)().saturating_sub(began);
        self.stats.busy_ns += ns;
        let bytes_out = if smaller { out.len() - start } else { bytes };
        let result = Measured { bytes_in: bytes, bytes_out, smaller, ns };
        self.judge.note_measured(key, policy.method, method, result, now_ns);
        smaller
    }

    fn compress_lz4(&mut self, parts: &[&[u8]], bytes: usize, out: &mut Vec<u8>) -> bool {
        let whole = join_parts(parts, &mut self.scratch);
        let start = out.len();
        Head { codec: Codec::Lz4, original_bytes: bytes }.write(out);
        lz4_block(whole, out) && out.len() - start < bytes
    }

    fn compress_zstd(
        &mut self,
        whose: Whose,
        parameters: Parameters,
        parts: &[&[u8]],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let dictionary = matches!(whose, Whose::All { .. });
        let slots = if dictionary { &mut self.dictionaries } else { &mut self.flows };
        let found = slots.find_or_make(whose, parameters, self.clock, &mut self.stats);
        let Ok((number, context)) = found else { return false };
        let start = out.len();
        let id = ContextId { dictionary, number };
        let new_window_log = (!context.known).then_some(parameters.window_log);
        let codec = Codec::Zstd { context: id, new_window_log };
        Head { codec, original_bytes: bytes }.write(out);
        let result = context.compressor.compress_message(parts, out);
        let smaller = out.len() - start < bytes;
        context.known = result.is_ok() && (smaller || dictionary);
        context.known
    }

    /// Memory of the contexts, bytes.
    pub fn memory_bytes(&self) -> usize {
        let contexts = self.flows.contexts.iter().chain(&self.dictionaries.contexts);
        contexts.map(|context| context.compressor.memory_bytes()).sum()
    }
}

/// The parts as one slice, copied only if there are several.
pub(super) fn join_parts<'a>(parts: &[&'a [u8]], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if let [whole] = parts {
        return whole;
    }
    scratch.clear();
    parts.iter().for_each(|part| scratch.extend_from_slice(part));
    scratch
}

/// Appends one lz4 block; `false` if it could not be made.
pub(super) fn lz4_block(whole: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + lz4_flex::block::get_maximum_output_size(whole.len()), 0);
    let made = lz4_flex::block::compress_into(whole, &mut out[start..]);
    out.truncate(start + made.as_ref().copied().unwrap_or(0));
    made.is_ok()
}

fn window_log_of(window_bytes: u32) -> u8 {
    // zstd's least window is 1 KB.
    window_bytes.clamp(1 << 10, 1 << 31).next_power_of_two().trailing_zeros() as u8
}

/// The numbered slots of one kind of context.
struct ContextSlots {
    limit: usize,
    contexts: Vec<Context>,
    numbers: HashMap<Whose, u16>,
}

impl ContextSlots {
    fn new(limit: u16) -> Self {
        Self { limit: limit.into(), contexts: Vec::new(), numbers: HashMap::new() }
    }

    /// The context of `whose`: its own, a new one, or the slot of the least recently used one.
    fn find_or_make(
        &mut self,
        whose: Whose,
        parameters: Parameters,
        clock: u64,
        stats: &mut CompressionStats,
    ) -> Result<(u16, &mut Context), StreamError> {
        let number = match self.numbers.get(&whose) {
            Some(&number) => number,
            None if self.contexts.len() < self.limit => {
                let compressor = Compressor::new(parameters)?;
                let context = Context { whose, compressor, known: false, used: clock };
                self.contexts.push(context);
                self.numbers.insert(whose, (self.contexts.len() - 1) as u16);
                stats.contexts += 1;
                (self.contexts.len() - 1) as u16
            }
            None => {
                let oldest = self.contexts.iter().enumerate().min_by_key(|(_, c)| c.used);
                let (index, _) = oldest.ok_or(StreamError::NoContexts)?;
                let context = &mut self.contexts[index];
                self.numbers.remove(&context.whose);
                self.numbers.insert(whose, index as u16);
                context.whose = whose;
                context.known = false;
                stats.evictions += 1;
                index as u16
            }
        };
        let context = &mut self.contexts[usize::from(number)];
        context.used = clock;
        // The receiver has no such context, or one with other parameters: both begin anew.
        if !context.known || context.compressor.parameters() != parameters {
            context.known = false;
            context.compressor.restart(parameters)?;
        }
        Ok((number, context))
    }
}

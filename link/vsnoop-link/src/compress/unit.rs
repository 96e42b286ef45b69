//! Units that stand alone: deliverable whatever became of the others.
//!
//! A body is a tag (0 lz4, 1 zstd), the original length (two bytes, big endian: units are below 64
//! KB) and one block or one magicless zstd frame.
//!
//! A unit is as large as its sender wants to lose at once, and the larger it is the better it
//! compresses: text is a third smaller in units of four datagrams than in units of one. Per
//! datagram that is on the way, a stream meets the same number of losses either way, so
//! [`count_datagrams`] follows the measured loss rate: short units where many would be lost, long
//! ones where none is. The payload of a super-packet is [cut](Packer::pack_frame) so that each unit
//! just fits: how much to take is guessed from the flow's last unit and corrected once or twice.

use vsnoop_packet::headers::FlowHash;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective, compress_bound};

use super::auto::{FlowKey, Judge, Measured};
use super::clock::CodingClock;
use super::encoder::{join_parts, lz4_block};
use super::stream::StreamError;
use super::{Codecs, CompressionStats, Decision, DecodeError, Encoded, Method, Policy, decoder};

const TAG_LZ4: u8 = 0;
const TAG_ZSTD: u8 = 1;
const HEAD_BYTES: usize = 3;
/// Flows whose last guess is remembered. Others begin with a ratio that all but random data
/// reaches.
const GUESSES: usize = 64;
const FIRST_RATIO: f64 = 0.5;
/// Guessed a little short: a unit that is one byte too long is one encoding in vain.
const MARGIN: f64 = 0.98;
/// A unit that fills so much of the room is not tried again for the rest.
const FILLED: f64 = 0.95;
const TRIALS_MAX: u32 = 4;

/// How many datagrams a unit may fill, given the share of datagrams that the link loses.
pub fn count_datagrams(loss: f64) -> usize {
    match loss {
        loss if loss < 0.001 => 8,
        loss if loss < 0.005 => 4,
        loss if loss < 0.02 => 2,
        _ => 1,
    }
}

/// Source of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Goes whole with each unit.
    pub head: &'a [u8],
    /// The unit takes as much of its beginning as fits.
    pub payload: &'a [u8],
    /// Payload is taken in multiples of this, the segment size, unless it is all of the rest.
    pub granule_bytes: usize,
    /// The body, or head and payload as they are, must not be longer.
    pub limit_bytes: usize,
}

/// The unit that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// So much of the payload is in it, at least one byte.
    pub payload_bytes: usize,
    pub encoded: Encoded,
}

/// The sender's side: no unit depends on another, only memory and experience are kept.
pub struct Packer {
    zstd: CCtx<'static>,
    scratch: Vec<u8>,
    trial: Vec<u8>,
    judge: Judge,
    /// Limits of the receiver.
    codecs: Codecs,
    /// Estimated ratio of the last flow in each slot.
    guesses: Vec<Option<(FlowKey, f64)>>,
    clock_ns: CodingClock,
    stats: CompressionStats,
}

impl Packer {
    /// For a receiver that accepts these codecs.
    pub fn new(codecs: Codecs, clock_ns: CodingClock) -> Self {
        Self {
            zstd: CCtx::create(),
            scratch: Vec::new(),
            trial: Vec::new(),
            judge: Judge::new(codecs),
            codecs,
            guesses: vec![None; GUESSES],
            clock_ns,
            stats: CompressionStats::default(),
        }
    }

    pub fn stats(&self) -> &CompressionStats {
        &self.stats
    }

    /// See [`super::Encoder::set_link_rate`].
    pub fn set_link_rate(&mut self, bytes_per_s: Option<u64>) {
        self.judge.set_link_rate(bytes_per_s);
    }

    /// See [`super::Encoder::find_decision`].
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        self.judge.find_decision((policy.owner, flow), policy.method)
    }

    /// Appends a body of at most `limit_bytes` that is smaller than the parts, or nothing. `method`
    /// is taken at its word: nothing is probed or measured, and `auto` means `zstd`.
    pub fn compress_parts(
        &mut self,
        method: Method,
        parts: &[&[u8]],
        limit_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Encoded {
        let start = out.len();
        let whole = join_parts(parts, &mut self.scratch);
        let made = encode_whole(&mut self.zstd, method, whole, out);
        let body_bytes = out.len() - start;
        if made && body_bytes <= limit_bytes && body_bytes < whole.len() {
            return Encoded::Compressed;
        }
        out.truncate(start);
        Encoded::Raw
    }

    /// Cuts the next unit, and appends its body to `out` if it is compressed. An empty payload
    /// makes a unit of the head alone.
    pub fn pack_frame(
        &mut self,
        flow: FlowHash,
        policy: &Policy,
        cut: Cut<'_>,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Packed {
        let raw_bytes = cut.step_bytes(cut.limit_bytes.saturating_sub(cut.head.len())).max(1);
        let raw_bytes = raw_bytes.min(cut.payload.len());
        let raw = Packed { payload_bytes: raw_bytes, encoded: Encoded::Raw };
        let asked = policy.method.accepted_by(self.codecs);
        if asked == Method::Off {
            return raw;
        }
        let began = (self.clock_ns)();
        self.stats.messages += 1;
        let key = (policy.owner, flow);
        let parts = [cut.head, cut.payload];
        let method = self.judge.choose_method(key, asked, &parts, now_ns, &mut self.stats);
        let start = out.len();
        let payload_bytes = match method {
            Method::Off | Method::Auto => None,
            method => self.fill_unit(key, method, cut, raw_bytes, out),
        };
        let packed = payload_bytes
            .map(|payload_bytes| Packed { payload_bytes, encoded: Encoded::Compressed });
        let bytes_in = cut.head.len() + packed.unwrap_or(raw).payload_bytes;
        let bytes_out = if packed.is_some() { out.len() - start } else { bytes_in };
        let ns = (self.clock_ns)().saturating_sub(began);
        self.stats.bytes_in += bytes_in as u64;
        self.stats.bytes_out += bytes_out as u64;
        self.stats.raw_messages += u64::from(packed.is_none());
        self.stats.busy_ns += ns;
        if method != Method::Off {
            let result = Measured { bytes_in, bytes_out, smaller: packed.is_some(), ns };
            self.judge.note_measured(key, asked, method, result, now_ns);
        }
        packed.unwrap_or(raw)
    }

    /// The best body that was found, appended to `out`, and how much payload it holds; nothing if
    /// the raw unit does as well.
    fn fill_unit(
        &mut self,
        key: FlowKey,
        method: Method,
        cut: Cut<'_>,
        raw_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let guess = &mut self.guesses[key.1.0 as usize % GUESSES];
        let known = guess.filter(|(whose, _)| *whose == key);
        let (_, guess) = guess.insert(known.unwrap_or((key, FIRST_RATIO)));
        let head_bytes = cut.head.len();
        let room = cut.limit_bytes as f64 * MARGIN;
        let all = cut.payload.len().min(usize::from(u16::MAX).saturating_sub(head_bytes));
        let step = |ratio: f64| {
            cut.step_bytes(((room / ratio) as usize).saturating_sub(head_bytes).min(all))
        };
        let start = out.len();
        let (mut best, mut too_much) = (0, all + 1);
        let mut take = step(*guess).max(raw_bytes.min(all));
        for _ in 0..TRIALS_MAX {
            self.trial.clear();
            let whole = join_parts(&[cut.head, &cut.payload[..take]], &mut self.scratch);
            if !encode_whole(&mut self.zstd, method, whole, &mut self.trial) {
                break;
            }
            *guess = (self.trial.len() as f64 / whole.len() as f64).clamp(0.001, 1.0);
            if self.trial.len() <= cut.limit_bytes {
                if take > best || best == 0 && self.trial.len() < whole.len() {
                    best = take;
                    out.truncate(start);
                    out.extend_from_slice(&self.trial);
                }
                if take == all || self.trial.len() as f64 > cut.limit_bytes as f64 * FILLED {
                    break;
                }
            } else {
                too_much = take;
            }
            let next = cut.bytes_below(step(*guess), too_much);
            if next <= best || next < raw_bytes {
                break;
            }
            take = next;
        }
        let gains = best > raw_bytes || best == raw_bytes && out.len() - start < head_bytes + best;
        if !gains {
            out.truncate(start);
        }
        gains.then_some(best)
    }
}

impl Cut<'_> {
    /// The most that may be taken of `bytes`.
    fn step_bytes(&self, bytes: usize) -> usize {
        if bytes >= self.payload.len() {
            return self.payload.len();
        }
        let granule_bytes = self.granule_bytes.max(1);
        match bytes - bytes % granule_bytes {
            0 => bytes,
            whole => whole,
        }
    }

    /// `bytes`, or the next step below `too_much`.
    fn bytes_below(&self, bytes: usize, too_much: usize) -> usize {
        if bytes < too_much { bytes } else { self.step_bytes(too_much.saturating_sub(1)) }
    }
}

/// Appends a body; `false` if it could not be made.
fn encode_whole(zstd: &mut CCtx<'static>, method: Method, whole: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(length) = u16::try_from(whole.len()) else { return false };
    let (tag, level) = match method {
        Method::Off => return false,
        Method::Lz4 => (TAG_LZ4, 0),
        Method::Zstd { level } => (TAG_ZSTD, level),
        Method::Auto => (TAG_ZSTD, super::DEFAULT_ZSTD_LEVEL),
    };
    out.push(tag);
    out.extend_from_slice(&length.to_be_bytes());
    match tag {
        TAG_LZ4 => lz4_block(whole, out),
        _ => zstd_frame(zstd, level, whole, out),
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
    clock_ns: CodingClock,
    stats: CompressionStats,
}

impl Unpacker {
    pub fn new(clock_ns: CodingClock) -> Self {
        Self { zstd: DCtx::create(), clock_ns, stats: CompressionStats::default() }
    }

    pub fn stats(&self) -> &CompressionStats {
        &self.stats
    }

    /// Appends what `body` was made from, at most 65,535 bytes. An error leaves `out` as it was; it
    /// costs this unit alone, unless it is [beyond the limits](DecodeError::is_beyond_limits).
    pub fn decompress_body(
        &mut self,
        body: &[u8],
        accepted: Codecs,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let began = (self.clock_ns)();
        let (&[tag, a, b], content) =
            body.split_first_chunk::<HEAD_BYTES>().ok_or(DecodeError::Truncated)?;
        match tag {
            TAG_LZ4 if !accepted.lz4 => return Err(DecodeError::Codec { name: "lz4" }),
            TAG_ZSTD if !accepted.zstd => return Err(DecodeError::Codec { name: "zstd" }),
            _ => {}
        }
        let start = out.len();
        out.resize(start + usize::from(u16::from_be_bytes([a, b])), 0);
        let result = match tag {
            TAG_LZ4 => decoder::lz4_block(content, &mut out[start..]),
            TAG_ZSTD => self.zstd_frame(content, &mut out[start..]),
            _ => Err(DecodeError::Unknown { tag }),
        };
        if result.is_err() {
            out.truncate(start);
            return result;
        }
        self.stats.messages += 1;
        self.stats.bytes_in += body.len() as u64;
        self.stats.bytes_out += (out.len() - start) as u64;
        self.stats.busy_ns += (self.clock_ns)().saturating_sub(began);
        Ok(())
    }

    fn zstd_frame(&mut self, content: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        let failed = StreamError::of_zstd;
        self.zstd.reset(ResetDirective::SessionOnly).map_err(failed)?;
        self.zstd.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(failed)?;
        match self.zstd.decompress(out, content).map_err(failed)? {
            bytes if bytes == out.len() => Ok(()),
            _ => Err(StreamError::Length.into()),
        }
    }
}

//! Measures what compression of a link costs and gains, on one core.
//!
//! The contents of `link-compress` pass as super-packets of 64 KB, with headers as TCP would give
//! them, through encoder and decoder of an ordered transport and through units for UDP; what comes
//! out is compared with what went in. Time is CPU time of the thread, so that others cost little;
//! ways take turns in rounds, and a figure is the median over them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use vsnoop_lab::experiment::link::content;
use vsnoop_lab::results::Figure;
use vsnoop_lab::results::link::Content;
use vsnoop_link::compress::{
    Codecs, CodingClock, CompressionLimits, Decoder, DecoderMemory, Encoded, Encoder, Owner,
    Policy, unit,
};
use vsnoop_packet::headers::FlowHash;
use vsnoop_testbed::bulk::pin;
use vsnoop_testbed::interrupt;

use crate::figures::{figure, median, say};
use crate::stage::VM_CORE as CORE;

const ROUNDS: usize = 3;
const CONTENT_BYTES: usize = 20_000_000;
const CONTENTS: [Content; 6] =
    [Content::Digits, Content::Text, Content::Json, Content::Usrlib, Content::Xz, Content::Random];
const HEAD_BYTES: usize = 66;
const SEGMENT_BYTES: usize = 1448;
const SEGMENTS: usize = 44;
/// The size of a unit for UDP: four datagrams, as on a link that loses a few in a thousand.
const UNIT_BYTES: usize = 4 * 1380;
/// The link's rate that `auto` assumes: 100 Mb/s.
const LINK_BYTES_PER_S: u64 = 12_500_000;
/// Interval between two super-packets on the encoders' clock.
const GAP_NS: u64 = 1_000_000;

/// How a content passes.
#[derive(Clone, Copy)]
enum Way {
    Ordered(&'static str),
    Units(&'static str),
}

const WAYS: [(&str, Way); 6] = [
    ("lz4", Way::Ordered("lz4")),
    ("zstd_1", Way::Ordered("zstd:1")),
    ("zstd_3", Way::Ordered("zstd:3")),
    ("auto", Way::Ordered("auto")),
    ("zstd_1_udp", Way::Units("zstd:1")),
    ("auto_udp", Way::Units("auto")),
];

/// One content, one way, one round.
#[derive(Default)]
struct Passage {
    compressing: Duration,
    expanding: Duration,
    bytes: usize,
    expanded_bytes: usize,
    link_bytes: usize,
    /// The last super-packet that was encoded, as it came out.
    expanded: Vec<u8>,
}

impl Passage {
    /// Counts what became of a super-packet; of an encoded one `expand` must give it back.
    fn count(
        &mut self,
        [head, payload]: [&[u8]; 2],
        encoded: Encoded,
        body: &[u8],
        expand: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        if encoded == Encoded::Raw {
            self.link_bytes += head.len() + payload.len();
            return Ok(());
        }
        self.link_bytes += body.len();
        self.expanded.clear();
        let begun = cpu()?;
        expand(body, &mut self.expanded)?;
        self.expanding += cpu()? - begun;
        self.expanded_bytes += payload.len();
        let same = self.expanded.strip_prefix(head).is_some_and(|rest| rest == payload);
        ensure!(same, "it came out changed");
        Ok(())
    }
}

pub fn measure() -> Result<Vec<Figure>> {
    pin(CORE)?;
    let mut figures = Vec::new();
    for wanted in CONTENTS {
        let name = wanted.name();
        let data = content::make(wanted, CONTENT_BYTES)?;
        let mut rounds = [const { Vec::new() }; WAYS.len()];
        for round in 0..ROUNDS {
            for turn in 0..WAYS.len() {
                interrupt::check()?;
                let at = (round + turn) % WAYS.len();
                let (way_name, way) = WAYS[at];
                let passage = pass(&data, way).with_context(|| format!("{name}, {way_name}"))?;
                rounds[at].push(passage);
            }
        }
        say(&format!("compress: {name}"));
        for ((way, _), rounds) in WAYS.iter().zip(rounds) {
            let median_of = |value: fn(&Passage) -> f64| median(rounds.iter().map(value).collect());
            let mut add = |metric: &str, value: f64, unit| {
                // Where all stayed raw there was nothing to expand.
                if value.is_finite() {
                    let metric = format!("compress_{name}_{way}_{metric}");
                    figures.push(figure(&metric, value, unit, "higher"));
                }
            };
            let rate = |bytes: usize, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
            let rates = rounds.iter().map(|passage| rate(passage.bytes, passage.compressing));
            add("mbytes_per_s", median(rates.collect()), "MB/s");
            let rates =
                rounds.iter().map(|passage| rate(passage.expanded_bytes, passage.expanding));
            add("expand_mbytes_per_s", median(rates.collect()), "MB/s");
            add(
                "ratio",
                median_of(|passage| passage.bytes as f64 / passage.link_bytes as f64),
                "times",
            );
        }
    }
    Ok(figures)
}

fn pass(data: &[u8], way: Way) -> Result<Passage> {
    let policy = |method: &str| -> Result<Policy> {
        Ok(Policy { method: method.parse()?, owner: Owner::Named(1), dictionary: None })
    };
    match way {
        Way::Ordered(method) => ordered(data, &policy(method)?),
        Way::Units(method) => units(data, &policy(method)?),
    }
}

/// The CPU time of this thread in nanoseconds, like the link's own clock.
fn clock() -> CodingClock {
    Box::new(|| cpu().map_or(0, |time| time.as_nanos() as u64))
}

fn ordered(data: &[u8], policy: &Policy) -> Result<Passage> {
    let limits = CompressionLimits::MOST;
    let memory = DecoderMemory::new(limits.decoder_bytes_max());
    let mut encoder = Encoder::new(limits, clock());
    let mut decoder = Decoder::new(limits, memory.into(), clock());
    encoder.set_link_rate(Some(LINK_BYTES_PER_S));
    let mut passage = Passage { bytes: data.len(), ..Passage::default() };
    let mut body = Vec::new();
    for (number, payload) in data.chunks(SEGMENTS * SEGMENT_BYTES).enumerate() {
        let head = head(number);
        let now_ns = number as u64 * GAP_NS;
        body.clear();
        let begun = cpu()?;
        let encoded = encoder.encode(FlowHash(1), policy, &[&head, payload], now_ns, &mut body);
        passage.compressing += cpu()? - begun;
        let expand = |body: &[u8], out: &mut Vec<u8>| Ok(decoder.decode(body, out)?);
        passage.count([&head, payload], encoded, &body, expand)?;
    }
    Ok(passage)
}

fn units(data: &[u8], policy: &Policy) -> Result<Passage> {
    let codecs = Codecs::ALL;
    let mut packer = unit::Packer::new(codecs, clock());
    let mut unpacker = unit::Unpacker::new(clock());
    packer.set_link_rate(Some(LINK_BYTES_PER_S));
    let mut passage = Passage { bytes: data.len(), ..Passage::default() };
    let mut body = Vec::new();
    for (number, mut payload) in data.chunks(SEGMENTS * SEGMENT_BYTES).enumerate() {
        let head = head(number);
        let now_ns = number as u64 * GAP_NS;
        while !payload.is_empty() {
            body.clear();
            let cut = unit::Cut {
                head: &head,
                payload,
                granule_bytes: SEGMENT_BYTES,
                limit_bytes: UNIT_BYTES,
            };
            let begun = cpu()?;
            let packed = packer.pack_frame(FlowHash(1), policy, cut, now_ns, &mut body);
            passage.compressing += cpu()? - begun;
            let (taken, rest) = payload.split_at(packed.payload_bytes);
            payload = rest;
            let expand =
                |body: &[u8], out: &mut Vec<u8>| Ok(unpacker.decompress_body(body, codecs, out)?);
            passage.count([&head, taken], packed.encoded, &body, expand)?;
        }
    }
    Ok(passage)
}

/// Ethernet, IPv4 and TCP with a timestamp, of the super-packet with this number: what differs from
/// one to the next differs here.
fn head(number: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0x45; HEAD_BYTES];
    let number = number as u32;
    let sequence = number.wrapping_mul((SEGMENTS * SEGMENT_BYTES) as u32);
    head[18..20].copy_from_slice(&(number.wrapping_mul(SEGMENTS as u32) as u16).to_be_bytes());
    head[24..26].copy_from_slice(&(number.wrapping_mul(40_503) as u16).to_be_bytes());
    head[38..42].copy_from_slice(&sequence.to_be_bytes());
    head[50..52].copy_from_slice(&(number.wrapping_mul(60_493) as u16).to_be_bytes());
    head[58..62].copy_from_slice(&(number / 8).to_be_bytes());
    head
}

/// Used by this thread.
fn cpu() -> Result<Duration> {
    let time =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("read the thread's clock")?;
    Ok(time.into())
}

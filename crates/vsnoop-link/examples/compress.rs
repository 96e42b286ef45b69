//! What compression costs and gains, on one core, for files of the reader's choice:
//!
//!     cargo run --release -p vsnoop-link --example compress -- FILE...
//!
//! Each file (at most 50 MB of it) passes as super-packets of 64 KB, each with headers of its own, through
//! encoder and decoder, and through units for UDP. Time is CPU time of the thread; every
//! message is compared with what comes out. Digits and random bytes are measured always.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use vsnoop_link::compress::{Class, Decoder, Encoded, Encoder, Limits, Owner, unit};

const PAYLOAD_BYTES: usize = 44 * 1448;
const FILE_BYTES: usize = 50_000_000;
/// What a datagram of a link carries, and what it takes beside that.
const DATAGRAM_BYTES: usize = 1380;
const OVERHEAD_BYTES: usize = 100;
/// 100 Mb/s.
const LINK_BYTES_PER_S: u64 = 12_500_000;

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has a clock");
    Duration::from(time)
}

#[derive(Default)]
struct Row {
    payload_bytes: usize,
    link_bytes: usize,
    encoding: Duration,
    decoding: Duration,
}

impl Row {
    fn print(&self, payload: &str, way: &str) {
        // What stayed raw was never decoded.
        let rate = |time: Duration| match time {
            Duration::ZERO => "-".to_owned(),
            time => format!("{:.0}", self.payload_bytes as f64 / 1e6 / time.as_secs_f64()),
        };
        let ratio = self.payload_bytes as f64 / self.link_bytes.max(1) as f64;
        let (encoding, decoding) = (rate(self.encoding), rate(self.decoding));
        println!("| {payload} | {way} | {ratio:.2} | {encoding} | {decoding} |");
    }
}

/// Ethernet, IPv4 and TCP with a timestamp, of a segment at `offset`.
fn headers(offset: usize) -> [u8; 66] {
    let mut headers = [0x45; 66];
    let number = (offset / PAYLOAD_BYTES) as u32;
    headers[18..20].copy_from_slice(&(number.wrapping_mul(44) as u16).to_be_bytes());
    headers[24..26].copy_from_slice(&(number.wrapping_mul(40_503) as u16).to_be_bytes());
    headers[38..42].copy_from_slice(&(offset as u32).to_be_bytes());
    headers[50..52].copy_from_slice(&(number.wrapping_mul(60_493) as u16).to_be_bytes());
    headers[58..62].copy_from_slice(&(number / 8).to_be_bytes());
    headers
}

fn ordered(data: &[u8], class: &Class, flow: u64, pair: &mut (Encoder, Decoder)) -> Result<Row> {
    let (encoder, decoder) = pair;
    encoder.set_link_rate(Some(LINK_BYTES_PER_S));
    let mut row = Row { payload_bytes: data.len(), ..Row::default() };
    let (mut body, mut out) = (Vec::new(), Vec::new());
    for (number, payload) in data.chunks(PAYLOAD_BYTES).enumerate() {
        let head = headers(number * PAYLOAD_BYTES);
        body.clear();
        let began = cpu();
        let now_ns = number as u64 * 1_000_000;
        let encoded = encoder.encode(flow, class, &[&head, payload], now_ns, &mut body);
        row.encoding += cpu() - began;
        if encoded == Encoded::Raw {
            row.link_bytes += head.len() + payload.len();
            continue;
        }
        row.link_bytes += body.len();
        out.clear();
        let began = cpu();
        decoder.decode(&body, &mut out)?;
        row.decoding += cpu() - began;
        ensure!(out[..66] == head && &out[66..] == payload, "a message came out changed");
    }
    Ok(row)
}

/// As [`ordered`], and the link's bytes are whole datagrams.
fn units(data: &[u8], class: &Class, datagrams: usize) -> Result<Row> {
    let (mut packer, mut unpacker) = (unit::Packer::default(), unit::Unpacker::default());
    packer.set_link_rate(Some(LINK_BYTES_PER_S));
    let mut row = Row { payload_bytes: data.len(), ..Row::default() };
    let (mut body, mut out) = (Vec::new(), Vec::new());
    for (number, mut payload) in data.chunks(PAYLOAD_BYTES).enumerate() {
        let head = headers(number * PAYLOAD_BYTES);
        while !payload.is_empty() {
            body.clear();
            let limit_bytes = DATAGRAM_BYTES * datagrams;
            let cut = unit::Cut { head: &head, payload, granule_bytes: 1448, limit_bytes };
            let began = cpu();
            let packed = packer.pack(1, class, cut, number as u64 * 1_000_000, &mut body);
            row.encoding += cpu() - began;
            let (taken, rest) = payload.split_at(packed.payload_bytes);
            payload = rest;
            let mut unit_bytes = head.len() + taken.len();
            if packed.encoded == Encoded::Compressed {
                unit_bytes = body.len();
                out.clear();
                let began = cpu();
                unpacker.decompress(&body, &mut out)?;
                row.decoding += cpu() - began;
                ensure!(out[..66] == head && &out[66..] == taken, "a unit came out changed");
            }
            row.link_bytes += unit_bytes + unit_bytes.div_ceil(DATAGRAM_BYTES) * OVERHEAD_BYTES;
        }
    }
    Ok(row)
}

fn measure(name: &str, data: &[u8]) -> Result<()> {
    let class = |word: &str| -> Result<Class> {
        Ok(Class { method: word.parse()?, owner: Owner::Named(1), dictionary: None })
    };
    let pair = || (Encoder::new(Limits::default()), Decoder::new(Limits::default()));
    for word in ["lz4", "zstd", "zstd:3", "auto"] {
        ordered(data, &class(word)?, 1, &mut pair())?.print(name, word);
    }
    let shared = Class { dictionary: Some(128 << 20), ..class("zstd")? };
    let mut pair = pair();
    ordered(data, &shared, 1, &mut pair)?.print(name, "dictionary, first");
    ordered(data, &shared, 2, &mut pair)?.print(name, "dictionary, again");
    for datagrams in [1, 4, 8] {
        for word in ["zstd", "zstd:3", "auto"] {
            let row = units(data, &class(word)?, datagrams)?;
            row.print(name, &format!("unit of {datagrams} datagrams, {word}"));
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    println!("| payload | way | ratio | encode MB/s | decode MB/s |\n|---|---|---|---|---|");
    let digits: Vec<u8> = b"0123456789".iter().copied().cycle().take(FILE_BYTES).collect();
    measure("digits", &digits)?;
    let mut random = vec![0; FILE_BYTES];
    fastrand::Rng::with_seed(1).fill(&mut random);
    measure("random", &random)?;
    for path in std::env::args().skip(1) {
        let mut data = std::fs::read(&path).with_context(|| format!("reading {path}"))?;
        data.truncate(FILE_BYTES);
        measure(path.rsplit('/').next().unwrap_or(&path), &data)?;
    }
    Ok(())
}

//! Compressed messages and units as a hostile peer would send them. The input is a tape: what an
//! honest encoder makes of its bytes is damaged by other bytes of it, so that contexts are reached
//! that arbitrary bytes do not begin. Whatever comes is refused or within the limits.
//!
//!     cargo +nightly fuzz run link_compress
#![no_main]

use vsnoop_link::compress::unit::Unpacker;
use vsnoop_link::compress::{
    Codecs, CompressionLimits, Decoder, DecoderMemory, Encoded, Encoder, Method, Owner, Policy,
};
use vsnoop_packet::headers::FlowHash;

const LIMITS: CompressionLimits = CompressionLimits {
    codecs: Codecs::ALL,
    flows: 3,
    flow_window_log: 15,
    dictionaries: 1,
    dictionary_window_log: 18,
    message_bytes: 20_000,
};

libfuzzer_sys::fuzz_target!(|tape: &[u8]| {
    let mut encoder = Encoder::new(LIMITS, Box::new(|| 0));
    let memory = DecoderMemory::new(LIMITS.decoder_bytes_max());
    let mut decoder = Decoder::new(LIMITS, memory.into(), Box::new(|| 0));
    let mut rest = tape;
    while let Some((&[what, length, place, value], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(after.len().min(4 * usize::from(length)));
        rest = after;
        let mut body = bytes.to_vec();
        if what & 1 == 0 {
            body.clear();
            let method = if what & 2 == 0 { Method::Zstd { level: 1 } } else { Method::Lz4 };
            let dictionary = (what & 4 != 0).then_some(1 << 18);
            let policy = Policy { method, owner: Owner::Named(1), dictionary };
            let parts = [bytes, bytes, bytes];
            let flow = FlowHash(u64::from(what >> 6));
            if encoder.encode(flow, &policy, &parts, 0, &mut body) == Encoded::Raw {
                continue;
            }
            let at = usize::from(place) % body.len();
            match what >> 3 & 3 {
                0 => {}
                1 => body[at] ^= value,
                2 => body.truncate(at),
                _ => body.insert(at, value),
            }
        }
        let mut out = Vec::new();
        let result = decoder.decode(&body, &mut out);
        assert!(out.len() <= LIMITS.message_bytes as usize);
        assert!(result.is_ok() || out.is_empty());
        let result = Unpacker::new(Box::new(|| 0)).decompress_body(&body, Codecs::ALL, &mut out);
        assert!(result.is_ok() || out.len() <= LIMITS.message_bytes as usize);
    }
    assert!(decoder.memory_bytes() as u64 <= LIMITS.decoder_bytes_max());
});

//! The stage as its neighbours see it; the small parts have their tests beside them.

mod auto;
mod hostile;
mod round_trip;
mod unit;

use vsnoop_packet::headers::FlowHash;

use super::*;

/// Bytes of a kind, the same for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Random,
    Zeros,
}

pub fn payload(kind: Kind, seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    match kind {
        Kind::Zeros => vec![0; bytes],
        Kind::Random => std::iter::repeat_with(|| random.u8(..)).take(bytes).collect(),
        Kind::Text => {
            let words =
                ["packet", "window ", "acknowledges", " the", " of ", "guest", ", and", "\n"];
            let mut text = String::new();
            while text.len() < bytes {
                text.push_str(words[random.usize(..words.len())]);
                if random.u8(..8) == 0 {
                    text.push_str(&random.u32(..10_000).to_string());
                }
            }
            text.truncate(bytes);
            text.into_bytes()
        }
    }
}

/// Without a clock: coding costs nothing.
pub fn encoder(limits: CompressionLimits) -> Encoder {
    Encoder::new(limits, Box::new(|| 0))
}

pub fn decoder(limits: CompressionLimits) -> Decoder {
    let memory = DecoderMemory::new(limits.decoder_bytes_max());
    Decoder::new(limits, memory.into(), Box::new(|| 0))
}

pub fn packer() -> super::unit::Packer {
    super::unit::Packer::new(Codecs::ALL, Box::new(|| 0))
}

pub fn unpacker() -> super::unit::Unpacker {
    super::unit::Unpacker::new(Box::new(|| 0))
}

pub fn policy(method: &str, owner: u32) -> Policy {
    Policy { method: method.parse().unwrap(), owner: Owner::Named(owner), dictionary: None }
}

/// Few contexts, small windows: what is rare in life happens all the time.
pub fn tight() -> CompressionLimits {
    CompressionLimits {
        flows: 3,
        flow_window_log: 15,
        dictionaries: 1,
        dictionary_window_log: 20,
        ..CompressionLimits::MOST
    }
}

/// The body of a message, if it was compressed.
pub fn body(encoder: &mut Encoder, flow: u64, policy: &Policy, message: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    match encoder.encode(FlowHash(flow), policy, &[message], 0, &mut body) {
        Encoded::Compressed => Some(body),
        Encoded::Raw => {
            assert!(body.is_empty(), "a raw message leaves nothing behind");
            None
        }
    }
}

pub fn decoded(decoder: &mut Decoder, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    decoder.decode(body, &mut out).unwrap();
    out
}

//! Limits on what a receiver decompresses.
//!
//! The receiver states its [`CompressionLimits`] in the hello of a session, from its own
//! configuration; the sender keeps to them, and the receiver enforces them. Nothing else bounds its
//! memory: the [`DecoderMemory`] that all decoders of a peer share holds the sum, however many
//! connections and sessions the peer makes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// zstd's least window (ZSTD_WINDOWLOG_ABSOLUTEMIN). Zero it takes for its default, which is 128
/// MB.
pub const LEAST_WINDOW_LOG: u8 = 10;
/// Measured: what a context takes beside its window, rounded up.
const CONTEXT_BYTES: u64 = 512 << 10;

/// Codecs that are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Codecs {
    pub lz4: bool,
    pub zstd: bool,
}

impl Codecs {
    pub const ALL: Self = Self { lz4: true, zstd: true };
    pub const NONE: Self = Self { lz4: false, zstd: false };
}

/// Limits of one ordered connection; for datagrams only the codecs apply. A hello without a field
/// accepts nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompressionLimits {
    pub codecs: Codecs,
    /// Flows with a context at a time.
    pub flows: u16,
    /// Logarithm of a flow's window: how far back a message may refer, in bytes.
    pub flow_window_log: u8,
    /// Contexts that many flows share. Each takes memory of its whole window.
    pub dictionaries: u16,
    pub dictionary_window_log: u8,
    /// The longest message.
    pub message_bytes: u32,
}

impl Default for CompressionLimits {
    fn default() -> Self {
        Self::NONE
    }
}

impl CompressionLimits {
    /// Only uncompressed messages.
    pub const NONE: Self = Self {
        codecs: Codecs::NONE,
        flows: 0,
        flow_window_log: 0,
        dictionaries: 0,
        dictionary_window_log: 0,
        message_bytes: 0,
    };

    /// The most that this program uses as a sender, and accepts as a receiver.
    pub const MOST: Self = Self {
        codecs: Codecs::ALL,
        flows: 64,
        flow_window_log: 20,
        dictionaries: 2,
        dictionary_window_log: 27,
        message_bytes: 65_535 + 128,
    };

    /// The smaller of both limits. A window below zstd's least means no zstd.
    pub fn limit_to(self, other: Self) -> Self {
        let codecs = Codecs {
            lz4: self.codecs.lz4 && other.codecs.lz4,
            zstd: self.codecs.zstd && other.codecs.zstd,
        };
        let flow_window_log = self.flow_window_log.min(other.flow_window_log);
        let dictionary_window_log = self.dictionary_window_log.min(other.dictionary_window_log);
        let count = |count: u16, window_log: u8| {
            if codecs.zstd && window_log >= LEAST_WINDOW_LOG { count } else { 0 }
        };
        Self {
            codecs,
            flows: count(self.flows.min(other.flows), flow_window_log),
            flow_window_log,
            dictionaries: count(self.dictionaries.min(other.dictionaries), dictionary_window_log),
            dictionary_window_log,
            message_bytes: self.message_bytes.min(other.message_bytes),
        }
    }

    /// The most that a receiver's contexts take, whatever its sender does.
    pub fn decoder_bytes_max(&self) -> u64 {
        let all = |count: u16, log: u8| u64::from(count) * context_bytes(log);
        all(self.flows, self.flow_window_log) + all(self.dictionaries, self.dictionary_window_log)
    }
}

/// The most that a receiver's context with this window takes.
pub fn context_bytes(window_log: u8) -> u64 {
    (1 << window_log.min(40)) + CONTEXT_BYTES
}

/// Memory of all decoders of one peer.
#[derive(Debug)]
pub struct DecoderMemory {
    taken_bytes: AtomicU64,
    limit_bytes: u64,
}

impl DecoderMemory {
    pub fn new(limit_bytes: u64) -> Self {
        Self { taken_bytes: AtomicU64::new(0), limit_bytes }
    }

    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// `false`: it would be more than the limit, and nothing was taken.
    #[must_use]
    pub(super) fn take_memory(&self, bytes: u64) -> bool {
        let sum = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_two_limits_is_the_less_of_each() {
        let lz4 = Codecs { lz4: true, zstd: false };
        let little = CompressionLimits {
            dictionaries: 1,
            dictionary_window_log: 20,
            ..CompressionLimits::MOST
        };
        assert_eq!(
            CompressionLimits::MOST.limit_to(CompressionLimits::MOST),
            CompressionLimits::MOST
        );
        assert_eq!(little.limit_to(CompressionLimits::MOST), little);
        assert_eq!(CompressionLimits::MOST.limit_to(little), little);
        assert_eq!(
            CompressionLimits::MOST.limit_to(CompressionLimits::NONE),
            CompressionLimits::NONE
        );
        // A peer that accepts more than anybody uses makes the sender use no more.
        let all = CompressionLimits {
            flows: u16::MAX,
            dictionaries: u16::MAX,
            flow_window_log: 255,
            ..CompressionLimits::MOST
        };
        assert_eq!(CompressionLimits::MOST.limit_to(all), CompressionLimits::MOST);
        // Contexts are zstd's, and have windows that zstd has.
        let without = CompressionLimits::MOST
            .limit_to(CompressionLimits { codecs: lz4, ..CompressionLimits::MOST });
        assert_eq!((without.flows, without.dictionaries), (0, 0));
        let narrow = CompressionLimits {
            flow_window_log: 9,
            dictionary_window_log: 0,
            ..CompressionLimits::MOST
        };
        assert_eq!((narrow.limit_to(narrow).flows, narrow.limit_to(narrow).dictionaries), (0, 0));
    }

    #[test]
    fn a_hello_that_says_nothing_accepts_nothing() {
        assert_eq!(
            serde_json::from_str::<CompressionLimits>("{}").unwrap(),
            CompressionLimits::NONE
        );
        let json = serde_json::to_string(&CompressionLimits::MOST).unwrap();
        assert_eq!(
            serde_json::from_str::<CompressionLimits>(&json).unwrap(),
            CompressionLimits::MOST
        );
    }
}

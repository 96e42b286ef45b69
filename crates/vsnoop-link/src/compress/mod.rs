//! Payload made smaller where that pays.
//!
//! A *message* (a link's head and one super-packet) passes the [`Encoder`] of its connection and comes
//! out of the peer's [`Decoder`] as it was. On an ordered connection each flow keeps a context, so that
//! a message refers to earlier ones of its own flow; on UDP each [`unit`] stands alone.

mod auto;
mod body;
mod decoder;
mod encoder;
mod method;
mod probe;
mod stats;
mod stream;
pub mod unit;

pub use decoder::{DecodeError, Decoder};
pub use encoder::{Clock, Encoded, Encoder};
pub use method::{Class, DEFAULT_ZSTD_LEVEL, Method, MethodError, ZSTD_LEVELS};
pub use stats::Stats;

use serde::{Deserialize, Serialize};

/// What a connection's contexts may take: the receiver promises it, the sender keeps to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
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

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 128,
            flow_window_log: 18,
            dictionaries: 2,
            dictionary_window_log: 27,
            message_bytes: 65_535 + 128,
        }
    }
}

impl Limits {
    /// The most that a receiver's contexts take, whatever its sender does. Measured: half a megabyte
    /// beside each window.
    pub fn decoder_bytes_max(&self) -> u64 {
        let all = |count: u16, log: u8| u64::from(count) * ((1 << log.min(40)) + (512 << 10));
        all(self.flows, self.flow_window_log) + all(self.dictionaries, self.dictionary_window_log)
    }

    /// What both sides can keep to.
    pub fn common(&self, other: &Self) -> Self {
        Self {
            flows: self.flows.min(other.flows),
            flow_window_log: self.flow_window_log.min(other.flow_window_log),
            dictionaries: self.dictionaries.min(other.dictionaries),
            dictionary_window_log: self.dictionary_window_log.min(other.dictionary_window_log),
            message_bytes: self.message_bytes.min(other.message_bytes),
        }
    }
}

#[cfg(test)]
mod tests;

//! Counters of a stage. They only rise, except the number of live contexts.

use serde::Serialize;

/// For an encoder, `in` is what the guests sent and `out` what the link carries. For a decoder it
/// is the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompressionStats {
    /// Messages that were asked to be compressed, or came compressed.
    pub messages: u64,
    /// Messages that went as they were.
    pub raw_messages: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Samples that were taken to see whether a flow can be compressed.
    pub probes: u64,
    /// Time in the codecs.
    pub busy_ns: u64,
    pub contexts: u64,
    /// Contexts that gave way to other flows.
    pub evictions: u64,
}

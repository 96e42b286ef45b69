//! The options that select what `incast` measures.

use super::connections::Opener;

/// The options that select what `incast` measures. Empty options mean all values of the experiment.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct Selection {
    /// `incast`: this number of senders (may be repeated).
    #[arg(long, value_name = "N")]
    pub senders: Vec<usize>,
    /// `incast`: the rate of the last hop.
    #[arg(long = "rate", value_name = "MBIT")]
    pub rate_mbit: Option<u64>,
    /// `incast`: the queue of the last hop (may be repeated).
    #[arg(long = "buffer", value_name = "BYTES")]
    pub buffers_bytes: Vec<u64>,
    /// `incast`: packets are marked above this length of that queue, in the part dctcp.
    #[arg(long = "mark", value_name = "BYTES")]
    pub mark_bytes: Option<u64>,
    /// `incast`: the least retransmission timeout of the senders (may be repeated).
    #[arg(long = "rto-min", value_name = "MS")]
    pub rtos_min_ms: Vec<u32>,
    /// `incast`: the end that opens the connections.
    #[arg(long, value_name = "WHO")]
    pub opener: Option<Opener>,
}

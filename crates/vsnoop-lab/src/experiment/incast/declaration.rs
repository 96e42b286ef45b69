//! experiments/incast.toml: words, series of rounds, and figures of the paper.

use std::sync::LazyLock;

use serde::Deserialize;

use super::paper::PaperFigure;
use crate::experiment::definition::Takes;
use crate::results::incast::{BUFFER_BYTES, CongestionControl, Part, RATE_MBIT, RTO_MIN_MS};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    pub about: String,
    pub title: String,
    pub what_to_see: String,
    pub method: String,
    pub takes: Takes,
    pub series: Vec<Series>,
    /// Instead of `series`, with `--quick`.
    pub quick: Vec<Series>,
    #[serde(rename = "figure")]
    pub figures: Vec<PaperFigure>,
}

/// Points that are alike. What a declaration does not say is [`Series::default`].
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Series {
    pub part: Part,
    /// Bytes that each sender sends, or all together (`Part::FixedTotal`).
    pub sizes: Vec<u64>,
    pub senders: Vec<usize>,
    /// The highest rate that is tried for the last hop.
    pub rate_mbit: u64,
    pub buffers: Vec<u64>,
    pub mark_bytes: Option<u64>,
    pub congestion_controls: Vec<CongestionControl>,
    pub rtos_min_ms: Vec<u32>,
    /// Names, see [`super::configuration`].
    pub configurations: Vec<String>,
    pub rounds: usize,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            part: Part::FixedSize,
            sizes: vec![64_000],
            senders: vec![1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 200],
            rate_mbit: RATE_MBIT,
            buffers: vec![BUFFER_BYTES],
            mark_bytes: None,
            congestion_controls: vec![CongestionControl::Cubic],
            rtos_min_ms: vec![RTO_MIN_MS],
            configurations: vec!["off".into(), "incast".into()],
            rounds: 100,
        }
    }
}

static DECLARATION: LazyLock<Declaration> = LazyLock::new(|| {
    let text = include_str!("../../../experiments/incast.toml");
    // Tests read it.
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
});

pub fn read() -> &'static Declaration {
    &DECLARATION
}

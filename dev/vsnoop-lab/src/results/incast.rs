//! Fields that only samples of the incast experiment have.
//!
//! A sample is one round: a machine asks all senders at once, and all answer. What surrounds it is
//! an [`Incast`], part of its cell.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::size::size_text;

/// Many senders that answer one machine, and the last hop before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incast {
    pub part: Part,
    pub senders: usize,
    /// The rate of the last hop.
    #[serde(default = "rate_mbit")]
    pub rate_mbit: u64,
    /// The queue of the last hop.
    pub buffer_bytes: u64,
    /// The senders' congestion control.
    pub congestion_control: CongestionControl,
    /// The least retransmission timeout of the senders.
    pub rto_min_ms: u32,
    /// Bytes of all senders together, if that sum is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
}

/// The default rate of the last hop.
pub const RATE_MBIT: u64 = 1000;
/// The default of its queue.
pub const BUFFER_BYTES: u64 = 128_000;
/// The least retransmission timeout of Linux.
pub const RTO_MIN_MS: u32 = 200;

fn rate_mbit() -> u64 {
    RATE_MBIT
}

/// The kind of workload, by what is varied.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Part {
    /// Every sender sends the same, however many there are.
    FixedSize,
    /// All senders together send the same.
    FixedTotal,
    /// Windows that the receiver caps.
    Capped,
    /// Like capped, beside one endless connection without a cap.
    CappedBackground,
    /// Flows without an end.
    Long,
}

impl Part {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The congestion control of a TCP sender.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    clap::ValueEnum,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CongestionControl {
    #[default]
    Cubic,
    Reno,
    Bbr,
}

impl CongestionControl {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Incast {
    /// For names of figures and files: `40x_128kb_cubic_rto200`.
    pub fn suffix(&self) -> String {
        let text = format!("{self}").to_lowercase();
        text.replace(", ", "_").replace(' ', "")
    }

    /// Returns the setting for names of files.
    pub fn setting_file(&self) -> String {
        let (buffer_kb, control) = (self.buffer_bytes / 1000, self.congestion_control.name());
        let total = self.total_bytes.map(|bytes| format!("-{}kb-in-all", bytes / 1000));
        let (part, rto) = (self.part.name(), self.rto_min_ms);
        format!("{part}-{buffer_kb}kb-{control}-rto{rto}{}", total.unwrap_or_default())
    }

    /// All but the number of senders.
    pub fn setting(&self) -> String {
        let mut text = format!(
            "buffer {}, {}, RTO at least {} ms",
            size_text(self.buffer_bytes),
            self.congestion_control.name(),
            self.rto_min_ms
        );
        if self.rate_mbit != RATE_MBIT {
            text = format!("{} Mb/s, {text}", self.rate_mbit);
        }
        if let Some(total) = self.total_bytes {
            text += &format!(", {} in all", size_text(total));
        }
        text
    }
}

impl fmt::Display for Incast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (senders, plural) = (self.senders, if self.senders == 1 { "" } else { "s" });
        write!(f, "{}, {senders} sender{plural}, {}", self.part.name(), self.setting())
    }
}

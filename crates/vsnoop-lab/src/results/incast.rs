//! Fields that only samples of the incast experiment have.
//!
//! A sample is one round: a machine asks all senders at once, and all answer. What surrounds it is
//! an [`Incast`], part of its cell; what came of it is a [`Round`].

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
    /// ECN-capable packets that find more than this in that queue are marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_bytes: Option<u64>,
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
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
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
    /// Like fixed-size, with a real machine as the receiver.
    Vm,
    /// Receiver and senders are real machines, with DCTCP and a last hop that marks.
    Dctcp,
}

impl Part {
    pub const ALL: [Self; 7] = [
        Self::FixedSize,
        Self::FixedTotal,
        Self::Capped,
        Self::CappedBackground,
        Self::Long,
        Self::Vm,
        Self::Dctcp,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::FixedSize => "fixed-size",
            Self::FixedTotal => "fixed-total",
            Self::Capped => "capped",
            Self::CappedBackground => "capped-background",
            Self::Long => "long",
            Self::Vm => "vm",
            Self::Dctcp => "dctcp",
        }
    }

    /// Whether real machines are at an end of the connections.
    pub fn has_guests(self) -> bool {
        matches!(self, Self::Vm | Self::Dctcp)
    }
}

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    #[default]
    Cubic,
    Reno,
    Bbr,
    /// DCTCP, for guests only.
    Dctcp,
}

impl CongestionControl {
    pub const ALL: [Self; 4] = [Self::Cubic, Self::Reno, Self::Bbr, Self::Dctcp];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
            Self::Dctcp => "dctcp",
        }
    }
}

impl Incast {
    /// For names of figures and files: `40x_128kb_cubic_rto200`.
    pub fn suffix(&self) -> String {
        let text = format!("{self}").to_lowercase();
        text.replace(", ", "_").replace(' ', "")
    }

    /// All but the number of senders.
    pub fn setting(&self) -> String {
        let marks = self.mark_bytes.map(|bytes| format!("marks above {}, ", size_text(bytes)));
        let mut text = format!(
            "buffer {}, {}{}, RTO at least {} ms",
            size_text(self.buffer_bytes),
            marks.unwrap_or_default(),
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
        write!(f, "{}, {}, {}", self.part.name(), senders_text(self.senders), self.setting())
    }
}

/// `1 sender`, `40 senders`.
pub fn senders_text(senders: usize) -> String {
    format!("{senders} sender{}", if senders == 1 { "" } else { "s" })
}

/// Result of one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Time from the first request to the last byte.
    pub round_ms: f64,
    /// The goodput of all senders that were asked, as the application sees it.
    pub goodput_mbps: f64,
    /// Retransmission timeouts of all senders.
    pub timeouts: u64,
    /// Probes of a closed window, of all senders.
    pub window_probes: u64,
    /// Packets that the last hop dropped.
    pub last_hop_drops: u64,
    /// Packets that it marked.
    #[serde(default)]
    pub last_hop_marks: u64,
    /// Connections that incast control shaped at the end of the block, where it was attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaped: Option<usize>,
    /// The throughput of each flow, if flows are endless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows_mbps: Vec<f64>,
}

impl Round {
    /// Jain's index of the flows: 1 when all get the same, 1/n when one gets all.
    pub fn jain_index(&self) -> Option<f64> {
        let flows = &self.flows_mbps;
        let (sum, squares) =
            flows.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        (squares > 0.0).then(|| sum * sum / (flows.len() as f64 * squares))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_a_single_winner() {
        let index =
            |flows: &[f64]| Round { flows_mbps: flows.to_vec(), ..Round::default() }.jain_index();
        assert_eq!(index(&[5.0; 4]), Some(1.0));
        assert_eq!(index(&[8.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(index(&[0.0, 0.0]), None);
        assert_eq!(index(&[]), None);
    }

    #[test]
    fn a_part_is_written_by_its_name() {
        for part in Part::ALL {
            assert_eq!(serde_json::to_value(part).unwrap(), part.name());
        }
        for control in CongestionControl::ALL {
            assert_eq!(serde_json::to_value(control).unwrap(), control.name());
        }
    }
}

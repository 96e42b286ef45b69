//! Fields that only samples of the link experiments have.
//!
//! A sample is one measurement over one carrier: perhaps echoes over the idle path, then one
//! stream. What surrounds it is a [`LinkCell`], part of its cell; what came of it is [`Carried`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// The two hosts' path, and what the ends send over it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCell {
    /// The rate of the path between the hosts; `None`: a veth, as fast as the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbit: Option<u64>,
    /// The ends leave segmentation, merging and checksums to their devices.
    pub offloads: bool,
    pub content: Content,
}

/// Contents of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// The decimal digits repeated, as iperf sends them.
    Digits,
    /// Words and phrases as in prose.
    Text,
    /// Lines of a log in JSON.
    Json,
    /// Shared libraries.
    Usrlib,
    /// Output of xz.
    Xz,
    Random,
    /// A text that was sent before over the same carrier.
    TextAgain,
    /// Digits for 10 s, 30 s, or 200 MB of them: the tests of the packet compression service.
    Iperf10s,
    Iperf30s,
    Iperf200mb,
}

impl Content {
    /// For names of figures and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Text => "text",
            Self::Json => "json",
            Self::Usrlib => "usrlib",
            Self::Xz => "xz",
            Self::Random => "random",
            Self::TextAgain => "text-again",
            Self::Iperf10s => "iperf10s",
            Self::Iperf30s => "iperf30s",
            Self::Iperf200mb => "iperf200mb",
        }
    }
}

impl fmt::Display for LinkCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate_mbit {
            Some(rate) => write!(f, "{rate} Mb/s")?,
            None => write!(f, "veth")?,
        }
        write!(f, ", {}", self.content.name())?;
        if !self.offloads {
            write!(f, ", offloads off")?;
        }
        Ok(())
    }
}

/// Result of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// Time from the first write to the last byte that the receiver read.
    pub goodput_mbps: f64,
    pub bytes: u64,
    /// CPUs that the carrier's processes on both hosts kept busy during the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// Round trips of single echoes without load, in milliseconds, raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_pings_ms: Vec<f64>,
    /// Round trips while the stream ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded_pings_ms: Vec<f64>,
    /// Echoes without an answer during the stream.
    #[serde(default)]
    pub loaded_pings_lost: u32,
    /// Bytes that the sending host put on the path during the stream, from the Ethernet header on.
    pub wire_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_written_by_its_name() {
        for content in [Content::Digits, Content::TextAgain, Content::Iperf200mb] {
            assert_eq!(serde_json::to_value(content).unwrap(), content.name());
        }
    }
}

//! Fields that only samples of the link experiments have.
//!
//! A sample is one measurement over one carrier: perhaps echoes over the idle path, then one
//! stream. What surrounds it is a [`LinkCell`], part of its cell.

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
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
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
        self.into()
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

//! Results are files of one form: results.json with every sample, and what is made of it.
//!
//! results.json is the truth; a [`Report`](crate::report::Report) can be made again from it at any
//! time.

pub mod alone;
pub mod bars;
pub mod drawing;
pub mod incast;
pub mod lines;
pub mod link;
pub mod record;
mod size;
pub mod statistics;
pub mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use incast::{CongestionControl, Incast};
use link::LinkCell;

pub use size::{size_name, size_text};

/// The key of the error, in the environment of incomplete results.
pub const CUT_SHORT: &str = "cut_short";
/// Name in the environment: how many rounds the plan had, where time cut none.
pub const ROUNDS_PLANNED: &str = "rounds_planned";

/// The whole of results.json.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub experiment: String,
    /// RFC 3339.
    pub started: String,
    pub environment: BTreeMap<String, Value>,
    pub samples: Vec<Sample>,
    pub figures: Vec<Figure>,
}

/// A short name of a kind of measurement: `rx`, `redis`, `alltoall`.
pub type Label = ArrayString<32>;

/// Values by names with a unit, where they have one: `rtt_ms`.
pub type Values = BTreeMap<String, f64>;

/// A time in milliseconds, as values and samples have it.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Names of values that many samples have. Times are of completed transfers only.
pub const CONNECT: &str = "connect_ms";
pub const ACKED: &str = "acked_ms";
pub const DELIVERED: &str = "delivered_ms";
pub const RETRANSMISSIONS: &str = "retransmissions";
/// Frames lost at the machine's tap. Without any, and on a path without loss, every retransmission
/// was needless.
pub const TAP_DROPS: &str = "tap_drops";

/// One measurement, raw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    pub configuration: String,
    pub size_bytes: u64,
    #[serde(flatten)]
    pub cell: Cell,
    pub ending: Ending,
    /// The kind of measurement, where an experiment measures several things in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<Label>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: Values,
    /// Names that have several values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<f64>>,
    /// How something went on: times in milliseconds, and bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traces: BTreeMap<String, Vec<(f64, f64)>>,
    /// Numbers the measurements of a configuration, size and cell, so that an interrupted run knows
    /// which are missing ([`record`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// The machine that received.
    pub vm: usize,
    /// Milliseconds since the experiment began.
    pub at_ms: f64,
}

/// How a transfer ended. A wrong byte ends the experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// The receiver has every byte.
    #[default]
    Exact,
    /// The sender knows that it failed.
    Broken,
    /// It did not complete within the time limit.
    Hung,
}

impl Sample {
    pub fn with(values: impl IntoIterator<Item = (&'static str, f64)>) -> Self {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { values, ..Self::default() }
    }

    /// The value of a name: one that was measured, or that follows from those.
    pub fn value(&self, name: &str) -> Option<f64> {
        let value = |name: &str| self.values.get(name).copied();
        let sum = |one: &str, other: &str| Some(value(one)? + value(other)?);
        let is_hung = self.ending == Ending::Hung;
        match name {
            // With the handshake: a proxy answers it itself, and its own handshake with the machine
            // falls into the time of the transfer.
            "total_ms" => sum(CONNECT, DELIVERED),
            "request_ms" => sum(CONNECT, ACKED),
            // A machine without a quota is not throttled.
            "waited_ms" => Some(value("queued_ms")? + value("throttled_ms").unwrap_or(0.0)),
            "beyond_ms" => Some(value("stall_ms")? - value("downtime_ms")?),
            "saved_bytes" => Some(value("stream_bytes")? - value("wire_bytes")?),
            "hung" => Some(f64::from(u8::from(is_hung))),
            // A round that hung counts as one with a timeout, in percent.
            "late_pct" if is_hung => Some(100.0),
            "late_pct" => value("timeouts").map(|n| if n > 0.0 { 100.0 } else { 0.0 }),
            "rate_mbit" => self.cell.incast.map(|incast| incast.rate_mbit as f64),
            "jain_index" => jain_index(self.lists.get("flows_mbps")?),
            known => value(known),
        }
    }

    /// All values of a name.
    pub fn all(&self, name: &str) -> Vec<f64> {
        match self.lists.get(name) {
            Some(list) => list.clone(),
            None => self.value(name).into_iter().collect(),
        }
    }

    pub fn trace(&self, name: &str) -> &[(f64, f64)] {
        self.traces.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Setting of a transfer: machines, their load, the path to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Machines that share the core.
    pub vms: usize,
    /// Load of each of them, 0.0 to 1.0.
    pub load: f64,
    /// Round trip time of the path between client and host; 0 is a veth.
    pub path_rtt_ms: f64,
    /// The loss of MTU-sized segments in each direction, in percent.
    pub path_loss_percent: f64,
    /// Where the path has a rate and a queue.
    #[serde(flatten)]
    pub path_link: Option<PathLink>,
    /// CPU time that each machine's vCPU may take, in percent of a core, where it has a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_percent: Option<u32>,
    /// How the machines share their core, where an experiment lets one choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// The client's, where an experiment has several.
    #[serde(
        rename = "client_congestion_control",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub congestion_control: Option<CongestionControl>,
    /// Where many senders answer one machine.
    #[serde(flatten)]
    pub incast: Option<Incast>,
    /// Where two hosts are linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkCell>,
}

impl Cell {
    /// The setting in names of figures and files: `3vms_load60`, `5vms_load100_rtt5`.
    pub fn suffix(&self) -> String {
        if let Some(incast) = &self.incast {
            return incast.suffix();
        }
        let mut suffix = format!("{}vms_load{}", self.vms, (self.load * 100.0).round());
        if self.path_rtt_ms > 0.0 {
            suffix += &format!("_rtt{}", self.path_rtt_ms);
        }
        if self.path_loss_percent > 0.0 {
            suffix += &format!("_loss{}", self.path_loss_percent);
        }
        if let Some(link) = self.path_link {
            suffix += &format!("_{}mbit", link.rate_mbit);
        }
        if let Some(percent) = self.quota_percent {
            suffix += &format!("_quota{percent}");
        }
        if let Some(share) = self.share {
            suffix += &format!("_{}", share.to_string().replace(':', ""));
        }
        if let Some(control) = self.congestion_control {
            suffix += &format!("_{}", control.name());
        }
        suffix
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(incast) = &self.incast {
            return incast.fmt(f);
        }
        if let Some(link) = &self.link {
            write!(f, "{link}, path RTT {} ms", self.path_rtt_ms)?;
        } else {
            let vms = if self.vms == 1 { "1 VM".into() } else { format!("{} VMs", self.vms) };
            write!(f, "{vms} at load {}, path RTT {} ms", self.load, self.path_rtt_ms)?;
        }
        if self.path_loss_percent > 0.0 {
            write!(f, ", {} % loss", self.path_loss_percent)?;
        }
        if let Some(link) = self.path_link {
            let queue = size_text(link.queue_bytes);
            write!(f, ", {} Mb/s with a queue of {queue}", link.rate_mbit)?;
        }
        if let Some(percent) = self.quota_percent {
            write!(f, ", {percent} % of a core each")?;
        }
        if let Some(share) = self.share {
            write!(f, ", {}", share.text())?;
        }
        if let Some(control) = self.congestion_control {
            write!(f, ", {}", control.name())?;
        }
        Ok(())
    }
}

/// A single number that documents quote; its name is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: String,
    /// `lower` or `higher`.
    pub better: String,
}

/// The key of the command's options in the environment.
pub const OPTIONS: &str = "options";
const FILE: &str = "results.json";

/// Configurations as tables list them: the plain machine, what is done for it, the limit.
const ORDER: [&str; 9] =
    ["off", "tuned", "tuned-vsnoop", "ahead-0", "vsnoop", "incast", "proxy", "priority", "host"];

impl Results {
    /// Results without samples, of an experiment that begins now.
    pub fn begin(experiment: &str, environment: BTreeMap<String, Value>) -> Self {
        Self {
            experiment: experiment.into(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            environment,
            samples: Vec::new(),
            figures: Vec::new(),
        }
    }

    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not of the form of results", path.display()))
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self).context("encode the results")?;
        // The results of an earlier run stay as they are if these do not fit on the disk.
        let partial = path.with_extension("partial");
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.with_context(|| format!("write {}", path.display()))
    }

    /// The cells that occur, in the order of their measurement.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for sample in &self.samples {
            if !cells.contains(&sample.cell) {
                cells.push(sample.cell);
            }
        }
        cells
    }

    pub fn cell_place(&self, cell: &Cell) -> Option<usize> {
        self.cells().iter().position(|one| one == cell)
    }

    /// The configurations that occur, in a sensible order.
    pub fn configurations(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.samples.iter().map(|sample| sample.configuration.clone()).collect();
        let rank = |name: &String| ORDER.iter().position(|known| known == name);
        names.sort_by_key(|name| (rank(name).unwrap_or(ORDER.len()), name.clone()));
        names.dedup();
        names
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A transfer of 10 KB that took 50 ms to be delivered, with one retransmission.
    pub fn sample(configuration: &str, acked_ms: f64) -> Sample {
        let values = [(CONNECT, 1.0), (ACKED, acked_ms), (DELIVERED, 50.0), (RETRANSMISSIONS, 1.0)];
        Sample {
            configuration: configuration.into(),
            size_bytes: 10_000,
            cell: Cell { vms: 3, load: 0.6, ..Cell::default() },
            ..Sample::with(values)
        }
    }

    pub fn results(samples: Vec<Sample>) -> Results {
        Results {
            experiment: "test".into(),
            started: String::new(),
            environment: BTreeMap::new(),
            samples,
            figures: Vec::new(),
        }
    }
}

/// Jain's index: 1 when all flows get the same, 1/n when one gets all.
fn jain_index(flows: &[f64]) -> Option<f64> {
    let (sum, squares) =
        flows.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (flows.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::testing::{results, sample};
    use super::*;

    #[test]
    fn a_cell_names_only_what_its_path_has() {
        let mut cell = Cell { vms: 5, load: 1.0, ..Cell::default() };
        assert_eq!(cell.suffix(), "5vms_load100");
        cell.path_rtt_ms = 5.0;
        cell.path_loss_percent = 0.5;
        assert_eq!(cell.suffix(), "5vms_load100_rtt5_loss0.5");
        cell.path_link = Some(PathLink { rate_mbit: 200, queue_bytes: 1_000_000 });
        cell.quota_percent = Some(20);
        assert_eq!(cell.suffix(), "5vms_load100_rtt5_loss0.5_200mbit_quota20");
        let back: Cell = serde_json::from_value(serde_json::to_value(cell).unwrap()).unwrap();
        assert_eq!(back, cell);
    }

    #[test]
    fn names_are_written_as_they_are_said() {
        for content in [link::Content::TextAgain, link::Content::Iperf200mb] {
            assert_eq!(serde_json::to_value(content).unwrap(), content.name());
        }
        let part = incast::Part::CappedBackground;
        assert_eq!(serde_json::to_value(part).unwrap(), part.name());
    }

    #[test]
    fn configurations_stand_in_the_order_of_tables() {
        let results =
            results(["host", "zebra", "vsnoop", "off"].map(|name| sample(name, 1.0)).into());
        assert_eq!(results.configurations(), ["off", "vsnoop", "host", "zebra"]);
    }

    #[test]
    fn a_sample_survives_its_file_and_has_what_follows_from_its_values() {
        let incast = Incast {
            part: incast::Part::FixedTotal,
            senders: 40,
            rate_mbit: incast::RATE_MBIT,
            buffer_bytes: 128_000,
            congestion_control: incast::CongestionControl::Reno,
            rto_min_ms: 1,
            total_bytes: Some(2_000_000),
        };
        let cell = Cell { vms: 1, incast: Some(incast), ..Cell::default() };
        let lists = [("flows_mbps".to_owned(), vec![8.0, 0.0, 0.0, 0.0])].into();
        let sample = Sample { cell, lists, ..sample("off", 2.5) };
        let text = serde_json::to_value(&sample).unwrap();
        assert_eq!((&text["senders"], &text["values"]["acked_ms"]), (&40.into(), &2.5.into()));
        let mut back: Sample = serde_json::from_value(text).unwrap();
        assert_eq!((back.cell, &back.values), (sample.cell, &sample.values));
        assert_eq!((back.value("total_ms"), back.value("jain_index")), (Some(51.0), Some(0.25)));
        assert_eq!((back.value("late_pct"), back.value("waited_ms")), (None, None));
        back.ending = Ending::Hung;
        assert_eq!((back.value("late_pct"), back.value("hung")), (Some(100.0), Some(1.0)));
        back.values.extend([("queued_ms".into(), 30.0), ("throttled_ms".into(), 10.0)]);
        assert_eq!(back.value("waited_ms"), Some(40.0));
    }
}

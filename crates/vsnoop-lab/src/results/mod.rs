//! Results are files of one form: results.json with every sample, and what is made of it.
//!
//! results.json is the truth; [`report`] and [`plot`] can be made again from it at any time.

pub mod alone;
pub mod bars;
pub mod cdf;
pub mod chart;
pub mod drawing;
pub mod incast;
pub mod link;
pub mod map;
pub mod migration;
pub mod plot;
pub mod record;
pub mod report;
mod size;
pub mod statistics;
pub mod table;
pub mod wrap;

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

use incast::{CongestionControl, Incast, Round};
use link::{Carried, LinkCell};
use migration::Migrated;

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
    pub summary: Vec<Summary>,
    pub figures: Vec<Figure>,
}

/// A short name that is a part of a [`Group`]: `rx`, `redis`, `alltoall`.
pub type Label = ArrayString<32>;

/// Values by names with a unit, where they have one: `rtt_ms`.
pub type Values = BTreeMap<String, f64>;

/// A time in milliseconds, as values and samples have it.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// One transfer, raw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    pub configuration: String,
    pub size_bytes: u64,
    #[serde(flatten)]
    pub cell: Cell,
    pub ending: Ending,
    /// Times are of completed transfers only.
    pub connect_ms: Option<f64>,
    pub acked_ms: Option<f64>,
    pub delivered_ms: Option<f64>,
    pub retransmissions: u32,
    /// Retransmissions that the receiver reported as needless (D-SACK).
    pub dsack_duplicates: u32,
    /// Frames lost at the machine's tap during the transfer. Without any, and on a path without
    /// loss, every retransmission was needless.
    pub tap_drops: u64,
    /// Where a sample is a round of many senders.
    #[serde(flatten)]
    pub round: Option<Round>,
    /// Where a sample is a measurement over a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
    /// What was measured, where an experiment measures several things in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<Label>,
    /// Values that only some experiments have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: Values,
    /// How a transfer came on, where segments were captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Which of the measurements of its configuration, size and cell it is, so that an interrupted
    /// run knows what is missing ([`record`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// Where a sample is a live migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated: Option<Migrated>,
    /// The machine that received.
    pub vm: usize,
    /// Milliseconds since the experiment began.
    pub at_ms: f64,
}

/// Milliseconds since the SYN, and bytes of the stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The end of each segment that the sender sent.
    pub sent: Vec<(f64, f64)>,
    /// Each acknowledgement that the sender received.
    pub acked: Vec<(f64, f64)>,
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
    pub fn group(&self) -> Group {
        Group { size_bytes: self.size_bytes, cell: self.cell, what: self.what }
    }

    fn is_of(&self, group: &Group) -> bool {
        self.size_bytes == group.size_bytes && self.cell == group.cell && self.what == group.what
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

/// Percentiles of one metric in one group of samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub configuration: String,
    pub group: Group,
    pub metric: String,
    pub n: usize,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
}

/// Transfers that differ in their configuration only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub size_bytes: u64,
    #[serde(flatten)]
    pub cell: Cell,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<Label>,
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
            summary: Vec::new(),
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

    /// The sizes that occur, ascending.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.samples.iter().map(|sample| sample.size_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The groups that occur, cell by cell.
    pub fn groups(&self) -> Vec<Group> {
        let cells = self.cells();
        let mut groups: Vec<Group> = Vec::new();
        for sample in &self.samples {
            if !groups.iter().any(|group| sample.is_of(group)) {
                groups.push(sample.group());
            }
        }
        let place = |group: &Group| cells.iter().position(|cell| *cell == group.cell);
        groups.sort_by_key(|group| (place(group), group.size_bytes));
        groups
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

    pub fn of<'a>(
        &'a self,
        configuration: &'a str,
        group: &'a Group,
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.configuration == configuration && sample.is_of(group))
    }

    pub fn summary_of(&self, configuration: &str, group: &Group, metric: &str) -> Option<&Summary> {
        self.summary.iter().find(|line| {
            line.configuration == configuration && line.group == *group && line.metric == metric
        })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A transfer of 10 KB that took 50 ms to be delivered, with one retransmission.
    pub fn sample(configuration: &str, acked_ms: f64) -> Sample {
        Sample {
            configuration: configuration.into(),
            size_bytes: 10_000,
            cell: Cell { vms: 3, load: 0.6, ..Cell::default() },
            connect_ms: Some(1.0),
            acked_ms: Some(acked_ms),
            delivered_ms: Some(50.0),
            retransmissions: 1,
            ..Sample::default()
        }
    }

    pub fn results(samples: Vec<Sample>) -> Results {
        Results {
            experiment: "test".into(),
            started: String::new(),
            environment: BTreeMap::new(),
            samples,
            summary: Vec::new(),
            figures: Vec::new(),
        }
    }
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
    fn groups_are_the_sizes_of_each_cell_that_were_measured() {
        let near = sample("off", 1.0);
        let mut far = Sample { size_bytes: 1_000_000, ..near.clone() };
        far.cell.path_rtt_ms = 5.0;
        let results = results(vec![far.clone(), near.clone(), near.clone()]);
        assert_eq!(results.groups(), [far.group(), near.group()]);
        assert_eq!(results.of("off", &near.group()).count(), 2);
        assert_eq!(results.of("vsnoop", &near.group()).count(), 0);
    }

    #[test]
    fn configurations_stand_in_the_order_of_tables() {
        let results =
            results(["host", "zebra", "vsnoop", "off"].map(|name| sample(name, 1.0)).into());
        assert_eq!(results.configurations(), ["off", "vsnoop", "host", "zebra"]);
    }

    #[test]
    fn a_sample_survives_its_file_and_names_its_cell_beside_its_times() {
        let text = serde_json::to_value(sample("off", 2.5)).unwrap();
        assert_eq!((&text["vms"], &text["load"]), (&3.into(), &0.6.into()));
        assert_eq!(text["path_rtt_ms"], 0.0);
        let back: Sample = serde_json::from_value(text).unwrap();
        assert_eq!((back.acked_ms, back.cell), (Some(2.5), sample("off", 2.5).cell));
    }

    #[test]
    fn a_round_survives_its_file_with_all_that_surrounds_it() {
        let incast = Incast {
            part: incast::Part::FixedTotal,
            senders: 40,
            rate_mbit: incast::RATE_MBIT,
            buffer_bytes: 128_000,
            mark_bytes: Some(30_000),
            congestion_control: incast::CongestionControl::Reno,
            rto_min_ms: 1,
            total_bytes: Some(2_000_000),
        };
        let round = Round { goodput_mbps: 741.0, timeouts: 3, ..Round::default() };
        let cell = Cell { vms: 1, incast: Some(incast), ..Cell::default() };
        let sample = Sample { cell, round: Some(round), ..sample("off", 1.0) };
        let text = serde_json::to_value(&sample).unwrap();
        assert_eq!((&text["senders"], &text["goodput_mbps"]), (&40.into(), &741.0.into()));
        let back: Sample = serde_json::from_value(text).unwrap();
        assert_eq!((back.cell, back.round), (sample.cell, sample.round));
    }
}

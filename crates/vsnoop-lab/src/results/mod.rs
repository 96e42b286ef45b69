//! Results are files of one form: results.json with every sample, and what is made of it.
//!
//! results.json is the truth; [`report`] and [`plot`] can be made again from it at any time.

pub mod plot;
pub mod report;
pub mod statistics;
pub mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

/// One transfer, raw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub configuration: String,
    pub size_bytes: u64,
    pub connect_ms: f64,
    pub acked_ms: f64,
    pub delivered_ms: f64,
    pub retransmissions: u32,
    /// Of these, how many the receiver called needless (D-SACK).
    pub dsack_duplicates: u32,
    /// Frames lost at the machine's tap during the transfer. Without any, the path loses nothing
    /// and every retransmission was needless.
    pub tap_drops: u64,
    /// The machine that received.
    pub vm: usize,
    /// Since the experiment began.
    pub at_ms: f64,
}

impl Sample {
    /// Retransmissions that were needless: all of them where nothing was lost on the way, else
    /// those that the receiver reported.
    pub fn spurious(&self) -> u32 {
        if self.tap_drops == 0 { self.retransmissions } else { self.dsack_duplicates }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    pub size_bytes: u64,
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

const FILE: &str = "results.json";

impl Results {
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
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Sizes and configurations that occur, each in a sensible order: sizes ascending, `off` first.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.samples.iter().map(|sample| sample.size_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    pub fn configurations(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.samples.iter().map(|sample| sample.configuration.clone()).collect();
        names.sort_by_key(|name| (name != "off", name.clone()));
        names.dedup();
        names
    }

    pub fn of<'a>(
        &'a self,
        configuration: &'a str,
        size_bytes: u64,
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.configuration == configuration && sample.size_bytes == size_bytes
        })
    }
}

/// `10 KB`: sizes are decimal, as in the paper.
pub fn size_text(size_bytes: u64) -> String {
    match size_bytes {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{} MB", n / 1_000_000),
        n if n >= 1000 && n % 1000 == 0 => format!("{} KB", n / 1000),
        n => format!("{n} B"),
    }
}

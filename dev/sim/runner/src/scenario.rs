//! A scenario: series of cells, each a combination of the values that its keys list.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::{Fault, Reader};

use crate::cell::{Cell, Configuration, Kind};

/// A list under a key, which may be missing.
type List<T> = Option<Spanned<Vec<T>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    series: Vec<SeriesKeys>,
    #[serde(default)]
    lab: Vec<Lab>,
    #[serde(default)]
    waits: Vec<Waits>,
}

/// Times for which a VM runs and stands, in turn.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Waits {
    name: String,
    turns_us: Spanned<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesKeys {
    name: Spanned<String>,
    kind: Option<Spanned<String>>,
    /// Name of recorded waits.
    waits: Option<Spanned<String>>,
    configurations: Spanned<Vec<Spanned<String>>>,
    gbps: List<f64>,
    senders: List<u64>,
    vms: List<u64>,
    background: List<u64>,
    answer_bytes: List<u64>,
    buffer_bytes: List<u64>,
    /// Dynamic thresholds of a shared buffer; 0: a fixed queue.
    alpha: List<f64>,
    mark_bytes: List<u64>,
    rtt_us: List<f64>,
    jitter_us: List<f64>,
    rto_min_ms: List<f64>,
    receive_buffer_bytes: List<u64>,
    stop_ms: List<u64>,
    period_ms: List<u64>,
    vm_gbps: List<f64>,
    gap_ms: List<f64>,
    seconds: List<f64>,
    rounds: List<u64>,
}

/// A cell that the lab has measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    #[serde(default)]
    pub kind: Kind,
    pub gbps: f64,
    pub senders: u64,
    #[serde(default = "usual_answer")]
    pub answer_bytes: u64,
    pub configuration: Configuration,
    /// Queries have it: the mean of the rounds.
    #[serde(default)]
    pub goodput_mbps: f64,
    /// Part of the rounds with a timeout.
    #[serde(default)]
    pub late_percent: f64,
    /// Uploads and downloads have it: the median.
    #[serde(default)]
    pub p50_ms: f64,
    /// Why the simulator cannot have the same, where it is known.
    #[serde(default)]
    pub differs: String,
}

fn usual_answer() -> u64 {
    Cell::default().answer_bytes
}

pub struct Scenario {
    pub title: String,
    pub cells: Vec<Cell>,
    pub lab: Vec<Lab>,
    /// Times of each recorded wait, us: a VM runs, stands, and so on.
    pub waits: BTreeMap<String, Vec<u32>>,
}

struct Text<'a> {
    path: &'a Path,
    contents: &'a str,
}

impl Reader for Text<'_> {
    type Error = anyhow::Error;

    fn contents(&self) -> &str {
        self.contents
    }

    fn fault(&self, offset: usize, fault: Fault) -> anyhow::Error {
        anyhow!("{}, {}: {fault}", self.path.display(), self.place(offset))
    }
}

impl Text<'_> {
    fn wrong_value(&self, at: usize, key: &str, found: String, allowed: String) -> anyhow::Error {
        self.fault(at, Fault::Value { key: key.to_owned(), found, allowed })
    }

    /// The values of a key, or its usual value.
    fn list<T: Copy + PartialOrd + std::fmt::Debug>(
        &self,
        key: &str,
        list: &List<T>,
        range: RangeInclusive<T>,
        usual: T,
    ) -> Result<Vec<T>> {
        let Some(list) = list else { return Ok(vec![usual]) };
        let is_right = |value: &T| range.contains(value);
        if list.get_ref().is_empty() || !list.get_ref().iter().all(is_right) {
            let allowed =
                format!("give a list of numbers from {:?} to {:?}", range.start(), range.end());
            let found = format!("{:?}", list.get_ref());
            return Err(self.wrong_value(list.span().start, key, found, allowed));
        }
        Ok(list.get_ref().clone())
    }

    fn configurations(&self, keys: &SeriesKeys) -> Result<Vec<Configuration>> {
        let read = |name: &Spanned<String>| {
            Configuration::named(name.get_ref()).ok_or_else(|| {
                let allowed = format!("give some of: {}", Configuration::names());
                let found = format!("\"{}\"", name.get_ref());
                self.wrong_value(name.span().start, "configurations", found, allowed)
            })
        };
        keys.configurations.get_ref().iter().map(read).collect()
    }

    fn kind(&self, keys: &SeriesKeys) -> Result<Kind> {
        let Some(name) = &keys.kind else { return Ok(Kind::default()) };
        Kind::ALL.into_iter().find(|kind| kind.name() == name.get_ref()).ok_or_else(|| {
            let allowed = format!("give one of: {}", Kind::ALL.map(Kind::name).join(", "));
            self.wrong_value(name.span().start, "kind", format!("\"{}\"", name.get_ref()), allowed)
        })
    }

    fn waits(&self, waits: &[Waits]) -> Result<BTreeMap<String, Vec<u32>>> {
        let read = |waits: &Waits| {
            let turns = waits.turns_us.get_ref();
            if turns.is_empty() || !turns.len().is_multiple_of(2) || turns.contains(&0) {
                let allowed = "give pairs of times above 0: run, stand".to_owned();
                let found = format!("{turns:?}");
                let at = waits.turns_us.span().start;
                return Err(self.wrong_value(at, "turns_us", found, allowed));
            }
            Ok((waits.name.clone(), turns.clone()))
        };
        waits.iter().map(read).collect()
    }

    /// All combinations of a series; configurations change first.
    fn cells(&self, keys: &SeriesKeys, waits: &BTreeMap<String, Vec<u32>>) -> Result<Vec<Cell>> {
        let configurations = self.configurations(keys)?;
        let mut first = Cell { series: keys.name.get_ref().clone(), ..Cell::default() };
        first.kind = self.kind(keys)?;
        if let Some(name) = &keys.waits {
            if !waits.contains_key(name.get_ref()) {
                let names: Vec<_> = waits.keys().map(String::as_str).collect();
                let allowed = format!("give the name of a [[waits]]: {}", names.join(", "));
                let found = format!("\"{}\"", name.get_ref());
                return Err(self.wrong_value(name.span().start, "waits", found, allowed));
            }
            first.waits.clone_from(name.get_ref());
        }
        let mut cells = vec![first];
        let usual = Cell::default();
        macro_rules! vary {
            ($($key:ident: $range:expr),* $(,)?) => {$(
                let values = self.list(stringify!($key), &keys.$key, $range, usual.$key)?;
                cells = cells
                    .iter()
                    .flat_map(|cell| values.iter().map(|&$key| Cell { $key, ..cell.clone() }))
                    .collect();
            )*};
        }
        vary! {
            gbps: 0.01..=400.0,
            answer_bytes: 1..=1 << 30,
            buffer_bytes: 3_028..=1 << 30,
            alpha: 0.0..=64.0,
            mark_bytes: 0..=1 << 30,
            rtt_us: 1.0..=1e6,
            jitter_us: 0.0..=1e6,
            rto_min_ms: 1.0..=60_000.0,
            vms: 1..=1_000,
            background: 0..=1_000,
            receive_buffer_bytes: 65_535..=1 << 30,
            stop_ms: 0..=10_000,
            period_ms: 0..=60_000,
            vm_gbps: 0.0..=400.0,
            gap_ms: 0.0..=60_000.0,
            seconds: 0.001..=600.0,
            rounds: 1..=10_000,
            senders: 1..=10_000,
        }
        let all = cells.iter().flat_map(|cell| {
            configurations.iter().map(|&c| Cell { configuration: c, ..cell.clone() })
        });
        let all: Vec<Cell> = all.collect();
        if let Some(cell) =
            all.iter().find(|cell| cell.stop_ms > 0 && cell.period_ms <= cell.stop_ms)
        {
            let at = keys.stop_ms.as_ref().map_or(0, |stop| stop.span().start);
            let allowed = "give a period_ms that is longer".to_owned();
            return Err(self.wrong_value(at, "stop_ms", cell.stop_ms.to_string(), allowed));
        }
        Ok(all)
    }
}

impl Scenario {
    pub fn load(path: &Path) -> Result<Self> {
        let contents = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::read(path, &contents)
    }

    pub fn read(path: &Path, contents: &str) -> Result<Self> {
        let text = Text { path, contents };
        let file: File = text.read_document()?;
        let waits = text.waits(&file.waits)?;
        let mut cells = Vec::new();
        for keys in &file.series {
            cells.extend(text.cells(keys, &waits)?);
        }
        Ok(Self { title: file.title, cells, lab: file.lab, waits })
    }

    /// The waits of a cell; empty: none.
    pub fn turns_us(&self, cell: &Cell) -> &[u32] {
        self.waits.get(&cell.waits).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let read = Scenario::read(Path::new("x.toml"), text);
        read.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_is_not_understood_is_refused_with_line_and_key() {
        let head = "title = \"t\"\n[[series]]\nname = \"s\"\nconfigurations = [\"off\"]\n";
        assert_eq!(error_of(head), "");
        let unknown = error_of(&format!("{head}sendrs = [1]\n"));
        assert!(unknown.contains("line 5") && unknown.contains("sendrs"), "{unknown}");
        let wrong = error_of(&format!("{head}senders = [1, 0]\n"));
        assert!(wrong.contains("line 5") && wrong.contains("senders = [1, 0]"), "{wrong}");
        let text = error_of(&format!("{head}senders = [\"many\"]\n"));
        assert!(text.contains("line 5") && text.contains("senders"), "{text}");
        let name = error_of(&head.replace("\"off\"", "\"on\""));
        assert!(name.contains("line 4") && name.contains("configurations"), "{name}");
        let kind = error_of(&format!("{head}kind = \"upload\"\n"));
        assert!(kind.contains("line 5") && kind.contains("kind = \"upload\""), "{kind}");
        let waits = error_of(&format!("{head}waits = \"quota\"\n"));
        assert!(waits.contains("line 5") && waits.contains("waits = \"quota\""), "{waits}");
        let turns = error_of(&format!("{head}[[waits]]\nname = \"quota\"\nturns_us = [1]\n"));
        assert!(turns.contains("line 7") && turns.contains("turns_us = [1]"), "{turns}");
    }

    #[test]
    fn a_series_has_all_combinations() {
        let text = "title = \"t\"\n[[series]]\nname = \"s\"\n\
                    configurations = [\"off\", \"incast\"]\n\
                    gbps = [1, 10]\nsenders = [4, 8, 16]\n";
        let scenario = Scenario::read(Path::new("x.toml"), text).expect("it is right");
        assert_eq!(scenario.cells.len(), 12);
    }
}

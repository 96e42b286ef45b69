//! Samples, chosen and divided by keys: what a row, a figure or a curve of a report is made of.

use std::collections::BTreeMap;

use vsnoop_guest::web;
use vsnoop_testbed::vm::Share;

use crate::peers::link;
use crate::results::statistics::{ascending, medians_by_turn};
use crate::results::{Cell, Results, Sample, size_text};

/// Samples of one result, cell by cell, by size and by configuration.
#[derive(Clone)]
pub struct Scope<'a> {
    pub results: &'a Results,
    pub samples: Vec<&'a Sample>,
}

/// Values that keys must have: one, or any of a list. A text that begins with `!` is one that a key
/// must not have.
pub type Where = BTreeMap<String, toml::Value>;

fn is_wanted(wanted: &toml::Value, value: &str) -> bool {
    match wanted {
        toml::Value::Array(all) => all.iter().any(|one| is_wanted(one, value)),
        toml::Value::String(text) => match text.strip_prefix('!') {
            Some(other) => other != value,
            None => text == value,
        },
        toml::Value::Integer(number) => number.to_string() == value,
        _ => false,
    }
}

impl<'a> Scope<'a> {
    pub fn new(results: &'a Results) -> Self {
        let (cells, names) = (results.cells(), results.configurations());
        let place = |sample: &&Sample| {
            let cell = cells.iter().position(|cell| *cell == sample.cell);
            // Measurements over links take turns, and so have cells in random order.
            let link = sample.cell.link.map(|link| (link.content, !link.offloads));
            let is_lossy = sample.cell.link.is_some() && sample.cell.path_loss_percent > 0.0;
            let name = names.iter().position(|name| *name == sample.configuration);
            (link, is_lossy, cell, sample.size_bytes, link::place(&sample.configuration), name)
        };
        let mut samples: Vec<_> = results.samples.iter().collect();
        samples.sort_by_cached_key(place);
        Self { results, samples }
    }

    fn with(&self, samples: Vec<&'a Sample>) -> Self {
        Self { results: self.results, samples }
    }

    pub fn filter(&self, wanted: &Where) -> Self {
        let has = |sample: &&&Sample| {
            wanted.iter().all(|(name, one)| is_wanted(one, &self.key(sample, name)))
        };
        self.with(self.samples.iter().filter(has).copied().collect())
    }

    /// The samples of a configuration; all of them without one.
    pub fn configured(&self, name: Option<&str>) -> Vec<&'a Sample> {
        let is_it = |sample: &&&Sample| name.is_none_or(|name| sample.configuration == name);
        self.samples.iter().filter(is_it).copied().collect()
    }

    /// A scope for each combination of values of these keys, in the order of the samples.
    pub fn split(&self, keys: &[impl AsRef<str>]) -> Vec<Self> {
        let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let mut all: Vec<Self> = Vec::new();
        for sample in &self.samples {
            let values = keys.iter().map(|name| self.key(sample, name.as_ref())).collect();
            let place = *places.entry(values).or_insert(all.len());
            if place == all.len() {
                all.push(self.with(Vec::new()));
            }
            all[place].samples.push(sample);
        }
        all
    }

    /// A scope for each cell, size and kind of measurement.
    pub fn groups(&self) -> Vec<Self> {
        self.split(&["nth", "bytes", "what"])
    }

    /// All values of this name, ascending.
    pub fn values(&self, name: &str, configuration: Option<&str>) -> Vec<f64> {
        let samples = self.configured(configuration).into_iter();
        ascending(samples.flat_map(|sample| sample.all(name)))
    }

    /// The median of each turn, ascending.
    pub fn by_turn(&self, name: &str, configuration: Option<&str>) -> Vec<f64> {
        medians_by_turn(self.configured(configuration).into_iter(), name)
    }

    /// The text of a key for a sample: it tells groups apart, and stands in names of files and
    /// figures.
    pub fn key(&self, sample: &Sample, name: &str) -> String {
        let (cell, incast, link) = (&sample.cell, sample.cell.incast, sample.cell.link);
        let of_incast = |text: fn(&crate::results::incast::Incast) -> String| {
            incast.as_ref().map(text).unwrap_or_default()
        };
        match name {
            "configuration" => sample.configuration.clone(),
            "bytes" => sample.size_bytes.to_string(),
            "what" => sample.what.map(|what| what.to_string()).unwrap_or_default(),
            "slug" => self.key(sample, "what").replace(' ', "_").replace('\'', ""),
            "nth" => {
                let place = self.results.cell_place(cell);
                place.map(|place| place.to_string()).unwrap_or_default()
            }
            "suffix" => cell.suffix(),
            "file" => cell.suffix().replace('_', "-"),
            "vms" => cell.vms.to_string(),
            "load" => (cell.load * 100.0).round().to_string(),
            "rtt" => cell.path_rtt_ms.to_string(),
            "loss" => cell.path_loss_percent.to_string(),
            "is_far" => (cell.path_rtt_ms > 0.0).to_string(),
            "share" => cell.share.map(|share| share.to_string()).unwrap_or_default(),
            "control" => cell.congestion_control.map_or("", |one| one.name()).to_owned(),
            "kind" => {
                link::find(&sample.configuration).map_or("", |one| one.kind.into()).to_owned()
            }
            "part" => of_incast(|one| one.part.name().to_owned()),
            "senders" => of_incast(|one| one.senders.to_string()),
            "rate" => of_incast(|one| one.rate_mbit.to_string()),
            "buffer" => of_incast(|one| one.buffer_bytes.to_string()),
            "rto" => of_incast(|one| one.rto_min_ms.to_string()),
            "incast_control" => of_incast(|one| one.congestion_control.name().to_owned()),
            "setting" => of_incast(|one| one.setting()),
            "setting_file" => of_incast(|one| one.setting_file()),
            "content" => link.map_or("", |link| link.content.name()).to_owned(),
            "is_offloaded" => link.is_none_or(|link| link.offloads).to_string(),
            "sent" => (cell.incast.and_then(|incast| incast.total_bytes))
                .unwrap_or(sample.size_bytes)
                .to_string(),
            "word_1" | "word_2" => {
                let what = self.key(sample, "what");
                let place = usize::from(name == "word_2");
                what.split(' ').nth(place).unwrap_or_default().to_owned()
            }
            "plain_name" => sample.configuration.trim_start_matches("vsnoop-").replace('-', "_"),
            _ => String::new(),
        }
    }

    /// The text of a word for the first sample; `None` without samples.
    pub fn word(&self, name: &str) -> Option<String> {
        let sample = self.samples.first()?;
        let cell = &sample.cell;
        Some(match name {
            "cell" => cell.to_string(),
            "size" => size_text(sample.size_bytes),
            "size_file" => crate::results::size_name(sample.size_bytes),
            "machines" => match cell.vms {
                1 => "1 VM".to_owned(),
                vms => format!("{vms} VMs"),
            },
            "path" => match cell.path_rtt_ms {
                0.0 => "near".to_owned(),
                rtt => format!("{rtt} ms"),
            },
            "near" => if cell.path_rtt_ms > 0.0 { "" } else { "near_" }.to_owned(),
            "request" => {
                let is_get = sample.what.is_some() || sample.size_bytes == web::PAGE_BYTES;
                format!("{} {}", if is_get { "GET" } else { "PUT" }, size_text(sample.size_bytes))
            }
            "share_text" => match cell.share {
                Some(Share::Quota { percent }) => format!("{percent} %"),
                Some(share) => share.to_string(),
                None => String::new(),
            },
            "like" => self.like(cell),
            "several" => match self.results.cells().len() {
                1 => String::new(),
                _ => format!("-{}", cell.suffix().replace('_', "-")),
            },
            "loads" => {
                let same = |one: &Cell| (one.load, one.vms) == (cell.load, cell.vms);
                match self.results.cells().iter().all(same) {
                    true => String::new(),
                    false => format!("-load{}-{}vms", self.key(sample, "load"), cell.vms),
                }
            }
            "link_file" => {
                let loss = cell.path_loss_percent;
                let loss = if loss > 0.0 { format!("-loss{loss}") } else { String::new() };
                let is_offloaded = cell.link.is_none_or(|link| link.offloads);
                loss + if is_offloaded { "" } else { "-no-offloads" }
            }
            "kind_text" => link::find(&sample.configuration)?.plot_group().to_owned(),
            "program" => match sample.what {
                Some(what) => what.to_string(),
                None => format!("HPL N = {}", sample.size_bytes),
            },
            "scenario_file" => {
                let text = scenario(sample);
                text.chars().filter(char::is_ascii_alphanumeric).collect()
            }
            "scenario" => scenario(sample),
            "sent" => match cell.incast.and_then(|incast| incast.total_bytes) {
                Some(total) => format!("{} in all", size_text(total)),
                None => format!("{} each", size_text(sample.size_bytes)),
            },
            // A key may be empty, if it is one.
            known => self.key(sample, known),
        })
    }

    /// The suffix of a cell where a result has several that are as near or as far.
    fn like(&self, cell: &Cell) -> String {
        let is_far = |cell: &Cell| cell.path_rtt_ms > 0.0;
        let cells = self.results.cells();
        match cells.iter().filter(|one| is_far(one) == is_far(cell)).count() {
            0 | 1 => String::new(),
            _ => format!("_{}", cell.suffix()),
        }
    }
}

/// A cell and what was measured in it, where they differ from those of the vSnoop report: slices, a
/// near client with cubic, no loss. Those of the report have the letter of its Fig. 6.
fn scenario(sample: &Sample) -> String {
    let (cell, load) = (&sample.cell, (sample.cell.load * 100.0).round());
    let machines = if cell.vms == 1 { "1 VM".into() } else { format!("{} VMs", cell.vms) };
    let mut parts = vec![machines, format!("{load} %")];
    let usual = parts.len();
    parts.extend(cell.share.filter(|share| *share != Share::Slices).map(|share| share.to_string()));
    if cell.path_rtt_ms > 0.0 {
        parts.push(format!("{} ms", cell.path_rtt_ms));
    }
    if cell.path_loss_percent > 0.0 {
        parts.push(format!("{} % loss", cell.path_loss_percent));
    }
    let control = cell.congestion_control.map(|one| one.name()).filter(|name| *name != "cubic");
    parts.extend(control.map(str::to_owned));
    let what = sample.what.as_deref().map(|what| what.trim_start_matches(char::is_numeric).trim());
    let letter = match (cell.vms, load as u32, what) {
        _ if parts.len() > usual => "",
        (1, 60, None) => "(a) ",
        (2, 60, None) => "(b) ",
        (5, 60, None) => "(c) ",
        (3, 40, None) => "(d) ",
        (3, 60, None) => "(i) ",
        (3, 80, None) => "(f) ",
        (3, 60, Some("at once")) => "(g) ",
        (3, 60, Some("host on their core")) => "(e) ",
        (3, 60, Some("sender in a VM")) => "(h) ",
        _ => "",
    };
    parts.extend(sample.what.map(|what| what.to_string()));
    format!("{letter}{}", parts.join(", "))
}

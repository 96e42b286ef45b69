//! The definition of an experiment: its name, the words of its report, and its options.

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use super::incast::Selection;
use crate::results::incast::CongestionControl;
use crate::results::record::Record;
use crate::results::report::Words;

/// An experiment by name.
pub struct Experiment {
    pub name: &'static str,
    pub about: &'static str,
    pub words: Words,
    pub takes: Takes,
    /// Measures; what it pushes is kept, also if it fails.
    pub(super) run: fn(&Options, &mut Record) -> Result<()>,
}

/// Minutes that a run takes, for an estimate before it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Takes {
    pub full_min: u64,
    pub quick_min: u64,
}

/// Options of a run. Empty ones mean the experiment's own values.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fewer repetitions: to see that everything works.
    pub quick: bool,
    /// Only these configurations.
    pub configurations: Vec<String>,
    /// Only transfers of these sizes.
    pub sizes_bytes: Vec<u64>,
    /// Rounds of each size.
    pub rounds: Option<usize>,
    /// Machines that share the core.
    pub vms: Vec<usize>,
    /// How they share it.
    pub shares: Vec<Share>,
    /// The CPU load of each machine, from 0.0 to 1.0.
    pub loads: Vec<f64>,
    pub path_rtts_ms: Vec<f64>,
    pub path_loss_percent: Option<f64>,
    /// The rate and queue of the path; `None`: the path has no rate.
    pub path_link: Option<PathLink>,
    /// The senders' congestion control.
    pub congestion_controls: Vec<CongestionControl>,
    /// Of the experiment `link-scale` only.
    pub peers: Option<u16>,
    /// Only these parts, of experiments that have some.
    pub parts: Vec<String>,
    /// Of the experiment `service` only.
    pub connections: Option<u64>,
    /// Options of the experiment `incast` only.
    pub incast: Selection,
}

/// The names of `all` that the options select; all of them if these select none.
pub fn chosen(all: &[&'static str], asked: &[String]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(&name.as_str())) {
        bail!("there is no configuration {unknown:?}; there are: {}", all.join(", "));
    }
    let wanted = |name: &&str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    Ok(all.iter().copied().filter(wanted).collect())
}

/// The parts of an experiment with these names; none if none is asked for.
pub fn parts<P: ValueEnum>(asked: &[String]) -> Result<Vec<P>> {
    let part = |name: &String| {
        P::from_str(name, false).map_err(|_| {
            let values = P::value_variants().iter().filter_map(P::to_possible_value);
            let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
            anyhow!("there is no part {name:?}; there are: {}", names.join(", "))
        })
    };
    asked.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::incast::Part;

    #[test]
    fn parts_are_chosen_by_name_and_unknown_ones_are_refused() {
        let parts = |asked: &[&str]| {
            let asked: Vec<_> = asked.iter().map(|name| name.to_string()).collect();
            parts::<Part>(&asked)
        };
        assert!(parts(&[]).unwrap().is_empty());
        assert_eq!(parts(&["vm", "fixed-size"]).unwrap(), [Part::Vm, Part::FixedSize]);
        let error = parts(&["vms"]).unwrap_err().to_string();
        assert!(error.contains("\"vms\"") && error.contains("fixed-total, "), "{error}");
    }

    #[test]
    fn configurations_are_chosen_by_name_and_unknown_ones_are_refused() {
        let chosen = |asked: &[&str]| {
            let asked: Vec<_> = asked.iter().map(|name| name.to_string()).collect();
            chosen(&["off", "vsnoop"], &asked)
        };
        assert_eq!(chosen(&[]).unwrap(), ["off", "vsnoop"]);
        assert_eq!(chosen(&["vsnoop"]).unwrap(), ["vsnoop"]);
        let error = chosen(&["vsnoop", "strict"]).unwrap_err().to_string();
        assert!(error.contains("\"strict\"") && error.contains("off, vsnoop"), "{error}");
    }
}

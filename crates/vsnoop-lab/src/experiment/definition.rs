//! The definition of an experiment: its name, the words of its report, and its options.

use anyhow::{Result, bail};
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

#[cfg(test)]
mod tests {
    use super::*;

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

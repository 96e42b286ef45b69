//! Options of a run. Empty ones mean the experiment's own values.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser as Ranged;
use vsnoop_testbed::fan_in::MOST_SENDERS;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use crate::results::incast::{CongestionControl, Part};

#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// Few repetitions, only to see that everything works.
    #[arg(long)]
    pub quick: bool,
    /// Only this configuration (may be repeated).
    #[arg(long = "configuration", value_name = "NAME")]
    pub configurations: Vec<String>,
    /// Only transfers of this size (may be repeated).
    #[arg(long = "size", value_name = "BYTES")]
    pub sizes_bytes: Vec<u64>,
    /// Rounds of each size in each cell, instead of the experiment's own number; a round is one
    /// transfer in each configuration.
    #[arg(long, visible_alias = "pairs", value_name = "N")]
    pub rounds: Option<usize>,
    /// Machines that share the core (may be repeated).
    #[arg(long, value_name = "N")]
    pub vms: Vec<usize>,
    /// How machines share the core: `quota:PERCENT`, `fair`, `fair:HOGS` or `slices` (may be
    /// repeated).
    #[arg(long = "share", value_name = "HOW")]
    pub shares: Vec<Share>,
    /// CPU load of each machine, 0.0 to 1.0 (may be repeated).
    #[arg(long = "load", value_name = "SHARE")]
    pub loads: Vec<f64>,
    /// Round trip between client and host; 0 is a veth (may be repeated).
    #[arg(long = "path-rtt", value_name = "MS")]
    pub path_rtts_ms: Vec<f64>,
    /// MTU-sized segments that are lost between client and host, each way, 0 to 5.
    #[arg(long = "path-loss", value_name = "PERCENT")]
    pub path_loss_percent: Option<f64>,
    /// The path is a link of this rate, each way, with a queue before it.
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..))]
    pub path_rate: Option<u64>,
    /// Length of that queue.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000, requires = "path_rate")]
    pub path_queue: u64,
    /// The senders' congestion control (may be repeated).
    #[arg(long = "congestion-control", value_name = "NAME")]
    pub congestion_controls: Vec<CongestionControl>,
    /// `incast`: only this part (may be repeated).
    #[arg(long = "part", value_name = "NAME")]
    pub parts: Vec<Part>,
    #[command(flatten)]
    pub incast: Selection,
}

/// One more sender is for the connection in the background.
const MOST: u64 = MOST_SENDERS as u64 - 1;

/// The options that select what `incast` measures. Empty ones mean all values of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct Selection {
    /// `incast`: this number of senders (may be repeated).
    #[arg(long, value_name = "N", value_parser = Ranged::<usize>::new().range(1..=MOST))]
    pub senders: Vec<usize>,
    /// `incast`: the rate of the last hop.
    #[arg(long = "rate", value_name = "MBIT", value_parser = Ranged::<u64>::new().range(10..=1000))]
    pub rate_mbit: Option<u64>,
    /// `incast`: the queue of the last hop (may be repeated).
    #[arg(
        long = "buffer",
        value_name = "BYTES",
        value_parser = Ranged::<u64>::new().range(3_000..=10_000_000)
    )]
    pub buffers_bytes: Vec<u64>,
    /// `incast`: the least retransmission timeout of the senders (may be repeated).
    #[arg(long = "rto-min", value_name = "MS", value_parser = Ranged::<u32>::new().range(1..=1000))]
    pub rtos_min_ms: Vec<u32>,
}

impl Options {
    /// The rate and queue of the path; `None`: the path has no rate.
    pub fn path_link(&self) -> Option<PathLink> {
        let queue_bytes = self.path_queue;
        self.path_rate.map(|rate_mbit| PathLink { rate_mbit, queue_bytes })
    }

    /// Names of options that not every experiment takes, and whether they are given. `path-loss` is
    /// one of those of `path`.
    pub fn given(&self) -> [(&'static str, bool); 10] {
        let path_loss = self.path_loss_percent.is_some();
        let path = !self.path_rtts_ms.is_empty() || path_loss || self.path_rate.is_some();
        [
            ("configuration", !self.configurations.is_empty()),
            ("vms", !self.vms.is_empty()),
            ("load", !self.loads.is_empty()),
            ("share", !self.shares.is_empty()),
            ("path", path),
            ("path-loss", path_loss),
            ("congestion-control", !self.congestion_controls.is_empty()),
            ("size", !self.sizes_bytes.is_empty()),
            ("part", !self.parts.is_empty()),
            ("senders", self.incast != Selection::default()),
        ]
    }
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
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let named = |asked: &[&str]| chosen(&["off", "vsnoop"], &words(asked));
        assert_eq!(named(&[]).unwrap(), ["off", "vsnoop"]);
        assert_eq!(named(&["vsnoop"]).unwrap(), ["vsnoop"]);
        let error = named(&["strict"]).unwrap_err().to_string();
        assert!(error.contains("\"strict\"") && error.contains("off, vsnoop"), "{error}");
    }
}

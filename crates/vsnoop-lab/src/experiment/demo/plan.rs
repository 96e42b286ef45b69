//! The requests of the demo, by path.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use vsnoop_guest::web;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use crate::experiment::configuration::Configuration;
use crate::experiment::definition::Options;
use crate::experiment::rounds::Rounds;
use crate::results::Cell;

/// The CPU quota of the VM's vCPU, in percent of a core: 20 ms of every 100 ms.
const QUOTA_PERCENT: u32 = 20;

const FAR_RTT_MS: f64 = 20.0;
const FAR_LINK: PathLink = PathLink { rate_mbit: 200, queue_bytes: 1_000_000 };

/// Sizes of uploads, and the small page; rounds of each. One of the page is a batch.
const FAR: [(u64, usize); 3] = [(100_000, 14), (1_000_000, 12), (4_000_000, 8)];
const NEAR: [(u64, usize); 2] = [(1_000_000, 10), (web::PAGE_BYTES, 16)];
const QUICK_ROUNDS: usize = 2;
/// The longest time of a path's measurements; the remaining ones are left out.
const BUDGET: Duration = Duration::from_secs(110);

/// Requests on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub cell: Cell,
    pub plan: Vec<(u64, usize)>,
    pub budget: Duration,
}

impl Part {
    pub fn rounds(&self, configurations: &[Configuration]) -> Rounds<Configuration> {
        let configurations = configurations.to_vec();
        Rounds { configurations, plan: self.plan.clone(), budget: self.budget }
    }
}

/// How the VM gets CPU time: by its quota, or as asked for.
pub fn share(options: &Options) -> Result<Share> {
    match options.shares[..] {
        [] => Ok(Share::Quota { percent: QUOTA_PERCENT }),
        [only] => Ok(only),
        _ => bail!("the VM of a run has one --share"),
    }
}

/// The share of a core that is 1 in `--load`: the quota, if there is one.
pub fn unit_of_load(share: Share) -> f64 {
    match share {
        Share::Quota { percent } => f64::from(percent) / 100.0,
        Share::Fair { .. } | Share::Slices => 1.0,
    }
}

/// All parts, as asked for.
pub fn parts(options: &Options) -> Result<Vec<Part>> {
    let share = share(options)?;
    // Work of the VM's own: it never sleeps, so that it uses up each quota.
    let most = 1.0 / unit_of_load(share);
    ensure!(
        options.vms.is_empty() && options.path_loss_percent.is_none(),
        "--vms and --path-loss are no options of this experiment"
    );
    let known = || FAR.iter().chain(&NEAR);
    for asked in &options.sizes_bytes {
        ensure!(
            known().any(|(size, _)| size == asked),
            "there are no requests of {asked} bytes in this experiment"
        );
    }
    ensure!(options.rounds != Some(0), "an experiment needs at least one round");
    let rtts = match &options.path_rtts_ms[..] {
        [] => &[FAR_RTT_MS, 0.0],
        asked => asked,
    };
    let loads = match &options.loads[..] {
        [] => &[most],
        asked => asked,
    };
    let part = |load: f64, rtt_ms: f64| {
        ensure!(
            (0.0..=most).contains(&load),
            "a load of {load}: 0.0 to {most} quotas are possible"
        );
        ensure!(
            (0.0..=1000.0).contains(&rtt_ms),
            "a path RTT of {rtt_ms} ms: 0 to 1000 is possible"
        );
        let (plan, link) = match rtt_ms > 0.0 {
            true => (&FAR[..], Some(options.path_link.unwrap_or(FAR_LINK))),
            false => (&NEAR[..], options.path_link),
        };
        let cell = Cell {
            vms: 1,
            load,
            path_rtt_ms: rtt_ms,
            path_link: link,
            quota_percent: options.shares.is_empty().then_some(QUOTA_PERCENT),
            share: options.shares.first().copied(),
            congestion_control: options.congestion_controls.first().copied(),
            ..Cell::default()
        };
        let rounds = |own| options.rounds.unwrap_or(if options.quick { QUICK_ROUNDS } else { own });
        let wanted = |size| options.sizes_bytes.is_empty() || options.sizes_bytes.contains(&size);
        let plan = plan.iter().filter(|(size, _)| wanted(*size));
        let plan = plan.map(|&(size, own)| (size, rounds(own))).collect();
        // Rounds that were asked for are all measured.
        let budget = if options.rounds.is_some() { Duration::MAX } else { BUDGET };
        Ok(Part { cell, plan, budget })
    };
    let cells = loads.iter().flat_map(|&load| rtts.iter().map(move |&rtt_ms| (load, rtt_ms)));
    let parts = cells.map(|(load, rtt_ms)| part(load, rtt_ms)).collect::<Result<Vec<_>>>()?;
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.plan.is_empty()).collect();
    ensure!(!parts.is_empty(), "no request of that size is made on that path");
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_asked_for_and_what_cannot_be_measured_is_refused() {
        let options = Options::default();
        let all = parts(&options).unwrap();
        assert_eq!(all.iter().map(|part| part.cell.path_rtt_ms).collect::<Vec<_>>(), [20.0, 0.0]);
        assert_eq!((&all[0].plan[..], &all[1].plan[..]), (&FAR[..], &NEAR[..]));
        let gets =
            Options { sizes_bytes: vec![web::PAGE_BYTES], rounds: Some(3), ..options.clone() };
        let gets = parts(&gets).unwrap();
        assert_eq!(gets.len(), 1);
        assert_eq!(gets[0].plan, [(web::PAGE_BYTES, 3)]);
        let half = Share::Quota { percent: 50 };
        let other = Options { shares: vec![half], path_rtts_ms: vec![5.0], ..options.clone() };
        let cell = parts(&other).unwrap()[0].cell;
        assert_eq!((cell.load, cell.quota_percent, cell.share), (2.0, None, Some(half)));
        for impossible in [
            Options { vms: vec![2], ..options.clone() },
            Options { shares: vec![half, Share::Slices], ..options.clone() },
            Options { shares: vec![Share::Slices], loads: vec![1.5], ..options.clone() },
            Options { sizes_bytes: vec![7], ..options.clone() },
            Options { rounds: Some(0), ..options.clone() },
            Options { path_rtts_ms: vec![-1.0], ..options },
        ] {
            assert!(parts(&impossible).is_err(), "{impossible:?}");
        }
    }
}

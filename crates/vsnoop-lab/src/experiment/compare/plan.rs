//! The transfers of an experiment: cells, and rounds of each size in them.

use anyhow::{Result, ensure};
use vsnoop_testbed::vm::Share;

use super::comparison::Comparison;
use crate::experiment::definition::Options;
use crate::results::Cell;

/// The most machines: more would not boot in time.
const MOST_VMS: usize = 16;
const LONGEST_RTT_MS: f64 = 1000.0;
const WORST_LOSS_PERCENT: f64 = 5.0;

/// Machines and their load, and the paths to measure with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    pub vms: usize,
    pub share: Share,
    pub load: f64,
    pub cells: Vec<Cell>,
}

/// How machines share their core.
pub fn shares(options: &Options) -> &[Share] {
    match &options.shares[..] {
        [] => &[Share::Slices],
        asked => asked,
    }
}

/// The cells that the options select. A number of machines without a load (or the reverse) gets the
/// one that the experiment itself combines it with, else that of its first cell.
pub fn machines(comparison: &Comparison, options: &Options) -> Result<Vec<Machines>> {
    let own = comparison.machines;
    let first = own[0];
    let pairs: Vec<(usize, f64)> = match (&options.vms[..], &options.loads[..]) {
        ([], []) if options.quick => vec![first],
        ([], []) => own.to_vec(),
        (vms, []) => {
            let load = |vms| own.iter().find(|pair| pair.0 == vms).unwrap_or(&first).1;
            vms.iter().map(|&vms| (vms, load(vms))).collect()
        }
        ([], loads) => {
            let vms = |load| own.iter().find(|pair| pair.1 == load).unwrap_or(&first).0;
            loads.iter().map(|&load| (vms(load), load)).collect()
        }
        (vms, loads) => {
            vms.iter().flat_map(|&vms| loads.iter().map(move |&load| (vms, load))).collect()
        }
    };
    let rtts = match &options.path_rtts_ms[..] {
        [] if options.quick => &comparison.path_rtts_ms[..1],
        [] => comparison.path_rtts_ms,
        asked => asked,
    };
    let path_loss_percent = options.path_loss_percent.unwrap_or(0.0);
    for (vms, load) in &pairs {
        ensure!((1..=MOST_VMS).contains(vms), "{vms} VMs: 1 to {MOST_VMS} are possible");
        ensure!((0.0..=1.0).contains(load), "a load of {load}: 0.0 to 1.0 is possible");
    }
    for rtt in rtts {
        ensure!(
            (0.0..=LONGEST_RTT_MS).contains(rtt),
            "a path RTT of {rtt} ms: 0 to {LONGEST_RTT_MS} is possible"
        );
    }
    ensure!(
        (0.0..=WORST_LOSS_PERCENT).contains(&path_loss_percent),
        "a path that loses {path_loss_percent} %: 0 to {WORST_LOSS_PERCENT} is possible"
    );
    // Names of cells and figures have what was asked for, and not the experiment's own share.
    let asked = !options.shares.is_empty();
    let machines = |(vms, load), share: Share| Machines {
        vms,
        share,
        load,
        cells: rtts
            .iter()
            .map(|&path_rtt_ms| Cell {
                vms,
                load,
                path_rtt_ms,
                path_loss_percent,
                path_link: options.path_link,
                share: asked.then_some(share),
                ..Cell::default()
            })
            .collect(),
    };
    let of = |pair| shares(options).iter().map(move |&share| machines(pair, share));
    Ok(pairs.into_iter().flat_map(of).collect())
}

/// Sizes and rounds of one cell that the options select.
pub fn rounds(comparison: &Comparison, options: &Options) -> Result<Vec<(u64, usize)>> {
    let plan = if options.quick { comparison.quick_plan } else { comparison.plan };
    let mut plan = plan.to_vec();
    for size_bytes in &options.sizes_bytes {
        ensure!(
            plan.iter().any(|(size, _)| size == size_bytes),
            "there are no transfers of {size_bytes} bytes in this experiment"
        );
    }
    if !options.sizes_bytes.is_empty() {
        plan.retain(|(size, _)| options.sizes_bytes.contains(size));
    }
    if let Some(rounds) = options.rounds {
        ensure!(rounds > 0, "an experiment needs at least one round");
        plan.iter_mut().for_each(|(_, count)| *count = rounds);
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::super::testing::COMPARISON;
    use super::*;

    fn pairs(options: &Options) -> Vec<(usize, f64)> {
        let machines = machines(&COMPARISON, options).unwrap();
        machines.iter().map(|machines| (machines.vms, machines.load)).collect()
    }

    #[test]
    fn machines_and_loads_are_combined_as_the_experiment_combines_them() {
        let options = Options::default();
        assert_eq!(pairs(&options), [(3, 0.6), (5, 1.0)]);
        assert_eq!(pairs(&Options { quick: true, ..options.clone() }), [(3, 0.6)]);
        assert_eq!(pairs(&Options { vms: vec![5, 4], ..options.clone() }), [(5, 1.0), (4, 0.6)]);
        assert_eq!(
            pairs(&Options { loads: vec![1.0, 0.2], ..options.clone() }),
            [(5, 1.0), (3, 0.2)]
        );
        let both = Options { vms: vec![2], loads: vec![0.0, 1.0], ..options };
        assert_eq!(pairs(&both), [(2, 0.0), (2, 1.0)]);
    }

    #[test]
    fn every_path_is_a_cell_of_the_same_machines() {
        let options = Options { path_loss_percent: Some(1.0), ..Options::default() };
        let machines = machines(&COMPARISON, &options).unwrap();
        let paths: Vec<_> = machines[1].cells.iter().map(|cell| cell.path_rtt_ms).collect();
        assert_eq!(paths, COMPARISON.path_rtts_ms);
        assert!(
            machines[1].cells.iter().all(|cell| cell.vms == 5 && cell.path_loss_percent == 1.0)
        );
    }

    #[test]
    fn each_way_to_share_the_core_that_was_asked_for_has_cells_of_that_name() {
        let names = |options: &Options| -> Vec<String> {
            let machines = machines(&COMPARISON, options).unwrap();
            machines.iter().map(|machines| machines.cells[0].suffix()).collect()
        };
        assert_eq!(names(&Options::default()), ["3vms_load60", "5vms_load100"]);
        let shares = vec![Share::Quota { percent: 20 }, Share::Slices];
        let asked = Options { shares, vms: vec![3], ..Options::default() };
        assert_eq!(names(&asked), ["3vms_load60_quota20", "3vms_load60_slices"]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let options = Options::default();
        for impossible in [
            Options { vms: vec![0], ..options.clone() },
            Options { loads: vec![60.0], ..options.clone() },
            Options { path_rtts_ms: vec![-1.0], ..options.clone() },
            Options { path_loss_percent: Some(6.0), ..options.clone() },
        ] {
            assert!(machines(&COMPARISON, &impossible).is_err(), "{impossible:?}");
        }
        let foreign = Options { sizes_bytes: vec![COMPARISON.plan[0].0 + 1], ..options.clone() };
        assert!(rounds(&COMPARISON, &foreign).is_err());
        assert!(rounds(&COMPARISON, &Options { rounds: Some(0), ..options }).is_err());
    }

    #[test]
    fn sizes_and_rounds_are_as_asked_for() {
        let (size, _) = COMPARISON.plan[1];
        let options = Options { sizes_bytes: vec![size], rounds: Some(2), ..Options::default() };
        assert_eq!(rounds(&COMPARISON, &options).unwrap(), [(size, 2)]);
    }
}

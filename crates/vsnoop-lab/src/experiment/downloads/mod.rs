//! `downloads`: downloads from nginx in a VM that is short of CPU ([`nginx`](super::nginx)), on
//! connections of their own and on open ones, by path, share of the core, congestion control and
//! size.

mod report;

use super::declared::Runner;
use super::nginx;

pub const RUNNER: Runner = Runner {
    name: "downloads",
    run: nginx::run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: report::plots,
    difference: |_| None,
};

#[cfg(test)]
mod tests {
    use vsnoop_testbed::vm::Share;

    use super::*;
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::Cell;
    use crate::results::incast::CongestionControl;

    /// A cell, and how many configurations and sizes it has.
    fn cells(options: &Options) -> Vec<(Cell, usize, usize)> {
        let plan = Declaration::find(RUNNER.name).unwrap().plan(options).unwrap();
        let machines = plan.machines();
        let cells = machines.iter().flat_map(|machines| &machines.cells);
        cells.map(|(cell, part)| (*cell, part.configurations.len(), part.sizes.len())).collect()
    }

    #[test]
    fn every_path_and_share_is_measured_once_in_all_configurations() {
        let shares = [
            Share::Quota { percent: 10 },
            Share::Quota { percent: 20 },
            Share::Quota { percent: 50 },
            Share::Fair { hogs: 3 },
            Share::Slices,
        ];
        let is_cubic = |cell: &Cell| cell.congestion_control == Some(CongestionControl::Cubic);
        let all = cells(&Options::default());
        for (number, (cell, configurations, sizes)) in all.iter().enumerate() {
            assert!(all[..number].iter().all(|(other, ..)| other != cell), "{cell}");
            let is_slowest = !is_cubic(cell) && cell.share == Some(shares[0]);
            let expected = if is_slowest { 4 } else { 5 };
            assert_eq!((*configurations, *sizes), (4, expected), "{cell}");
        }
        for share in shares {
            for rtt in [0.0, 5.0, 20.0, 80.0] {
                let there = |cell: &Cell| {
                    cell.share == Some(share) && cell.path_rtt_ms == rtt && is_cubic(cell)
                };
                assert!(all.iter().any(|(cell, ..)| there(cell)), "{share}, {rtt}");
            }
            assert!(all.iter().any(|(cell, ..)| cell.share == Some(share) && !is_cubic(cell)));
        }
        // Slices of one VM would be the whole core.
        let slices = Options {
            shares: vec![Share::Slices],
            path_rtts_ms: vec![80.0],
            congestion_controls: vec![CongestionControl::Bbr],
            ..Options::default()
        };
        let vms: Vec<_> = cells(&slices).iter().map(|(cell, ..)| cell.vms).collect();
        assert_eq!(vms, [3]);
        let quick = cells(&Options { quick: true, ..Options::default() });
        assert_eq!(quick.len(), 2);
    }
}

//! `uploads`: uploads to nginx in a VM that is short of CPU ([`nginx`](super::nginx)), by path,
//! quota, congestion control and size.

mod report;

use super::declared::Runner;
use super::nginx;

pub const RUNNER: Runner = Runner {
    name: "uploads",
    run: nginx::run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: report::plots,
    difference: |_| None,
};

#[cfg(test)]
mod tests {
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::Cell;
    use crate::results::incast::CongestionControl;

    #[test]
    fn every_cell_is_measured_once_and_bbr_beside_all_configurations_in_one() {
        let plan = Declaration::find("uploads").unwrap().plan(&Options::default()).unwrap();
        let machines = plan.machines();
        let cells: Vec<_> = machines.iter().flat_map(|machines| &machines.cells).collect();
        let distinct = cells
            .iter()
            .enumerate()
            .all(|(number, (cell, _))| cells[..number].iter().all(|(other, _)| other != cell));
        assert!(distinct && cells.len() == 24, "{} cells", cells.len());
        let is_bbr = |cell: &Cell| cell.congestion_control == Some(CongestionControl::Bbr);
        let all_of_bbr: Vec<_> = cells
            .iter()
            .filter(|(cell, part)| is_bbr(cell) && part.configurations.len() == 4)
            .map(|(cell, _)| cell.path_rtt_ms)
            .collect();
        assert_eq!(all_of_bbr, [20.0]);
        // Options bring them to others.
        let options = Options {
            congestion_controls: vec![CongestionControl::Bbr],
            path_rtts_ms: vec![5.0],
            ..Options::default()
        };
        let plan = Declaration::find("uploads").unwrap().plan(&options).unwrap();
        let parts: Vec<_> =
            plan.iter().map(|part| (part.configurations.len(), part.shares.len())).collect();
        assert_eq!(parts, [(4, 3)]);
    }
}

//! `hold`: early acknowledgement, within the VM's own window and beyond it, with its alternatives,
//! in four cells. It measures as [`transfers`](super::transfers) does.

mod figures;
mod gains;
mod goals;
mod tables;

use super::declared::Runner;
use super::transfers;

pub const RUNNER: Runner = Runner {
    name: "hold",
    run: transfers::run,
    tables: tables::render,
    figures: figures::figures,
    goals: Some(&goals::render),
    plots: crate::results::plot::draw_all,
    difference: gains::sentence,
};

#[cfg(test)]
mod tests {
    use vsnoop_testbed::stage::path::PathLink;
    use vsnoop_testbed::vm::Share;

    use super::*;
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::incast::CongestionControl;

    #[test]
    fn cells_name_share_and_congestion_control_only_if_they_were_asked_for() {
        let names = |options: &Options| -> Vec<String> {
            let plan = Declaration::find(RUNNER.name).unwrap().plan(options).unwrap();
            let machines = plan.machines().into_iter().flat_map(|machines| machines.cells);
            machines.map(|(cell, _)| cell.suffix()).collect()
        };
        let options = Options::default();
        let own = ["3vms_load60", "3vms_load60_rtt5", "5vms_load100", "5vms_load100_rtt5"];
        assert_eq!(names(&options), own);
        let link = Some(PathLink { rate_mbit: 50, queue_bytes: 1000 });
        let near = Options { vms: vec![3], path_rtts_ms: vec![0.0], path_link: link, ..options };
        assert_eq!(names(&near), ["3vms_load60_50mbit"], "an asked rate is that of each path");
        let shares = vec![Share::Quota { percent: 20 }, Share::Slices];
        let asked = Options { shares, path_link: None, ..near.clone() };
        assert_eq!(names(&asked), ["3vms_load60_quota20", "3vms_load60_slices"]);
        let controls = vec![CongestionControl::Bbr];
        let asked = Options { congestion_controls: controls, path_link: None, ..near };
        assert_eq!(names(&asked), ["3vms_load60_bbr"]);
    }
}

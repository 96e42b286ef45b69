//! `demo`: uploads to a web server in a VM with a CPU quota and downloads from it, by a client some
//! milliseconds away and one beside the host, with and without vsnoop; and small requests.
//!
//! It measures as `uploads` and `downloads` do ([`nginx`](super::nginx)); its table fits a
//! terminal.

mod difference;
mod summary;

use super::declared::Runner;
use super::nginx;

pub const RUNNER: Runner = Runner {
    name: summary::NAME,
    run: nginx::run,
    tables: summary::table,
    figures: summary::figures,
    goals: None,
    plots: summary::plot,
    difference: difference::sentence,
};

#[cfg(test)]
mod tests {
    use vsnoop_guest::web;
    use vsnoop_testbed::vm::Share;

    use super::*;
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::Cell;

    /// Sizes and rounds of each.
    type Sizes = Vec<(u64, usize)>;

    fn cells(options: &Options) -> anyhow::Result<Vec<(Cell, Sizes)>> {
        let plan = Declaration::find(RUNNER.name).unwrap().plan(options)?;
        let machines = plan.machines().into_iter().flat_map(|machines| machines.cells);
        machines.map(|(cell, part)| Ok((cell, part.rounds()?.plan))).collect()
    }

    #[test]
    fn requests_are_those_of_their_path_and_a_machine_has_work_for_all_of_its_core() {
        let options = Options::default();
        let all = cells(&options).unwrap();
        let names: Vec<_> = all.iter().map(|(cell, _)| cell.suffix()).collect();
        assert_eq!(names, ["1vms_load500_rtt20_200mbit_quota20", "1vms_load500_quota20"]);
        let gets =
            |(_, sizes): &(Cell, Sizes)| sizes.iter().any(|(size, _)| *size == web::PAGE_BYTES);
        assert_eq!(all.iter().map(gets).collect::<Vec<_>>(), [false, true]);
        let get =
            Options { sizes_bytes: vec![web::PAGE_BYTES], rounds: Some(3), ..options.clone() };
        let get = cells(&get).unwrap();
        assert_eq!((get.len(), &get[0].1[..]), (1, &[(web::PAGE_BYTES, 3)][..]));
        let half = Share::Quota { percent: 50 };
        let other = Options { shares: vec![half], path_rtts_ms: vec![5.0], ..options.clone() };
        let cell = cells(&other).unwrap()[0].0;
        assert_eq!((cell.load, cell.quota_percent, cell.share), (2.0, None, Some(half)));
        for impossible in [
            Options { vms: vec![2], ..options.clone() },
            Options { path_loss_percent: Some(1.0), ..options.clone() },
            Options { loads: vec![5.5], ..options.clone() },
            Options { shares: vec![Share::Slices], loads: vec![1.5], ..options.clone() },
            Options { sizes_bytes: vec![7], ..options },
        ] {
            assert!(cells(&impossible).is_err(), "{impossible:?}");
        }
    }
}

//! `link-wan`: hosts on a link of 100 Mb/s with 10 ms each way, without loss and with 1 %.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::Result;
use vsnoop_testbed::relay::{Bottleneck, Faults};

use super::rig::{Task, cell};
use super::series::{Series, progress_of, rounds};
use super::stream::{Load, Until};
use super::values::{self, deviation, figure, mean};
use super::{content, papers, plots, tables};
use crate::experiment::definition::{Experiment, Options, Takes, chosen};
use crate::experiment::goals::{self, Bound, Goal};
use crate::results::link::{Content, LinkCell};
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::statistics::percentile;
use crate::results::{Figure, Results};

/// Carrier, rounds without loss, rounds with loss. Carriers that are compared closely have the
/// most.
const PLAN: [(&str, usize, usize); 12] = [
    ("bare", 2, 12),
    ("vsnoop-udp", 2, 12),
    ("vsnoop-tls", 2, 8),
    ("bridged", 1, 2),
    ("nat", 1, 2),
    ("vxlan", 1, 3),
    ("vtun", 1, 2),
    ("vtun-bbr", 1, 2),
    ("vpncloud", 1, 3),
    ("openvpn-udp", 1, 3),
    ("openvpn-tcp", 1, 2),
    ("ssh", 1, 2),
];

const RATE_MBIT: u64 = 100;
const ONE_WAY: Duration = Duration::from_millis(10);
/// One and a half times the bandwidth-delay product.
const QUEUE_BYTES: u64 = 375_000;
const LOSS: f64 = 0.01;
const STREAM: Duration = Duration::from_secs(8);
const STREAM_WITHOUT_LOSS: Duration = Duration::from_secs(6);
const QUICK_STREAM: Duration = Duration::from_secs(2);
const ECHOES: usize = 40;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "link-wan",
    about: "100 Mb/s, 10 ms each way, 0 and 1 % loss: tunnels under a cubic stream, and echoes beside it",
    words: Words {
        title: "Links over a WAN: cubic inside, loss outside",
        what_to_see: "A carrier that adds no retransmission shows the guest's TCP the path as it is; one \
            over TCP hides loss, and makes everything wait for it. `loaded` are echoes beside the \
            stream: what somebody sees who types while a file is copied.",
        method: METHOD,
        command: "make lab RUN=link-wan",
        tables: tables::paths,
        figures,
        goals: Some(&|results| goals::render(&GOALS, results)),
        papers: &[papers::WAN],
        plots: plots::vnet,
    },
    takes: Takes { full_min: 11, quick_min: 2 },
    run,
};

const METHOD: &str = "As in link-lan, but the hosts are joined by a relay in user space on a real-time \
thread: a link of 100 Mb/s each way (as bytes from the Ethernet header on) with a queue of 375 KB, a delay \
of 10 ms, and independent loss of each packet, both ways, before the queue. The hosts' devices leave no \
super-packets to it, so that packets of the MTU are lost and queued. Without tunnel devices, `bare` is the \
hosts' own addresses; `bridged` are guests on the bridges that the link is a port of. A measurement is 40 \
echoes over the idle carrier, then a cubic stream for 8 s (6 s without loss) of which every byte is \
verified, beside echoes at uneven intervals of 10 to 50 ms; echoes that are never answered are counted as \
lost and have no time. Tunnels over TCP have cubic outside, as by default, but for `vtun-bbr`, and for \
vsnoop, which chooses bbr itself where the kernel has it. Throughput figures are means of the rounds.";

const GOALS: [Goal; 7] = [
    Goal {
        figure: Cow::Borrowed("wan_loss_mbps_udp"),
        bound: Bound::Times(0.9, Cow::Borrowed("wan_loss_mbps_bare")),
    },
    Goal {
        figure: Cow::Borrowed("wan_loss_ping_ms_udp"),
        bound: Bound::MostTimes(1.1, Cow::Borrowed("wan_loss_ping_ms_bare")),
    },
    Goal {
        figure: Cow::Borrowed("wan_loss_ping_p99_ms_udp"),
        bound: Bound::MostTimes(1.1, Cow::Borrowed("wan_loss_ping_p99_ms_bare")),
    },
    Goal { figure: Cow::Borrowed("wan_loss_mbps_tls"), bound: Bound::AtLeast(80.0) },
    Goal { figure: Cow::Borrowed("wan_loss_ping_p95_ms_tls"), bound: Bound::AtMost(60.0) },
    Goal { figure: Cow::Borrowed("wan_loss_ping_p99_ms_tls"), bound: Bound::AtMost(260.0) },
    Goal {
        figure: Cow::Borrowed("wan_mbps_udp"),
        bound: Bound::Times(0.9, Cow::Borrowed("wan_mbps_bare")),
    },
];

/// The link, with loss or without.
fn faults(loss: f64) -> Faults {
    Faults {
        loss,
        delay: ONE_WAY,
        bottleneck: Some(Bottleneck::new(RATE_MBIT, QUEUE_BYTES)),
        ..Faults::default()
    }
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let carriers = chosen(&PLAN.map(|(name, _, _)| name), &options.configurations)?;
    let mut series = Series::begin(record, options, Some(&faults(0.0)), &carriers)?;
    let measurements = |with_loss: bool| -> Vec<(&'static str, usize)> {
        let wanted = PLAN.into_iter().filter(|plan| series.rig.link(plan.0).is_some());
        wanted
            .map(|plan| (plan.0, rounds(options, if with_loss { plan.2 } else { plan.1 })))
            .collect()
    };
    let (without, with) = (measurements(false), measurements(true));
    let mut progress = progress_of(&[&without, &with]);
    let data = content::make(Content::Digits, 1_000_000)?;
    for (measurements, loss, stream) in [(without, 0.0, STREAM_WITHOUT_LOSS), (with, LOSS, STREAM)]
    {
        series.rig.hosts().set_faults(&faults(loss));
        let stream = if options.quick { QUICK_STREAM } else { stream };
        series.interleave(&mut progress, &measurements, |name| {
            let about =
                LinkCell { rate_mbit: Some(RATE_MBIT), offloads: true, content: Content::Digits };
            let task = Task {
                cell: cell(about, 2.0 * ONE_WAY.as_secs_f64() * 1e3, loss * 100.0),
                load: Load { data: &data, until: Until::Time(stream), verify: true },
                idle_echoes: ECHOES,
                loaded_echoes: true,
            };
            (name, task)
        })?;
    }
    Ok(())
}

/// The figures of each carrier: names begin with `wan_loss_` for measurements with loss, and with
/// `wan_` for those without.
fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for carrier in values::carriers(results) {
        let name = carrier.name.trim_start_matches("vsnoop-").replace('-', "_");
        for (path, lossy) in [("wan_loss", true), ("wan", false)] {
            let wanted = |cell: &crate::results::Cell| (cell.path_loss_percent > 0.0) == lossy;
            let Some(values) = values::of(results, carrier.name, wanted) else { continue };
            let (idle, loaded) = (values.idle_pings_ms(), values.loaded_pings_ms());
            let mbps = figure(&format!("{path}_mbps_{name}"), values.mean_mbps(), "Mb/s", "higher");
            figures.push(mbps);
            for (what, value) in [
                ("ping_ms", mean(&loaded)),
                ("ping_p50_ms", percentile(&loaded, 50.0)),
                ("ping_p95_ms", percentile(&loaded, 95.0)),
                ("ping_p99_ms", percentile(&loaded, 99.0)),
                ("idle_mdev_ms", deviation(&idle)),
            ] {
                let named = |value| figure(&format!("{path}_{what}_{name}"), value, "ms", "lower");
                figures.extend(value.map(named));
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::values::testing::sample;
    use super::*;
    use crate::experiment::goals::found;
    use crate::results::testing::results;

    #[test]
    fn figures_are_of_their_path_and_their_carrier() {
        let lossy = |carrier: &str, mbps: f64, pings: Vec<f64>| {
            let mut sample = sample(carrier, mbps);
            sample.cell.path_loss_percent = 1.0;
            if let Some(carried) = &mut sample.carried {
                carried.loaded_pings_ms = pings;
            }
            sample
        };
        let mut results = results(vec![
            lossy("bare", 5.0, vec![20.0]),
            lossy("bare", 7.0, vec![22.0]),
            lossy("vsnoop-tls", 85.0, (0..=100).map(f64::from).collect()),
            sample("bare", 95.0),
        ]);
        results.figures = figures(&results);
        assert_eq!(found(&results, "wan_loss_mbps_bare"), Some(6.0), "a mean");
        assert_eq!(found(&results, "wan_loss_ping_ms_bare"), Some(21.0));
        assert_eq!(found(&results, "wan_loss_ping_p95_ms_tls"), Some(95.0));
        assert_eq!(found(&results, "wan_loss_ping_p99_ms_tls"), Some(99.0));
        assert_eq!(found(&results, "wan_mbps_bare"), Some(95.0));
        assert_eq!(found(&results, "wan_mbps_tls"), None);
    }
}

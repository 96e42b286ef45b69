//! `paper-window`: why vsnoop does not follow the report's window rule.
//!
//! The report lets the advertised window grow by two MSS with every ACK, up to the size of a
//! buffer, whatever the machine has advertised, and keeps nothing of what it acknowledged. Here a
//! small [host](host) in user space stands between the client and the bridge and follows that
//! [rule](rule); no vsnoop is attached. In each round every machine receives one transfer at the
//! same time, in each configuration: under the rule, and for comparison with the machine's own
//! window and with nothing done at all, all by the same host.

mod host;
mod packet;
mod rule;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use vsnoop_guest::transfer::Direction;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage, StageOptions};

use super::definition::{Experiment, Options, chosen};
use super::lab::Lab;
use super::progress::Progress;

use crate::results::report::Words;
use crate::results::statistics::{DELIVERED, ascending, percentile, summarise};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Cell, Ending, Figure, Results, Sample, size_text};
use host::Host;
use rule::Window;

pub const EXPERIMENT: Experiment = Experiment {
    name: "paper-window",
    about: "the report's own window rule on today's guests: transfers that hang for ever",
    words: Words {
        title: "The report's window rule on today's guests",
        what_to_see: "With `paper-rule` the host acknowledges whatever lies within a window that grows \
            by two MSS with each acknowledged MSS, up to 1 MB, and keeps nothing. A guest drops what \
            lies beyond the window that it has advertised itself; the sender was told that these bytes \
            had arrived and has forgotten them. The connection is then dead without anybody's knowledge: \
            `hung` counts transfers of which nothing came within the limit, `lost` the bytes that the \
            sender believes delivered and the guest has not acknowledged when the transfer is given \
            up. The other lines are controls, by the same host: with `own-window` it acknowledges as \
            well, but never advertises more than the machine has; with `untouched` it passes \
            everything as it is. This is why `vsnoop attach` acknowledges nothing of which it does not hold a copy.",
        method: "Three QEMU guests (1 vCPU each) with a calibrated CPU load of 0.6 share one core under \
            SCHED_RR in slices of 30 ms. Between the client and the bridge two taps are joined by a \
            program in user space that is the host of the report. In each round every guest receives \
            one transfer at the same time, in one configuration after the other, in random order. The \
            limit is 15 s (10 s with --quick), many times the longest transfer of the controls.",
        command: "make lab RUN=paper-window",
        tables,
        goals: None,
        plots: crate::results::plot::draw_all,
    },
    run,
};

/// Names, and the windows that the host advertises.
const CONFIGURATIONS: [(&str, Option<Window>); 3] = [
    ("untouched", None),
    ("own-window", Some(Window::Own)),
    ("paper-rule", Some(Window::Grown { limit_bytes: LIMIT_BYTES })),
];
const VMS: usize = 3;
const LOAD: f64 = 0.6;
const SIZE_BYTES: u64 = 200_000;
/// The buffer of the report's host, `buf_size`.
const LIMIT_BYTES: u32 = 1_000_000;
const ROUNDS: usize = 10;
const QUICK_ROUNDS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(15);
const QUICK_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE_MS: std::ops::Range<u64> = 5..100;

fn run(options: &Options) -> Result<Results> {
    let configurations = configurations(options)?;
    ensure!(
        options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none(),
        "paper-window has a path of its own: leave out --path-rtt, --path-loss and --path-rate"
    );
    let single = |given: usize| given <= 1;
    ensure!(
        single(options.vms.len())
            && single(options.loads.len())
            && single(options.sizes_bytes.len()),
        "paper-window takes one --vms, one --load and one --size"
    );
    let cell = Cell {
        vms: options.vms.first().copied().unwrap_or(VMS),
        load: options.loads.first().copied().unwrap_or(LOAD),
        ..Cell::default()
    };
    let size_bytes = options.sizes_bytes.first().copied().unwrap_or(SIZE_BYTES);
    let rounds = options.rounds.unwrap_or(if options.quick { QUICK_ROUNDS } else { ROUNDS });
    let timeout = if options.quick { QUICK_TIMEOUT } else { TIMEOUT };

    let mut lab = Lab::open(guest::Options::default())?;
    let mut results = lab.results(EXPERIMENT.name);
    results.environment.extend([
        ("buf_size_bytes".into(), json!(LIMIT_BYTES)),
        ("limit_s".into(), json!(timeout.as_secs())),
    ]);
    let mut stage = lab.boot(StageOptions { vms: cell.vms, tuned: false }, cell.load, None)?;
    let (client, bridge) = stage.lend_path()?;
    let host = Host::start(client, bridge)?;
    let mut progress = Progress::new(rounds * configurations.len() * cell.vms);
    let begin = Instant::now();
    for _ in 0..rounds {
        let mut order = configurations.clone();
        fastrand::shuffle(&mut order);
        for (configuration, window) in order {
            host.begin(window);
            let batch =
                Batch { stage: &stage, host: &host, configuration, cell, size_bytes, timeout };
            for sample in batch.run(begin).context(configuration)? {
                results.samples.push(sample);
                progress.step(configuration.to_owned());
            }
        }
    }
    summarise(&mut results);
    results.figures = figures(&results);
    Ok(results)
}

fn configurations(options: &Options) -> Result<Vec<(&'static str, Option<Window>)>> {
    let names = CONFIGURATIONS.map(|(name, _)| name);
    let chosen = chosen(&names, &options.configurations)?;
    Ok(CONFIGURATIONS.into_iter().filter(|(name, _)| chosen.contains(name)).collect())
}

/// One transfer to each machine at the same time.
struct Batch<'a> {
    stage: &'a Stage,
    host: &'a Host,
    configuration: &'static str,
    cell: Cell,
    size_bytes: u64,
    timeout: Duration,
}

impl Batch<'_> {
    fn run(&self, begin: Instant) -> Result<Vec<Sample>> {
        interrupt::check()?;
        std::thread::scope(|scope| {
            let machines = 0..self.stage.vm_count();
            let transfers: Vec<_> =
                machines.map(|vm| scope.spawn(move || self.transfer(vm, begin))).collect();
            let ended = transfers.into_iter().map(|transfer| {
                transfer.join().unwrap_or_else(|_| bail!("the thread of a transfer panicked"))
            });
            ended.collect()
        })
    }

    fn transfer(&self, vm: usize, begin: Instant) -> Result<Sample> {
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
        let at_ms = begin.elapsed().as_secs_f64() * 1e3;
        let server = self.stage.server(vm);
        let request = Request {
            server,
            direction: Direction::Upload,
            size_bytes: self.size_bytes,
            seed: fastrand::u64(..),
            congestion_control: CONGESTION_CONTROL,
            timeout: self.timeout,
        };
        let outcome = client::transfer(self.stage.client(), &request)?;
        let sample = Sample {
            configuration: self.configuration.to_owned(),
            size_bytes: self.size_bytes,
            cell: self.cell,
            vm,
            at_ms,
            ..Sample::default()
        };
        Ok(match outcome {
            Outcome::Exact(times) => Sample {
                connect_ms: Some(times.connect_ms),
                acked_ms: Some(times.acked_ms),
                delivered_ms: Some(times.delivered_ms),
                retransmissions: times.retransmissions,
                dsack_duplicates: times.dsack_duplicates,
                ..sample
            },
            Outcome::Hung => {
                let SocketAddr::V4(address) = server else { bail!("{server} is not IPv4") };
                let lost = self.host.outstanding_bytes(address.ip().octets());
                Sample { ending: Ending::Hung, lost_bytes: Some(lost), ..sample }
            }
            Outcome::Broken(_) => Sample { ending: Ending::Broken, ..sample },
            Outcome::Wrong(verdict) => bail!("VM {vm} did not get what was sent: {verdict:?}"),
        })
    }
}

fn count(results: &Results, configuration: &str, ending: Ending) -> usize {
    let samples = results.samples.iter().filter(|sample| sample.configuration == configuration);
    samples.filter(|sample| sample.ending == ending).count()
}

fn figures(results: &Results) -> Vec<Figure> {
    let names = results.configurations();
    let figures = names.iter().flat_map(|configuration| {
        let name = configuration.replace('-', "_");
        [("completed", Ending::Exact), ("hung", Ending::Hung)].map(|(word, ending)| Figure {
            name: format!("{name}_{word}"),
            value: count(results, configuration, ending) as f64,
            unit: "transfers".into(),
            better: if ending == Ending::Exact { "higher" } else { "lower" }.into(),
        })
    });
    figures.collect()
}

const HEADER: [&str; 9] = [
    "size",
    "configuration",
    "n",
    "completed",
    "hung",
    "reset",
    "lost bytes p50",
    "delivered ms p50",
    "p90",
];

fn tables(results: &Results, style: Style) -> String {
    let rows = results.groups().into_iter().flat_map(|group| {
        let names = results.configurations();
        let row = |name: String| {
            let samples: Vec<_> = results.of(&name, &group).collect();
            if samples.is_empty() {
                return None;
            }
            let of = |ending| samples.iter().filter(|sample| sample.ending == ending).count();
            let lost =
                ascending(samples.iter().filter_map(|sample| Some(sample.lost_bytes? as f64)));
            let line = results.summary_of(&name, &group, DELIVERED.name);
            let mut row =
                vec![size_text(group.size_bytes), name.clone(), samples.len().to_string()];
            let endings = [Ending::Exact, Ending::Hung, Ending::Broken];
            row.extend(endings.map(|ending| of(ending).to_string()));
            row.push(percentile(&lost, 50.0).map_or("-".into(), |bytes| format!("{bytes:.0}")));
            let values = [line.map(|line| line.p50), line.map(|line| line.p90)];
            row.extend(values.map(or_dash(milliseconds)));
            Some(row)
        };
        names.into_iter().filter_map(row).collect::<Vec<_>>()
    });
    grid(style, &HEADER, 2, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};

    #[test]
    fn what_hung_is_counted_and_named_and_has_no_time() {
        let hung = Sample {
            ending: Ending::Hung,
            delivered_ms: None,
            lost_bytes: Some(70_000),
            ..sample("paper-rule", 1.0)
        };
        let mut results =
            results(vec![hung.clone(), hung, sample("paper-rule", 1.0), sample("untouched", 1.0)]);
        summarise(&mut results);
        let figures = figures(&results);
        let value = |name: &str| figures.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(
            (value("paper_rule_hung"), value("paper_rule_completed")),
            (Some(2.0), Some(1.0))
        );
        assert_eq!((value("untouched_hung"), value("untouched_completed")), (Some(0.0), Some(1.0)));
        let text = tables(&results, Style::Markdown);
        let fields = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.contains(name)).unwrap_or_default();
            line.split('|').map(|field| field.trim().to_owned()).collect()
        };
        assert_eq!(fields("paper-rule")[3..9], ["3", "1", "2", "0", "70000", "50.0"]);
        assert_eq!(fields("untouched")[3..8], ["1", "1", "0", "0", "-"]);
    }
}

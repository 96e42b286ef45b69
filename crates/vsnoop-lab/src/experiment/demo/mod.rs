//! `demo`: uploads to a web server in a VM with a CPU quota, from a client some milliseconds away,
//! with and without vsnoop. Uploads of a client beside the host, and small requests, gain nothing.

mod paper;
mod plan;
mod summary;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use vsnoop_guest::control::Command;
use vsnoop_guest::web;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::stage::path::PathOptions;
use vsnoop_testbed::stage::{Stage, StageOptions, vm_address};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::{guest, vm};

use super::configuration::Configuration;
use super::definition::{Experiment, Options, Takes};
use super::goals::{self, Bound, Goal};
use super::lab::Lab;
use super::progress::Progress;
use super::request::{self, Exchange, request_text};
use super::rounds::Trial;
use super::ways::{Way, settle};
use crate::experiment::path_check::check_path;
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::{Cell, Sample};

/// The period of the VM's own load. It differs from the quota's period, so that load and quota do
/// not stay in phase.
const LOAD_PERIOD_MS: u32 = 70;
/// Requests of one attachment, where they are small.
const GETS: usize = 20;
/// The pause after attaching, in which background work of `attach` ends and the quota is refilled.
const PAUSE_MS: std::ops::Range<u64> = 500..700;
/// The only machine.
const VM: usize = 0;

/// Of figures whose cells are those of a run without options.
const GOALS: [Goal; 3] = [
    Goal { figure: "put_p50_off_over_vsnoop_1000000", bound: Bound::AtLeast(2.2) },
    Goal { figure: "put_p50_off_over_vsnoop_4000000", bound: Bound::AtLeast(3.0) },
    Goal { figure: "get_p99_vsnoop_over_off", bound: Bound::AtMost(1.1) },
];

pub const EXPERIMENT: Experiment = Experiment {
    name: "demo",
    about: "uploads to nginx in a VM with a CPU quota, 20 ms away and near; small requests",
    words: Words {
        title: "Uploads to a VM that is short of CPU",
        what_to_see: summary::MEANING,
        method: METHOD,
        command: "make demo",
        tables: summary::table,
        figures: summary::figures,
        goals: Some(|results| goals::render(&GOALS, results)),
        papers: &[paper::AGAINST],
        plots: summary::plot,
    },
    takes: Takes { full_min: 4, quick_min: 1 },
    run,
};

const METHOD: &str = "A QEMU guest (1 vCPU, Linux, nginx of Debian with its configuration for PUT) has a \
CPU quota of 20 ms in each 100 ms (cpu.max of its vCPU thread, on a core of its own), and always \
more work than that: a thread that computes without end, at nginx's priority (`--load 0.75` is one that \
wants three quarters of the quota). QEMU's other threads, the host's networking and the client run on \
another core. The client, in a network namespace, reaches it by a path, a bridge and its tap. The path \
of 20 ms is a relay in user space between two taps that delays every frame by half of it each way and \
is a link of 200 Mb/s with a queue of 1 MB in each direction; the near one is a veth. Requests are \
curl's (cubic, a connection each, no `Expect: 100-continue`); the guest compares every uploaded file \
with what was sent, and a wrong byte fails the experiment. Times are those of segments at the client's \
device, from its SYN: until the last byte of the response (`confirmed`, `total_ms` in results.json), \
and until the last byte of the request is acknowledged. In results.json `acked_ms` and `delivered_ms` \
begin with the SYN-ACK, after `connect_ms`. `off` (detached) and `vsnoop` (attached, no options) \
alternate in random order with random pauses; small requests in batches of 20.";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let configurations = Configuration::chosen(
        &[Configuration::Off, Configuration::Vsnoop],
        &options.configurations,
    )?;
    let (share, parts) = (plan::share(options)?, plan::parts(options)?);
    let congestion_control = options.congestion_control()?;
    request::require_curl()?;
    let vsnoop = Vsnoop::find()?;
    let mut lab = Lab::open(guest::Options { web: true, ..guest::Options::default() })?;
    lab.describe(&mut record.results.environment);
    record.results.environment.extend([
        ("vsnoop".into(), json!(vsnoop.version()?)),
        ("load_period_ms".into(), json!(LOAD_PERIOD_MS)),
        ("share".into(), json!(share.text())),
        ("congestion_control".into(), json!(congestion_control)),
    ]);
    let mut stage = lab.start(StageOptions { vms: 1, tuned: false }, Some(&vsnoop))?;
    vm::pin_self()?;
    stage.vm(VM).command(&Command::Web)?;
    stage.share(share)?;
    lab.session.allow_congestion_control(congestion_control)?;
    // curl takes the default of its namespace, which may be the host's.
    stage.client().set_sysctl("net.ipv4.tcp_congestion_control", congestion_control)?;
    let capture = Capture::start(stage.client())?;
    let unit_of_load = plan::unit_of_load(share);
    let mut uploads = Uploads { lab: &lab, stage, capture, unit_of_load };
    let rounds = |part: &plan::Part| part.rounds(&configurations).count();
    let mut progress = Progress::new(parts.iter().map(rounds).sum());
    for part in &parts {
        if part.rounds(&configurations).is_done(&part.cell, record) {
            progress.skip(rounds(part));
            continue;
        }
        uploads
            .enter(part.cell)
            .and_then(|()| {
                let measure = |trial| uploads.requests(trial);
                part.rounds(&configurations).measure(part.cell, record, &mut progress, measure)
            })
            .with_context(|| part.cell.to_string())?;
    }
    Ok(())
}

/// Requests on one stage.
struct Uploads<'a> {
    lab: &'a Lab,
    stage: Stage,
    capture: Capture,
    unit_of_load: f64,
}

impl Uploads<'_> {
    /// Sets up the path of a cell, and lets client and machine resolve each other's address.
    fn enter(&mut self, cell: Cell) -> Result<()> {
        let rtt = Duration::from_secs_f64(cell.path_rtt_ms / 1e3);
        self.stage.set_path(&PathOptions {
            rtt,
            link: cell.path_link,
            ..PathOptions::default()
        })?;
        check_path(&self.stage, rtt)?;
        let share = cell.load * self.unit_of_load;
        self.stage.vm(VM).command(&Command::Load { share, period_ms: LOAD_PERIOD_MS })?;
        request::get(self.stage.client(), server(), 1).context("the first request")?;
        settle(&self.stage)
    }

    /// One upload, or a batch of small requests.
    fn requests(&self, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let what = || format!("{}, {}", trial.configuration.name(), request_text(trial.size_bytes));
        self.timed(trial).with_context(what)
    }

    fn timed(&self, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let Trial { configuration, size_bytes, .. } = trial;
        let attach = configuration.attach_options();
        if let Some(options) = attach {
            self.stage.attach_with(VM, options)?;
        }
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
        let exchange = Exchange {
            stage: &self.stage,
            capture: &self.capture,
            scratch: self.lab.session.scratch(),
            machine: VM,
            way: Way { server: server(), tap: self.stage.tap(VM) },
        };
        let samples = exchange.make(size_bytes, GETS)?;
        if attach.is_some() {
            self.stage.detach(VM)?;
        }
        Ok(samples)
    }
}

fn server() -> SocketAddr {
    SocketAddr::from((vm_address(VM, false), web::PORT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::results;

    /// Names that documents and others who measure quote.
    const FIGURES: [&str; 6] = [
        "put_p50_off_over_vsnoop_100000",
        "put_p50_off_over_vsnoop_1000000",
        "put_p50_off_over_vsnoop_4000000",
        "put_p50_off_over_vsnoop_near_1000000",
        "get_p99_vsnoop_over_off",
        "acked_p50_off_over_vsnoop_100000",
    ];

    #[test]
    fn a_run_without_options_has_the_figures_that_are_quoted_and_judges_its_goals() {
        let mut samples = Vec::new();
        for part in plan::parts(&Options::default()).unwrap() {
            for ((size_bytes, _), (name, ms)) in part.plan.iter().flat_map(|size| {
                [("off", 900.0), ("vsnoop", 300.0)].map(|configuration| (*size, configuration))
            }) {
                samples.push(Sample {
                    configuration: name.into(),
                    size_bytes,
                    cell: part.cell,
                    connect_ms: Some(20.0),
                    acked_ms: Some(ms / 2.0),
                    delivered_ms: Some(ms - 20.0),
                    ..Sample::default()
                });
            }
        }
        let mut results = results(samples);
        results.figures = summary::figures(&results);
        let missing = FIGURES.iter().filter(|name| goals::found(&results, name).is_none());
        assert_eq!(missing.collect::<Vec<_>>(), [&""; 0]);
        let text = goals::render(&GOALS, &results).unwrap();
        assert_eq!(text.matches("| reached |").count(), GOALS.len(), "{text}");
    }
}

//! The runner `web`: a two-tier site in two VMs, a loaded VM beside each, and clients without think
//! time.

mod clients;
mod operation;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::vm_address;

use self::clients::{Clients, Outcome};
use self::operation::{OPERATIONS, Operation};
use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::rounds::Trial;
use super::systems::{self, Service};
use crate::results::statistics::{ascending, percentile};
use crate::results::{Cell, Label, Sample, ms};

/// Shares of the core that the site, the database, and the other machines together used.
const RAN: [&str; 3] = ["site_ran_percent", "database_ran_percent", "others_ran_percent"];
/// How often the paper's clients did the operation.
const PAPER_COUNT: &str = "paper_count";
/// The sample of all operations together.
const TOTAL: &str = "Total";

const SYSTEM: &str = include_str!("../../../systems/auction.toml");
const PAGES: &str = include_str!("../../../systems/auction/index.php");
const PAGES_PATH: &str = "/srv/auction/index.php";

/// The machines; those after them are the loaded ones.
const SITE: usize = 0;
const DATABASE: usize = 1;
const SERVERS: usize = 2;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    threads: usize,
    warm_up_s: u64,
    seconds: u64,
}

pub fn run(task: Task) -> Result<()> {
    let Settings { threads, warm_up_s, seconds } = task.plan()?.settings()?;
    let mut system = systems::parse(SYSTEM)?;
    system.files.insert(PAGES_PATH.into(), PAGES.into());
    let image = guest::prepare_system(&system)?.image;
    let clients = Clients {
        threads,
        warm_up: Duration::from_secs(warm_up_s),
        duration: Duration::from_secs(seconds),
    };
    on_stages(task, image, &mut Site { clients, started: None })
}

struct Site {
    clients: Clients,
    /// The process of the machine whose services run.
    started: Option<nix::unistd::Pid>,
}

impl Measure for Site {
    fn enter(&mut self, ground: &Ground) -> Result<()> {
        let client = ground.stage.client();
        ensure!(ground.stage.vm_count() >= SERVERS, "the site needs two machines");
        let process = ground.stage.vm(SITE).pid();
        if self.started.replace(process) != Some(process) {
            for (machine, service) in services() {
                service.start(ground.stage.vm(machine), client, vm_address(machine, false))?;
            }
            clients::until_served(client, vm_address(SITE, false))?;
        }
        Ok(())
    }

    fn accelerated(&self, _: usize) -> Vec<usize> {
        (0..SERVERS).collect()
    }

    fn load(&self, machine: usize, cell: &Cell) -> f64 {
        if machine < SERVERS { 0.0 } else { cell.load }
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let (before, begin) = (ground.cpu_times()?, Instant::now());
        let outcome = self.clients.run(ground.stage.client(), vm_address(SITE, false))?;
        let percent = 100.0 / begin.elapsed().as_secs_f64();
        let mut all = Sample { what: Label::from(TOTAL).ok(), ..self.sample(&outcome) };
        for (machine, (after, before)) in ground.cpu_times()?.into_iter().zip(before).enumerate() {
            let name = RAN[machine.min(RAN.len() - 1)].to_owned();
            *all.values.entry(name).or_default() += (after - before).as_secs_f64() * percent;
        }
        if let Some(error) = &outcome.error {
            tracing::warn!("{} requests failed, one of them: {error}", outcome.errors);
        }
        ensure!(
            !outcome.done.is_empty(),
            "no request was answered: {}",
            outcome.error.as_deref().unwrap_or("all took longer than the measurement")
        );
        let place = usize::from(trial.configuration == Configuration::Vsnoop);
        let paper = |operation: &Operation| f64::from(operation.paper[place]);
        all.values.insert(PAPER_COUNT.into(), OPERATIONS.iter().map(paper).sum());
        let operation = |(index, operation): (usize, &Operation)| {
            let count = outcome.done.iter().filter(|done| done.operation == index).count();
            let what = Label::from(operation.name).ok();
            let counts = [("count", count as f64), (PAPER_COUNT, paper(operation))];
            Sample { what, ..Sample::with(counts) }
        };
        Ok(OPERATIONS.iter().enumerate().map(operation).chain([all]).collect())
    }
}

impl Site {
    fn sample(&self, outcome: &Outcome) -> Sample {
        let times = outcome.done.iter().filter_map(|done| done.took);
        let times_ms = ascending(times.map(ms));
        let count = outcome.done.len() as f64;
        let at = |percent| percentile(&times_ms, percent);
        let times = [("p50_ms", at(50.0)), ("p99_ms", at(99.0))];
        let values = [
            ("count", count),
            ("requests_per_s", count / self.clients.duration.as_secs_f64()),
            ("errors", outcome.errors as f64),
        ];
        let times = times.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Sample::with(values.into_iter().chain(times))
    }
}

/// Where each service runs.
fn services() -> [(usize, Service); 2] {
    let service = |name: &str, port: u16, start: String| Service { name: name.into(), start, port };
    let mariadb = "mkdir -p /run/mysqld; chown mysql /run/mysqld; exec mariadbd --user=mysql";
    let nginx = format!(
        "echo 'fastcgi_param DB_HOST {};' >/run/database.conf
         $(echo /usr/sbin/php-fpm*) -F -y /etc/php-fpm.conf &
         exec nginx -g 'daemon off;'",
        vm_address(DATABASE, false)
    );
    [(DATABASE, service("mariadb", 3306, mariadb.into())), (SITE, service("nginx", 80, nginx))]
}

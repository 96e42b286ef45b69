//! The runner `web`: a two-tier site in two VMs, a loaded VM beside each, and clients without think
//! time.

mod clients;
mod operation;
mod summary;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::vm_address;

use self::clients::{Clients, Outcome};
use self::operation::OPERATIONS;
use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::rounds::Trial;
use super::systems::{self, Service};
use crate::results::statistics::{ascending, percentile};
use crate::results::{Cell, Sample};

pub const RUNNER: Runner = Runner {
    name: "web",
    run,
    tables: summary::tables,
    figures: summary::figures,
    goals: None,
    plots: summary::plots,
    difference: summary::difference,
};

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

fn run(task: Task) -> Result<()> {
    let Settings { threads, warm_up_s, seconds } = task.plan.settings()?;
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

    fn measure(&mut self, ground: &Ground, _: Trial<Configuration>) -> Result<Vec<Sample>> {
        let (before, begin) = (cpu_times(ground)?, Instant::now());
        let outcome = self.clients.run(ground.stage.client(), vm_address(SITE, false))?;
        let percent = 100.0 / begin.elapsed().as_secs_f64();
        let mut values = self.values(&outcome);
        for (machine, (after, before)) in cpu_times(ground)?.into_iter().zip(before).enumerate() {
            let ran = (after - before).as_secs_f64() * percent;
            *values.entry(summary::ran(machine)).or_default() += ran;
        }
        if let Some(error) = &outcome.error {
            tracing::warn!("{} requests failed, one of them: {error}", outcome.errors);
        }
        ensure!(
            !outcome.done.is_empty(),
            "no request was answered: {}",
            outcome.error.as_deref().unwrap_or("all took longer than the measurement")
        );
        Ok(vec![Sample { values, ..Sample::default() }])
    }
}

impl Site {
    fn values(&self, outcome: &Outcome) -> BTreeMap<String, f64> {
        let times = outcome.done.iter().filter_map(|done| done.took);
        let times_ms = ascending(times.map(|took| took.as_secs_f64() * 1e3));
        let rate = outcome.done.len() as f64 / self.clients.duration.as_secs_f64();
        let mut values = BTreeMap::from([
            (summary::RATE.to_owned(), rate),
            (summary::ERRORS.to_owned(), outcome.errors as f64),
        ]);
        for (name, percent) in [(summary::P50, 50.0), (summary::P99, 99.0)] {
            values.extend(percentile(&times_ms, percent).map(|value| (name.to_owned(), value)));
        }
        for (index, operation) in OPERATIONS.iter().enumerate() {
            let count = outcome.done.iter().filter(|done| done.operation == index).count();
            values.insert(summary::count(operation.name), count as f64);
        }
        values
    }
}

/// CPU time of each machine so far.
fn cpu_times(ground: &Ground) -> Result<Vec<Duration>> {
    let machines = 0..ground.stage.vm_count();
    machines.map(|machine| ground.stage.vm(machine).vcpu_time()).collect()
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

//! The runner of experiments with nginx in a VM that is short of CPU, over paths of several
//! lengths, in every configuration: `uploads`, `downloads` and `demo`, which differ in their
//! requests and in their reports.

pub mod compared;
mod download;
pub mod exchange;
pub mod maps;
pub mod times;

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use vsnoop_guest::control::Command;
use vsnoop_guest::web;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::{Stage, vm_address};
use vsnoop_testbed::vsnoop::Vsnoop;

use self::download::{Connection, RemoteFile};
use self::exchange::Exchange;
use self::times::{times, times_when_open};
use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::lab::Lab;
use super::rounds::Trial;
use super::spent::Clock;
use super::ways::{Way, Ways, settle};
use crate::results::{Cell, Label, Sample};

/// The period of the VM's own load. It differs from the quota's period, so that load and quota do
/// not stay in phase.
const LOAD_PERIOD_MS: u32 = 70;

/// Names of samples of downloads (`Sample::what`); uploads and the small page have none.
pub const GET: &str = "GET";
/// A second download over the same connection.
pub const GET_OPEN: &str = "GET, open connection";

/// The least and the longest time for which a connection is idle before its second download.
const IDLE_MS: std::ops::RangeInclusive<u64> = 300..=1000;

/// The option of `vsnoop attach` for downloads.
const DOWNLOADS: [&str; 2] = ["--downloads", "on"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// What a measurement of a size does, one after the other.
    #[serde(default = "uploads")]
    requests: Vec<Request>,
    /// Requests of the small page of a round.
    #[serde(default)]
    gets: usize,
    /// The least and the longest pause after attaching, in which background work of `attach` ends
    /// and the quota is refilled.
    pause_ms: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    /// An upload, on a connection of its own.
    Put,
    /// A download, on a connection of its own.
    Get,
    /// The same, and once more over the same connection after it was idle.
    GetAgain,
}

fn uploads() -> Vec<Request> {
    vec![Request::Put]
}

impl Request {
    fn is_download(self) -> bool {
        matches!(self, Self::Get | Self::GetAgain)
    }
}

/// Measures what a plan asks for.
pub fn run(task: Task) -> Result<()> {
    let settings: Settings = task.plan.settings()?;
    exchange::require_curl()?;
    let configurations = task.plan.configurations()?;
    let downloads = settings.requests.iter().any(|request| request.is_download());
    let mut requests = Requests {
        configurations,
        settings,
        files: Vec::new(),
        attach_options: Vec::new(),
        client: None,
    };
    if downloads {
        let sizes = task.plan.sizes().into_iter().filter(|size| *size != web::PAGE_BYTES);
        requests.files = sizes.map(|size_bytes| RemoteFile { size_bytes }).collect();
        requests.attach_options = download_options(&requests.configurations)?;
        let text = requests.attach_options.join(" ");
        task.record.results.environment.insert("attach_options".into(), json!(text));
    }
    let parts = guest::Options { web: true, ..guest::Options::default() };
    on_stages(task, parts, &mut requests)
}

/// What `vsnoop attach` needs for downloads; nothing, if it does not know the option.
fn download_options(configurations: &[Configuration]) -> Result<Vec<&'static str>> {
    if configurations.iter().all(|one| one.attach_options().is_none()) {
        return Ok(Vec::new());
    }
    let help = Vsnoop::find()?.command().args(["attach", "--help"]).output();
    let help = help.context("ask vsnoop for its options")?;
    let knows = String::from_utf8_lossy(&help.stdout).contains(DOWNLOADS[0]);
    if !knows {
        eprintln!("this vsnoop has no option {}: it is attached without", DOWNLOADS[0]);
    }
    Ok(DOWNLOADS.iter().copied().filter(|_| knows).collect())
}

struct Requests {
    configurations: Vec<Configuration>,
    settings: Settings,
    /// What the machines serve, beside the small page.
    files: Vec<RemoteFile>,
    attach_options: Vec<&'static str>,
    client: Option<Client>,
}

/// The client's side of a stage.
struct Client {
    ways: Ways,
    capture: Capture,
}

impl Requests {
    fn exchange<'a>(
        &'a self,
        ground: &'a Ground,
        configuration: Configuration,
    ) -> Result<Exchange<'a>> {
        let (stage, machine) = (ground.stage, ground.machine);
        let client = self.client.as_ref().context("no stage was booted")?;
        let way = client.ways.way(stage, configuration, machine)?;
        let scratch = ground.lab.session.scratch();
        Ok(Exchange { stage, capture: &client.capture, scratch, machine, way })
    }

    /// Puts the files into a machine, which may run without bound meanwhile.
    fn fill(&self, lab: &Lab, stage: &Stage, machine: usize) -> Result<()> {
        let (server, scratch) = (vm_address(machine, false), lab.session.scratch());
        stage.favour(machine, true)?;
        for file in &self.files {
            let content = (&*file.name(), file.seed(), file.size_bytes);
            exchange::put(stage.client(), (server, web::PORT).into(), content, &scratch)
                .context("put a file into a machine")?;
        }
        stage.favour(machine, false)
    }

    /// Fails if the port was attached, but without the downloads that were asked for.
    fn check_downloads(&self, ground: &Ground, configuration: Configuration) -> Result<()> {
        if self.attach_options.is_empty() || configuration.attach_options().is_none() {
            return Ok(());
        }
        let tap = configuration.tap(ground.stage, ground.machine)?;
        ground.stage.vsnoop()?.require_downloads(tap)
    }

    fn upload(&self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let exchange = self.exchange(ground, trial.configuration)?;
        let clock = || Clock::read(ground.stage, ground.machine);
        let before = clock()?;
        let (mut samples, after) =
            exchange.make_and(trial.size_bytes, self.settings.gets, clock)?;
        // Small requests come in batches.
        if let [sample] = &mut samples[..] {
            sample.values = after.since(&before);
        }
        Ok(samples)
    }

    /// One download, and if `again` another over the same connection after a pause.
    fn download(
        &self,
        ground: &Ground,
        trial: Trial<Configuration>,
        again: bool,
    ) -> Result<Vec<Sample>> {
        let Exchange { stage, capture, machine, way, .. } =
            self.exchange(ground, trial.configuration)?;
        let file = RemoteFile { size_bytes: trial.size_bytes };
        let watch = Watch { stage, capture, machine, way };
        let opened = || Connection::open(stage.client(), way.server);
        let (mut connection, sample) = watch.measure(GET, || {
            let mut connection = opened()?;
            connection.get(file)?;
            Ok(connection)
        })?;
        let mut samples = vec![sample];
        if again {
            std::thread::sleep(Duration::from_millis(fastrand::u64(IDLE_MS)));
            samples.push(watch.measure(GET_OPEN, || connection.get(file))?.1);
        }
        drop(connection);
        settle(stage)?;
        Ok(samples)
    }
}

/// What is seen of a download beside the client.
struct Watch<'a> {
    stage: &'a Stage,
    capture: &'a Capture,
    machine: usize,
    way: Way<'a>,
}

impl Watch<'_> {
    /// A sample of the one request that `act` makes.
    fn measure<T>(&self, what: &str, act: impl FnOnce() -> Result<T>) -> Result<(T, Sample)> {
        let drops = || Ok::<_, anyhow::Error>(self.stage.counts_of(self.way.tap)?.drops);
        let clock = || Clock::read(self.stage, self.machine);
        // Drops the packets captured before this measurement.
        self.capture.take()?;
        let (drops_before, clock_before) = (drops()?, clock()?);
        let value = act().with_context(|| what.to_owned())?;
        let values = clock()?.since(&clock_before);
        let (segments, port) = (self.capture.take()?, self.way.server.port());
        let times = match what {
            GET_OPEN => times_when_open(&segments, port)?,
            _ => *times(&segments, port)?.first().context("no connection was seen")?,
        };
        let what = Label::from(what).ok();
        let tap_drops = drops()? - drops_before;
        let mut sample = times.sample();
        sample.values.extend(values);
        Ok((value, Sample { what, tap_drops, ..sample }))
    }
}

impl Measure for Requests {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        for machine in 0..stage.vm_count() {
            stage.vm(machine).command(&Command::Web)?;
            self.fill(lab, stage, machine)?;
        }
        let ways = Ways::open(&mut lab.session, stage, &self.configurations, web::PORT)?;
        self.client = Some(Client { ways, capture: Capture::start(stage.client())? });
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        if !self.files.is_empty() {
            let control = ground.cell.congestion_control.unwrap_or_default().name();
            let key = "net.ipv4.tcp_congestion_control".to_owned();
            let command = Command::Sysctl { key, value: control.to_owned() };
            for machine in 0..ground.stage.vm_count() {
                ground.stage.vm(machine).command(&command)?;
            }
        }
        for &configuration in &self.configurations {
            let exchange = self.exchange(ground, configuration)?;
            exchange.make(web::PAGE_BYTES, 1).context("the first request of a cell")?;
        }
        settle(ground.stage)
    }

    fn load_period_ms(&self) -> u32 {
        LOAD_PERIOD_MS
    }

    /// Sockets of the host have the cell's congestion control, as those of the proxy have.
    fn attach_options(&self, cell: &Cell) -> Vec<&str> {
        if self.attach_options.is_empty() {
            return Vec::new();
        }
        let control = cell.congestion_control.unwrap_or_default().name();
        [&self.attach_options[..], &["--congestion-control", control]].concat()
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        self.check_downloads(ground, trial.configuration)?;
        let [least, most] = self.settings.pause_ms;
        std::thread::sleep(Duration::from_millis(fastrand::u64(least..=most)));
        if trial.size_bytes == web::PAGE_BYTES {
            return self.upload(ground, trial);
        }
        let mut samples = Vec::new();
        for request in &self.settings.requests {
            samples.extend(match request {
                Request::Put => self.upload(ground, trial)?,
                Request::Get => self.download(ground, trial, false)?,
                Request::GetAgain => self.download(ground, trial, true)?,
            });
        }
        Ok(samples)
    }

    fn leave(&mut self) {
        self.client = None;
    }
}

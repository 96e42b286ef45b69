//! The runner of experiments with nginx in a VM that is short of CPU, over paths of several
//! lengths, in every configuration: `uploads`, `downloads` and `demo`, which differ in their
//! requests and in their reports.

mod client;
mod times;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use vsnoop_guest::control::Command;
use vsnoop_guest::web;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::{Stage, vm_address};

use self::client::{Connection, File};
use self::times::{Times, times, times_when_open};
use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::lab::{Lab, guest_image};
use super::rounds::Trial;
use super::spent::Clock;
use super::ways::{Way, settle};
use crate::results::{Cell, Label, Sample, TAP_DROPS};

/// The period of the VM's own load. It differs from the quota's period, so that load and quota do
/// not stay in phase.
const LOAD_PERIOD_MS: u32 = 70;

/// Names of samples of downloads (`Sample::what`); uploads and the small page have none.
const GET: &str = "GET";
/// A second download over the same connection.
const GET_OPEN: &str = "GET, open connection";

/// The least and the longest time for which a connection is idle before its second download.
const IDLE_MS: std::ops::RangeInclusive<u64> = 300..=1000;

/// Options of `vsnoop attach` for downloads.
const DOWNLOADS: [&str; 2] = ["--downloads", "on"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The requests of a measurement, one after the other.
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
    /// A download on a connection of its own, and another over it after it was idle.
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
    let plan = task.plan()?;
    let settings: Settings = plan.settings()?;
    let configurations = plan.configurations()?;
    let downloads = settings.requests.iter().any(|request| request.is_download());
    let mut files = Vec::new();
    if downloads {
        let sizes = plan.sizes().into_iter().filter(|size| *size != web::PAGE_BYTES);
        files.extend(sizes.map(File::served));
        let text = DOWNLOADS.join(" ");
        task.record.results.environment.insert("attach_options".into(), json!(text));
    }
    let mut requests = Requests { configurations, settings, files, downloads, capture: None };
    let image = guest_image(guest::Options { web: true, ..guest::Options::default() })?;
    on_stages(task, image, &mut requests)
}

struct Requests {
    configurations: Vec<Configuration>,
    settings: Settings,
    /// The files that the machines serve, beside the small page.
    files: Vec<File>,
    /// Whether ports are attached for downloads, too.
    downloads: bool,
    /// The packets of a stage's client.
    capture: Option<Capture>,
}

impl Requests {
    fn watch<'a>(&'a self, ground: &'a Ground, configuration: Configuration) -> Result<Watch<'a>> {
        let (stage, machine) = (ground.stage, ground.machine);
        let capture = self.capture.as_ref().context("no stage was booted")?;
        Ok(Watch { stage, capture, machine, way: ground.way(configuration)? })
    }

    /// Puts the files into a machine, which may run without bound meanwhile.
    fn fill(&self, stage: &Stage, machine: usize) -> Result<()> {
        let server = (vm_address(machine, false), web::PORT).into();
        stage.favour(machine, true)?;
        for file in &self.files {
            let sent = Connection::open(stage.client(), server)?.put(file, &file.content());
            sent.context("put a file into a machine")?;
        }
        stage.favour(machine, false)
    }

    /// Fails if the port was attached, but without the downloads that were asked for.
    fn check_downloads(&self, ground: &Ground, configuration: Configuration) -> Result<()> {
        if !self.downloads || configuration.attach_options().is_none() {
            return Ok(());
        }
        let tap = configuration.tap(ground.stage, ground.machine)?;
        ground.stage.vsnoop()?.require_downloads(tap)
    }

    /// Fetches the small page so often, each time over a connection of its own.
    fn get_pages(
        &self,
        ground: &Ground,
        configuration: Configuration,
        count: usize,
    ) -> Result<Vec<Sample>> {
        let watch = self.watch(ground, configuration)?;
        let get = |_| watch.open()?.get_page();
        let (_, samples) = watch.measure(None, || (0..count).try_for_each(get))?;
        ensure!(samples.len() == count, "{} connections were seen, not {count}", samples.len());
        settle(ground.stage)?;
        Ok(samples)
    }

    /// Uploads a file, which the guest compares.
    fn upload(&self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let watch = self.watch(ground, trial.configuration)?;
        let (seed, size_bytes) = (fastrand::u64(..), trial.size_bytes);
        let file = File { name: "upload".to_owned(), seed, size_bytes };
        let content = file.content();
        let (_, samples) = watch.measure(None, || {
            let mut connection = watch.open()?;
            connection.put(&file, &content)?;
            Ok(connection)
        })?;
        settle(ground.stage)?;
        let command = Command::VerifyFile { name: file.name, seed, size_bytes };
        ground.stage.vm(ground.machine).command(&command)?;
        Ok(samples)
    }

    /// One download, and if `again` another over the same connection after a pause.
    fn download(
        &self,
        ground: &Ground,
        trial: Trial<Configuration>,
        again: bool,
    ) -> Result<Vec<Sample>> {
        let watch = self.watch(ground, trial.configuration)?;
        let file = File::served(trial.size_bytes);
        let (mut connection, mut samples) = watch.measure(Some(GET), || {
            let mut connection = watch.open()?;
            connection.get(&file)?;
            Ok(connection)
        })?;
        if again {
            std::thread::sleep(Duration::from_millis(fastrand::u64(IDLE_MS)));
            samples.extend(watch.measure(Some(GET_OPEN), || connection.get(&file))?.1);
        }
        drop(connection);
        settle(ground.stage)?;
        Ok(samples)
    }
}

/// Watches requests beside the client.
struct Watch<'a> {
    stage: &'a Stage,
    capture: &'a Capture,
    machine: usize,
    way: Way<'a>,
}

impl Watch<'_> {
    fn open(&self) -> Result<Connection> {
        Connection::open(self.stage.client(), self.way.server)
    }

    /// A sample of each request that `act` makes. A single one has what the VM did meanwhile.
    fn measure<T>(
        &self,
        what: Option<&str>,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<Sample>)> {
        let drops = || Ok::<_, anyhow::Error>(self.stage.counts_of(self.way.tap)?.drops);
        let clock = || Clock::read(self.stage, self.machine);
        // Drops the packets captured before this measurement.
        self.capture.take()?;
        let (drops_before, clock_before) = (drops()?, clock()?);
        let value = act().with_context(|| what.unwrap_or("a request").to_owned())?;
        let values = clock()?.since(&clock_before);
        let (segments, port) = (self.capture.take()?, self.way.server.port());
        let times = match what {
            Some(GET_OPEN) => vec![times_when_open(&segments, port)?],
            _ => times(&segments, port)?,
        };
        let tap_drops = (drops()? - drops_before) as f64;
        let what = what.and_then(|what| Label::from(what).ok());
        let sample = |times: &Times| {
            let mut sample = Sample { what, ..times.sample() };
            sample.values.insert(TAP_DROPS.into(), tap_drops);
            sample
        };
        let mut samples: Vec<_> = times.iter().map(sample).collect();
        if let [sample] = &mut samples[..] {
            sample.values.extend(values);
        }
        ensure!(!samples.is_empty(), "no connection was seen");
        Ok((value, samples))
    }
}

impl Measure for Requests {
    fn port(&self) -> u16 {
        web::PORT
    }

    fn booted(&mut self, _: &mut Lab, stage: &Stage) -> Result<()> {
        for machine in 0..stage.vm_count() {
            stage.vm(machine).command(&Command::Web)?;
            self.fill(stage, machine)?;
        }
        self.capture = Some(Capture::start(stage.client())?);
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        if !self.files.is_empty() {
            let control = ground.control();
            let key = "net.ipv4.tcp_congestion_control".to_owned();
            let command = Command::Sysctl { key, value: control.to_owned() };
            for machine in 0..ground.stage.vm_count() {
                ground.stage.vm(machine).command(&command)?;
            }
        }
        for &configuration in &self.configurations {
            self.get_pages(ground, configuration, 1).context("the first request of a cell")?;
        }
        Ok(())
    }

    fn load_period_ms(&self) -> u32 {
        LOAD_PERIOD_MS
    }

    /// Sockets of the host have the cell's congestion control, as those of the proxy have.
    fn attach_options(&self, cell: &Cell) -> Vec<&str> {
        if !self.downloads {
            return Vec::new();
        }
        let control = cell.congestion_control.unwrap_or_default().name();
        [&DOWNLOADS[..], &["--congestion-control", control]].concat()
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        self.check_downloads(ground, trial.configuration)?;
        let [least, most] = self.settings.pause_ms;
        std::thread::sleep(Duration::from_millis(fastrand::u64(least..=most)));
        if trial.size_bytes == web::PAGE_BYTES {
            return self.get_pages(ground, trial.configuration, self.settings.gets);
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
        self.capture = None;
    }
}

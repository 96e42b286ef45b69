//! Bulk transfers of a VM that is late, with vsnoop and with HAProxy on the host: the CPU time that
//! they cost the host, and the goodput of each direction. A download is one connection, as of
//! `iperf3 -R`, by the guest's transfer server: the guest has no iperf3. A run whose download was
//! not split fails, as it would compare Linux with HAProxy.
//!
//! ```text
//! core 1: [client]--200 Mb/s, 20 ms--+                             +--[vCPU, 20 % of the core]
//! core 0:                            +--[host: tap, or HAProxy]----+
//! ```
//! A guest of QEMU with a CPU quota always has more work than that. Client and path share its core:
//! what comes by the path is processed on the host's (receive packet steering), as if a network
//! card had received it. The link cuts super-packets into segments of MTU size.
//!
//! *CPU time of the host* is the time in which the machine's CPUs were neither idle nor stolen, by
//! all processes, interrupts and softirqs, without that of the vCPU and of this process, which is
//! client and path. QEMU's other threads count, as vhost would. What else runs on the machine
//! counts, too: the run says how much there is at rest, and leaves the figure out if that is too
//! much. It also says what the host's processes took of it, which hardly depends on what else runs.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer::Direction::{self, Download, Upload};
use vsnoop_guest::transfer::PORT;
use vsnoop_lab::experiment::cpus::CpuTimes;
use vsnoop_lab::peers::proxy::Proxy;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::process::with_first_argument;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::path::{PathLink, PathOptions};
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage};
use vsnoop_testbed::vm::{self, OnHostCore, Share};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::figures::{figure, median, median_ratio, say};

const QUOTA: Share = Share::Quota { percent: 20 };
const LOAD_PERIOD_MS: u32 = 70;
const RTT: Duration = Duration::from_millis(20);
const LINK: PathLink = PathLink { rate_mbit: 200, queue_bytes: 1_000_000 };
const ROUNDS: usize = 5;
/// An interrupted run, or one that hangs, ends within it.
const LIMIT: Duration = Duration::from_secs(120);
/// Half a second after `attach` the host knows that the VM is late.
const PAUSE: Duration = Duration::from_secs(1);
/// CPUs in use at rest, above which CPU time is that of other programs, and no figure.
const BUSY: f64 = 0.1;
const DIRECTIONS: [Direction; 2] = [Upload, Download];
const ATTACH: [&str; 4] = ["--downloads", "on", "--congestion-control", CONGESTION_CONTROL];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Off,
    Vsnoop,
    Proxy,
}

const WAYS: [Way; 3] = [Way::Off, Way::Vsnoop, Way::Proxy];

impl Way {
    /// Off is slow, and in no figure.
    fn size_bytes(self) -> u64 {
        if self == Self::Off { 8_000_000 } else { 32_000_000 }
    }
}

/// Processes of the host, by their first arguments.
const PROCESSES: [(&str, &str); 5] = [
    ("QEMU without its vCPU", "-name"),
    ("engine", "engine"),
    ("helper", "helper"),
    ("splitter", "splitter"),
    ("HAProxy", "-db"),
];

/// CPU time of each of them.
type OfProcesses = [Duration; PROCESSES.len()];

/// The cost of one transfer.
#[derive(Clone, Copy, Debug)]
struct Cost {
    host_cpu: Duration,
    of_processes: OfProcesses,
    time: Duration,
}

/// Transfers of one way in one direction.
#[derive(Clone, Debug, Default)]
struct Measured {
    cpu_s_per_gb: Vec<f64>,
    of_processes_s_per_gb: [Vec<f64>; PROCESSES.len()],
    mbit: Vec<f64>,
}

impl Measured {
    fn add(&mut self, size_bytes: u64, cost: Cost) {
        let size = size_bytes as f64;
        let per_gb = |time: Duration| time.as_secs_f64() / (size / 1e9);
        self.cpu_s_per_gb.push(per_gb(cost.host_cpu));
        for (all, one) in self.of_processes_s_per_gb.iter_mut().zip(cost.of_processes) {
            all.push(per_gb(one));
        }
        self.mbit.push(size * 8.0 / 1e6 / cost.time.as_secs_f64());
    }

    fn text(&self) -> String {
        let medians = self.of_processes_s_per_gb.clone().map(median);
        let named = PROCESSES.iter().zip(medians).filter(|(_, median)| *median >= 0.05);
        let of_processes: Vec<_> =
            named.map(|((name, _), median)| format!("{name} {median:.1}")).collect();
        format!(
            "{:.1} s of CPU per GB ({}), {:.1} Mb/s",
            median(self.cpu_s_per_gb.clone()),
            of_processes.join(", "),
            median(self.mbit.clone())
        )
    }
}

/// By way and direction.
type All = [[Measured; DIRECTIONS.len()]; WAYS.len()];

pub fn measure() -> Result<Vec<Figure>> {
    // A thread of its own takes its core along when it ends.
    let measured = thread::spawn(measure_on_guest_core).join();
    measured.map_err(|_| anyhow!("the thread of a benchmark panicked"))?
}

fn measure_on_guest_core() -> Result<Vec<Figure>> {
    vm::require_two_cores()?;
    let image = guest::prepare(guest::Options::default())?;
    // Rust drops these in reverse order: the last one ends first.
    let mut session = Session::begin()?;
    session.allow_congestion_control(CONGESTION_CONTROL)?;
    let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
    let vsnoop = Vsnoop::find()?;
    let mut stage = Stage::build(&mut session, &image, accelerator, 1, Some(&vsnoop))?;
    stage.share(QUOTA)?;
    stage.vm(0).command(&Command::Load { share: 1.0, period_ms: LOAD_PERIOD_MS })?;
    set_congestion_control(&stage)?;
    vm::as_a_guest()?;
    stage.set_path(&PathOptions { rtt: RTT, segment_loss: 0.0, link: Some(LINK) })?;
    stage.receive_on_host_core()?;
    let proxy = {
        let _host = OnHostCore::enter()?;
        Proxy::start(&mut session, &stage, PORT)?
    };
    Bench { stage: &stage, proxy: proxy.address(0), at_rest: Vec::new() }.measure()
}

/// Sets it at both ends, and for the proxy.
fn set_congestion_control(stage: &Stage) -> Result<()> {
    let key = "net.ipv4.tcp_congestion_control";
    for netns in [stage.client(), stage.host()] {
        netns.set_sysctl(key, CONGESTION_CONTROL)?;
    }
    let command = Command::Sysctl { key: key.into(), value: CONGESTION_CONTROL.into() };
    stage.vm(0).command(&command).map(drop)
}

struct Bench<'a> {
    stage: &'a Stage,
    proxy: SocketAddr,
    /// CPUs that the host uses between transfers.
    at_rest: Vec<f64>,
}

impl Bench<'_> {
    fn measure(mut self) -> Result<Vec<Figure>> {
        let mut all = All::default();
        for round in 0..ROUNDS {
            // Each round begins with another way.
            for turn in 0..WAYS.len() {
                let way = (round + turn) % WAYS.len();
                self.measure_way(WAYS[way], &mut all[way])?;
            }
            say(&format!("beside HAProxy, round {} of {ROUNDS}", round + 1));
        }
        let most = self.at_rest.iter().copied().fold(0.0, f64::max);
        let at_rest = median(self.at_rest);
        say(&format!("at rest the host uses {at_rest:.2} CPUs, {most:.2} at most"));
        Ok(figures(&all, at_rest))
    }

    fn measure_way(&mut self, way: Way, into: &mut [Measured; DIRECTIONS.len()]) -> Result<()> {
        let stage = self.stage;
        if way == Way::Vsnoop {
            let _host = OnHostCore::enter()?;
            stage.attach_with(0, &ATTACH)?;
            stage.vsnoop()?.require_downloads(stage.tap(0))?;
        }
        for (direction, measured) in DIRECTIONS.into_iter().zip(into) {
            interrupt::check()?;
            let rest = cost_of(stage, || {
                thread::sleep(PAUSE);
                Ok(())
            })?;
            self.at_rest.push(rest.host_cpu.as_secs_f64() / rest.time.as_secs_f64());
            let cost = match (way, direction) {
                (Way::Vsnoop, Download) => self.cost_of_split_download(),
                _ => cost_of(stage, || self.transfer(way, direction)),
            };
            measured
                .add(way.size_bytes(), cost.with_context(|| format!("{direction:?}, {way:?}"))?);
        }
        if way == Way::Vsnoop {
            stage.detach(0)?;
        }
        Ok(())
    }

    fn cost_of_split_download(&self) -> Result<Cost> {
        let before = split_connections(self.stage)?;
        let cost = cost_of(self.stage, || self.transfer(Way::Vsnoop, Download))?;
        let is_split = split_connections(self.stage)? > before;
        ensure!(is_split, "the download was not split: was the VM late? There are no figures");
        Ok(cost)
    }

    fn transfer(&self, way: Way, direction: Direction) -> Result<()> {
        let request = Request {
            server: if way == Way::Proxy { self.proxy } else { self.stage.server(0) },
            direction,
            size_bytes: way.size_bytes(),
            seed: fastrand::u64(..),
            congestion_control: CONGESTION_CONTROL,
            timeout: LIMIT,
        };
        match client::transfer(self.stage.client(), &request)? {
            Outcome::Exact(_) => Ok(()),
            other => bail!("a bulk transfer: {other:?}"),
        }
    }
}

/// Connections that were split since the port was attached.
fn split_connections(stage: &Stage) -> Result<u64> {
    let stats = stage.vsnoop()?.stats(stage.tap(0))?;
    let total = &stats["ports"][0]["split"]["split"];
    total.as_u64().context("vsnoop stats does not say how many connections were split")
}

fn figures(all: &All, at_rest: f64) -> Vec<Figure> {
    for (way, measured) in WAYS.iter().zip(all) {
        for (direction, measured) in DIRECTIONS.iter().zip(measured) {
            say(&format!("{direction:?}, {way:?}: {}", measured.text()));
        }
    }
    let [_, on, proxy] = all;
    let mut figures = Vec::new();
    if at_rest > BUSY {
        say("other programs are busy: host_cpu_per_gb_over_proxy is left out");
    } else {
        let ratios = on.iter().zip(proxy);
        let cpu = ratios
            .map(|(on, proxy)| median_ratio(&on.cpu_s_per_gb, &proxy.cpu_s_per_gb))
            .fold(0.0, f64::max);
        figures.push(figure("host_cpu_per_gb_over_proxy", cpu, "ratio", "lower"));
    }
    let names = ["bulk_upload_over_proxy", "bulk_download_over_proxy"];
    for ((name, on), proxy) in names.into_iter().zip(on).zip(proxy) {
        figures.push(figure(name, median_ratio(&on.mbit, &proxy.mbit), "ratio", "higher"));
    }
    figures
}

/// Measures what the client's act costs.
fn cost_of(stage: &Stage, act: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let before = Clock::read(stage)?;
    act()?;
    Clock::read(stage)?.since(&before)
}

/// CPU time since the machine has booted, the VM and the processes.
struct Clock {
    at: Instant,
    machine: CpuTimes,
    vcpu: Duration,
    own: Duration,
    processes: OfProcesses,
}

impl Clock {
    fn read(stage: &Stage) -> Result<Self> {
        let processes = of_processes()?;
        let (vcpu, own) = (stage.vm(0).vcpu_time()?, cpu_time(Pid::this())?);
        Ok(Self { at: Instant::now(), machine: CpuTimes::read()?, vcpu, own, processes })
    }

    fn since(&self, before: &Self) -> Result<Cost> {
        let time = self.at - before.at;
        let vcpu = self.vcpu - before.vcpu;
        let used = self.machine.used_since(&before.machine, time)?;
        let host_cpu = used.saturating_sub(vcpu + self.own - before.own);
        let mut of_processes = self.processes;
        for (process, before) in of_processes.iter_mut().zip(before.processes) {
            // Another one may have taken its place.
            *process = process.saturating_sub(before);
        }
        let [qemu, ..] = &mut of_processes;
        *qemu = qemu.saturating_sub(vcpu);
        Ok(Cost { host_cpu, of_processes, time })
    }
}

/// CPU time of all threads of a process so far, to the nanosecond.
fn cpu_time(pid: Pid) -> Result<Duration> {
    let time = clock_getcpuclockid(pid).and_then(|clock| clock.now());
    Ok(time.with_context(|| format!("ask for the CPU time of process {pid}"))?.into())
}

fn of_processes() -> Result<OfProcesses> {
    let mut all = OfProcesses::default();
    for ((_, argument), time) in PROCESSES.iter().zip(&mut all) {
        let pids = with_first_argument(argument)?.into_iter().map(Pid::from_raw);
        // One may have ended meanwhile.
        *time = pids.filter_map(|pid| cpu_time(pid).ok()).sum();
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cpu: f64, mbit: f64) -> Measured {
        Measured { cpu_s_per_gb: vec![cpu; 3], mbit: vec![mbit; 3], ..Measured::default() }
    }

    fn figures_at_rest(at_rest: f64) -> Vec<(String, f64)> {
        let on = [measured(6.0, 80.0), measured(4.0, 90.0)];
        let proxy = [measured(8.0, 100.0), measured(8.0, 100.0)];
        let figures = figures(&[Default::default(), on, proxy], at_rest);
        figures.into_iter().map(|figure| (figure.name, figure.value)).collect()
    }

    #[test]
    fn cpu_time_is_the_larger_of_both_directions_and_each_has_its_goodput() {
        let expected = [
            ("host_cpu_per_gb_over_proxy".into(), 0.75),
            ("bulk_upload_over_proxy".into(), 0.8),
            ("bulk_download_over_proxy".into(), 0.9),
        ];
        assert_eq!(figures_at_rest(BUSY), expected);
    }

    #[test]
    fn beside_busy_programs_there_is_no_figure_of_cpu_time() {
        let figures = figures_at_rest(BUSY + 0.01);
        let names: Vec<_> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["bulk_upload_over_proxy", "bulk_download_over_proxy"]);
    }
}

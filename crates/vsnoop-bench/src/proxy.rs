//! Bulk transfers of a VM that is late, with vsnoop and with HAProxy on the host: the CPU time that
//! they cost the host, and the goodput of a download (one connection, as `iperf3 -R`, by the
//! transfer server of the guest, which has no iperf3).
//!
//! ```text
//! core 1: [client]--200 Mb/s, 20 ms--+                                 +--[vCPU, 20 % of the core]
//! core 0:                            +--[host: tap attached, or HAProxy]--+
//! ```
//! A guest of QEMU with a CPU quota always has more work than that. Client and path share its core:
//! what they send is processed on the host's (receive packet steering), as from a network card.
//!
//! *CPU time of the host* is all time of the machine's CPUs that was neither idle nor stolen, in all
//! processes, interrupts and softirqs, without that of the vCPU and of this process, which is
//! client and path. QEMU's other threads count, as vhost would. Whatever else runs on the machine
//! counts, too: it should be quiet.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::unistd::Pid;
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer::Direction::{self, Download, Upload};
use vsnoop_guest::transfer::PORT;
use vsnoop_lab::experiment::cpus::CpuTimes;
use vsnoop_lab::peers::proxy::Proxy;
use vsnoop_lab::results::Figure;
use vsnoop_lab::usage;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
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
const ROUNDS: usize = 3;
const SIZE_BYTES: u64 = 32_000_000;
const LIMIT: Duration = Duration::from_secs(120);
/// Half a second after `attach` the host knows that the VM is late.
const PAUSE: Duration = Duration::from_secs(1);
const DIRECTIONS: [Direction; 2] = [Upload, Download];
const ATTACH: [&str; 4] = ["--downloads", "on", "--congestion-control", CONGESTION_CONTROL];

/// Which way transfers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Off,
    Vsnoop,
    Proxy,
}

const WAYS: [Way; 3] = [Way::Off, Way::Vsnoop, Way::Proxy];

/// Of the transfers of one way, by direction.
#[derive(Default)]
struct Measured {
    cpu_s_per_gb: [Vec<f64>; DIRECTIONS.len()],
    mbit: [Vec<f64>; DIRECTIONS.len()],
}

pub fn measure() -> Result<Vec<Figure>> {
    // A thread of its own takes its core along when it ends.
    let measured = thread::spawn(measure_on_guest_core).join();
    measured.map_err(|_| anyhow!("the thread of a benchmark panicked"))?
}

fn measure_on_guest_core() -> Result<Vec<Figure>> {
    vm::require_two_cores()?;
    let image = guest::prepare(guest::Options::default())?;
    // In the order in which they are begun: the last one ends first.
    let mut session = Session::begin()?;
    session.allow_congestion_control(CONGESTION_CONTROL)?;
    let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
    let vsnoop = Vsnoop::find()?;
    let mut stage = Stage::build(&mut session, &image, accelerator, 1, Some(&vsnoop))?;
    stage.share(QUOTA)?;
    stage.vm(0).command(&Command::Load { share: 1.0, period_ms: LOAD_PERIOD_MS })?;
    use_cubic(&stage)?;
    vm::as_a_guest()?;
    stage.set_path(&PathOptions { rtt: RTT, segment_loss: 0.0, link: Some(LINK) })?;
    stage.receive_on_host_core()?;
    let proxy = {
        let _host = OnHostCore::enter()?;
        Proxy::start(&mut session, &stage, PORT)?
    };
    figures(&stage, proxy.address(0))
}

fn use_cubic(stage: &Stage) -> Result<()> {
    let (key, value) = ("net.ipv4.tcp_congestion_control", CONGESTION_CONTROL);
    for netns in [stage.client(), stage.host()] {
        netns.set_sysctl(key, value)?;
    }
    let command = Command::Sysctl { key: key.into(), value: value.into() };
    stage.vm(0).command(&command).map(drop)
}

fn figures(stage: &Stage, proxy: SocketAddr) -> Result<Vec<Figure>> {
    let mut all: [Measured; WAYS.len()] = Default::default();
    for round in 0..ROUNDS {
        // Each round begins with another one.
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            measure_way(stage, WAYS[way], proxy, &mut all[way])?;
        }
    }
    for (way, measured) in WAYS.iter().zip(&all) {
        for (direction, of) in DIRECTIONS.iter().zip(0..) {
            let (cpu, mbit) = (&measured.cpu_s_per_gb[of], &measured.mbit[of]);
            let (cpu, mbit) = (median(cpu.clone()), median(mbit.clone()));
            say(&format!("{direction:?}, {way:?}: {cpu:.2} s of CPU per GB, {mbit:.1} Mb/s"));
        }
    }
    let [_, on, proxy] = &all;
    let ratios = on.cpu_s_per_gb.iter().zip(&proxy.cpu_s_per_gb);
    let cpu = ratios.map(|(on, proxy)| median_ratio(on, proxy)).fold(0.0, f64::max);
    let [_, goodput] = [0, 1].map(|of| median_ratio(&on.mbit[of], &proxy.mbit[of]));
    Ok(vec![
        figure("host_cpu_per_gb_over_proxy", cpu, "ratio", "lower"),
        figure("bulk_download_over_proxy", goodput, "ratio", "higher"),
    ])
}

/// A transfer in each direction.
fn measure_way(stage: &Stage, way: Way, proxy: SocketAddr, into: &mut Measured) -> Result<()> {
    let server = if way == Way::Proxy { proxy } else { stage.server(0) };
    if way == Way::Vsnoop {
        attach(stage)?;
    }
    thread::sleep(PAUSE);
    for (of, direction) in DIRECTIONS.into_iter().enumerate() {
        interrupt::check()?;
        let transfer = transfer(stage, server, direction);
        let (host, took) = transfer.with_context(|| format!("{direction:?}, {way:?}"))?;
        into.cpu_s_per_gb[of].push(host.as_secs_f64() / (SIZE_BYTES as f64 / 1e9));
        into.mbit[of].push(SIZE_BYTES as f64 * 8.0 / 1e6 / took.as_secs_f64());
    }
    if way == Way::Vsnoop {
        let stats = stage.vsnoop()?.stats(stage.tap(0))?;
        if stats["ports"][0]["split"]["split"] == 0 {
            say("the download was not split: was the VM late?");
        }
        stage.detach(0)?;
    }
    Ok(())
}

fn attach(stage: &Stage) -> Result<()> {
    let _host = OnHostCore::enter()?;
    stage.attach_with(0, &ATTACH)?;
    let status = stage.vsnoop()?.status(stage.tap(0))?;
    ensure!(status["ports"][0]["downloads"] == true, "downloads stay off: see `vsnoop doctor`");
    Ok(())
}

/// The host's CPU time, and how long it took.
fn transfer(
    stage: &Stage,
    server: SocketAddr,
    direction: Direction,
) -> Result<(Duration, Duration)> {
    let request = Request {
        server,
        direction,
        size_bytes: SIZE_BYTES,
        seed: fastrand::u64(..),
        congestion_control: CONGESTION_CONTROL,
        timeout: LIMIT,
    };
    let before = Clock::read(stage)?;
    match client::transfer(stage.client(), &request)? {
        Outcome::Exact(_) => (),
        other => bail!("a bulk transfer: {other:?}"),
    }
    let after = Clock::read(stage)?;
    Ok((after.host_since(&before)?, after.at - before.at))
}

struct Clock {
    at: Instant,
    machine: CpuTimes,
    vcpu: Duration,
    own: Duration,
}

impl Clock {
    fn read(stage: &Stage) -> Result<Self> {
        let (vcpu, own) = (stage.vm(0).vcpu_time()?, usage::cpu_time(Pid::this())?);
        Ok(Self { at: Instant::now(), machine: CpuTimes::read()?, vcpu, own })
    }

    fn host_since(&self, before: &Self) -> Result<Duration> {
        let used = self.machine.used_since(&before.machine, self.at - before.at)?;
        Ok(used.saturating_sub(self.vcpu - before.vcpu).saturating_sub(self.own - before.own))
    }
}

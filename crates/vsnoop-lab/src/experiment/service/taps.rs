//! Taps come and go; one stays, so that helper and engine have work before and after.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::net::if_::if_nametoindex;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::{Net, Netns, Tap, TapOptions};
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::wait::{pause, wait_until};

use super::daemon::{Apart, Daemon, PATIENCE, Role};
use super::plan::Coming;
use crate::experiment::progress::Progress;
use crate::results::Values;
use crate::usage::{cpu_time, descriptors, maps};

const STAYS: &str = "vnet-stays";
const LOOK: Duration = Duration::from_millis(1);
/// The processes rest before they are looked at: the helper looks four times a second.
const REST: Duration = Duration::from_secs(3);

/// What was measured of each tap, and of all.
pub struct Measured {
    pub attach_ms: Vec<f64>,
    pub values: Values,
}

pub fn measure(
    session: &mut Session,
    apart: &Apart,
    taps: usize,
    plan: Coming,
) -> Result<Measured> {
    let netns = Net::new(PREFIX).host("taps")?;
    let text = "[[port]]\ninterface = \"vnet*\"\nhold = \"256K\"\n";
    let daemon = Daemon::start(session, apart, &netns, text)?;
    let _stays = bring(&netns, STAYS)?;
    daemon.until_active(1)?;
    pause(REST)?;
    let before = Kept::look(&daemon)?;
    let cpu_before = Cpu::look(&daemon)?;
    let began = Instant::now();
    let attach_ms = come_and_go(&netns, &daemon, taps, plan)?;
    let seconds = began.elapsed().as_secs_f64();
    wait_until("nothing of the taps is left", PATIENCE, || {
        Ok(daemon.pinned().len() == before.pinned)
    })
    .with_context(|| format!("left: {:?}", daemon.pinned()))?;
    pause(REST)?;
    let after = Kept::look(&daemon)?;
    let cpu = Cpu::look(&daemon)?;
    let values = Values::from([
        ("taps".into(), taps as f64),
        ("seconds".into(), seconds),
        ("service_cpu_s".into(), cpu.service.saturating_sub(cpu_before.service).as_secs_f64()),
        (
            "background_cpu_s".into(),
            cpu.background.saturating_sub(cpu_before.background).as_secs_f64(),
        ),
        ("pins_left".into(), after.pinned as f64 - before.pinned as f64),
        ("descriptors_left".into(), after.descriptors as f64 - before.descriptors as f64),
        ("maps_left".into(), after.maps as f64 - before.maps as f64),
    ]);
    Ok(Measured { attach_ms, values })
}

/// A tap that is up.
fn bring(netns: &Netns, name: &str) -> Result<Tap> {
    let tap = netns.tap(name, &TapOptions::default())?;
    netns.up(name)?;
    Ok(tap)
}

/// From the command that sets each tap up until its port is there, in milliseconds.
fn come_and_go(netns: &Netns, daemon: &Daemon, taps: usize, plan: Coming) -> Result<Vec<f64>> {
    let every = Duration::from_millis(plan.every_ms);
    let mut progress = Progress::new(taps);
    let (mut there, mut times) = (VecDeque::new(), Vec::new());
    let began = Instant::now();
    for number in 0..taps {
        pause((every * number as u32).saturating_sub(began.elapsed()))?;
        let name = format!("vnet{number}");
        let tap = netns.tap(&name, &TapOptions::default())?;
        let index = netns.run(|| Ok(if_nametoindex(name.as_str())?))?;
        let pins = daemon.pins(index);
        let up_at = Instant::now();
        netns.up(&name)?;
        while !pins.exists() {
            interrupt::check()?;
            ensure!(up_at.elapsed() < PATIENCE, "{name} is not attached: {}", daemon.log());
            thread::sleep(LOOK);
        }
        times.push(up_at.elapsed().as_secs_f64() * 1e3);
        there.push_back(tap);
        if there.len() > plan.there {
            there.pop_front();
        }
        progress.step(format!("{name} attached"));
    }
    Ok(times)
}

/// What must be the same before and after.
struct Kept {
    pinned: usize,
    descriptors: usize,
    maps: usize,
}

impl Kept {
    fn look(daemon: &Daemon) -> Result<Self> {
        let pids = daemon.pids()?;
        let descriptors = pids.iter().map(|pid| descriptors(*pid)).sum::<Result<usize>>()?;
        Ok(Self { pinned: daemon.pinned().len(), descriptors, maps: maps(&pids)?.count })
    }
}

struct Cpu {
    service: Duration,
    /// Helper and engine.
    background: Duration,
}

impl Cpu {
    fn look(daemon: &Daemon) -> Result<Self> {
        let pids = Role::ALL.into_iter().filter_map(|role| daemon.pid_of(role));
        let background = pids.map(cpu_time).sum::<Result<Duration>>()?;
        Ok(Self { service: cpu_time(daemon.pid()?)?, background })
    }
}

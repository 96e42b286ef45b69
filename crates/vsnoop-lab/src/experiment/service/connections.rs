//! Very many short connections leave memory, maps and descriptors as they were.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::topology::{PORT, Topology};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::{pause, wait_until};

use super::daemon::{Daemon, number};
use super::plan::Short;
use super::rig::Rig;
use super::short;
use crate::experiment::progress::Progress;
use crate::results::Values;
use crate::usage::{descriptors, maps, status_kilobytes};

/// Readings under way.
const READINGS: u64 = 10;
/// Records of connections that have ended stay for 10 s, so that this many are there at a time.
const SETTINGS: &str = "max_flows = 65536\nhold = \"64M\"\n";
const LOOK: Duration = Duration::from_millis(500);
/// Records of which the end was not seen expire after 4 minutes.
const EXPIRY: Duration = Duration::from_secs(600);

/// What the service and its port have.
pub struct Reading {
    /// Connections that were over.
    pub connections: u64,
    pub values: Values,
}

/// Readings before, under way and after.
pub fn measure(
    session: &mut Session,
    vsnoop: &Vsnoop,
    count: u64,
    plan: Short,
) -> Result<Vec<Reading>> {
    let Rig { daemon, topology } = Rig::build(session, vsnoop, SETTINGS)?;
    short::run(&topology, plan, plan.warm_up, |_| Ok(()))?;
    until_idle(&daemon)?;
    let mut readings = vec![read(&daemon, 0)?];
    let before = daemon.vsnoop.stats(PORT)?["ports"][0].take();
    let began = Instant::now();
    let counts = run(&daemon, &topology, (plan, count), &mut readings)?;
    let seconds = began.elapsed().as_secs_f64();
    until_idle(&daemon)?;
    let complete = counts.complete.load(Ordering::Relaxed);
    let mut last = read(&daemon, count)?;
    let after = daemon.vsnoop.stats(PORT)?["ports"][0].take();
    for name in ["early_acks", "flows_created", "flows_refused", "kept_bytes"] {
        let more = number(&after, &[name])? - number(&before, &[name])?;
        last.values.insert(name.into(), more);
    }
    last.values.extend([
        ("complete".into(), complete as f64),
        ("broken".into(), counts.broken.load(Ordering::Relaxed) as f64),
        ("seconds".into(), seconds),
    ]);
    readings.push(last);
    Ok(readings)
}

fn run(
    daemon: &Daemon,
    topology: &Topology,
    (plan, count): (Short, u64),
    readings: &mut Vec<Reading>,
) -> Result<short::Counts> {
    let mut progress = Progress::new(READINGS as usize);
    let every = (count / READINGS).max(1);
    let mut next = every;
    short::run(topology, plan, count, |over| {
        if over >= next && over < count {
            readings.push(read(daemon, over)?);
            while next <= over {
                next += every;
                progress.step(format!("{over} connections"));
            }
        }
        Ok(())
    })
}

fn read(daemon: &Daemon, connections: u64) -> Result<Reading> {
    let pids = daemon.pids()?;
    let mut values = Values::new();
    let mut sum = 0;
    for (name, pid) in ["service", "helper", "engine"].into_iter().zip(&pids) {
        let kilobytes = status_kilobytes(*pid, "VmRSS")?;
        sum += kilobytes;
        values.insert(format!("rss_mb_{name}"), kilobytes as f64 / 1024.0);
    }
    let open = pids.iter().map(|pid| descriptors(*pid)).sum::<Result<usize>>()?;
    let maps = maps(&pids)?;
    let status = daemon.vsnoop.status(PORT)?["ports"][0].take();
    values.extend([
        ("rss_mb".into(), sum as f64 / 1024.0),
        ("descriptors".into(), open as f64),
        ("maps".into(), maps.count as f64),
        ("maps_mb".into(), maps.bytes as f64 / f64::from(1 << 20)),
        ("flows".into(), number(&status, &["flows"])?),
        ("hold_flows".into(), number(&status, &["hold", "flows"])?),
        ("hold_used_bytes".into(), number(&status, &["hold", "used_bytes"])?),
        ("hold_memory_bytes".into(), number(&status, &["hold", "memory_bytes"])?),
    ]);
    Ok(Reading { connections, values })
}

/// Waits until no record of a connection is left, and the hold has given its memory back.
fn until_idle(daemon: &Daemon) -> Result<()> {
    let (mut records, mut bytes) = (0.0, 0.0);
    wait_until("the port is idle", EXPIRY, || {
        pause(LOOK)?;
        let port = daemon.vsnoop.status(PORT)?["ports"][0].take();
        records = number(&port, &["flows"])?;
        bytes = number(&port, &["hold", "memory_bytes"])?;
        Ok(records == 0.0 && bytes == 0.0)
    })
    .with_context(|| format!("{records} records are left, and {bytes} bytes of the hold"))
}

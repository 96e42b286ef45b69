//! Very many short connections leave memory, maps and descriptors as they were.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::topology::{PORT, Topology};
use vsnoop_testbed::wait::{pause, wait_until};

use super::daemon::{Apart, Daemon, number};
use super::kills;
use super::plan::Short;
use super::rig::Rig;
use super::short;
use crate::experiment::progress::Progress;
use crate::results::Values;
use crate::usage::{descriptors, maps, status_kilobytes};

/// In each reading: how many connections were over.
pub const CONNECTIONS: &str = "connections";
/// Readings under way.
const READINGS: u64 = 10;
/// Records of connections that have ended stay for 10 s, so that this many are there at a time.
const SETTINGS: &str = "max_flows = 65536\nhold = \"64M\"\n";
const LOOK: Duration = Duration::from_millis(500);
/// Records of which the end was not seen expire after 4 minutes.
const EXPIRY: Duration = Duration::from_secs(600);

/// Reads before, under way and after. A reading has the number of connections that have ended, and
/// how many of those that ended since the reading before were complete and how many broken. `made`
/// of the `count` connections were made before this run was interrupted. `push` gets all readings
/// but the last, which is the result.
pub fn measure(
    session: &mut Session,
    apart: &Apart,
    (made, count): (u64, u64),
    plan: Short,
    push: &mut dyn FnMut(Values) -> Result<()>,
) -> Result<Values> {
    let Rig { daemon, topology } = Rig::build(session, apart, SETTINGS)?;
    short::run(&topology, plan, plan.warm_up, |_| Ok(()))?;
    until_idle(&daemon)?;
    let mut readings = Readings { daemon: &daemon, made, began: Instant::now(), before: None };
    // Of a run that goes on, there is one of that number.
    let first = readings.read(&short::Counts::default())?;
    if made == 0 {
        push(first)?;
    }
    let counts = run(&topology, (plan, count), &mut readings, push)?;
    // Before the records expire.
    let seconds = readings.began.elapsed().as_secs_f64();
    until_idle(&daemon)?;
    let mut last = readings.read(&counts)?;
    last.insert("seconds".into(), seconds);
    Ok(last)
}

fn run(
    topology: &Topology,
    (plan, count): (Short, u64),
    readings: &mut Readings,
    push: &mut dyn FnMut(Values) -> Result<()>,
) -> Result<short::Counts> {
    let made = readings.made;
    let mut progress = Progress::new(READINGS as usize);
    let every = (count / READINGS).max(1);
    progress.skip((made / every) as usize);
    let mut next = made / every * every + every;
    short::run(topology, plan, count.saturating_sub(made), |counts| {
        let over = made + counts.over();
        if over >= next && over < count {
            push(readings.read(counts)?)?;
            while next <= over {
                next += every;
                progress.step(format!("{over} connections"));
            }
        }
        Ok(())
    })
}

/// What is counted from one reading to the next.
struct Readings<'a> {
    daemon: &'a Daemon<'a>,
    /// By an earlier part of the run.
    made: u64,
    /// Of the reading before.
    began: Instant,
    before: Option<Values>,
}

impl Readings<'_> {
    fn read(&mut self, counts: &short::Counts) -> Result<Values> {
        let port = self.daemon.vsnoop.stats(PORT)?["ports"][0].take();
        let complete = counts.complete.load(Ordering::Relaxed);
        let broken = counts.broken.load(Ordering::Relaxed);
        let mut now =
            Values::from([("complete".into(), complete as f64), ("broken".into(), broken as f64)]);
        for name in ["early_acks", "flows_created", "flows_refused", "kept_bytes"] {
            now.insert(name.into(), number(&port, &[name])?);
        }
        let before = self.before.replace(now.clone()).unwrap_or_else(|| now.clone());
        let mut values = read(self.daemon)?;
        values.extend(kills::more(&now, &before));
        let began = std::mem::replace(&mut self.began, Instant::now());
        values.insert("seconds".into(), began.elapsed().as_secs_f64());
        // Others have ended since.
        values.insert(CONNECTIONS.into(), (self.made + complete + broken) as f64);
        Ok(values)
    }
}

/// What the service and its port have.
fn read(daemon: &Daemon) -> Result<Values> {
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
    Ok(values)
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

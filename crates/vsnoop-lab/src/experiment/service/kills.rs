//! The service is killed again and again under load, and helper and engine in turn.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::wait::{pause, wait_until};

use super::daemon::{Apart, Daemon, PATIENCE, Role, number};
use super::load::{Load, repeated};
use super::plan::Worker;
use super::rig::Rig;
use crate::experiment::progress::Progress;
use crate::results::Values;

/// `RestartSec` of deploy/vsnoop.service.
const RESTART: Duration = Duration::from_secs(1);
/// Of the connection that lives as long as the load: each way, while each service is gone.
const STEP_BYTES: u64 = 1_000_000;

/// Kills the service once for each of these numbers, and after it the helper or the engine. For
/// each kill `push` gets what was counted since the kill before; the result is what was counted
/// after the last kill.
pub fn measure(
    session: &mut Session,
    apart: &Apart,
    kills: Range<usize>,
    workers: &[Worker],
    push: &mut dyn FnMut(Values) -> Result<()>,
) -> Result<Values> {
    ensure!(kills.end > 0, "an experiment needs at least one round");
    let Rig { mut daemon, topology } = Rig::build(session, apart, "")?;
    let load = Load::default();
    let steps = kills.len() as u64 + 1;
    let long = StreamPlan {
        to_vm_bytes: steps * STEP_BYTES,
        from_vm_bytes: steps * STEP_BYTES,
        pause_every_bytes: Some(STEP_BYTES),
        ..StreamPlan::default()
    };
    let stream = Stream::start(&topology, &long)?;
    let mut counted = Values::new();
    let killed = thread::scope(|scope| {
        for plan in workers.iter().map(repeated) {
            let (load, topology) = (&load, &topology);
            scope.spawn(move || load.work(topology, &plan));
        }
        let mut progress = Progress::new(kills.end);
        progress.skip(kills.start);
        let killed = kills.clone().try_for_each(|number| -> Result<()> {
            kill(&mut daemon, session, &load, &stream, Role::ALL[number % Role::ALL.len()])?;
            let now = count(&daemon, &load)?;
            let mut values = more(&now, &counted);
            values.extend([("kills".into(), 1.0), ("background_kills".into(), 1.0)]);
            counted = now;
            push(values)?;
            progress.step(format!("{} connections", load.complete()));
            Ok(())
        });
        load.stop();
        killed
    });
    match stream.finish() {
        Ok(outcome) if outcome.is_complete() => load.count(&long),
        Ok(outcome) => load.broke(format!("{outcome:?}")),
        Err(error) => load.broke(format!("{error:#}")),
    }
    killed?;
    Ok(more(&count(&daemon, &load)?, &counted))
}

/// Kills the service, and starts it again when a connection has completed without it; then one
/// of its other processes.
fn kill(
    daemon: &mut Daemon,
    session: &mut Session,
    load: &Load,
    stream: &Stream,
    role: Role,
) -> Result<()> {
    stream.wait_paused()?;
    let complete = load.complete();
    daemon.kill();
    stream.step();
    pause(RESTART)?;
    wait_until("a connection completes while no service runs", PATIENCE, || {
        Ok(load.complete() > complete)
    })?;
    daemon.restart(session)?;
    daemon.kill_role(role)
}

/// Connections and bytes of the load, and counters of the port, since the load began.
fn count(daemon: &Daemon, load: &Load) -> Result<Values> {
    let stats = daemon.vsnoop.stats(PORT)?["ports"][0].take();
    let resets = stats["resets"].as_object().into_iter().flatten();
    let resets: f64 =
        resets.filter(|(key, _)| *key != "bytes").filter_map(|(_, n)| n.as_f64()).sum();
    Ok(Values::from([
        ("complete".into(), load.complete() as f64),
        ("broken".into(), load.broken() as f64),
        ("bytes".into(), load.bytes() as f64),
        ("early_bytes".into(), number(&stats, &["early_bytes"])?),
        ("held_bytes".into(), number(&stats, &["held_bytes"])?),
        ("resets".into(), resets),
    ]))
}

/// By how much each count has grown.
pub fn more(now: &Values, before: &Values) -> Values {
    let before = |name| before.get(name).copied().unwrap_or(0.0);
    now.iter().map(|(name, value)| (name.clone(), value - before(name))).collect()
}

//! The service is killed again and again under load, and helper and engine in turn.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::PORT;
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::{pause, wait_until};

use super::daemon::{Daemon, PATIENCE, Role, number};
use super::load::{Load, repeated};
use super::plan::Worker;
use super::rig::Rig;
use crate::experiment::progress::Progress;
use crate::results::Values;

/// `RestartSec` of deploy/vsnoop.service.
const RESTART: Duration = Duration::from_secs(1);
/// Of the connection that lives as long as the load: each way, while each service is gone.
const STEP_BYTES: u64 = 1_000_000;

/// Kills the service `kills` times, and another process after each.
pub fn measure(
    session: &mut Session,
    vsnoop: &Vsnoop,
    kills: usize,
    workers: &[Worker],
) -> Result<Values> {
    ensure!(kills > 0, "an experiment needs at least one round");
    let Rig { mut daemon, topology } = Rig::build(session, vsnoop, "")?;
    let load = Load::default();
    let long = StreamPlan {
        to_vm_bytes: (kills as u64 + 1) * STEP_BYTES,
        from_vm_bytes: (kills as u64 + 1) * STEP_BYTES,
        pause_every_bytes: Some(STEP_BYTES),
        ..StreamPlan::default()
    };
    let stream = Stream::start(&topology, &long)?;
    let killed = thread::scope(|scope| {
        for plan in workers.iter().map(repeated) {
            let (load, topology) = (&load, &topology);
            scope.spawn(move || load.work(topology, &plan));
        }
        let killed = kill_in_turn(&mut daemon, session, &load, &stream, kills);
        load.stop();
        killed
    });
    match stream.finish() {
        Ok(outcome) if outcome.is_complete() => load.count(&long),
        Ok(outcome) => load.broke(format!("{outcome:?}")),
        Err(error) => load.broke(format!("{error:#}")),
    }
    killed?;
    let stats = daemon.vsnoop.stats(PORT)?["ports"][0].take();
    let resets = stats["resets"].as_object().into_iter().flatten();
    let resets: f64 =
        resets.filter(|(key, _)| *key != "bytes").filter_map(|(_, n)| n.as_f64()).sum();
    Ok(Values::from([
        ("kills".into(), kills as f64),
        ("background_kills".into(), kills as f64),
        ("complete".into(), load.complete() as f64),
        ("broken".into(), load.broken() as f64),
        ("bytes".into(), load.bytes() as f64),
        ("early_bytes".into(), number(&stats, &["early_bytes"])?),
        ("held_bytes".into(), number(&stats, &["held_bytes"])?),
        ("resets".into(), resets),
    ]))
}

fn kill_in_turn(
    daemon: &mut Daemon,
    session: &mut Session,
    load: &Load,
    stream: &Stream,
    kills: usize,
) -> Result<()> {
    let mut progress = Progress::new(kills);
    for number in 0..kills {
        stream.wait_paused()?;
        let complete = load.complete();
        daemon.kill();
        stream.step();
        pause(RESTART)?;
        wait_until("a connection completes while no service runs", PATIENCE, || {
            Ok(load.complete() > complete)
        })?;
        daemon.restart(session)?;
        Role::ALL[number % Role::ALL.len()].kill()?;
        progress.step(format!("{} connections", load.complete()));
    }
    Ok(())
}

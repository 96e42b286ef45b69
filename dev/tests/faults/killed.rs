//! SIGKILL at any instant.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::{Netns, Offloads};
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, Side, TopologyOptions};
use vsnoop_testbed::wait::wait_until;

use crate::attached::Attached;
use crate::background::Process::{self, Engine, Helper};
use crate::case::{Case, SHARING_A_CORE};
use crate::scene::{self, held};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("killed::engine_50_times_super_packets", || {
            again_and_again(Family::V4, Offloads::SUPER_PACKETS, Faults::default())
        }),
        trial("killed::engine_50_times_mtu_sized_and_the_guest_loses_segments", || {
            let to_vm = Faults { loss: 0.02, data_only: true, ..Faults::default() };
            again_and_again(Family::V6, Offloads::NONE, to_vm)
        }),
        trial("killed::engine_while_the_vm_stands_still", || once(&[Engine])),
        trial("killed::helper_while_the_vm_stands_still", || once(&[Helper])),
        trial("killed::both_and_the_next_command_starts_them", || once(&[Helper, Engine])),
        trial("killed::both_and_the_service_starts_them_without_a_command", of_service),
        trial("killed::engine_and_the_port_is_paused", paused),
    ]
}

/// Far longer than a service takes to start.
const PATIENCE: Duration = Duration::from_secs(120);
const KILLS: u64 = 50;
/// The least number of kills while only the host has some of the data.
const KILLS_WITH_HELD_DATA: u64 = KILLS / 5;

/// Streams both ways, one after the other, while the engine is killed.
fn again_and_again(family: Family, offloads: Offloads, to_vm: Faults) -> Result<()> {
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        hold: Some("16M"),
        freezes: &[SHARING_A_CORE],
        to_vm,
        ..base
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let over = AtomicBool::new(false);
    let streams = |opener: Side| -> Result<u64> {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            let plan = StreamPlan {
                family,
                opener,
                to_vm_bytes: 3_000_000,
                from_vm_bytes: 500_000,
                seed: count * 2 + opener as u64,
                ..StreamPlan::default()
            };
            let outcome = Stream::run(&topology, &plan).with_context(|| attached.describe())?;
            ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
            count += 1;
        }
        Ok(count)
    };
    std::thread::scope(|scope| -> Result<()> {
        let running = [Side::Client, Side::Vm].map(|opener| {
            let streams = &streams;
            scope.spawn(move || streams(opener))
        });
        let killed = kill_again_and_again(&attached, || running.iter().any(|it| it.is_finished()));
        over.store(true, Ordering::Relaxed);
        join_streams(running)?;
        killed
    })?;
    topology.guest().set_freeze(Freeze::Never);
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Requires that each thread brought at least one stream to its end beside the kills.
pub fn join_streams<'a>(
    running: impl IntoIterator<Item = ScopedJoinHandle<'a, Result<u64>>>,
) -> Result<()> {
    for stream in running {
        match stream.join() {
            Ok(count) => ensure!(count? > 0, "no stream came to its end"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(())
}

fn kill_again_and_again(attached: &Attached<'_>, over: impl Fn() -> bool) -> Result<()> {
    let (mut killed, mut with_held_data) = (0, 0);
    while killed < KILLS || with_held_data < KILLS_WITH_HELD_DATA {
        ensure!(!over(), "a stream ended after {killed} kills");
        ensure!(killed < 20 * KILLS, "the engine had nothing to do when it was killed");
        let pid = Engine.next(None)?;
        // At any instant, also while it begins.
        std::thread::sleep(Duration::from_micros(fastrand::u64(..60_000)));
        let held = attached.hold("held_bytes")?;
        ensure!(Engine.kill()? == pid, "the engine {pid} ended by itself");
        killed += 1;
        with_held_data += u64::from(held > 0);
    }
    Ok(())
}

/// With data that only the host has; who is left, or the next command, starts those that were
/// killed.
fn once(processes: &[Process]) -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = held(&topology, &attached)?;
    let before = processes.iter().map(|it| it.kill()).collect::<Result<Vec<_>>>()?;
    if processes.len() > 1 {
        attached.run(&["status"])?;
    }
    for (process, before) in processes.iter().zip(before) {
        process.next(Some(before))?;
    }
    scene::ends_exact(&topology, attached, pair)
}

/// No command comes, and no packet; each would end 30 s later if the service did not look.
fn of_service() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let service = Service::start(&topology.host)?;
    let pair = held(&topology, &attached)?;
    let before = [Helper, Engine].map(|it| it.kill());
    for (process, before) in [Helper, Engine].into_iter().zip(before) {
        process.next(Some(before?))?;
    }
    let ended = scene::ends_exact(&topology, attached, pair);
    drop(service);
    ended
}

/// A service that attaches nothing; ended when dropped.
struct Service {
    child: Child,
    config: PathBuf,
}

impl Service {
    fn start(host: &Netns) -> Result<Self> {
        let config = PathBuf::from(format!("/run/vsnoop/{}.toml", host.name()));
        fs::write(&config, "[[port]]\ninterface = \"none\"\n")?;
        let mut command = Command::new(crate::host::program());
        command.args(["--netns", host.name(), "run", "--config"]).arg(&config);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let service = Self { child, config };
        wait_until("the service runs", PATIENCE, || {
            let mut status = Command::new(crate::host::program());
            Ok(status.args(["status", "--service"]).output()?.status.success())
        })?;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.config);
    }
}

/// Draining needs an engine.
fn paused() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = held(&topology, &attached)?;
    Engine.kill()?;
    topology.guest().set_freeze(Freeze::Never);
    std::thread::scope(|scope| -> Result<()> {
        let mut vm = pair.vm.twin()?;
        let reading = scope.spawn(move || vm.receive(scene::BYTES));
        attached.run(&["pause", vsnoop_testbed::topology::PORT, "--timeout", "60"])?;
        match reading.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
    .with_context(|| attached.describe())?;
    ensure!(attached.hold("held_bytes")? == 0, "{}", attached.describe());
    attached.ensure_no_reset()
}

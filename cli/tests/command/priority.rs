//! The helper and the engine set their own scheduling, whatever they inherit.

use std::fs;

use anyhow::{Context, Result};
use libtest_mimic::Trial;
use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getsid};
use vsnoop_testbed::process;

use crate::sandbox::{PORT, TapHost, running, vsnoop_under, wait_until};
use crate::surroundings::{port_of, wait_for_a_look};
use crate::trial;

const SCHED_FIFO: i64 = 1;
/// Processes for each CPU that never block.
const BUSY: usize = 8;

/// How a process is scheduled (proc(5), /proc/PID/stat).
#[derive(Debug, PartialEq, Eq)]
struct Scheduling {
    policy: i64,
    priority: i64,
    nice: i64,
    cpus: usize,
    leads_its_session: bool,
}

pub fn trials() -> Vec<Trial> {
    let ways: [(&str, &[&str]); 6] = [
        ("fifo", &["chrt", "-f", "3"]),
        ("idle", &["chrt", "-i", "0"]),
        ("batch", &["chrt", "-b", "0"]),
        ("timeout", &["timeout", "120"]),
        ("nice", &["nice", "-n", "19"]),
        ("one_cpu", &["taskset", "-c", "0"]),
    ];
    let mut trials: Vec<_> = ways
        .into_iter()
        .map(|(name, way)| {
            trial(&format!("helper_and_engine_choose_their_scheduling_under_{name}"), move || {
                chosen_under(name, way)
            })
        })
        .collect();
    trials.extend(trials![the_helper_has_its_turn_beside_busy_processes]);

    trials
}

fn the_helper_has_its_turn_beside_busy_processes() -> Result<()> {
    let host = TapHost::new("busy")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let port = port_of(&host)?;
    let spinning = Spinning::start()?;
    for _ in 0..10 {
        wait_for_a_look(&port)?;
    }
    drop(spinning);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn chosen_under(name: &str, way: &[&str]) -> Result<()> {
    let cpus = cpus_of(0)?;
    let host = TapHost::new(name)?;
    end_background()?;
    let attach = ["--netns", host.netns.name(), "attach", PORT, "--hold", "1M"];
    vsnoop_under(way, &attach)?.ok()?;
    for role in ["helper", "engine"] {
        let pid = running(role)?;
        let expected =
            Scheduling { policy: SCHED_FIFO, priority: 1, nice: 0, cpus, leads_its_session: true };
        // It does so first of all, but only once it gets a CPU.
        let mut found = scheduling(pid)?;
        let waited = wait_until("it chooses its scheduling", || {
            found = scheduling(pid)?;
            Ok(found == expected)
        });
        waited.with_context(|| format!("{role}: {found:?} instead of {expected:?}"))?;
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// Ends the background processes of other tests, which would be found: those as well that wait for
/// the lock of the running one, or are about to start another.
pub fn end_background() -> Result<()> {
    wait_until("all helpers and engines have ended", || {
        let all = background()?;
        for pid in &all {
            // It may just have ended by itself.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        Ok(all.is_empty())
    })
}

/// Process ids of the helpers, engines and splitters in this mount namespace.
fn background() -> Result<Vec<i32>> {
    let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = mounts("self").context("no mount namespace")?;
    let mut found = process::with_first_argument("helper")?;
    found.extend(process::with_first_argument("engine")?);
    found.extend(process::with_first_argument("splitter")?);
    found.retain(|pid| mounts(&pid.to_string()).as_ref() == Some(&own));
    Ok(found)
}

fn scheduling(pid: i32) -> Result<Scheduling> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("it has ended")?;
    let after_name = stat.rsplit_once(") ").context("no name")?.1;
    let words: Vec<_> = after_name.split(' ').collect();
    // Numbered from 1 in proc(5); the state is the third.
    let field = |number: usize| -> Result<i64> {
        words.get(number - 3).context("too short")?.parse().context("no number")
    };
    let process = Pid::from_raw(pid);
    Ok(Scheduling {
        policy: field(41)?,
        priority: field(40)?,
        nice: field(19)?,
        cpus: cpus_of(pid)?,
        leads_its_session: getsid(Some(process))? == process && getpgid(Some(process))? == process,
    })
}

fn cpus_of(pid: i32) -> Result<usize> {
    let set = sched_getaffinity(Pid::from_raw(pid))?;
    Ok((0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).count())
}

/// Ordinary processes that never block, as long as the value lives.
struct Spinning(Vec<std::process::Child>);

impl Spinning {
    fn start() -> Result<Self> {
        let count = BUSY * std::thread::available_parallelism()?.get();
        let mut spinning = Self(Vec::new());
        for _ in 0..count {
            let mut shell = std::process::Command::new("sh");
            spinning.0.push(shell.args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(spinning)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

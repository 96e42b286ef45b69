//! A control group that may have less memory than the hold of a port: the hold grows no further,
//! and the kernel ends no process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Family;
use vsnoop_testbed::wait::wait_until;

use crate::background::Process::{Engine, Helper};
use crate::case::Case;
use crate::pair::{End, Pair};
use crate::{host, scene, trial};

/// More than fits into the groups. One connection does not fill it: its window has a bound.
const HOLD: &str = "128M";
const CONNECTIONS: usize = 24;
const EACH: u64 = 5_000_000;
/// The least that is held before the group is full.
const HELD: u64 = 2 << 20;
/// A hold that has not grown in this number of looks has stopped. On a busy machine each takes its
/// time, and the senders wait for longer the longer their VM stands still.
const LOOKS: u32 = 8;
const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(300);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("memory::nothing_is_killed_in_a_group_of_48_mb", || limited(48)),
        trial("memory::nothing_is_killed_in_a_group_of_80_mb", || limited(80)),
    ]
}

fn limited(mib: u64) -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = Case { hold: Some(HOLD), ..scene::still() }.attach(&topology)?;
    let group = Group::new(mib << 20)?;
    let pids = group.move_in()?;
    attached.wait_until("the engine works", || Ok(attached.hold_text("engine")? == "alive"))?;
    let connect = |_| Pair::connect(&topology, Family::V4);
    let mut pairs = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>>>()?;
    topology.guest().set_freeze(Freeze::Now);
    let clients = pairs.iter().map(|pair| pair.client.twin()).collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| -> Result<()> {
        let send = |mut client: End| scope.spawn(move || client.send(EACH));
        let sending: Vec<_> = clients.into_iter().map(send).collect();
        let (mut held, mut unchanged) = (0, 0);
        wait_until("the hold grows no further", PATIENCE, || {
            let now = attached.hold("held_bytes")?;
            unchanged = if now == held && now > HELD { unchanged + 1 } else { 0 };
            held = now;
            thread::sleep(LOOK);
            Ok(unchanged == LOOKS)
        })
        .with_context(|| attached.describe())?;
        ensure!(held < mib << 20, "{held} bytes are held: the group does not limit them");
        ensure!(group.kills()? == 0, "{} processes were killed", group.kills()?);
        topology.guest().set_freeze(Freeze::Never);
        for pair in &mut pairs {
            pair.vm.receive(EACH).with_context(|| attached.describe())?;
        }
        sending
            .into_iter()
            .try_for_each(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    ensure!(group.kills()? == 0, "{} processes were killed", group.kills()?);
    ensure!([Helper.next(None)?, Engine.next(None)?] == pids, "one came in the place of another");
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()?;
    Helper.kill_all()?;
    Engine.kill_all()
}

/// A group of the memory controller; it goes when dropped, after its processes.
struct Group {
    mounted_at: PathBuf,
    directory: PathBuf,
    is_unified: bool,
}

impl Group {
    fn new(limit_bytes: u64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut hierarchies = mounts.lines().filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let [_, point, kind, options, ..] = words[..] else { return None };
            let is_first = kind == "cgroup" && options.split(',').any(|it| it == "memory");
            let controllers = Path::new(point).join("cgroup.controllers");
            let is_second = kind == "cgroup2"
                && fs::read_to_string(controllers).is_ok_and(|text| text.contains("memory"));
            (is_first || is_second).then(|| (PathBuf::from(point), is_second))
        });
        let (mounted_at, is_unified) =
            hierarchies.next().context("no memory controller is mounted")?;
        if is_unified {
            fs::write(mounted_at.join("cgroup.subtree_control"), "+memory")?;
        }
        let directory = mounted_at.join(format!("vsfaults-{}", fastrand::u64(..)));
        fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
        let group = Self { mounted_at, directory, is_unified };
        let limit = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(group.directory.join(limit), limit_bytes.to_string())?;
        Ok(group)
    }

    /// Has other ones of helper and engine run in the group, as in a container, which cannot leave
    /// it.
    fn move_in(&self) -> Result<[i32; 2]> {
        let helper = Helper.stop()?;
        let before = Engine.next(None)?;
        // Command and helper may each have started one, of which the second waits for the lock.
        Engine.kill_all()?;
        let script = format!(
            "echo 0 > {directory}/cgroup.procs && mount --bind {point} {point} && \
             mount -o remount,bind,ro {point} && exec \"$@\"",
            directory = self.directory.display(),
            point = self.mounted_at.display(),
        );
        let mut engine = Command::new("unshare");
        engine.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        engine.arg(host::program()).arg("engine");
        // The helper, which would take it from this process, is another one by then.
        engine.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let engine = Engine.next(Some(before))?;
        let stopped = Helper.kill()?;
        drop(helper);
        // The engine starts it.
        let helper = Helper.next(Some(stopped))?;
        let here = fs::read_to_string(self.directory.join("cgroup.procs"))?;
        for pid in [helper, engine] {
            let is_here = here.lines().any(|line| line == pid.to_string());
            ensure!(is_here, "process {pid} is not in the group: {here:?}");
        }
        Ok([helper, engine])
    }

    /// How many processes the kernel has killed there for want of memory.
    fn kills(&self) -> Result<u64> {
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.directory.join(file))?;
        let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(value.with_context(|| format!("no count in {text}"))?.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for process in [Helper, Engine] {
            let _ = process.kill_all();
        }
        let _ = wait_until("the group is empty", PATIENCE, || {
            Ok(fs::remove_dir(&self.directory).is_ok() || !self.directory.exists())
        });
    }
}

//! Control groups: helper and engine outlive the session of the command that started them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{PORT, TapHost, is_running, pid_of, running, vsnoop_under, wait_until};

pub fn trials() -> Vec<Trial> {
    trials![
        helper_and_engine_outlive_the_control_group_of_the_command_that_starts_them,
        a_control_group_that_cannot_be_left_is_named,
    ]
}

/// A group of its own in one hierarchy; what is in it is killed, and it goes, when dropped.
struct Group {
    mounted_at: PathBuf,
    directory: PathBuf,
    /// Its path in /proc/PID/cgroup.
    path: String,
}

impl Group {
    /// In each hierarchy of this host by which sessions end: version 2, and that of systemd.
    fn of_all(role: &str) -> Result<Vec<Self>> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let ends_sessions = |line: &&str| {
            let mut words = line.split(' ').skip(2);
            let (kind, options) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            kind == "cgroup2" || options.split(',').any(|option| option == "name=systemd")
        };
        let points = mounts.lines().filter(ends_sessions).filter_map(|line| line.split(' ').nth(1));
        points.map(|point| Self::new(Path::new(point), role)).collect()
    }

    fn new(mounted_at: &Path, role: &str) -> Result<Self> {
        // Unlike process ids, those of PID namespaces differ between programs side by side.
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let name = format!("vscli-{role}-{namespace}-{}", std::process::id());
        let directory = mounted_at.join(&name);
        fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
        Ok(Self { mounted_at: mounted_at.to_owned(), directory, path: format!("/{name}") })
    }

    /// The processes that are in it.
    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    fn end(&self) -> Result<()> {
        wait_until(&format!("{} is empty", self.directory.display()), || {
            let pids = self.pids();
            for pid in &pids {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
            Ok(pids.is_empty())
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.end();
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Is the process in one of the groups?
fn is_in(pid: i32, groups: &[Group]) -> Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    Ok(groups.iter().any(|group| text.lines().any(|line| line.ends_with(&group.path))))
}

/// Those of an earlier test stay for a while.
fn until_none_runs() -> Result<()> {
    wait_until("neither helper nor engine runs", || {
        Ok(pid_of("helper")?.is_none() && pid_of("engine")?.is_none())
    })
}

/// A shell that moves to these groups, does what `then` says, and becomes what follows.
fn moved(groups: &[Group], then: &str) -> String {
    let moves = groups
        .iter()
        .map(|group| format!("echo 0 > {}/cgroup.procs || exit 99; ", group.directory.display()));
    format!("{}{then} exec \"$@\"", moves.collect::<String>())
}

fn helper_and_engine_outlive_the_control_group_of_the_command_that_starts_them() -> Result<()> {
    let host = TapHost::new("logout")?;
    let groups = Group::of_all("logout")?;
    until_none_runs()?;
    ensure!(!groups.is_empty(), "no hierarchy of control groups is mounted");
    let script = moved(&groups, "");
    let attach = ["--netns", host.netns.name(), "attach", PORT];
    let ran = vsnoop_under(&["sh", "-c", &script, "sh"], &attach)?.ok()?;
    ensure!(!ran.err.contains("control group"), "{}", ran.err);
    let before = [running("helper")?, running("engine")?];
    for pid in before {
        ensure!(!is_in(pid, &groups)?, "process {pid} is still in the group of the command");
    }
    groups.iter().try_for_each(Group::end)?;
    // Version 2 has a file that kills all that are in the group.
    for group in &groups {
        let _ = fs::write(group.directory.join("cgroup.kill"), "1");
    }
    ensure!(before.into_iter().all(is_running), "they ended with the session");
    ensure!([running("helper")?, running("engine")?] == before, "others took their place");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// Hierarchies that are mounted read-only, as in a container, keep helper and engine in the group.
fn a_control_group_that_cannot_be_left_is_named() -> Result<()> {
    let host = TapHost::new("session")?;
    let groups = Group::of_all("session")?;
    until_none_runs()?;
    let read_only = groups.iter().map(|group| {
        let point = group.mounted_at.display();
        format!("mount --bind {point} {point} && mount -o remount,bind,ro {point} || exit 98; ")
    });
    let script = moved(&groups, &read_only.collect::<String>());
    let under = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let ran = vsnoop_under(&under, &["--netns", host.netns.name(), "attach", PORT])?.ok()?;
    let said: Vec<_> =
        ran.err.lines().filter(|line| line.contains("cannot leave the control group")).collect();
    ensure!(said.len() == 1, "not one line: {}", ran.err);
    for words in [&*groups[0].path, "systemctl enable --now vsnoop", "systemd-run --scope"] {
        ensure!(said[0].contains(words), "{words:?} is not in: {}", ran.err);
    }
    ensure!(is_in(running("helper")?, &groups)?, "the test does not keep it there");
    host.vsnoop(["detach", PORT])?.ok()?;
    groups.iter().try_for_each(Group::end)
}

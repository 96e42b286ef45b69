//! Disturbs a lab: signals, a crash, a run beside it, a full disk, no control groups, missing
//! packages, a guest that does not boot. Each run ends with a clear message, a clean host, and the
//! samples kept.
//!
//! The test program plays the lab: it starts itself in a role, or the command, in a network
//! namespace and a /run of its own, and looks at what is left there.

mod scripts;

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_lab::results::record::Record;
use vsnoop_lab::results::{Results, Sample};
use vsnoop_testbed::guest::{self, Image, System};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Net;
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::vm::quota::Quota;
use vsnoop_testbed::vm::{self, Accelerator, Vm};

use scripts::{AGAIN, ALL, SIGNALS};
use scripts::{BARE, BESIDE, CLEAN, COMMAND, HOST, INCAST, INSTALLING, KILLED, MEASURING, NO_ROOM};

/// The command.
const LAB: &str = env!("CARGO_BIN_EXE_vsnoop-lab");
const SETTING: &str = "net.ipv4.tcp_fin_timeout";
const NO_BOOT: &str = "a_guest_that_does_not_boot_is_named_with_what_it_printed";
const NO_ROOM_FOR_REPORT: &str = "a_disk_without_room_for_a_report_costs_no_measurement";
const ANYWHERE: &str = "a_run_that_is_interrupted_anywhere_is_gone_on_with";
const INCAST_ANYWHERE: &str = "an_interrupted_run_with_senders_is_gone_on_with_and_leaves_nothing";
const OF_ALL: &str = "an_interrupted_run_of_all_goes_on_with_the_experiments_that_are_left";
const OF_A_VM: &str = "a_run_that_is_interrupted_while_a_vm_is_measured_leaves_nothing_behind";

type Test = fn() -> Result<()>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().unwrap_or_default();
    let mut argument = || arguments.next().context("an argument is missing");
    match role.as_str() {
        "--lab" => return lab(&argument()?),
        "--begin" => return Session::begin().map(drop),
        "--record" => return record(Path::new(&argument()?)),
        "--quota" => return Quota::new(Pid::this(), 20).map(drop),
        "--no-kernel" => return no_kernel(),
        "--make" => return make(Path::new(&argument()?)),
        _ => (),
    }
    let tests: [(&str, Test); 13] = [
        ("two_signals_leave_neither_setting_nor_namespace_behind", two_signals),
        ("a_killed_lab_is_cleared_up_after_by_the_next_one", killed),
        ("labs_beside_each_other_share_a_setting_of_the_kernel", beside),
        ("a_full_disk_is_named_and_the_samples_before_it_are_kept", full_disk),
        (NO_ROOM_FOR_REPORT, no_room),
        ("a_quota_without_control_groups_says_what_it_needs", no_control_groups),
        (NO_BOOT, no_boot),
        (ANYWHERE, command),
        (OF_A_VM, measuring),
        (INCAST_ANYWHERE, senders),
        (OF_ALL, all),
        ("an_interrupted_installation_of_a_guest_leaves_nothing_half_made", installing),
        ("missing_programs_are_named_with_their_packages", bare),
    ];
    let trial = |(name, test): (&str, Test)| {
        let test = move || test().map_err(|error| Failed::from(format!("{error:#}")));
        let trial = Trial::test(name, test);
        let is_root = nix::unistd::geteuid().is_root();
        let able = is_root
            && match name {
                NO_BOOT => vm::require_qemu().is_ok(),
                OF_A_VM => vm::require_qemu().and_then(|()| vm::require_two_cores()).is_ok(),
                _ => true,
            };
        let kind = match able {
            true => "",
            false => "skipped: needs root, and QEMU where a guest boots, and two cores for a VM",
        };
        trial.with_kind(kind).with_ignored_flag(!able)
    };
    let trials = tests.iter().copied().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// One that clients in every network namespace may choose; only the host's own may allow more.
fn allowed_congestion_control() -> Result<&'static str> {
    let file = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let is_allowed = |name: &&str| allowed.split_whitespace().any(|known| known == *name);
    ["cubic", "bbr", "reno"].into_iter().find(is_allowed).context("the host allows none of these")
}

/// Changes a setting and makes a namespace; a signal and then a line end it.
fn lab(setting: &str) -> Result<()> {
    interrupt::install()?;
    let mut session = Session::begin()?;
    session.set_sysctl(SETTING, setting)?;
    let _netns = Net::new(PREFIX).host("vm")?;
    println!("{}", std::process::id());
    while !interrupt::interrupted() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // A step of clearing up, which takes its time.
    stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Measures until the disk is full, then makes room and goes on.
fn record(dir: &Path) -> Result<()> {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![0; 40_000])?;
    let open = || Record::open(dir, Results::begin("test", Default::default()), "same");
    let mut record = open()?;
    let sample = |turn| Sample { turn: Some(turn), ..Sample::default() };
    let error = (0..100_000).find_map(|turn| record.push(sample(turn)).err());
    println!("error: {:#}", error.context("the disk is never full")?);
    let kept = record.results.samples.len() - 1;
    drop(record);
    std::fs::remove_file(ballast)?;
    let mut record = open()?;
    ensure!(record.results.samples.len() == kept, "{} of {kept}", record.results.samples.len());
    record.push(sample(kept))?;
    println!("kept and gone on from: {kept}");
    Ok(())
}

fn no_kernel() -> Result<()> {
    interrupt::install()?;
    let session = Session::begin()?;
    let empty = PathBuf::from("/dev/null");
    let image = Image {
        kernel: empty.clone(),
        kernel_version: "none".into(),
        initramfs: empty,
        disk: None,
        memory_mb: 64,
    };
    let dir = session.scratch().join("vm");
    let mut vm = Vm::start("vslab-none", &image, Accelerator::Tcg, &[], &dir)?;
    let error = vm.wait_ready(Duration::from_secs(60)).err().context("it boots without kernel")?;
    println!("error: {error:#}");
    Ok(())
}

/// Makes a guest's system as an experiment does.
fn make(dir: &Path) -> Result<()> {
    interrupt::install()?;
    let system = System { name: "fake".into(), ..System::for_tests() };
    let error = guest::make_system(dir, &system).err().context("it was made")?;
    println!("error: {error:#}");
    Ok(())
}

/// A shell in namespaces of its own, in which $1 is this program and what follows is given.
struct Host {
    shell: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn start(script: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(&[], script, arguments)
    }

    /// With further options of unshare.
    fn start_with(more: &[&str], script: &str, arguments: &[&str]) -> Result<Self> {
        let mut shell = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private"])
            .args(more)
            .args(["sh", "-c", script, "sh"])
            .arg(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("unshare")?;
        let output = BufReader::new(shell.stdout.take().context("no standard output")?);
        Ok(Self { input: shell.stdin.take(), output, shell })
    }

    /// All that it prints from now on, standard error after standard output.
    fn rest(mut self) -> Result<String> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        self.shell.stderr.take().map_or(Ok(0), |mut errors| errors.read_to_string(&mut text))?;
        self.shell.wait()?;
        Ok(text)
    }
}

/// The output of a role on a host of its own.
fn on_host(script: &str, arguments: &[&str]) -> Result<String> {
    Host::start(script, arguments)?.rest()
}

/// On one with further namespaces.
fn on_host_with(more: &[&str], script: &str, arguments: &[&str]) -> Result<String> {
    Host::start_with(more, script, arguments)?.rest()
}

fn require(text: &str, parts: &[&str]) -> Result<()> {
    match parts.iter().find(|part| !text.contains(**part)) {
        Some(missing) => bail!("{missing:?} is missing in: {text}"),
        None => Ok(()),
    }
}

fn two_signals() -> Result<()> {
    let mut host = Host::start(HOST, &["--lab", "17"])?;
    let mut line = String::new();
    host.output.read_line(&mut line)?;
    let lab = Pid::from_raw(line.trim().parse().with_context(|| format!("no id: {line:?}"))?);
    let mut errors = BufReader::new(host.shell.stderr.take().context("no standard error")?);
    for _ in 0..2 {
        kill(lab, Signal::SIGINT)?;
        // The lab says something of the signal, or its end closes the pipe.
        errors.read_line(&mut line)?;
    }
    // It may be gone.
    let _ = host.input.take().context("no standard input")?.write_all(b"\n");
    let left = host.rest()?;
    ensure!(left.trim() == CLEAN, "{left}");
    Ok(())
}

fn killed() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", KILLED), &[])?;
    require(&text, &["an earlier run ended without clearing up", CLEAN])
}

fn beside() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", BESIDE), &[])?;
    // The setting stays as the second one needs it until that one ends.
    require(&text, &["beside: 18 1\n", "left: 61 /run/netns: /run/vsnoop-lab: lock"])
}

fn full_disk() -> Result<()> {
    let script = "mkdir /run/disk && mount -t tmpfs -o size=64k disk /run/disk || exit
        \"$1\" --record /run/disk";
    let text = on_host(&HOST.replace("\"$@\"", script), &[])?;
    require(
        &text,
        &["error: write /run/disk/journal.jsonl: No space left", "kept and gone on from"],
    )
}

fn no_room() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", NO_ROOM), &[LAB])?;
    require(
        &text,
        &[
            "status 1\n",
            "2 measurements are kept; the same command goes on: ",
            "No space left on device",
            "status 0\n2\nthe same\n",
            CLEAN,
        ],
    )
}

fn no_control_groups() -> Result<()> {
    let script = "umount -R -l /sys/fs/cgroup || exit
        \"$1\" --quota";
    let text = on_host(&HOST.replace("\"$@\"", script), &[])?;
    require(&text, &["no control group with a CPU controller is mounted: a quota needs one"])
}

fn no_boot() -> Result<()> {
    let text = on_host(HOST, &["--no-kernel"])?;
    require(&text, &["error: vslab-none ended while it booted", "kernel", CLEAN])
}

/// Signals while the run begins, while it makes namespaces, before its first measurement, and after
/// one.
fn command() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", &format!("{AGAIN}{COMMAND}")), &[LAB])?;
    let count = |part: &str| text.matches(part).count();
    let clean = format!("status {}, 0 namespaces, lock\n", interrupt::EXIT_STATUS);
    ensure!(count(&clean) == 4, "{text}");
    ensure!(count("nothing was measured") + count("was cut short") == 4, "{text}");
    require(
        &text,
        &[
            "interrupted; the same command goes on from there",
            "status 0, in all 6\nkept\nwhole\n",
            "journal.jsonl': No such file",
            CLEAN,
        ],
    )
}

/// Signals while the guest boots, before its first transfer with vsnoop, between transfers, and
/// while the report is made.
fn measuring() -> Result<()> {
    let text = signalled(MEASURING)?;
    let count = |part: &str| text.matches(part).count();
    let clean = format!("status {}, left: guest-core lock\n", interrupt::EXIT_STATUS);
    ensure!(count(&clean) == 5, "{text}");
    ensure!(count("nothing was measured") + count("was cut short") == 5, "{text}");
    // It has measured all, and makes its report to the end.
    require(&text, &["status 0, left: guest-core lock\n", "\nmore\n", "in all 9\nkept\n"])
}

/// On a host with processes of its own; the path to a namespace may have any congestion control.
fn signalled(script: &str) -> Result<String> {
    let script = HOST.replace("\"$@\"", &format!("{AGAIN}{SIGNALS}{script}"));
    let more = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    on_host_with(&more, &script, &[LAB, allowed_congestion_control()?])
}

/// Signals while the switch is made, while incast control is attached, and between blocks of
/// rounds.
fn senders() -> Result<()> {
    let text = signalled(INCAST)?;
    let count = |part: &str| text.matches(part).count();
    let clean = format!("status {}, left: lock\n", interrupt::EXIT_STATUS);
    ensure!(count(&clean) == 4, "{text}");
    ensure!(count("nothing was measured") + count("was cut short") == 4, "{text}");
    require(&text, &["\nmore\n", "status 0, left: lock\n", "gone on with\nkept\nwhole\n1000\n"])
}

fn all() -> Result<()> {
    let text = signalled(ALL)?;
    let clean = format!("status {}, left: lock\n", interrupt::EXIT_STATUS);
    ensure!(text.matches(&clean).count() == 2, "{text}");
    require(&text, &["results.json", "going on with an interrupted run: link-lan are done\n0\n"])
}

fn installing() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", INSTALLING), &[])?;
    require(&text, &["error: ", "interrupted", "systems: fake.log\n"])?;
    ensure!(!text.contains("goes on"), "{text}");
    Ok(())
}

fn bare() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", BARE), &[LAB])?;
    let programs = ["qemu-system-x86", "mmdebstrap"];
    programs.iter().try_for_each(|name| require(&text, &[&format!("install the package {name}")]))
}

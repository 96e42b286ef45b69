//! What goes wrong around a lab: signals, a crash, a run beside it, a full disk, no control groups,
//! missing packages, a guest that does not boot. Each ends with a clear message, a clean host, and
//! the samples kept.
//!
//! The test program plays the lab: it starts itself in a role, or the command, in a network
//! namespace and a /run of its own, and looks at what is left there.

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

/// The command.
const LAB: &str = env!("CARGO_BIN_EXE_vsnoop-lab");
const SETTING: &str = "net.ipv4.tcp_fin_timeout";
/// Runs a role with a network namespace and a /run of its own, and prints what it leaves there.
const HOST: &str = "mount -t tmpfs run /run && mkdir /run/netns || exit
    setting=/proc/sys/net/ipv4/tcp_fin_timeout
    echo 61 >$setting
    \"$@\"
    echo left: $(cat $setting) $(ls /run/netns /run/vsnoop-lab)";
/// What a host is like that nothing was left on.
const CLEAN: &str = "left: 61 /run/netns: /run/vsnoop-lab: lock";
/// Two labs: the second one begins while the first is there, and ends after it.
const BESIDE: &str = "mkfifo /run/first /run/second
    \"$1\" --lab 17 </run/first >/dev/null & first=$!
    exec 3>/run/first
    until [ $(cat $setting) = 17 ]; do sleep 0.05; done
    \"$1\" --lab 18 </run/second >/dev/null & second=$!
    exec 4>/run/second
    until [ $(cat $setting) = 18 ]; do sleep 0.05; done
    until [ \"$(ls -d /run/netns/vslab-* 2>/dev/null | wc -l)\" = 2 ]; do sleep 0.05; done
    kill -INT $first && echo >&3 && wait $first
    echo beside: $(cat $setting) $(ls /run/netns | wc -l)
    kill -INT $second && echo >&4 && wait $second";
/// A lab that is killed, and another one after it.
const KILLED: &str = "mkfifo /run/in
    \"$1\" --lab 17 </run/in >/dev/null & lab=$!
    exec 3>/run/in
    until ls -d /run/netns/vslab-* >/dev/null 2>&1; do sleep 0.05; done
    kill -KILL $lab; wait $lab
    \"$1\" --begin";

/// Runs of the command ($2), which compare nothing but the path between two namespaces: `signal
/// WHEN` interrupts one as soon as a condition holds. In the end one runs undisturbed.
const COMMAND: &str = r#"lab=$2 results=/run/results/link-lan
    begin() {
        exec "$lab" run link-lan --quick --configuration bare --rounds 3 --dir /run/results \
            >/run/out 2>&1
    }
    measured() { cat $results/journal.jsonl 2>/dev/null | grep -c '"configuration":"bare"'; }
    signal() {
        begin & run=$!
        until eval "$1"; do kill -0 $run || break; sleep 0.02; done
        kill -INT $run; wait $run
        echo "status $?, $(ls /run/netns | wc -l) namespaces, $(ls /run/vsnoop-lab)"
        tail -n 1 /run/out
    }
    signal 'ls -d /run/vsnoop-lab/*/ >/dev/null 2>&1'
    signal '[ "$(ls /run/netns | wc -l)" -ge 2 ]'
    signal 'grep -q "carriers run" /run/out'
    signal '[ "$(measured)" -ge 1 ]'
    before=$(grep -o '"goodput_mbps":[0-9.]*' $results/journal.jsonl | head -n 1 | cut -c 16-24)
    (begin)
    echo "status $?, in all $(grep -c '"turn"' $results/results.json)"
    grep -q "\"goodput_mbps\": $before" $results/results.json && echo kept
    grep -q cut_short $results/results.json || echo whole
    ls $results/journal.jsonl"#;
/// A run of the command on a disk that has room for its measurements and not for its report, and
/// another one when it has more.
const NO_ROOM: &str = r#"mkdir /run/disk && mount -t tmpfs -o size=24k disk /run/disk || exit
    run() {
        "$lab" run link-lan --quick --configuration bare --rounds 1 --dir /run/disk >/run/out 2>&1
        echo "status $?"
    }
    measured() { grep -o '"goodput_mbps": *[0-9]*' $1 | tr -d ' ' | sort; }
    lab=$2 results=/run/disk/link-lan
    run
    tail -n 1 /run/out
    measured $results/journal.jsonl >/run/before
    mount -o remount,size=4m /run/disk
    run
    measured $results/results.json >/run/after
    wc -l </run/before
    cmp /run/before /run/after && echo the same"#;
/// Runs of the command ($2) that measure a VM, on a host with processes and pins of its own.
/// `signal WHO NAME WHEN` sends a signal to the process group, as a terminal does, or to the
/// command alone. $3 is a congestion control that the host allows.
const MEASURING: &str = r#"mount -t bpf bpf /sys/fs/bpf && mkdir /run/tmp || exit
    lab=$2 control=$3 results=/run/results/hold
    export TMPDIR=/run/tmp
    # ip mounts /run/netns on itself, for good.
    ip netns add none && ip netns del none && sort /proc/self/mounts >/run/mounts
    begin() {
        exec setsid env --default-signal=INT,TERM "$lab" run hold --vms 1 --share quota:50 \
            --load 0.2 --path-rtt 5 --size 100000 --rounds 3 --configuration off \
            --configuration vsnoop --configuration host --congestion-control $control \
            --dir /run/results >/run/out 2>&1
    }
    measured() { cat $results/journal.jsonl 2>/dev/null | grep -c '"turn"'; }
    running() {
        cat /proc/[0-9]*/stat 2>/dev/null | sed -n 's/^[0-9]* (\(.*\)) [^ZX] .*/\1/p' |
            grep -vx -e sh -e cat -e sed -e grep -e sleep
    }
    left() {
        # The helper ends by itself, soon after its last port has gone.
        for wait in $(seq 300); do [ -z "$(running)" ] && break; sleep 0.1; done
        group="vslab-$(stat -Lc %i /proc/self/ns/pid)-*"
        # The kernel's own pins are called *.debug.
        echo $(running) $(ls -A /run/netns) $(ls -A /run/tmp) $(ls /run/vsnoop-lab) \
            $(find /sys/fs/cgroup -name "$group") \
            $(find /sys/fs/bpf -mindepth 1 ! -name '*.debug') \
            $(sort /proc/self/mounts | comm -13 /run/mounts -)
    }
    signal() {
        begin & run=$!
        until eval "$3"; do kill -0 $run || break; sleep 0.02; done
        case $1 in group) kill -s $2 -- -$run ;; alone) kill -s $2 $run ;; esac
        wait $run
        echo "status $?, left: $(left)"
        tail -n 2 /run/out
    }
    signal group INT 'grep -q "booting a VM" /run/out && running | grep -q qemu'
    signal alone TERM 'grep -q "booting a VM" /run/out && running | grep -q qemu'
    signal group INT '[ -e /sys/fs/bpf/vsnoop ]'
    before=$(measured)
    signal group INT '[ "$(measured)" -gt $before ]'
    before=$(measured) first=$(grep -o '"acked_ms":[0-9.]*' $results/journal.jsonl | head -n 1)
    signal alone TERM '[ "$(measured)" -gt $before ]'
    [ "$(measured)" -gt $before ] && echo more
    signal group INT 'grep -q ^9/9 /run/out'
    echo in all $(grep -c '"turn"' $results/results.json)
    tr -d ' ' <$results/results.json | grep -q "$first" && echo kept"#;
/// An installer of packages that never ends, and a signal meanwhile.
const INSTALLING: &str = r#"mkdir /run/bin
    cat >/run/bin/mmdebstrap <<'END'
#!/bin/sh
for tree; do :; done
mkdir -p "$tree/etc"
while :; do echo >/run/beat; sleep 0.02; done
END
    chmod +x /run/bin/mmdebstrap
    PATH=/run/bin:$PATH "$1" --make /run & lab=$!
    until [ -e /run/beat ]; do kill -0 $lab || exit; sleep 0.02; done
    kill -INT $lab; wait $lab
    rm /run/beat; sleep 0.2
    [ -e /run/beat ] && echo the installer goes on
    echo systems: $(ls /run/systems)"#;
/// A host on which nothing is installed, and then no installer.
const BARE: &str = r#"mkdir /run/bin
    for name in demo ping; do PATH=/run/bin "$2" run $name --dir /run/results 2>&1; done
    ln -s $(which unshare) /run/bin
    PATH=/run/bin "$1" --make /run"#;

const NO_BOOT: &str = "a_guest_that_does_not_boot_is_named_with_what_it_printed";
const NO_ROOM_FOR_REPORT: &str = "a_disk_without_room_for_a_report_costs_no_measurement";
const ANYWHERE: &str = "a_run_that_is_interrupted_anywhere_is_gone_on_with";
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
    let tests: [(&str, Test); 11] = [
        ("two_signals_leave_neither_setting_nor_namespace_behind", two_signals),
        ("a_killed_lab_is_cleared_up_after_by_the_next_one", killed),
        ("labs_beside_each_other_share_a_setting_of_the_kernel", beside),
        ("a_full_disk_is_named_and_the_samples_before_it_are_kept", full_disk),
        (NO_ROOM_FOR_REPORT, no_room),
        ("a_quota_without_control_groups_says_what_it_needs", no_control_groups),
        (NO_BOOT, no_boot),
        (ANYWHERE, command),
        (OF_A_VM, measuring),
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
        // What it says of the signal, or the end.
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
    let text = on_host(&HOST.replace("\"$@\"", COMMAND), &[LAB])?;
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
    let script = HOST.replace("\"$@\"", MEASURING);
    let text = on_host_with(
        &["--pid", "--fork", "--kill-child", "--mount-proc"],
        &script,
        &[LAB, allowed_congestion_control()?],
    )?;
    let count = |part: &str| text.matches(part).count();
    let clean = format!("status {}, left: guest-core lock\n", interrupt::EXIT_STATUS);
    ensure!(count(&clean) == 5, "{text}");
    ensure!(count("nothing was measured") + count("was cut short") == 5, "{text}");
    // It has measured all, and makes its report to the end.
    require(&text, &["status 0, left: guest-core lock\n", "\nmore\n", "in all 9\nkept\n"])
}

fn installing() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", INSTALLING), &[])?;
    require(&text, &["error: ", "interrupted", "systems: fake.log\n"])?;
    ensure!(!text.contains("goes on"), "{text}");
    Ok(())
}

fn bare() -> Result<()> {
    let text = on_host(&HOST.replace("\"$@\"", BARE), &[LAB])?;
    let programs = ["curl", "qemu-system-x86", "mmdebstrap"];
    programs.iter().try_for_each(|name| require(&text, &[&format!("install the package {name}")]))
}

//! The BPF programs and the command on another kernel than this machine's: the oldest that a
//! distribution offers and that has tcx.
//!
//! A machine is booted once under it and runs, one after the other, the tests of the hooks and some
//! of the tests on network namespaces ([`vsnoop_testbed::guest::batch`]); each is a test here. What
//! they do is told where they are. A failure shows what was printed in the machine.
//!
//! Where there is no QEMU or no package of such a kernel, they say so and count as ignored.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use vsnoop_testbed::guest::batch::{Batch, Report};
use vsnoop_testbed::guest::{self, Kernel, Unavailable};
use vsnoop_testbed::{vm, workspace};

const SERIES: &str = guest::OLDEST_SERIES;
/// `ip` makes taps, veths and bridges.
const MODULES: [&str; 3] = ["tun", "veth", "bridge"];
/// Far longer than all of it takes, emulated on a busy host.
const LIMIT: Duration = Duration::from_secs(1800);

/// Names of tests, and the program and arguments that each runs in the machine.
const TESTS: [(&str, &[&str]); 9] = [
    ("hooks_are_verified_and_do_their_work", &["hooks"]),
    ("what_goes_through_a_link_is_diverted", &["divert"]),
    ("an_ipv4_stream_goes_through_a_link", &netns("divert::ipv4_between_bridged_hosts")),
    ("an_ipv6_stream_goes_through_a_link", &netns("divert::ipv6_between_routed_hosts")),
    ("an_ipv4_stream_is_acknowledged_early", &netns("matrix::ipv4_untagged_super_packets")),
    (
        "an_ipv6_stream_in_two_vlans_is_acknowledged_early",
        &netns("matrix::ipv6_double_tagged_mtu_sized_with_checksum_offload"),
    ),
    ("loss_behind_the_hook_is_mended", &netns("guest::loss_is_mended_mtu_sized")),
    ("a_stream_survives_attaching", &netns("lifecycle::attach_in_mid_stream")),
    ("a_stream_survives_detaching", &netns("lifecycle::detach_in_mid_stream")),
];

const fn netns(test: &str) -> [&str; 3] {
    ["netns", "--exact", test]
}

/// Runs by the time the first test looks at it.
static MACHINE: OnceLock<Result<Report, String>> = OnceLock::new();

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let kernel = if arguments.list { Ok(Err("only listed".into())) } else { available() };
    let ignored = matches!(kernel, Ok(Err(_)));
    if let Ok(Err(reason)) = &kernel {
        eprintln!("tests on Linux {SERIES}: {reason}");
    }
    let kernel = Arc::new(kernel.map_err(|error| format!("{error:#}")));
    let trials = TESTS.iter().enumerate().map(|(index, (name, _))| {
        let kernel = Arc::clone(&kernel);
        let test = move || match MACHINE.get_or_init(|| run(&kernel)) {
            Ok(report) => verify(report, index).map_err(|error| format!("{error:#}").into()),
            Err(error) => Err(error.into()),
        };
        Trial::test(format!("linux_{}::{name}", SERIES.replace('.', "_")), test)
            .with_ignored_flag(ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Some(Ok(report)) = MACHINE.get() {
        for line in report.console.lines().filter(|line| line.contains("instructions verified")) {
            println!("Linux {}: {line}", report.release().unwrap_or_default());
        }
    }
    conclusion.exit_code()
}

/// The kernel, or the reason why this machine cannot run the tests; anything else is a failure.
fn available() -> Result<Result<Kernel, String>> {
    if let Err(error) = vm::require_qemu() {
        return Ok(Err(format!("{error:#}")));
    }
    match guest::kernel_of_series(SERIES) {
        Ok(kernel) => Ok(Ok(kernel)),
        Err(error) if error.is::<Unavailable>() => Ok(Err(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

fn run(kernel: &Result<Result<Kernel, String>, String>) -> Result<Report, String> {
    match kernel {
        Ok(Ok(kernel)) => run_under(kernel).map_err(|error| format!("{error:#}")),
        // Ignored tests that were requested by name.
        Ok(Err(reason)) | Err(reason) => Err(reason.clone()),
    }
}

fn run_under(kernel: &Kernel) -> Result<Report> {
    let [hooks, divert, netns] = test_programs(["hooks", "divert", "netns"])?;
    let programs = [
        ("hooks", hooks),
        ("divert", divert),
        ("netns", netns),
        ("vsnoop", workspace::vsnoop_command()?),
        ("ip", guest::installed("ip", "iproute2")?),
    ];
    let commands = TESTS.map(|(_, command)| [command, &["--color", "never"]].concat());
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    Batch { kernel, modules: &MODULES, programs: &programs, commands: &commands }.run(LIMIT)
}

/// Names the directory in which scripts/beside.sh has noted the test programs that it runs.
const NOTED: &str = "VSNOOP_TEST_PROGRAMS";

/// Test programs of the workspace: those that were noted, or else as cargo builds them now, in the
/// profile of this program.
fn test_programs<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    match std::env::var_os(NOTED) {
        Some(directory) => noted(Path::new(&directory), names),
        None => built(names),
    }
}

/// A noted program is a file `RANK.NAME-HASH` with a line `program='PATH'`.
fn noted<const N: usize>(directory: &Path, names: [&str; N]) -> Result<[PathBuf; N]> {
    let mut found = [const { None }; N];
    for file in directory.read_dir().with_context(|| format!("read {}", directory.display()))? {
        let file = file?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.split_once('.').and_then(|(_, name)| name.rsplit_once('-'));
        let Some(place) = names.iter().position(|wanted| Some(*wanted) == name.map(|it| it.0))
        else {
            continue;
        };
        let text = std::fs::read_to_string(&file)?;
        let program = text.lines().find_map(|line| line.strip_prefix("program='"));
        found[place] = program.and_then(|line| line.strip_suffix('\'')).map(PathBuf::from);
    }
    ensure!(found.iter().all(Option::is_some), "{names:?} are not all in {}", directory.display());
    Ok(found.map(Option::unwrap_or_default))
}

fn built<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let packages = ["-p", "vsnoop-bpf", "-p", "vsnoop-tests"];
    command.args(["test", "--locked", "--no-run", "--quiet"]).args(packages);
    command.args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    for name in names {
        command.args(["--test", name]);
    }
    let output = command
        .current_dir(workspace::root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo (is the Rust toolchain in PATH?)")?;
    ensure!(output.status.success(), "cargo could not build the tests ({})", output.status);
    let text = String::from_utf8(output.stdout).context("cargo printed no text")?;
    let mut found = [const { None }; N];
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        let target = message["target"]["name"].as_str().unwrap_or_default();
        let place = names.iter().position(|name| *name == target);
        if let (Some(place), Some(program)) = (place, message["executable"].as_str()) {
            found[place] = Some(PathBuf::from(program));
        }
    }
    ensure!(found.iter().all(Option::is_some), "cargo did not name {}", names.join(" and "));
    Ok(found.map(Option::unwrap_or_default))
}

/// A test program that ran no test succeeds too.
fn verify(report: &Report, index: usize) -> Result<()> {
    let Some(ended) = report.command(index) else {
        let how = if report.in_time { "ended" } else { "hung and was killed" };
        bail!("the machine {how} before the test did; it printed:\n{}", report.console);
    };
    let release = report.release().unwrap_or_default();
    ensure!(release.starts_with(&format!("{SERIES}.")), "the kernel is '{release}'");
    let result = ended.output.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = result.is_some_and(|counts| {
        !counts.starts_with("0 passed") && counts.contains(" 0 failed; 0 ignored;")
    });
    ensure!(
        ended.status == 0 && passed,
        "under Linux {release}, with exit status {}:\n{}",
        ended.status,
        ended.output
    );
    Ok(())
}

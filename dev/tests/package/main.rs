//! The Debian package in a machine that Debian's systemd boots: it is installed, upgraded while
//! connections are open, survives a reboot, and is removed.
//!
//! `scenario.sh` runs in the machine and prints a line for each step; each step is a test here. In
//! the machine this program is the VM and its client (`traffic`). It takes minutes, since the
//! machine is emulated: it runs with `make test-package`, and counts as ignored elsewhere. So does
//! the test of the archive, for which the program is compiled once more.

mod archive;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Trial};
use vsnoop_testbed::guest::systemd::{SystemdMachine, write_data};
use vsnoop_testbed::guest::{self, System};
use vsnoop_testbed::{vm, workspace};

/// Set by `make test-package`.
const WANTED: &str = "VSNOOP_PACKAGE_TEST";
const SCENARIO: &str = include_str!("scenario.sh");
/// Begins each line of the scenario.
const MARK: &str = "package-test: ";
/// Steps of the scenario, in their order.
const STEPS: [&str; 9] = [
    "install_starts_the_service",
    "without_a_table_taps_are_observed",
    "a_port_that_comes_up_is_accelerated",
    "reload_of_a_bad_file_fails_and_changes_nothing",
    "killed_often_the_service_comes_again",
    "an_upgrade_breaks_no_connection",
    "the_service_does_it_again_after_a_reboot",
    "removal_breaks_no_connection_and_leaves_nothing",
    "purging_removes_configuration_and_state",
];
/// `ip` makes taps, veths and bridges; systemd mounts by autofs.
const MODULES: [&str; 4] = ["tun", "veth", "bridge", "autofs4"];
const MEMORY_MB: u32 = 1536;
const DATA_MB: u32 = 256;
/// Far longer than all of it takes, emulated on a busy host.
const LIMIT: Duration = Duration::from_secs(3600);

/// The machine has no network: its image contains what the package depends on.
const PACKAGES: [&str; 13] = [
    "systemd-sysv",
    "init-system-helpers",
    "apt",
    "kmod",
    "iproute2",
    "procps",
    "util-linux",
    "jq",
    "bpftool",
    "libelf1",
    "zlib1g",
    "libgcc-s1",
    "udev",
];

const UNIT: &str = "[Unit]
Description=runs the scenario of the test
After=vsnoop.service
[Service]
ExecStart=/bin/sh /packages/scenario.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
KillMode=mixed
[Install]
WantedBy=multi-user.target
";

/// The console of the machine.
static MACHINE: OnceLock<Result<String, String>> = OnceLock::new();

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    if let [_, role, dir] = &arguments[..]
        && role == "traffic"
    {
        return match traffic::run(Path::new(dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("traffic: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let obstacle = obstacle();
    if let Some(reason) = &obstacle {
        eprintln!("tests of the package: {reason}");
    }
    let trials = STEPS.iter().map(|step| {
        let test = || match MACHINE.get_or_init(|| run().map_err(|error| format!("{error:#}"))) {
            Ok(console) => verify(console, step).map_err(|error| format!("{error:#}").into()),
            Err(error) => Err(error.into()),
        };
        Trial::test(*step, test).with_ignored_flag(obstacle.is_some())
    });
    let archive =
        || archive::runs_without_any_library().map_err(|error| format!("{error:#}").into());
    let archive = Trial::test("the_archive_runs_without_any_library", archive);
    let trials = trials.chain([archive.with_ignored_flag(obstacle.is_some())]);
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials.collect());
    conclusion.exit_code()
}

/// Why the tests do not run here.
fn obstacle() -> Option<String> {
    if std::env::var_os(WANTED).is_none() {
        return Some("they take minutes: run `make test-package`".into());
    }
    vm::require_qemu().err().map(|error| format!("{error:#}"))
}

fn run() -> Result<String> {
    let kernel = guest::kernel_of_series(guest::OLDEST_SERIES)?;
    let made = guest::make_system_of_build(&system())?;
    let scratch = Scratch::make("machine")?;
    fill(&scratch.0.join("files"))?;
    let data = scratch.0.join("data.ext4");
    write_data(&scratch.0.join("files"), &data, DATA_MB)?;
    let machine = SystemdMachine {
        kernel: &kernel,
        modules: &MODULES,
        disk: &made.disk,
        data: &data,
        memory_mb: MEMORY_MB,
    };
    let (console, status) = machine.run(LIMIT, |text| print!("{text}"))?;
    ensure!(status.is_some(), "the machine hung and was killed; it printed:\n{console}");
    Ok(console)
}

fn system() -> System {
    System {
        name: "package".into(),
        sources: Vec::new(),
        packages: PACKAGES.map(str::to_owned).into(),
        memory_mb: MEMORY_MB,
        files: [
            ("/etc/systemd/system/scenario.service".to_owned(), UNIT.to_owned()),
            ("/etc/fstab".to_owned(), "/dev/vdb /packages ext4 ro 0 0\n".to_owned()),
            ("/etc/hostname".to_owned(), "package-test\n".to_owned()),
        ]
        .into(),
        setup: "mkdir /packages && systemctl enable scenario \
            && systemctl mask serial-getty@ttyS0 getty@tty1 apt-daily.timer apt-daily-upgrade.timer \
               dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-networkd-wait-online"
            .into(),
    }
}

/// The files of the second disk.
fn fill(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let version = env!("CARGO_PKG_VERSION");
    // Each is built anew: the same program under another version.
    for (name, version) in [("old", version.to_owned()), ("new", format!("{version}+rebuilt"))] {
        let package = build(&version)?;
        fs::copy(&package, dir.join(format!("{name}.deb")))
            .with_context(|| format!("copy {}", package.display()))?;
    }
    fs::copy(std::env::current_exe()?, dir.join("package")).context("copy this program")?;
    fs::write(dir.join("scenario.sh"), SCENARIO).context("write the scenario")
}

/// Builds the package as `make deb` does, after the release build.
fn build(version: &str) -> Result<PathBuf> {
    let root = workspace::root()?;
    // Refuses one that is older than its sources.
    let program = workspace::vsnoop_command()?;
    ensure!(program == root.join("target/release/vsnoop"), "not a release build: {program:?}");
    let output = Command::new("sh").args(["scripts/deb.sh", version]).current_dir(&root).output();
    let output = output.context("run scripts/deb.sh")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("scripts/deb.sh: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let path = text.lines().find_map(|line| line.strip_prefix("deb: /"));
    Ok(Path::new("/").join(path.with_context(|| format!("it names no package: {text}"))?))
}

fn verify(console: &str, step: &str) -> Result<()> {
    let result = |word: &str| {
        let wanted = format!("{MARK}{word} {step}");
        console.lines().any(|line| line.trim_end().ends_with(&wanted))
    };
    ensure!(!result("failed"), "it failed; the machine printed:\n{console}");
    ensure!(result("ok"), "it was not reached; the machine printed:\n{console}");
    Ok(())
}

/// A directory that is removed.
struct Scratch(PathBuf);

impl Scratch {
    fn make(name: &str) -> Result<Self> {
        let name = format!("vsnoop-package-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

//! A kernel that is locked down (kernel_lockdown(7)), for integrity, then for confidentiality:
//! `doctor` names it, and `attach` works: vsnoop uses nothing that is refused.

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::guest::batch::{Batch, Ended, Report};
use vsnoop_testbed::guest::{self, Kernel};
use vsnoop_testbed::workspace;

use crate::{LIMIT, document};

const MODULES: [&str; 1] = ["tun"];
const TAP: &str = "tap0";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// The number of commands for each level.
const OF_LEVEL: usize = 4;
const COMMANDS: [&[&str]; 3 + 2 * OF_LEVEL] = [
    &["ip", "tuntap", "add", "dev", TAP, "mode", "tap"],
    &["ip", "link", "set", TAP, "up"],
    &["mount", "-t", "securityfs", "securityfs", "/sys/kernel/security"],
    &["sh", "-c", "echo integrity > /sys/kernel/security/lockdown"],
    &["vsnoop", "doctor", "--json"],
    &["vsnoop", "attach", TAP],
    &["vsnoop", "detach", TAP],
    &["sh", "-c", "echo confidentiality > /sys/kernel/security/lockdown"],
    &["vsnoop", "doctor", "--json"],
    &["vsnoop", "attach", TAP],
    &["vsnoop", "detach", TAP],
];
const LOCKS: [usize; 2] = [3, 3 + OF_LEVEL];

const TESTS: [(&str, usize, &str); 2] = [
    ("vsnoop_under_lockdown_for_integrity", LOCKS[0], "integrity"),
    ("vsnoop_under_lockdown_for_confidentiality", LOCKS[1], "confidentiality"),
];

pub fn names() -> Vec<&'static str> {
    TESTS.map(|(name, ..)| name).into()
}

pub fn run(kernel: &Kernel) -> Result<Report> {
    let programs =
        [("vsnoop", workspace::vsnoop_command()?), ("ip", guest::installed("ip", "iproute2")?)];
    Batch { kernel, modules: &MODULES, programs: &programs, files: &[], commands: &COMMANDS }
        .run(LIMIT)
}

pub fn verify(report: &Report, index: usize) -> Result<()> {
    let (_, lock, level) = TESTS[index];
    let Ended { output, status } = crate::ended(report, lock)?;
    ensure!(status == 0, "{LOCKDOWN}: {output}");
    names_it(report, lock + 1, level)?;
    for command in [lock + 2, lock + 3] {
        let Ended { output, status } = crate::ended(report, command)?;
        ensure!(status == 0, "{:?}: status {status}: {output}", COMMANDS[command]);
    }
    Ok(())
}

fn names_it(report: &Report, command: usize, level: &str) -> Result<()> {
    let Ended { output, .. } = crate::ended(report, command)?;
    let json = document(&output)?;
    let checks = json["host"].as_array().context("no checks")?;
    let check = checks.iter().find(|check| check["name"] == "lockdown");
    let detail = check.with_context(|| format!("lockdown is not named: {output}"))?["detail"]
        .as_str()
        .unwrap_or_default();
    ensure!(detail.contains(level), "{detail}");
    Ok(())
}

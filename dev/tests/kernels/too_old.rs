//! A kernel without tcx: that of Debian 12. `attach`, `run` and `doctor` say so, and nothing is
//! changed.

use std::fs;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::guest::batch::{Batch, Ended, Report};
use vsnoop_testbed::guest::{self, Kernel};
use vsnoop_testbed::workspace;

use crate::{LIMIT, document};

pub const SERIES: &str = "6.1";
const UNIT: &str = "deploy/vsnoop.service";
const MODULES: [&str; 1] = ["tun"];
const TAP: &str = "tap0";
/// A script learns from it (docs/reference/exit-codes.md) that this kernel cannot do it.
const UNFIT_KERNEL: i32 = 35;

/// Run in the machine, in this order.
const COMMANDS: [&[&str]; 9] = [
    &["ip", "tuntap", "add", "dev", TAP, "mode", "tap"],
    &["ip", "link", "set", TAP, "up"],
    &["ip", "-details", "link", "show", TAP],
    &["vsnoop", "attach", TAP],
    &["vsnoop", "observe", TAP, "--for", "1"],
    &["vsnoop", "run"],
    &["vsnoop", "doctor", "--json"],
    &["vsnoop", "status", "--json"],
    &["ip", "-details", "link", "show", TAP],
];
const TAP_BEFORE: usize = 2;
const ATTACH: usize = 3;
const OBSERVE: usize = 4;
const RUN: usize = 5;
const DOCTOR: usize = 6;
const STATUS: usize = 7;
const TAP_AFTER: usize = 8;

type Test = fn(&Report) -> Result<()>;

const TESTS: [(&str, Test); 4] = [
    ("attach_observe_and_run_are_refused_with_the_reason", refused),
    ("the_unit_does_not_try_again", not_tried_again),
    ("doctor_says_which_kernel_is_needed", doctor),
    ("a_refusal_changes_nothing", unchanged),
];

pub fn names() -> Vec<&'static str> {
    TESTS.map(|(name, _)| name).into()
}

pub fn run(kernel: &Kernel) -> Result<Report> {
    let programs =
        [("vsnoop", workspace::vsnoop_command()?), ("ip", guest::installed("ip", "iproute2")?)];
    Batch { kernel, modules: &MODULES, programs: &programs, files: &[], commands: &COMMANDS }
        .run(LIMIT)
}

pub fn verify(report: &Report, index: usize) -> Result<()> {
    TESTS[index].1(report)
}

fn refused(report: &Report) -> Result<()> {
    for command in [ATTACH, OBSERVE, RUN] {
        let Ended { output, status } = crate::ended(report, command)?;
        ensure!(status == UNFIT_KERNEL, "{:?}: status {status}: {output}", COMMANDS[command]);
        let words = output.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [report.release().unwrap_or_default(), "too old", "6.6 or newer"] {
            ensure!(words.contains(text), "{text:?} is not in: {output}");
        }
    }
    Ok(())
}

/// `run` ends, with a status after which systemd starts it no more.
fn not_tried_again(report: &Report) -> Result<()> {
    let Ended { status, .. } = crate::ended(report, RUN)?;
    let unit = fs::read_to_string(workspace::root()?.join(UNIT))?;
    let lines = unit.lines().filter_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    let mut final_ones = lines.flat_map(str::split_whitespace);
    ensure!(final_ones.any(|one| one == status.to_string()), "status {status}: {unit}");
    Ok(())
}

fn doctor(report: &Report) -> Result<()> {
    let Ended { output, status } = crate::ended(report, DOCTOR)?;
    ensure!(status == UNFIT_KERNEL, "status {status}: {output}");
    let json = document(&output)?;
    for name in ["kernel", "tcx"] {
        let checks = json["host"].as_array().context("no checks")?;
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.with_context(|| format!("no check {name}: {output}"))?;
        ensure!(check["level"] == "fail", "{check}");
        let detail = check["detail"].as_str().unwrap_or_default();
        ensure!(detail.contains("6.6 or newer is needed"), "{check}");
        ensure!(detail.matches("cannot").count() < 2, "said twice: {check}");
    }
    Ok(())
}

fn unchanged(report: &Report) -> Result<()> {
    let tap = |command| Ok::<_, anyhow::Error>(own_lines(&crate::ended(report, command)?.output));
    let (before, after) = (tap(TAP_BEFORE)?, tap(TAP_AFTER)?);
    ensure!(before.contains(TAP) && before == after, "before:\n{before}\nafter:\n{after}");
    let Ended { output, status } = crate::ended(report, STATUS)?;
    let json = document(&output)?;
    ensure!(status == 0 && json["ports"] == serde_json::json!([]), "{output}");
    Ok(())
}

/// Removes the lines that the kernel printed meanwhile (`[   23.294166] ...`) from an output.
fn own_lines(output: &str) -> String {
    let is_own = |line: &&str| !line.is_empty() && !line.starts_with('[');
    output.lines().filter(is_own).collect::<Vec<_>>().join("\n")
}

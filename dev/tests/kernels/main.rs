//! The BPF programs and the command on other kernels than this machine's: those of Debian that have
//! what they need ([`fit`]), and one that has not ([`too_old`]); one that is locked down
//! ([`locked_down`]); and other software beside them ([`coexistence`]).
//!
//! For each a machine is booted once, which runs programs of this host one after the other
//! ([`vsnoop_testbed::guest::batch`]); the tests look at what they printed. A failure shows it.
//!
//! Where there is no QEMU, no package of such a kernel, or not the other software, they say so and
//! count as ignored. The kernels between the oldest and the newest, the other software, and most of
//! the tests are for `make soak`.

mod coexistence;
mod fit;
mod locked_down;
mod programs;
mod too_old;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use vsnoop_testbed::guest::batch::{Ended, Report};
use vsnoop_testbed::guest::{self, Kernel, Unavailable};
use vsnoop_testbed::{soak, vm};

/// Far longer than all that a machine does takes, emulated on a busy host.
const LIMIT: Duration = Duration::from_secs(1800);

/// A kernel, and the tests on it.
struct Machine {
    series: &'static str,
    /// Programs that must be installed, with their packages.
    software: &'static [(&'static str, &'static str)],
    names: Vec<&'static str>,
    run: fn(&Kernel) -> Result<Report>,
    /// The test of this place in `names`.
    verify: fn(&Report, usize) -> Result<()>,
    /// The first test that looks at the machine fills it.
    report: OnceLock<Result<Report, String>>,
}

static MACHINES: LazyLock<Vec<Machine>> = LazyLock::new(|| {
    let too_old = Machine {
        series: too_old::SERIES,
        software: &[],
        names: too_old::names(),
        run: too_old::run,
        verify: too_old::verify,
        report: OnceLock::new(),
    };
    let [oldest, .., newest] = guest::KERNEL_SERIES;
    let beside = Machine {
        series: oldest,
        software: &coexistence::SOFTWARE,
        names: coexistence::names(),
        run: coexistence::run,
        verify: passed,
        report: OnceLock::new(),
    };
    let locked_down = Machine {
        series: oldest,
        software: &[],
        names: locked_down::names(),
        run: locked_down::run,
        verify: locked_down::verify,
        report: OnceLock::new(),
    };
    // Those that take longest first.
    let mut machines = if soak::is_soak() {
        let mut machines = Vec::from(guest::KERNEL_SERIES.map(fit_machine::<{ fit::ALL }>));
        machines.push(beside);
        machines
    } else {
        [oldest, newest].map(fit_machine::<{ fit::FEW }>).into()
    };
    machines.extend([locked_down, too_old]);
    machines
});

/// A kernel that has what vsnoop needs, and the first `N` tests of [`fit`].
fn fit_machine<const N: usize>(series: &'static str) -> Machine {
    let (names, run) = (fit::names::<N>(), fit::run::<N>);
    Machine { series, software: &[], names, run, verify: passed, report: OnceLock::new() }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let asked = arguments.filter.as_deref().unwrap_or_default();
    let machines = MACHINES.iter().filter(|machine| machine.tests().any(|it| it.contains(asked)));
    let trials = machines.flat_map(|machine| {
        let listed = || Ok(Err("only listed".to_owned()));
        trials(machine, if arguments.list { listed() } else { available(machine) })
    });
    let mut trials: Vec<_> = trials.collect();
    // The first of each machine first: several machines run side by side.
    trials.sort_by_key(|(index, _)| *index);
    let trials = trials.into_iter().map(|(_, trial)| trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    for report in MACHINES.iter().filter_map(|machine| machine.report.get()).flatten() {
        for line in report.console.lines().filter(|line| line.contains("instructions verified")) {
            println!("Linux {}: {line}", report.release().unwrap_or_default());
        }
    }
    conclusion.exit_code()
}

impl Machine {
    /// Names of its tests among those of all machines.
    fn tests(&self) -> impl Iterator<Item = String> {
        let machine = self.series.replace('.', "_");
        self.names.iter().map(move |name| format!("linux_{machine}::{name}"))
    }
}

/// The tests on a machine, with their places in `names`.
fn trials(
    machine: &'static Machine,
    kernel: Result<Result<Kernel, String>>,
) -> Vec<(usize, Trial)> {
    let ignored = matches!(kernel, Ok(Err(_)));
    if let Ok(Err(reason)) = &kernel {
        eprintln!("tests on Linux {}: {reason}", machine.series);
    }
    let kernel = Arc::new(kernel.map_err(|error| format!("{error:#}")));
    let trial = |(index, name): (usize, String)| {
        let kernel = Arc::clone(&kernel);
        let test = move || match machine.report.get_or_init(|| run(machine, &kernel)) {
            Ok(report) => verify(machine, report, index).map_err(|it| format!("{it:#}").into()),
            Err(error) => Err(error.into()),
        };
        (index, Trial::test(name, test).with_ignored_flag(ignored))
    };
    machine.tests().enumerate().map(trial).collect()
}

/// The kernel, or the reason why this machine cannot run the tests; anything else is a failure.
fn available(machine: &Machine) -> Result<Result<Kernel, String>> {
    let installed = |(name, package): &(&str, &str)| guest::installed(name, package).map(drop);
    let software = machine.software.iter().try_for_each(installed);
    if let Err(error) = vm::require_qemu().and(software) {
        return Ok(Err(format!("{error:#}")));
    }
    match guest::kernel_of_series(machine.series) {
        Ok(kernel) => Ok(Ok(kernel)),
        Err(error) if error.is::<Unavailable>() => Ok(Err(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

fn run(
    machine: &Machine,
    kernel: &Result<Result<Kernel, String>, String>,
) -> Result<Report, String> {
    match kernel {
        Ok(Ok(kernel)) => (machine.run)(kernel).map_err(|error| format!("{error:#}")),
        // Ignored tests that were requested by name.
        Ok(Err(reason)) | Err(reason) => Err(reason.clone()),
    }
}

fn verify(machine: &Machine, report: &Report, index: usize) -> Result<()> {
    let release = report.release().unwrap_or_default();
    ensure!(
        release.starts_with(&format!("{}.", machine.series)),
        "the kernel is '{release}'; the machine printed:\n{}",
        report.console
    );
    (machine.verify)(report, index)
}

/// The test program of this place succeeded; one that ran no test does so, too.
fn passed(report: &Report, index: usize) -> Result<()> {
    let Ended { output, status } = ended(report, index)?;
    let result = output.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = result.is_some_and(|counts| {
        !counts.starts_with("0 passed") && counts.contains(" 0 failed; 0 ignored;")
    });
    // Not at the line's begin: what it counts are not tests of this program.
    let indented: String = output.lines().map(|line| format!("    | {line}\n")).collect();
    ensure!(status == 0 && passed, "exit status {status}:\n{indented}");
    Ok(())
}

/// Output and status of the command of this place.
fn ended(report: &Report, index: usize) -> Result<Ended> {
    let Some(ended) = report.command(index) else {
        let how = match report.status {
            Some(status) => format!("ended (QEMU: {status})"),
            None => "hung and was killed".into(),
        };
        bail!("the machine {how} before command {index} did; its last lines:\n{}", report.end());
    };
    Ok(ended)
}

/// The JSON document that a command has printed, perhaps with complaints behind it.
fn document(output: &str) -> Result<Value> {
    let line = output.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).with_context(|| output.to_owned())
}

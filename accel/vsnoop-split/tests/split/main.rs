//! Split connections between two real ends, each in a network namespace of its own. The test is the
//! wire between both.

mod ends;
mod joins;
mod liberties;
mod namespace;
mod options;
mod record;
mod report;
mod rig;
mod segment;
mod splitter;
mod transfers;
mod wire;

use libtest_mimic::{Arguments, Failed, Trial};

type Test = (&'static str, fn());

fn main() {
    let arguments = Arguments::from_args();
    // SAFETY: no arguments, no effect.
    let root = unsafe { libc::geteuid() } == 0;
    let modules = [
        ("ends", ends::TESTS),
        ("joins", joins::TESTS),
        ("liberties", liberties::TESTS),
        ("options", options::TESTS),
        ("transfers", transfers::TESTS),
    ];
    let tests = modules.iter().flat_map(|&(module, tests)| tests.iter().map(move |t| (module, t)));
    let trials = tests.map(|(module, &(name, test))| {
        let trial = Trial::test(format!("{module}::{name}"), move || run(test));
        if root { trial } else { trial.with_kind("skipped: needs root").with_ignored_flag(true) }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn run(test: fn()) -> Result<(), Failed> {
    std::thread::spawn(test).join().map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        Failed::from(text.unwrap_or_else(|| "panicked".into()))
    })
}

//! The runner `mpi`: MPI programs on some VMs, a loaded VM beside each.
//!
//! A turn is one program with a rank in each of the first machines. The size of a turn is 0 for the
//! collectives, of which one program times all message sizes, else the N of a system of equations.

mod launch;
mod summary;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::guest;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::rounds::Trial;
use super::systems;
use crate::results::{Cell, Sample};
use launch::{RANKS, last_words};

pub const RUNNER: Runner = Runner {
    name: "mpi",
    run,
    tables: summary::tables,
    figures: summary::figures,
    goals: None,
    plots: summary::plots,
    difference: summary::difference,
};

const SYSTEM: &str = include_str!("../../../systems/mpi.toml");
/// Sources of the programs, which the setup of the system compiles.
const SOURCES: [(&str, &str); 3] = [
    ("/usr/local/src/rank.h", include_str!("../../../systems/mpi/rank.h")),
    ("/usr/local/src/collectives.c", include_str!("../../../systems/mpi/collectives.c")),
    ("/usr/local/src/hpl.c", include_str!("../../../systems/mpi/hpl.c")),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    message_bytes: Vec<u64>,
    /// Calls of a collective with a size.
    repetitions: u32,
    /// Columns of a block of the matrix.
    block: u32,
}

fn run(task: Task) -> Result<()> {
    let settings = task.plan.settings()?;
    let mut system = systems::parse(SYSTEM)?;
    system.files.extend(SOURCES.map(|(path, text)| (path.to_owned(), text.to_owned())));
    let image = guest::prepare_system(&system)?.image;
    on_stages(task, image, &mut Mpi { settings })
}

struct Mpi {
    settings: Settings,
}

impl Measure for Mpi {
    fn accelerated(&self, _: usize) -> Vec<usize> {
        (0..RANKS).collect()
    }

    fn load(&self, machine: usize, cell: &Cell) -> f64 {
        if machine < RANKS { 0.0 } else { cell.load }
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let stage = ground.stage;
        ensure!(stage.vm_count() >= RANKS, "the ranks need {RANKS} machines");
        let (before, begin) = (cpu_times(ground)?, Instant::now());
        let mut values = match trial.size_bytes {
            0 => collectives(&launch::run(stage, &self.collectives())?)?,
            n => [(summary::HPL.to_owned(), hpl(&launch::run(stage, &self.hpl(n))?, n)?)].into(),
        };
        let percent = 100.0 / begin.elapsed().as_secs_f64();
        for (machine, (after, before)) in cpu_times(ground)?.into_iter().zip(before).enumerate() {
            let name = if machine < RANKS { summary::RANKS_CPU } else { summary::LOADED_CPU };
            *values.entry(name.into()).or_default() += (after - before).as_secs_f64() * percent;
        }
        Ok(vec![Sample { values, ..Sample::default() }])
    }
}

impl Mpi {
    fn collectives(&self) -> String {
        let sizes: Vec<_> = self.settings.message_bytes.iter().map(u64::to_string).collect();
        format!("/usr/local/bin/collectives {} {}", self.settings.repetitions, sizes.join(" "))
    }

    fn hpl(&self, n: u64) -> String {
        format!("/usr/local/bin/hpl {n} {}", self.settings.block)
    }
}

/// CPU time of each machine so far.
fn cpu_times(ground: &Ground) -> Result<Vec<Duration>> {
    let machines = 0..ground.stage.vm_count();
    machines.map(|machine| ground.stage.vm(machine).vcpu_time()).collect()
}

/// `bcast 1024 4426.7`: microseconds.
fn collectives(output: &str) -> Result<BTreeMap<String, f64>> {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| summary::COLLECTIVES.contains(name))?;
        let (bytes, us) = (words.next()?.parse().ok()?, words.next()?.parse::<f64>().ok()?);
        Some((summary::time(name, bytes), us / 1e3))
    };
    let values: BTreeMap<_, _> = output.lines().filter_map(value).collect();
    ensure!(!values.is_empty(), "no collective was timed: {}", last_words(output));
    Ok(values)
}

/// Mflop/s, from HPL's report: a line of variant, N, NB, P, Q, seconds and Gflop/s, and a line with
/// the residual, which must have passed HPL's check.
fn hpl(report: &str, n: u64) -> Result<f64> {
    let gflops = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [variant, of, _, _, _, _, gflops] = words[..] else { return None };
        let is_result = variant.starts_with('W') && of == n.to_string();
        is_result.then_some(gflops)?.parse::<f64>().ok()
    };
    let gflops = report.lines().find_map(gflops);
    let has_passed = report.lines().any(|line| line.trim_end().ends_with("...... PASSED"));
    let gflops = gflops.filter(|_| has_passed);
    Ok(1e3 * gflops.with_context(|| format!("HPL has solved nothing: {}", last_words(report)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_programs_are_read_and_their_lack_is_an_error() {
        let output = "HYDRA_LAUNCH_END\nbcast 1024 4400.0\nalltoall 1024 8800.5\nend\n";
        let expected =
            [(summary::time("bcast", 1024), 4.4), (summary::time("alltoall", 1024), 8.8005)];
        assert_eq!(collectives(output).unwrap(), expected.into());
        assert!(collectives("HYDRA_LAUNCH_END\n").is_err());
    }

    #[test]
    fn hpl_has_a_rate_only_if_its_residual_has_passed() {
        let report = "T/V N NB P Q Time Gflops\n\
                      ------\n\
                      WR11C2R4     400    16     1     4     13.23     2.588e-02\n\
                      ------\n\
                      ||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= 0.0061507 ...... PASSED\n";
        assert!((hpl(report, 400).unwrap() - 25.88).abs() < 1e-9);
        assert!(hpl(report, 800).is_err());
        let failed = hpl(&report.replace("PASSED", "FAILED"), 400).unwrap_err().to_string();
        assert!(failed.contains("0.0061507 ...... FAILED"), "{failed}");
    }

    #[test]
    fn the_system_has_the_sources_that_its_setup_compiles() {
        let system = systems::parse(SYSTEM).unwrap();
        for (path, _) in SOURCES.iter().filter(|(path, _)| path.ends_with(".c")) {
            let program = path.rsplit('/').next().unwrap().trim_end_matches(".c");
            assert!(system.setup.contains(program), "{program}");
        }
    }
}

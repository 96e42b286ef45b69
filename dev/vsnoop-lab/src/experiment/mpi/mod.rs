//! The runner `mpi`: MPI programs on some VMs, a loaded VM beside each.
//!
//! A turn is one program with a rank in each of the first machines. The size of a turn is 0 for the
//! collectives, of which one program times all message sizes, else the N of a system of equations.

mod launch;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::guest;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::rounds::Trial;
use super::systems;
use crate::results::{Cell, Label, Sample};
use launch::{RANKS, last_words};

/// The program that times them prints these names.
const COLLECTIVES: [&str; 2] = ["bcast", "alltoall"];

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

pub fn run(task: Task) -> Result<()> {
    let settings = task.plan()?.settings()?;
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
        let (before, begin) = (ground.cpu_times()?, Instant::now());
        let mut samples = match trial.size_bytes {
            0 => collectives(&launch::run(stage, &self.collectives())?)?,
            n => vec![Sample::with([("hpl_mflops", hpl(&launch::run(stage, &self.hpl(n))?, n)?)])],
        };
        let percent = 100.0 / begin.elapsed().as_secs_f64();
        for (machine, (after, before)) in ground.cpu_times()?.into_iter().zip(before).enumerate() {
            let name = if machine < RANKS { "ranks_cpu_percent" } else { "loaded_cpu_percent" };
            for sample in &mut samples {
                *sample.values.entry(name.into()).or_default() +=
                    (after - before).as_secs_f64() * percent;
            }
        }
        Ok(samples)
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

/// Samples of `bcast 1024 4426.7`: microseconds, of each collective and size.
fn collectives(output: &str) -> Result<Vec<Sample>> {
    let sample = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| COLLECTIVES.contains(name))?;
        let (bytes, us) = (words.next()?, words.next()?.parse::<f64>().ok()?);
        let what = Label::from(&format!("{name} {bytes}")).ok();
        Some(Sample { what, ..Sample::with([("collective_ms", us / 1e3)]) })
    };
    let samples: Vec<_> = output.lines().filter_map(sample).collect();
    ensure!(!samples.is_empty(), "no collective was timed: {}", last_words(output));
    Ok(samples)
}

/// Mflop/s, from HPL's report: a line of variant, N, NB, P, Q, seconds and Gflop/s, and a line with
/// the residual, which must have passed HPL's check.
fn hpl(report: &str, n: u64) -> Result<f64> {
    let gflops = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [variant, rows, _, _, _, _, gflops] = words[..] else { return None };
        let is_result = variant.starts_with('W') && rows == n.to_string();
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
        let samples = collectives(output).unwrap();
        let text = |one: &Sample| (one.what.unwrap().to_string(), one.values["collective_ms"]);
        let expected = [("bcast 1024".to_owned(), 4.4), ("alltoall 1024".to_owned(), 8.8005)];
        assert_eq!(samples.iter().map(text).collect::<Vec<_>>(), expected);
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

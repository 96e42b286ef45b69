//! `run all`: every experiment, one after the other. A failed one does not end the run, and what is
//! done need not be done again when an interrupted run is gone on with.

use std::collections::BTreeMap;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vsnoop_lab::experiment::{Experiment, Options, same};
use vsnoop_testbed::interrupt;

/// In the directory of the results, while some of the experiments are not done.
const FILE: &str = "all.json";

/// The experiments of a run that are done.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    /// The options, by [`same`]: a run with other ones begins anew.
    same: String,
    /// Names and how long they took.
    minutes: BTreeMap<String, f64>,
}

impl Done {
    /// Reads what an interrupted run with the same options has left.
    fn read(path: &Path, same: &str) -> Self {
        let text = fs::read(path).ok();
        let done = text.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        let fresh = || Self { same: same.to_owned(), ..Self::default() };
        done.filter(|done| done.same == same).unwrap_or_else(fresh)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("encode what is done")?;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// Runs `experiments` by `one`; results go to directories in `dir`.
pub fn run(
    experiments: &[&'static Experiment],
    options: &Options,
    dir: &Path,
    one: fn(&'static Experiment, &Options, &Path) -> Result<()>,
) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let path: PathBuf = dir.join(FILE);
    let mut done = Done::read(&path, &same(options));
    let minutes = |experiment: &&Experiment| match options.quick {
        true => experiment.takes.quick_min,
        false => experiment.takes.full_min,
    };
    let (skipped, left): (Vec<_>, Vec<_>) =
        experiments.iter().partition(|one| done.minutes.contains_key(&one.name));
    if !skipped.is_empty() {
        println!("going on with an interrupted run: {} are done", names(&skipped));
    }
    let mut failures = Vec::new();
    for (number, experiment) in left.iter().enumerate() {
        let rest = &left[number..];
        let estimate: u64 = rest.iter().map(minutes).sum();
        println!(
            "== {} ({} of {}; all that are left take about {estimate} min)",
            experiment.name,
            number + 1,
            left.len()
        );
        let begin = Instant::now();
        match alone(|| one(experiment, options, &dir.join(&experiment.name))) {
            Ok(()) => {
                done.minutes.insert(
                    experiment.name.clone(),
                    (begin.elapsed().as_secs_f64() / 6.0).round() / 10.0,
                );
                done.write(&path)?;
            }
            Err(error) => {
                interrupt::check()?;
                eprintln!("vsnoop-lab: {error:#}");
                failures.push(format!("{}: {error:#}", experiment.name));
            }
        }
    }
    for (name, minutes) in &done.minutes {
        println!("{name:15} {minutes:5.1} min");
    }
    if !failures.is_empty() {
        bail!(
            "{} of {} experiments failed; the same command runs them again:\n  {}",
            failures.len(),
            experiments.len(),
            failures.join("\n  ")
        );
    }
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
}

/// In a thread of its own: an experiment changes the cores and the priority of its thread.
fn alone<T: Send>(experiment: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|scope| scope.spawn(experiment).join());
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

fn names(experiments: &[&Experiment]) -> String {
    experiments.iter().map(|one| &*one.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use vsnoop_testbed::vm;

    use super::*;

    #[test]
    fn an_experiment_leaves_all_cores_to_the_next_one() {
        for _ in 0..2 {
            alone(|| vm::require_two_cores().and_then(|()| vm::pin_self())).unwrap();
        }
    }

    #[test]
    fn what_a_run_of_something_else_has_done_does_not_count() {
        let path = std::env::temp_dir().join(format!("vsnoop-lab-all-{}.json", std::process::id()));
        let minutes = BTreeMap::from([("ping".to_owned(), 1.5)]);
        let done = Done { same: "one vsnoop".into(), minutes };
        done.write(&path).unwrap();
        let [again, other] =
            ["one vsnoop", "another vsnoop"].map(|same| Done::read(&path, same).minutes.len());
        fs::remove_file(&path).unwrap();
        assert_eq!((again, other), (1, 0));
    }
}

//! The measurements of a run, each of which is on the disk as soon as it is made.
//!
//! The directory of the results has a journal: a line for the run, then one for each sample.
//! Entries of the environment have a line before the sample that found them. When the run is over,
//! a file results.json takes the journal's place. A run that was interrupted leaves it, and the
//! same run (the same experiment, options and `vsnoop`) goes on from there: it takes over
//! environment and samples, and [`Record::has`] says which measurements need not be made again.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cell, Results, Sample};

const JOURNAL: &str = "journal.jsonl";
/// The journal of another run, which is kept when a run with other options begins.
const OTHER: &str = "journal.other.jsonl";

/// The first line of a journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    experiment: String,
    /// Everything that must be the same for samples of two runs to stand in one result.
    same: String,
    started: String,
}

/// A line with entries of the environment: the later ones replace the earlier ones.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Surroundings {
    environment: BTreeMap<String, Value>,
}

/// The contents of a journal.
struct Journal {
    run: Run,
    environment: BTreeMap<String, Value>,
    samples: Vec<Sample>,
    /// Bytes of whole lines.
    length: u64,
}

#[derive(Debug)]
pub struct Record {
    pub results: Results,
    journal: File,
    path: PathBuf,
    /// The environment that the journal has.
    noted: BTreeMap<String, Value>,
    /// Samples of interrupted runs are the first ones.
    earlier: usize,
    /// Their configuration, size, cell and turn.
    measured: HashSet<String>,
    began: Instant,
    earlier_ms: f64,
}

impl Record {
    /// Begins a run, or goes on with an interrupted one for which `same` is the same.
    pub fn open(dir: &Path, results: Results, same: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let path = dir.join(JOURNAL);
        let journal = File::options().read(true).append(true).create(true).open(&path);
        let journal = journal.with_context(|| format!("open {}", path.display()))?;
        let run = Run {
            experiment: results.experiment.clone(),
            same: same.to_owned(),
            started: results.started.clone(),
        };
        let earlier = read(&journal).with_context(|| format!("read {}", path.display()))?;
        let mut record = Self {
            results,
            journal: journal.try_clone().context("a second handle of the journal")?,
            path,
            noted: BTreeMap::new(),
            earlier: 0,
            measured: HashSet::new(),
            began: Instant::now(),
            earlier_ms: 0.0,
        };
        match earlier {
            Some(before)
                if before.run.same == run.same && before.run.experiment == run.experiment =>
            {
                // The rest of a line that was being written when the run ended.
                journal.set_len(before.length).context("cut the journal")?;
                record.take_over(before);
            }
            earlier => {
                record.keep_other(earlier.is_some_and(|other| !other.samples.is_empty()))?;
                record.write(&run)?;
            }
        }
        Ok(record)
    }

    fn take_over(&mut self, journal: Journal) {
        let Journal { run, environment, samples, .. } = journal;
        if !samples.is_empty() {
            println!(
                "going on with the run that began at {}: {} measurements are there",
                run.started,
                samples.len()
            );
        }
        self.results.started = run.started;
        self.earlier = samples.len();
        self.earlier_ms = samples.iter().map(|sample| sample.at_ms).fold(0.0, f64::max);
        let measured = |sample: &Sample| {
            let (name, size_bytes) = (&sample.configuration, sample.size_bytes);
            Some(key(name, size_bytes, &sample.cell, sample.turn?))
        };
        self.measured = samples.iter().filter_map(measured).collect();
        self.results.samples = samples;
        self.results.environment.extend(environment.clone());
        self.noted = environment;
    }

    /// Begins with an empty journal; one with samples of another run is renamed.
    fn keep_other(&mut self, has_samples: bool) -> Result<()> {
        let path = self.path.display().to_string();
        if has_samples {
            let other = self.path.with_file_name(OTHER);
            fs::rename(&self.path, &other).with_context(|| format!("rename {path}"))?;
            eprintln!(
                "the interrupted run in {path} had other options or another vsnoop: its measurements \
                 are kept in {}",
                other.display()
            );
            let created = File::options().append(true).create_new(true).open(&self.path);
            self.journal = created.with_context(|| format!("create {path}"))?;
        }
        self.journal.set_len(0).with_context(|| format!("empty {path}"))
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line).context("encode a line of the journal")?;
        text.push(b'\n');
        let written = self.journal.write_all(&text);
        written.with_context(|| format!("write {}", self.path.display()))
    }

    pub fn push(&mut self, sample: Sample) -> Result<()> {
        // It counts even if the disk is full.
        self.results.samples.push(sample.clone());
        self.note_environment()?;
        self.write(&sample)
    }

    /// Writes the entries of the environment that the journal does not have; [`Record::push`] does
    /// it, too.
    pub fn note_environment(&mut self) -> Result<()> {
        let known = |(name, value): &(&String, &Value)| self.noted.get(*name) == Some(*value);
        let all = self.results.environment.iter();
        let new =
            all.filter(|entry| !known(entry)).map(|(name, value)| (name.clone(), value.clone()));
        let environment: BTreeMap<_, _> = new.collect();
        if environment.is_empty() {
            return Ok(());
        }
        self.write(&Surroundings { environment: environment.clone() })?;
        self.noted.extend(environment);
        Ok(())
    }

    /// Whether an earlier part of the run has made this measurement.
    pub fn has(&self, configuration: &str, size_bytes: u64, cell: &Cell, turn: usize) -> bool {
        !self.measured.is_empty()
            && self.measured.contains(&key(configuration, size_bytes, cell, turn))
    }

    /// Whether an earlier part of the run was done with this cell: it had gone on to another.
    pub fn is_past(&self, cell: &Cell) -> bool {
        let mut earlier = self.results.samples[..self.earlier].iter();
        let first = earlier.position(|sample| sample.cell == *cell);
        first.is_some() && earlier.any(|sample| sample.cell != *cell)
    }

    /// Milliseconds of measuring, those of earlier parts of the run included.
    pub fn elapsed_ms(&self) -> f64 {
        self.earlier_ms + self.began.elapsed().as_secs_f64() * 1e3
    }

    /// The journal is no longer needed: the results are written, or there are none.
    pub fn close(self) -> Results {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("{} stays: {error}", self.path.display());
        }
        self.results
    }
}

fn key(configuration: &str, size_bytes: u64, cell: &Cell, turn: usize) -> String {
    format!("{configuration} {size_bytes} {turn} {cell:?}")
}

/// Nothing, if the first line is not that of a run.
fn read(mut file: &File) -> Result<Option<Journal>> {
    file.seek(SeekFrom::Start(0))?;
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let mut journal: Option<Journal> = None;
    while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        let Some(journal) = &mut journal else {
            let Ok(run) = serde_json::from_slice(&line) else { return Ok(None) };
            journal = Some(Journal::new(run, line.len() as u64));
            line.clear();
            continue;
        };
        if !journal.add(&line) {
            break;
        }
        line.clear();
    }
    Ok(journal)
}

impl Journal {
    fn new(run: Run, length: u64) -> Self {
        Self { run, environment: BTreeMap::new(), samples: Vec::new(), length }
    }

    /// Whether the line is one of a journal.
    fn add(&mut self, line: &[u8]) -> bool {
        if let Ok(sample) = serde_json::from_slice(line) {
            self.samples.push(sample);
        } else if let Ok(Surroundings { environment }) = serde_json::from_slice(line) {
            self.environment.extend(environment);
        } else {
            return false;
        }
        self.length += line.len() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{results, sample};
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("record-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }

        fn open(&self, same: &str) -> Record {
            Record::open(&self.0, results(Vec::new()), same).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn turn(configuration: &str, turn: usize) -> Sample {
        Sample { turn: Some(turn), ..sample(configuration, 2.0) }
    }

    #[test]
    fn an_interrupted_run_is_gone_on_with_and_knows_what_is_missing() {
        let dir = Dir::new("interrupted");
        let mut first = dir.open("--quick");
        let cell = sample("off", 1.0).cell;
        for made in [turn("off", 0), turn("vsnoop", 0), turn("off", 1)] {
            first.push(made).unwrap();
        }
        drop(first);
        let mut second = dir.open("--quick");
        assert_eq!(second.results.samples.len(), 3);
        let has = |record: &Record, name, turn| record.has(name, 10_000, &cell, turn);
        assert!(has(&second, "off", 1) && !has(&second, "vsnoop", 1));
        assert!(!second.is_past(&cell));
        second.push(turn("vsnoop", 1)).unwrap();
        drop(second);
        assert!(has(&dir.open("--quick"), "vsnoop", 1));
        dir.open("--quick").close();
        assert_eq!(dir.open("--quick").results.samples.len(), 0, "a new run");
    }

    #[test]
    fn a_run_that_goes_on_has_what_was_known_of_the_environment() {
        let dir = Dir::new("environment");
        let mut first = dir.open("");
        let known = |record: &Record| {
            let text = |(name, value): (&String, &Value)| format!("{name} {value}");
            record.results.environment.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        first.results.environment.insert("load".into(), 1.into());
        first.push(turn("off", 0)).unwrap();
        first.results.environment.insert("turns".into(), 12.into());
        first.push(turn("off", 1)).unwrap();
        first.results.environment.insert("after".into(), true.into());
        first.note_environment().unwrap();
        drop(first);
        let mut second = dir.open("");
        assert_eq!(known(&second), "after true, load 1, turns 12");
        second.results.environment.insert("turns".into(), 24.into());
        second.push(turn("off", 2)).unwrap();
        drop(second);
        let third = dir.open("");
        assert_eq!(known(&third), "after true, load 1, turns 24");
        assert_eq!(third.results.samples.len(), 3);
    }

    #[test]
    fn a_cell_is_past_when_another_one_was_measured_after_it() {
        let dir = Dir::new("cells");
        let mut first = dir.open("");
        let mut far = turn("off", 0);
        far.cell.path_rtt_ms = 20.0;
        let near = turn("off", 0);
        first.push(near.clone()).unwrap();
        first.push(far.clone()).unwrap();
        drop(first);
        let second = dir.open("");
        assert!(second.is_past(&near.cell) && !second.is_past(&far.cell));
    }

    #[test]
    fn a_line_that_was_cut_off_is_dropped_and_written_again() {
        let dir = Dir::new("cut");
        let mut first = dir.open("");
        first.push(turn("off", 0)).unwrap();
        first.push(turn("off", 1)).unwrap();
        drop(first);
        let path = dir.0.join(JOURNAL);
        let length = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(length - 9).unwrap();
        let mut second = dir.open("");
        assert_eq!(second.results.samples.len(), 1);
        second.push(turn("off", 1)).unwrap();
        drop(second);
        assert_eq!(dir.open("").results.samples.len(), 2);
    }

    #[test]
    fn samples_of_a_run_with_other_options_are_kept_aside() {
        let dir = Dir::new("other");
        let mut first = dir.open("--load 0.6");
        first.push(turn("off", 0)).unwrap();
        drop(first);
        assert_eq!(dir.open("--load 0.8").results.samples.len(), 0);
        let kept = fs::read_to_string(dir.0.join(OTHER)).unwrap();
        assert_eq!(kept.lines().count(), 2, "{kept}");
    }
}

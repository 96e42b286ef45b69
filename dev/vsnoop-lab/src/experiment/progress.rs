//! Progress for people: one line that changes on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BETWEEN_LINES: Duration = Duration::from_secs(15);

pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    /// Steps that took no time.
    skipped: usize,
    began: Instant,
    last_line: Instant,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let template = "{elapsed} [{bar:30}] {pos}/{len}, {eta} left  {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        let now = Instant::now();
        Self { bar, total, done: 0, skipped: 0, began: now, last_line: now }
    }

    pub fn done(&self) -> usize {
        self.done
    }

    /// Counts steps that were done before, or are left out.
    pub fn skip(&mut self, steps: usize) {
        self.skip_to(self.done + steps);
    }

    /// Counts all steps before this one as done.
    pub fn skip_to(&mut self, done: usize) {
        self.skipped += done - self.done;
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    /// Counts one more step as done.
    pub fn step(&mut self, message: String) {
        self.done += 1;
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.done as u64);
                bar.set_message(message);
            }
            None if self.last_line.elapsed() >= BETWEEN_LINES || self.done == self.total => {
                self.last_line = Instant::now();
                let left = self.left().map_or(String::new(), |left| format!(", {left} left"));
                eprintln!("{}/{}{left}  {message}", self.done, self.total);
            }
            None => (),
        }
    }
}

impl Progress {
    /// The time that the remaining steps take if each takes as long as those so far: `7m 20s`.
    fn left(&self) -> Option<String> {
        let measured = self.done.checked_sub(self.skipped).filter(|steps| *steps > 0)?;
        let seconds = self.began.elapsed().as_secs_f64() / measured as f64;
        let left = seconds * self.total.saturating_sub(self.done) as f64;
        Some(humantime::format_duration(Duration::from_secs(left as u64)).to_string())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

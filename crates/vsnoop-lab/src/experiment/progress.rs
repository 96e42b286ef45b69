//! Progress for people: one line that changes on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BETWEEN_LINES: Duration = Duration::from_secs(15);

pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    last_line: Instant,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let template = "{elapsed} [{bar:30}] {pos}/{len} transfers  {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar, total, done: 0, last_line: Instant::now() }
    }

    pub fn done(&self) -> usize {
        self.done
    }

    /// Counts steps that are left out as done.
    pub fn skip_to(&mut self, done: usize) {
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
                eprintln!("{}/{} transfers  {message}", self.done, self.total);
            }
            None => (),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

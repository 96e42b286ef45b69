//! Progress for people: one line that changes on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BETWEEN_LINES: Duration = Duration::from_secs(15);

pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
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
        Self { bar, total, last_line: Instant::now() }
    }

    pub fn step(&mut self, done: usize, message: String) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(done as u64);
                bar.set_message(message);
            }
            None if self.last_line.elapsed() >= BETWEEN_LINES || done == self.total => {
                self.last_line = Instant::now();
                eprintln!("{done}/{} transfers  {message}", self.total);
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

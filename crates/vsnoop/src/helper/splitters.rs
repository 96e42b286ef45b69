//! The supervisor of the splitter: while a port has downloads, one must run.

use std::time::{Duration, Instant};

use crate::background::{self, Role};

/// Pauses between starts that fail.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub struct Splitters {
    /// How long to wait after a start that failed, and until when.
    pause: Duration,
    start_at: Option<Instant>,
    trouble: Option<String>,
}

impl Splitters {
    /// `are_needed`: a port has downloads.
    pub fn look(&mut self, are_needed: bool) {
        if !are_needed || background::running_pid(Role::Splitter).is_some() {
            *self = Self::default();
        } else if self.start_at.is_none_or(|at| Instant::now() >= at) {
            self.start();
        }
    }

    /// After a failure the next start is a pause later; the same trouble is logged once.
    fn start(&mut self) {
        let Err(error) = background::start(Role::Splitter) else {
            *self = Self::default();
            return;
        };
        self.pause = (2 * self.pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.start_at = Some(Instant::now() + self.pause);
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!("no splitter: downloads are as without vsnoop: {text}");
            self.trouble = Some(text);
        }
    }
}

//! The supervisor of splitter and keeper: while a port has downloads, both must run.

use std::time::{Duration, Instant};

use crate::background::{self, Role};

/// Pauses between starts that fail.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct Splitters {
    keeper: Supervised,
    splitter: Supervised,
}

/// One of both.
#[derive(Debug)]
struct Supervised {
    role: Role,
    /// The trouble while the process does not run.
    without: &'static str,
    /// How long to wait after a start that failed, and until when.
    pause: Duration,
    start_at: Option<Instant>,
    trouble: Option<String>,
}

impl Default for Splitters {
    fn default() -> Self {
        Self {
            keeper: Supervised::new(
                Role::Keeper,
                "no keeper: a splitter that is killed loses its connections",
            ),
            splitter: Supervised::new(
                Role::Splitter,
                "no splitter: downloads are as without vsnoop",
            ),
        }
    }
}

impl Splitters {
    /// `are_needed`: a port has downloads.
    pub fn watch_splitters(&mut self, are_needed: bool) {
        // The splitter asks the keeper first what there is.
        self.keeper.watch_splitter(are_needed);
        self.splitter.watch_splitter(are_needed);
    }
}

impl Supervised {
    fn new(role: Role, without: &'static str) -> Self {
        Self { role, without, pause: Duration::ZERO, start_at: None, trouble: None }
    }

    fn watch_splitter(&mut self, is_needed: bool) {
        if !is_needed || background::running_pid(self.role).is_some() {
            *self = Self::new(self.role, self.without);
        } else if self.start_at.is_none_or(|at| Instant::now() >= at) {
            self.start_splitter();
        }
    }

    /// After a failure the next start is a pause later; the same trouble is logged once.
    fn start_splitter(&mut self) {
        let Err(error) = background::start(self.role) else {
            *self = Self::new(self.role, self.without);
            return;
        };
        self.pause = (2 * self.pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.start_at = Some(Instant::now() + self.pause);
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!("{}: {text}", self.without);
            self.trouble = Some(text);
        }
    }
}

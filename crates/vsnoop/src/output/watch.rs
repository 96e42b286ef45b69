//! Refreshing output until Ctrl-C.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A flag that Ctrl-C or SIGTERM sets, instead of ending the process.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Lets the signals only set the flag; a second one ends the process.
    pub fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // Registered first, so that it reads the flag before the next action sets it.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .context("catch signals")?;
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("catch signals")?;
        }
        Ok(Self(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until `until`, less when interrupted.
    pub fn sleep_until(&self, until: Instant) {
        const STEP: Duration = Duration::from_millis(50);
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(STEP));
        }
    }
}

/// Prints what `render` returns once, or with `every` (seconds) until Ctrl-C: in place on a
/// terminal, otherwise one after the other.
pub fn run(every: Option<f64>, mut render: impl FnMut() -> Result<String>) -> Result<()> {
    let Some(every) = every else {
        return print(&render()?);
    };
    let interrupt = Interrupt::catch()?;
    while !interrupt.is_set() {
        let next = Instant::now() + Duration::from_secs_f64(every.max(0.05));
        refresh(&render()?)?;
        interrupt.sleep_until(next);
    }
    Ok(())
}

/// Replaces the contents of the screen by `text`.
pub fn refresh(text: &str) -> Result<()> {
    if io::stdout().is_terminal() {
        // Home, the text with the rest of each line cleared, then everything below cleared.
        let text = text.replace('\n', "\x1b[K\n");
        return print(&format!("\x1b[H{text}\x1b[K\n\x1b[J"));
    }
    print(text)
}

static PRINTED: AtomicBool = AtomicBool::new(false);

/// Was anything printed by [`print`]?
pub fn has_printed() -> bool {
    PRINTED.load(Ordering::Relaxed)
}

/// To standard output; a reader that has gone away (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    PRINTED.store(true, Ordering::Relaxed);
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.context("write to standard output"),
    }
}

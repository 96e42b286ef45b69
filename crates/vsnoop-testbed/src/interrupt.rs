//! Ctrl-C and its kin: a flag that every wait looks at, so that an interrupted run unwinds as an
//! error would and everything that it made is dropped. A second signal ends the process at once;
//! the next start then clears up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit status of an interrupted run.
pub const EXIT_STATUS: i32 = 130;

/// Installs the handler of SIGINT, SIGTERM and SIGHUP.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_STATUS);
        }
        eprintln!("interrupted: clearing up");
    })
    .context("install the signal handler")
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// An error once a signal has come.
pub fn check() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

//! Ctrl-C and its kin: a flag that every wait looks at, so that an interrupted run unwinds as an
//! error would and everything that it made is dropped. More signals change nothing: a terminal,
//! make and timeout may each send one, and what is half cleared up would stay. SIGKILL ends the
//! process at once; the next start then clears up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit status of an interrupted run.
pub const EXIT_STATUS: i32 = 130;

/// Installs the handler of SIGINT, SIGTERM and SIGHUP.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            let pid = std::process::id();
            eprintln!("still clearing up; after `kill -9 {pid}` the next start does it");
        } else {
            eprintln!("interrupted: clearing up");
        }
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

/// Repeats a call of a socket that was interrupted, but not by one of these signals. One with a
/// time limit ends with EINTR, in a process without any handler too, when a freezer or a debugger
/// stops the process and lets it go on (signal(7)).
pub fn restarted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && !interrupted() => {}
            ended => return ended,
        }
    }
}

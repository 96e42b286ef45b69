//! One helper per host: a lock file that holds its process id, and starting one.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::Flock;

use crate::lock::{self, try_lock};
use crate::ports;

const LOCK: &str = "helper.lock";
/// A helper that has not taken its lock by then is not waited for.
const START: Duration = Duration::from_secs(1);

const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(7);

/// Held by the helper while it works.
pub struct Instance {
    _file: Flock<File>,
}

impl Instance {
    /// `None` when another helper works. A command that looks whether one does takes the lock for a
    /// moment, so one refusal says nothing.
    pub fn take() -> Result<Option<Self>> {
        let mut tries = 0..TRIES;
        let mut file = loop {
            match try_lock(LOCK)? {
                Some(file) => break file,
                None if tries.next().is_none() => return Ok(None),
                None => thread::sleep(TRY_AGAIN),
            }
        };
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()))
            .with_context(|| format!("write {}/{LOCK}", lock::DIRECTORY))?;
        Ok(Some(Self { _file: file }))
    }
}

/// The helper's process id, `None` when none runs.
pub fn running_pid() -> Option<i32> {
    match try_lock(LOCK) {
        Ok(None) => {
            let path = Path::new(lock::DIRECTORY).join(LOCK);
            fs::read_to_string(path).ok()?.trim().parse().ok()
        }
        _ => None,
    }
}

/// Starts a helper in the background if none runs. That it cannot be started is a warning: the
/// attachment is safe without it.
pub fn ensure_running() {
    if let Err(error) = start() {
        eprintln!(
            "vsnoop: the helper could not be started ({error:#}): idle connections do not expire, and \
             connections to a VM that lost data may hang"
        );
    }
}

/// [`ensure_running`] where something is attached.
pub fn restart_if_needed() {
    if running_pid().is_none() && ports::are_any() {
        ensure_running();
    }
}

fn start() -> Result<()> {
    if !matches!(try_lock(LOCK), Ok(Some(_))) {
        return Ok(());
    }
    let program = std::env::current_exe().context("find the own program")?;
    let mut child = Command::new(&program)
        .arg("helper")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("run {}", program.display()))?;
    let start = Instant::now();
    while running_pid().is_none() && start.elapsed() < START {
        // Ended already: another command's helper was faster, or it failed and logged why.
        if child.try_wait().context("look after the helper")?.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// In the background: no terminal, and none of the files that the starting process happened to have
/// open (a lock of a script, say, must not live as long as the helper).
pub fn leave_the_terminal() -> Result<()> {
    // Fails only for the leader of a process group, which has no need of it.
    let _ = nix::unistd::setsid();
    // SAFETY: called first thing in a fresh process: it has not opened anything beyond standard input,
    // output and error that it would use later.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("close inherited files");
    }
    Ok(())
}

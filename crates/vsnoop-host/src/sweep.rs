//! What is left of ports that nobody has any more: taken away before a command changes something.

use anyhow::{Context, Result};
use vsnoop_bpf::Port;

use crate::lock::CommandLock;
use crate::ports::{self, State};
use crate::{incast, release};

/// Takes away what killed commands have left, unless one is at work that may come to it.
pub fn finish_if_idle() -> Result<()> {
    // What cannot be read the caller will tell.
    if Port::cut_short().map_or(true, |found| found.is_empty()) {
        return Ok(());
    }
    let Some(lock) = CommandLock::try_take()? else { return Ok(()) };
    release::finish(&lock)?;
    vsnoop_bpf::tidy();
    incast::sweep(&lock)
}

/// Takes away what is left of ports whose tap has been deleted, and of those that a killed command
/// has not done with.
pub fn sweep(lock: &CommandLock) -> Result<()> {
    for attached in ports::inventory()?.ports {
        if attached.state == State::Gone {
            let name = attached.name.clone();
            release::release(attached).with_context(|| format!("clean up after port {name}"))?;
        }
    }
    release::finish(lock)?;
    vsnoop_bpf::tidy();
    incast::sweep(lock)
}

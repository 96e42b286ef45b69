//! Removes leftovers of ports, before a command changes something.

use std::time::Instant;

use vsnoop_bpf::Port;

use crate::error::{Error, Result, with_causes};
use crate::lock::CommandLock;
use crate::ports::{self, AttachmentState};
use crate::{incast, port_removal, split};

/// Removes what killed commands have left, unless a command that may do so is running.
pub fn finish_if_idle() -> Result<()> {
    // The caller reports what cannot be read.
    if Port::cut_short().map_or(true, |found| found.is_empty()) {
        return Ok(());
    }
    let Some(lock) = CommandLock::try_take()? else { return Ok(()) };
    port_removal::finish(&lock)?;
    vsnoop_bpf::sweep();
    incast::sweep(&lock)
}

/// Detaches ports whose tap was deleted, and completes what killed commands have begun.
pub fn sweep(lock: &CommandLock) -> Result<()> {
    let deadline = Instant::now() + split::PATIENCE;
    for attached in ports::inventory()?.ports {
        if attached.state == AttachmentState::Gone {
            let name = attached.name.clone();
            port_removal::detach_until(attached, deadline)
                .map_err(|error| Error::CleanUp { port: name, error: error.into() })?;
        }
    }
    port_removal::finish(lock)?;
    sweep_downloads(lock);
    vsnoop_bpf::sweep();
    incast::sweep(lock)
}

/// A failure keeps nothing else from being done.
fn sweep_downloads(lock: &CommandLock) {
    if let Err(error) = split::sweep(lock) {
        tracing::warn!("what is left of downloads stays: {}", with_causes(&error));
    }
}

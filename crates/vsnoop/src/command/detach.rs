//! `vsnoop detach`: stops early ACKs, waits until the VM has acknowledged everything, takes the
//! port off.

use std::time::Duration;

use anyhow::Result;
use vsnoop_host::detach::{Detached, detach};
use vsnoop_host::held::{Outstanding, amount};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports;
use vsnoop_host::sweep;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use crate::cli::{self, Cli};
use crate::drain::drain;
use crate::output::report::{self, Outcome};
use crate::output::watch::Interrupt;

pub fn run(cli: &Cli, arguments: &cli::Drain) -> Result<u8> {
    kernel::require()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch()?;
    let timeout = Duration::from_secs_f64(arguments.timeout);
    let code = report::each(cli, &arguments.ports, |name| {
        let attached = ports::find(name, &netns)?;
        // The lock is not held during the wait, so that other ports can be changed.
        let left = drain(&attached, timeout, &interrupt)?;
        let _lock = CommandLock::take()?;
        Ok(outcome(name, left, detach(attached)?))
    })?;
    sweep::sweep(&CommandLock::take()?)?;
    Ok(code)
}

fn outcome(name: &str, left: Outstanding, detached: Detached) -> Outcome {
    // Otherwise the ring is gone, or another process reports it.
    let has_ring = !detached.tap_deleted && !detached.by_another;
    let ended = detached.ended;
    let left = if has_ring { left.without(ended) } else { Outstanding::default() };
    let mut text = format!("{name}: detached");
    if detached.tap_deleted {
        text.push_str("; the tap had been deleted before");
    }
    if detached.by_another {
        text.push_str(" meanwhile, by somebody else or because its tap was deleted");
    }
    if ended.flows > 0 {
        text.push_str(&format!("; {} reset", units::plural(ended.flows, "connection")));
    }
    if let Some(note) = detached.note {
        text.push_str(&format!("; {note}"));
    }
    let mut warnings = Vec::new();
    if ended.flows > 0 {
        warnings.push(format!(
            "{} had not been handed to the VM: they were lost with the hold, and these connections \
             were reset at both ends",
            amount(ended.held_bytes, ended.flows)
        ));
    }
    if left.bytes > 0 {
        warnings.push(format!(
            "{} were still on their way to the VM: they are in its ring, and it has not acknowledged \
             them yet",
            left.text()
        ));
    }
    Outcome {
        outstanding_flows: Some(left.flows),
        outstanding_bytes: Some(left.bytes),
        reset_flows: Some(ended.flows),
        reset_bytes: Some(ended.held_bytes),
        warning: (!warnings.is_empty())
            .then(|| format!("port {name} was detached while {}", warnings.join("; "))),
        ..Outcome::done(name, "detached", text)
    }
}

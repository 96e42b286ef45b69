//! `vsnoop detach`: stop, wait until the VM has acknowledged everything, let go.

use std::time::Duration;

use anyhow::Result;

use crate::cli::{self, Cli};
use crate::drain::{Left, drain};
use crate::lock::CommandLock;
use crate::output::report::{self, Outcome};
use crate::output::watch::Interrupt;
use crate::ports::{self, State};
use crate::release::release;
use crate::system::kernel;
use crate::system::netns::Netns;

pub fn run(cli: &Cli, arguments: &cli::Drain) -> Result<u8> {
    kernel::require()?;
    let place = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch()?;
    let timeout = Duration::from_secs_f64(arguments.timeout);
    let code = report::each(&arguments.ports, cli.json, |name| {
        let attached = ports::find(name, &place)?;
        let gone = attached.state == State::Gone;
        // The lock is not held while waiting: other ports are none of this one's business.
        let left = drain(&attached, timeout, &interrupt)?;
        let _lock = CommandLock::take()?;
        let note = release(attached)?;
        Ok(outcome(name, gone, left, note))
    })?;
    let _lock = CommandLock::take()?;
    ports::sweep_gone()?;
    Ok(code)
}

fn outcome(name: &str, gone: bool, left: Left, note: Option<String>) -> Outcome {
    let mut text = format!("{name}: detached");
    if gone {
        text.push_str("; the tap had been deleted before");
    }
    if let Some(note) = note {
        text.push_str(&format!("; {note}"));
    }
    let mut outcome = Outcome::done(name, "detached", text);
    outcome.outstanding_flows = Some(left.flows);
    outcome.outstanding_bytes = Some(left.bytes);
    if left.bytes > 0 {
        outcome.warning = Some(format!(
            "port {name} was detached while {} were still on their way to the VM: they are in its \
             ring, and it has not acknowledged them yet",
            left.text()
        ));
    }
    outcome
}

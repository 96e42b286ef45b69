//! The helper: what no packet can trigger.
//!
//! One small process per host, started by the commands when a port is attached and none runs, and
//! gone again when nothing is attached any more. Four times a second it looks at the flows of each
//! port and
//!
//! - forgets connections that ended or have been idle for long (`vsnoop_flow::expiry`);
//! - resets connections whose copies nobody can hand over any more, or whose VM has gone, and sends
//!   the RSTs of connections that were reset again (`engines`, `reset`);
//! - pauses ports that got another program on their egress, and follows taps from bridge to bridge
//!   (`surroundings`);
//! - keeps the engine running where a port has a hold (`engines`);
//! - opens windows that incast control has closed, where no packet comes that could (`grants`), a
//!   hundred times a second, or five hundred while somebody waits;
//! - cleans up after taps that were deleted, and after commands that were killed while they
//!   detached, and takes away uplinks that no port is behind any more (`monitor`).
//!
//! It goes before ordinary processes, within a bound (`priority`).
//!
//! The kernel side is safe without it: a record that is not forgotten costs memory, and a
//! connection whose engine or VM has gone waits on. So it may be killed at any time; the next
//! command starts it, and so does an engine.

mod engines;
mod grants;
mod monitor;
mod surroundings;

use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_host::error::{Unfit, unfit};
use vsnoop_host::ports;
use vsnoop_host::priority::Priority;

use crate::background::{self, Instance, Role};
use crate::cli;
use monitor::Monitor;

/// How often the flows are looked at.
const PERIOD: Duration = Duration::from_millis(250);
/// The helper stays this long after the last port has been detached, in case another one comes.
const LINGER: Duration = Duration::from_secs(2);
/// With very many flows looking takes time: it may take one part in this many of a CPU.
const CPU_PART: u32 = 10;
/// Before all ordinary processes it works for so long in a period; a longer look goes on as one of
/// them.
const BUDGET: Duration = Duration::from_millis(25);

pub fn run(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(arguments.foreground)?;
    let Some(mut instance) = Instance::take(Role::Helper)? else {
        if arguments.foreground {
            return Err(unfit(
                Unfit::Other,
                "another helper runs already; `vsnoop status` shows it",
            ));
        }
        return Ok(0);
    };
    let mut priority = Priority::take(BUDGET);
    tracing::info!("helper started");
    let mut monitor = Monitor::default();
    let mut last_port_at = Instant::now();
    while !interrupt.is_set() {
        let start = Instant::now();
        priority.renew();
        background::forget_children();
        match monitor.look() {
            Ok(0) => {}
            Ok(_) => last_port_at = start,
            Err(error) => tracing::warn!("{error:#}"),
        }
        if last_port_at.elapsed() > LINGER {
            // Without the lock a command that attaches now starts a helper of its own; one that
            // attached before found the lock taken, so look once more.
            drop(instance);
            if monitor.look().unwrap_or(0) == 0 {
                break;
            }
            match Instance::take(Role::Helper)? {
                Some(again) => instance = again,
                None => break,
            }
            last_port_at = start;
        }
        let next = start + PERIOD.max(start.elapsed() * CPU_PART);
        while let Some(pause) = monitor.open_windows()
            && Instant::now() + pause < next
            && !interrupt.is_set()
        {
            interrupt.sleep_until(Instant::now() + pause);
        }
        interrupt.sleep_until(next);
    }
    tracing::info!("helper ends");
    Ok(0)
}

/// The helper's process id, `None` when none runs.
pub fn running_pid() -> Option<i32> {
    background::running_pid(Role::Helper)
}

/// Starts a helper in the background if none runs. That it cannot be started is a warning: the
/// attachment is safe without it.
pub fn ensure_running() {
    if let Err(error) = background::start(Role::Helper) {
        eprintln!(
            "vsnoop: the helper could not be started ({error:#}): idle connections do not expire, and \
             nobody starts an engine that has ended"
        );
    }
}

/// [`ensure_running`] where something is attached.
pub fn restart_if_needed() {
    if running_pid().is_none() && ports::are_any() {
        ensure_running();
    }
}

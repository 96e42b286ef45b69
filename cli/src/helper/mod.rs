//! The helper: duties that no packet can trigger.
//!
//! One small process per host. Commands start it when they attach a port and none runs; it exits
//! when nothing is attached any more. Four times a second it looks at the flows of each port and
//!
//! - removes records of connections that ended or were idle for long (`vsnoop_hold::expiry`);
//! - resets connections whose held bytes no engine hands over, or whose VM is gone, and repeats the
//!   RSTs of connections that were reset (`engines`, `reset`);
//! - suspends ports with another program in their way, and follows taps from bridge to bridge
//!   (`surroundings`);
//! - keeps the engine running while a port has a hold (`engines`), splitter and keeper while a port
//!   has downloads (`splitters`);
//! - opens windows that incast control has closed, where no packet comes that could (`grants`), a
//!   hundred times a second, or five hundred while connections are queued;
//! - detaches ports whose tap was deleted, completes what killed commands have begun, and removes
//!   uplinks without ports (`monitor`).
//!
//! It has real-time priority within a budget (`priority`).
//!
//! The hooks are safe without it: an expired record costs memory, and a connection whose engine or
//! VM is gone waits. So it may be killed at any time; the next command, or the engine, starts it
//! again.

mod engines;
mod monitor;
mod port_grants;
mod reader_loss;
mod splitters;
mod surroundings;

use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_hold::LOOK_NS;
use vsnoop_host::error::Unfit;
use vsnoop_host::ports;
use vsnoop_host::priority::Priority;
use vsnoop_host::system::clock;

use crate::background::{self, Instance, Linger, Role};
use crate::cli;
use crate::error::unfit_error;
use crate::log::note::LossNote;
use monitor::Monitor;

/// Interval of looks at the flows.
const PERIOD: Duration = Duration::from_nanos(LOOK_NS);
/// With very many flows a look takes long: it may take 1/CPU_PART of a CPU. The time that it waits
/// for one, on a busy host, does not count.
const CPU_PART: u32 = 10;
/// CPU time at real-time priority in each period; a longer look continues at ordinary priority.
const BUDGET: Duration = Duration::from_millis(25);

pub fn run_helper(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(Role::Helper, arguments.foreground)?;
    let Some(mut instance) = Instance::take_lock(Role::Helper)? else {
        if arguments.foreground {
            return Err(unfit_error(
                Unfit::Other,
                "another helper runs already; `vsnoop status` shows it",
            ));
        }
        return Ok(0);
    };
    let mut priority = Priority::take(BUDGET);
    tracing::info!("helper started");
    let mut loss = LossNote::from_role(Role::Helper);
    let mut monitor = Monitor::default();
    let mut linger = Linger::default();
    while !interrupt.is_set() {
        let (start, cpu_start) = (Instant::now(), clock::cpu_time());
        priority.renew();
        background::reap_children();
        if let Err(error) = monitor.watch_ports() {
            tracing::warn!("{error:#}");
        }
        loss.update();
        if linger.is_over(monitor.has_ports(), Instant::now()) {
            // Without the lock a command that attaches now starts a helper of its own; one that
            // attached before found the lock taken, so look once more.
            drop(instance);
            let _ = monitor.watch_ports();
            if !monitor.has_ports() {
                break;
            }
            match Instance::take_lock(Role::Helper)? {
                Some(again) => instance = again,
                None => break,
            }
            linger = Linger::default();
        }
        let busy = clock::cpu_time().saturating_sub(cpu_start);
        let next = start + PERIOD.max(busy * CPU_PART);
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

/// The helper's process id; `None` if none runs.
pub fn running_pid() -> Option<i32> {
    background::running_pid(Role::Helper)
}

/// Starts a helper in the background if none runs. A failure is a warning only: the attachment is
/// safe without it.
pub fn ensure_running() {
    if let Err(error) = background::start(Role::Helper) {
        eprintln!(
            "vsnoop: the helper could not be started ({error:#}): idle connections do not expire, and \
             nobody starts an engine that has ended"
        );
    }
}

/// [`ensure_running`], if a port is attached.
pub fn restart_if_needed() {
    if running_pid().is_none() && ports::are_any() {
        ensure_running();
    }
}

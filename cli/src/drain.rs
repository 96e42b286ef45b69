//! Stops early acknowledgement without loss: sends no new early ACKs, then waits until the VM has
//! acknowledged all bytes that the host has.
//!
//! With a hold, some of these bytes may be on this host only; the engine continues to hand them
//! over.
//!
//! Connections that are split are joined meanwhile: the splitter does so while a port is paused.
//!
//! The wait is bounded. At its end, bytes that were handed to the VM are in its ring or in its TCP.
//! Bytes that are still held are reported, because they need this host: after a migration the VM
//! would not get them, and a detach resets their connections (vsnoop-host's `port_removal`). The
//! wait ends at once when the tap is deleted, or another process detaches the port; the caller
//! finds out which.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vsnoop_bpf::types::port_run;
use vsnoop_hold::drain_limit::{STEP_NS, is_over};
use vsnoop_host::holds::{Holds, Outstanding};
use vsnoop_host::ports::{Attached, AttachmentState};
use vsnoop_host::split::SplitFlows;
use vsnoop_host::units;

use crate::output::watch::Interrupt;

const STEP: Duration = Duration::from_nanos(STEP_NS);
/// A longer wait prints a message.
const PATIENCE: Duration = Duration::from_millis(500);

/// Pauses the port and waits. After an interrupt the port continues as before.
pub fn drain_port(
    attached: &Attached,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Outstanding> {
    begin_drain(attached)?;
    wait_for_end(attached, Instant::now(), timeout, interrupt)
}

/// [`drain_port`] of several ports, which wait at the same time; what came of each, in their order.
pub fn drain_all(
    ports: &[Attached],
    timeout: Duration,
    interrupt: &Interrupt,
) -> Vec<Result<Outstanding>> {
    let begun: Vec<_> = ports.iter().map(begin_drain).collect();
    let start = Instant::now();
    let waited = begun.into_iter().zip(ports);
    waited
        .map(|(begun, port)| begun.and_then(|()| wait_for_end(port, start, timeout, interrupt)))
        .collect()
}

fn begin_drain(attached: &Attached) -> Result<()> {
    if attached.state == AttachmentState::Active {
        attached.port.set_run(port_run::PORT_PAUSED)?;
    }
    Ok(())
}

/// `start`: since when the port is paused.
fn wait_for_end(
    attached: &Attached,
    start: Instant,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Outstanding> {
    let port = &attached.port;
    // Nothing was acknowledged early, or the VM is gone.
    if let AttachmentState::Observing | AttachmentState::Gone = attached.state {
        return Ok(Outstanding::default());
    }
    let mut announced = false;
    let holds = Holds::open_or_do_without(port);
    let split = SplitFlows::count_splits(port);
    loop {
        let left = Outstanding::count_outstanding(port, &holds)?;
        let split = split.count();
        let waited_ns = start.elapsed().as_nanos() as u64;
        // Neither is left, or the time is over.
        let is_over = is_over(left.bytes + split, waited_ns, timeout.as_nanos() as u64);
        if is_over || !port.links_alive() {
            if split > 0 {
                eprintln!(
                    "vsnoop: port {}: {} could not be joined: part of what they carry is on this \
                     host only",
                    attached.label(),
                    units::plural(split, "split connection")
                );
            }
            return Ok(left);
        }
        if interrupt.is_set() {
            if attached.state == AttachmentState::Active {
                port.set_run(port_run::PORT_ACCELERATE)?;
            }
            bail!("interrupted; port {} goes on as before", attached.label());
        }
        if !announced && start.elapsed() > PATIENCE {
            announced = true;
            eprintln!(
                "vsnoop: port {}: waiting up to {} for {}",
                attached.label(),
                units::duration(timeout.as_nanos() as u64),
                match left.bytes {
                    0 => format!("{} to be joined", units::plural(split, "split connection")),
                    _ => format!("the VM to acknowledge {}", left.describe_outstanding()),
                }
            );
        }
        thread::sleep(STEP);
    }
}

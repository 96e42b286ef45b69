//! Stopping early acknowledgement without losing anything: no new early ACKs, then wait until the VM
//! has acknowledged all that the sender was told it had.
//!
//! The wait is bounded. Past it nothing is lost that was not lost before: what was acknowledged early is
//! in the tap's ring or in the VM already. It ends at once when the tap is deleted, or the port detached
//! by somebody else: the caller finds out which.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vsnoop_bpf::types::port_run;

use crate::output::units;
use crate::output::watch::Interrupt;
use crate::ports::{Attached, State};

const STEP: Duration = Duration::from_millis(5);
/// A longer wait is announced.
const PATIENCE: Duration = Duration::from_millis(500);

/// What was still on its way when the wait ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub flows: u64,
    pub bytes: u64,
}

impl Left {
    pub fn text(self) -> String {
        format!(
            "{} of {}",
            units::plural(self.bytes, "byte"),
            units::plural(self.flows, "connection")
        )
    }
}

/// Pauses the port and waits. Interrupted, the port goes on as before.
pub fn drain(attached: &Attached, timeout: Duration, interrupt: &Interrupt) -> Result<Left> {
    let port = &attached.port;
    match attached.state {
        State::Active => port.set_run(port_run::PORT_PAUSED)?,
        State::Paused => {}
        // Nothing was ever acknowledged early, or nobody is left to acknowledge it.
        State::Observing | State::Gone => return Ok(Left::default()),
    }
    let start = Instant::now();
    let mut announced = false;
    loop {
        let (flows, bytes) = port.outstanding()?;
        let left = Left { flows, bytes };
        if bytes == 0 || start.elapsed() >= timeout || !port.links_alive() {
            return Ok(left);
        }
        if interrupt.is_set() {
            if attached.state == State::Active {
                port.set_run(port_run::PORT_ACTIVE)?;
            }
            bail!("interrupted; port {} goes on as before", attached.label());
        }
        if !announced && start.elapsed() > PATIENCE {
            announced = true;
            eprintln!(
                "vsnoop: port {}: waiting up to {} for the VM to acknowledge {}",
                attached.label(),
                units::duration(timeout.as_nanos() as u64),
                left.text()
            );
        }
        thread::sleep(STEP);
    }
}

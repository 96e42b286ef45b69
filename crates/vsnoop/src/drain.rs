//! Stopping early acknowledgement without losing anything: no new early ACKs, then wait until the
//! VM has acknowledged all that the sender was told it had.
//!
//! With a hold, part of that may be on this host only, and the engine hands it over meanwhile as
//! ever.
//!
//! The wait is bounded. Past it, what was handed to the VM is in its ring or in its hands already;
//! what is still held is said, for it needs this host: it must not be left behind by a migration,
//! and a port that is let go has its connections reset (`release`). It ends at once when the tap is
//! deleted, or the port detached by somebody else: the caller finds out which.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vsnoop_bpf::types::port_run;
use vsnoop_host::held::{Holds, Left};
use vsnoop_host::ports::{Attached, State};
use vsnoop_host::units;

use crate::output::watch::Interrupt;

const STEP: Duration = Duration::from_millis(5);
/// A longer wait is announced.
const PATIENCE: Duration = Duration::from_millis(500);

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
    let holds = Holds::open_or_do_without(port);
    loop {
        let left = Left::of(port, &holds)?;
        if left.bytes == 0 || start.elapsed() >= timeout || !port.links_alive() {
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

//! `vsnoop pause` and `vsnoop resume`: around live migration and snapshots.

use anyhow::Result;
use vsnoop_bpf::types::port_run;
use vsnoop_host::error::Unfit;
use vsnoop_host::holds::Outstanding;
use vsnoop_host::ports::{self, Attached, AttachmentState};
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_service::control;

use crate::cli::{self, Cli};
use crate::drain::drain_port;
use crate::error::{EXIT_RUNTIME, exit_name, unfit_error};
use crate::helper;
use crate::output::report::{self, Failure, Outcome};
use crate::output::watch::Interrupt;

/// Fails (exit code 1) if the VM has not acknowledged everything at the end of the wait: a
/// migration must not start then, above all if some bytes are on this host only. The port stays
/// paused, and the engine continues to hand over held bytes.
pub fn pause_ports(cli: &Cli, arguments: &cli::Drain) -> Result<u8> {
    kernel::require()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let timeout = arguments.patience.timeout();
    report::report_each(cli, &arguments.ports, |name| {
        let left = drain_port(&find_usable(name, &netns)?, timeout, &interrupt)?;
        // Its tap may have been deleted, or the port detached, meanwhile.
        find_usable(name, &netns)?;
        let mut outcome = Outcome::done(name, "paused", format!("{name}: paused"));
        outcome.outstanding_flows = Some(left.flows);
        outcome.outstanding_bytes = Some(left.bytes);
        outcome.held_flows = Some(left.held_flows);
        outcome.held_bytes = Some(left.held_bytes);
        if left.bytes > 0 {
            let message = format!(
                "port {name} is paused, but {} are still on their way: the VM has not acknowledged \
                 them{}; let it run, then repeat",
                left.describe_outstanding(),
                describe_held(left)
            );
            outcome.warning = Some(message.clone());
            outcome.error =
                Some(Failure { kind: exit_name(EXIT_RUNTIME), exit_code: EXIT_RUNTIME, message });
        }
        Ok(outcome)
    })
}

pub fn resume_ports(cli: &Cli, arguments: &cli::Ports) -> Result<u8> {
    kernel::require()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let code = report::report_each(cli, &arguments.ports, |name| {
        let attached = find_usable(name, &netns)?;
        attached.port.set_run(port_run::PORT_ACCELERATE)?;
        if attached.migrating {
            if control::is_served() {
                let text = format!(
                    "{name}: stays paused by the service while its VM is migrated or saved; then it \
                     goes on by itself"
                );
                return Ok(Outcome::done(name, "paused", text));
            }
            // The service that would do it has gone.
            attached.port.set_migrating(false)?;
        }
        // Read again: the helper may have ended the suspension since.
        Ok(if attached.port.is_suspended()? {
            let text = format!(
                "{name}: stays paused by the helper while it has another program, which `vsnoop \
                 status {name}` names; then it goes on by itself"
            );
            Outcome::done(name, "paused", text)
        } else {
            Outcome::done(name, "active", format!("{name}: active"))
        })
    })?;
    helper::ensure_running();
    Ok(code)
}

fn describe_held(left: Outstanding) -> String {
    match left.held_bytes {
        0 => String::new(),
        _ => format!(
            ", and {} of these are held on this host only: after a migration the VM would not get them",
            left.held_text()
        ),
    }
}

fn find_usable(name: &str, netns: &Netns) -> Result<Attached> {
    let attached = ports::find(name, netns)?;
    match attached.state {
        AttachmentState::Active | AttachmentState::Paused => Ok(attached),
        AttachmentState::Observing => Err(unfit_error(
            Unfit::Other,
            format!(
                "port {name} is only being observed, and nothing is acknowledged early; `vsnoop detach \
                 {name}`, then `vsnoop attach {name}`"
            ),
        )),
        AttachmentState::Gone => Err(unfit_error(
            Unfit::NoPort,
            format!("the tap of port {name} has been deleted; `vsnoop detach {name}` cleans up"),
        )),
    }
}

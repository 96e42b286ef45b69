//! `vsnoop run`: the service (accel/vsnoop-service) in the foreground, as systemd starts it.

use anyhow::Result;
use vsnoop_host::config::Config;
use vsnoop_host::config::port::PortPattern;
use vsnoop_host::error::Unfit;
use vsnoop_host::lock::{CommandLock, try_lock};
use vsnoop_host::split::namespace;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_metrics::Background;
use vsnoop_privileges::refusals::{NEVER, OTHER_NAMESPACES};
use vsnoop_privileges::{Capability, Privileges, is_low_port};
use vsnoop_service::{Error, Options};

use crate::background::{self, Role};
use crate::cli::Cli;
use crate::error::unfit_error;
use crate::{helper, log};

/// Held by the service while it runs.
const LOCK: &str = "service.lock";

pub fn run(cli: &Cli) -> Result<u8> {
    kernel::require()?;
    kernel::require_features()?;
    let Some(_lock) = try_lock(LOCK)? else {
        let text = "a service runs already, and a host has only one: `vsnoop status` shows it, `vsnoop \
                    reload` has it read its configuration again";
        return Err(unfit_error(Unfit::Other, text));
    };
    if let Some(netns) = &cli.netns {
        Netns::open(netns)?.enter()?;
    }
    drop(log::log_to(true)?);
    let options = Options {
        config: cli.config.clone(),
        limit_privileges: |config| {
            make_namespace(config);
            background::keep_only(&needed_privileges(config));
        },
        start_background,
        background: what_runs,
        log_lines_lost: log::lines_lost,
    };
    match vsnoop_service::run(options) {
        Ok(()) => Ok(0),
        // With the exit code of what is wrong.
        Err(Error::Host(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// `vsnoop prepare`, which the unit runs before the service, without the service's limits: what a
/// service mounts is in a mount namespace of its own.
pub fn prepare_host(cli: &Cli) -> Result<u8> {
    make_namespace(&Config::read(cli.config.as_deref())?);
    Ok(0)
}

/// Makes the network namespace that downloads need, while it is allowed. A failure is a warning
/// only: each port that asks for downloads says why it has none.
fn make_namespace(config: &Config) {
    if !config.ports.iter().any(PortPattern::has_downloads) {
        return;
    }
    let make = || -> Result<()> {
        let _lock = CommandLock::take()?;
        namespace::open_or_make()?;
        Ok(())
    };
    if let Err(error) = make() {
        tracing::warn!("downloads: {error:#}");
    }
}

/// Capabilities of helper and engine, which the service uses as they do and starts them with;
/// PERFMON to load programs; NET_BIND_SERVICE for an endpoint at a port that is not for all users.
/// By DAC_READ_SEARCH it also reads a configuration, and looks for QMP sockets, where only others
/// may.
fn needed_privileges(config: &Config) -> Privileges {
    let mut capabilities = background::CAPABILITIES.to_vec();
    capabilities.push(Capability::CAP_PERFMON);
    if config.metrics.is_some_and(|at| is_low_port(at.port())) {
        capabilities.push(Capability::CAP_NET_BIND_SERVICE);
    }
    // `execve` stays, to start the helper.
    Privileges { capabilities, refused: [NEVER, &[OTHER_NAMESPACES]].concat() }
}

/// The helper starts the engine.
fn start_background() {
    background::reap_children();
    helper::ensure_running();
}

fn what_runs() -> Background {
    Background {
        helper: helper::running_pid().is_some(),
        engine: background::running_pid(Role::Engine).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vsnoop_privileges::testing::{
        assert_nothing_of_never, assert_refused, assert_threads_inherit, in_children,
    };

    use super::*;

    #[test]
    fn the_service_enters_network_namespaces_only() {
        let name = "command::run::tests::the_service_enters_network_namespaces_only";
        in_children(name, &[""], |_| {
            let config = Config::read(None).expect("the default");
            needed_privileges(&config).drop_others().expect("dropped");
            assert_nothing_of_never();
            assert_refused(&[libc::SYS_setns]);
            assert_threads_inherit();
            // To start the helper.
            assert!(Command::new("true").status().is_ok_and(|status| status.success()));
        });
    }
}

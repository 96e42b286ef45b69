//! `vsnoop run`: the service (crates/vsnoop-service) in the foreground, as systemd starts it.

use anyhow::Result;
use vsnoop_host::error::Unfit;
use vsnoop_host::lock::try_lock;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_metrics::Background;
use vsnoop_service::{Error, Options};

use crate::background::{self, Role};
use crate::cli::Cli;
use crate::error::unfit;
use crate::helper;

/// Held by the service while it runs.
const LOCK: &str = "service.lock";

pub fn run(cli: &Cli) -> Result<u8> {
    kernel::require()?;
    kernel::require_features()?;
    let Some(_lock) = try_lock(LOCK)? else {
        let text = "a service runs already, and a host has only one: `vsnoop status` shows it, `vsnoop \
                    reload` has it read its configuration again";
        return Err(unfit(Unfit::Other, text));
    };
    if let Some(netns) = &cli.netns {
        Netns::open(netns)?.enter()?;
    }
    drop(background::log_to(true)?);
    let options = Options { config: cli.config.clone(), start_background, background: what_runs };
    match vsnoop_service::run(options) {
        Ok(()) => Ok(0),
        // With the exit code of what is wrong.
        Err(Error::Host(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// The helper starts the engine.
fn start_background() {
    background::forget_children();
    helper::ensure_running();
}

fn what_runs() -> Background {
    Background {
        helper: helper::running_pid().is_some(),
        engine: background::running_pid(Role::Engine).is_some(),
    }
}

//! `vsnoop set`: changes the bounds of attached ports, and their downloads, without detaching them.
//!
//! A smaller hold drops no copy: until the VM has acknowledged enough of them, there is no memory
//! for more, and the VM acknowledges by itself.

use anyhow::Result;
use vsnoop_bpf::CongestionControl;
use vsnoop_bpf::types::HOLD_CHUNK;
use vsnoop_host::config::Config;
use vsnoop_host::congestion_control;
use vsnoop_host::downloads::{self, Downloads};
use vsnoop_host::error::Unfit;
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports::{self, AttachmentState};
use vsnoop_host::quota;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use crate::bounds::{ahead_bytes, bounds_text, downloads_stay_off, splits_text};
use crate::cli::{self, Cli, Switch};
use crate::error::unfit_error;
use crate::helper;
use crate::output::report::{self, Outcome};
use crate::splitter;

pub fn run(cli: &Cli, arguments: &cli::Set) -> Result<u8> {
    let config = Config::read(cli.config.as_deref())?;
    kernel::require()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let lock = CommandLock::take()?;
    let mut has_downloads = false;
    let code = report::report_each(cli, &arguments.ports, |name| {
        let outcome = set_port(name, &netns, &config, arguments.bounds)?;
        has_downloads |= outcome.downloads == Some(true);
        Ok(outcome)
    })?;
    if arguments.bounds.downloads.is_some() {
        splitter::forget_unused(&lock);
    }
    drop(lock);
    if has_downloads {
        helper::restart_if_needed();
        splitter::ensure_working();
    }
    Ok(code)
}

fn set_port(name: &str, netns: &Netns, config: &Config, bounds: cli::Bounds) -> Result<Outcome> {
    let attached = ports::find(name, netns)?;
    if attached.state == AttachmentState::Observing {
        return Err(unfit_error(
            Unfit::Other,
            format!(
                "port {name} is only being observed, and holds nothing; `vsnoop detach {name}`, then \
                 `vsnoop attach {name}`"
            ),
        ));
    }
    if bounds.congestion_control.is_some() || bounds.downloads.is_some_and(Switch::is_on) {
        let present = CongestionControl::from_policy(&attached.port.policy()?);
        congestion_control::require(bounds.congestion_control.unwrap_or(present))?;
    }
    if bounds.downloads.is_some_and(Switch::is_on) {
        downloads::require_fit(&attached)?;
    }
    let hold = bounds
        .hold
        .map(|bytes| quota::bytes_for(name, Some(bytes), config, netns, Some(&attached)))
        .transpose()?;
    let policy = attached.port.set_bounds(hold.map(|bytes| bytes / HOLD_CHUNK), bounds.ahead)?;
    if let Some(chosen) = bounds.congestion_control {
        attached.port.set_congestion_control(chosen)?;
    }
    let switched = match bounds.downloads {
        Some(wanted) => downloads::set(&attached, netns, wanted.is_on())?,
        None => Downloads::Same,
    };
    let present = attached.port.policy()?;
    let has_downloads = present.downloads != 0;
    let hold_bytes = u64::from(policy.hold_chunks) * u64::from(HOLD_CHUNK);
    let used_bytes = u64::from(attached.port.state()?.chunks_used) * u64::from(HOLD_CHUNK);
    let mut bounds = bounds_text(hold_bytes, policy.ahead);
    if has_downloads {
        bounds.push_str(&splits_text(&present));
    }
    Ok(Outcome {
        hold_bytes: Some(hold_bytes),
        ahead_bytes: ahead_bytes(policy.ahead),
        downloads: Some(has_downloads),
        congestion_control: CongestionControl::from_policy(&present).name(),
        warning: match switched {
            Downloads::Refused(why) => Some(downloads_stay_off(name, &why)),
            Downloads::Same | Downloads::On | Downloads::Off => None,
        },
        ..Outcome::done(
            name,
            "set",
            format!("{name}: {bounds}{}", in_use(name, used_bytes, hold_bytes)),
        )
    })
}

/// More is in use than the port may have now.
fn in_use(name: &str, used_bytes: u64, hold_bytes: u64) -> String {
    if used_bytes <= hold_bytes {
        return String::new();
    }
    format!(
        "; {} are in use: none are dropped, and nothing more is acknowledged early until the VM has \
         taken enough of them (`vsnoop flows {name}` shows whose they are, a larger --hold ends it)",
        units::bytes(used_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_below_what_is_in_use_is_said_with_what_can_be_done() {
        assert_eq!(in_use("tap0", 1 << 20, 1 << 20), "");
        let text = in_use("tap0", 2 << 20, 1 << 20);
        for word in ["2 MiB are in use", "`vsnoop flows tap0`", "larger --hold"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }
}

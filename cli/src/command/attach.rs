//! `vsnoop attach`: from options to settings, and what is said of each port.

use anyhow::Result;
use vsnoop_bpf::CongestionControl;
use vsnoop_host::attach::{self, NewPort, Request};
use vsnoop_host::config::Config;
use vsnoop_host::congestion_control;
use vsnoop_host::incast;
use vsnoop_host::lists::{self, Lists};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::quota;
use vsnoop_host::settings::{Incast, Mode, Settings};
use vsnoop_host::sweep;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_service::control;

use crate::background;
use crate::bounds::{ahead_bytes, bounds_text, downloads_stay_off, splits_text};
use crate::cli::{self, Cli};
use crate::engine;
use crate::error::usage_error;
use crate::helper;
use crate::output::fold::fold_text;
use crate::output::hint;
use crate::output::report::{self, Outcome};
use crate::output::watch::{Interrupt, print_text};
use crate::splitter;

pub fn run(cli: &Cli, arguments: &cli::Attach) -> Result<u8> {
    let settings = build_settings(arguments)?;
    congestion_control::require(settings.congestion_control)?;
    let config = Config::read(cli.config.as_deref())?;
    kernel::require()?;
    kernel::require_features()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let request = Request {
        settings: &settings,
        config: &config,
        table: None,
        is_interrupted: &|| interrupt.is_set(),
    };
    let lock = CommandLock::take()?;
    sweep::sweep(&lock)?;
    let (mut is_any, mut has_downloads) = (false, false);
    let code = report::report_each(cli, &arguments.ports, |name| {
        let new = attach::attach(name, &netns, &request)?;
        is_any = true;
        has_downloads |= new.policy.downloads != 0;
        Ok(build_outcome(name, settings.mode, new))
    })?;
    if is_any && !cli.json {
        print_text(&fold_text(&hint::in_netns(
            describe_service(control::is_served()),
            cli.netns.as_deref(),
        )))?;
    }
    // Removes the uplink of a port that could not be attached.
    incast::sweep(&lock)?;
    if settings.downloads {
        splitter::forget_unused(&lock);
    }
    drop(lock);
    helper::ensure_running();
    if settings.mode == Mode::Accelerate {
        engine::ensure_working(&arguments.ports, &netns);
    }
    if has_downloads {
        splitter::ensure_working();
    }
    background::warn_of_session();
    Ok(code)
}

fn build_settings(arguments: &cli::Attach) -> Result<Settings> {
    let cli::Lists { allow_port, deny_port, allow, deny } = &arguments.lists;
    let downloads = arguments.bounds.downloads.is_some_and(cli::Switch::is_on);
    if downloads && arguments.incast.is_some() {
        let text = "downloads are not supported beside incast control yet: leave --incast or \
                    --downloads on out";
        return Err(usage_error(text));
    }
    let lists = Lists { allow_port, deny_port, allow, deny };
    Ok(Settings {
        mode: if arguments.observe { Mode::Observe } else { Mode::Accelerate },
        passive: !arguments.no_passive,
        hold: arguments.bounds.hold,
        ahead: arguments.bounds.ahead,
        downloads,
        congestion_control: arguments.bounds.congestion_control.unwrap_or_default(),
        port_rules: lists::port_rules(lists)?,
        prefix_rules: lists::prefix_rules(lists)?,
        max_flows: arguments.max_flows,
        incast: arguments.incast.map(|rate| Incast {
            rate,
            uplink: arguments.uplink.clone(),
            buffer_bytes: arguments.incast_buffer,
        }),
    })
}

/// Says what a service, or its absence, means for a port that a command has attached.
fn describe_service(is_served: bool) -> &'static str {
    match is_served {
        true => {
            "a service runs, and leaves what a command has attached as it is; `vsnoop detach PORT` \
             and then `vsnoop reload` have it attach the port as it is configured"
        }
        false => "no service runs: a tap that is deleted and made again is not attached",
    }
}

fn build_outcome(name: &str, mode: Mode, new: NewPort) -> Outcome {
    let text = describe_port(name, mode, &new);
    Outcome {
        hold_bytes: Some(quota::bytes_of(&new.policy)),
        ahead_bytes: ahead_bytes(new.policy.ahead).filter(|_| mode == Mode::Accelerate),
        downloads: (mode == Mode::Accelerate).then_some(new.policy.downloads != 0),
        congestion_control: CongestionControl::from_policy(&new.policy).name(),
        incast: new.incast,
        warning: new.no_downloads.map(|why| downloads_stay_off(name, &why)),
        ..Outcome::done(name, "attached", text)
    }
}

fn describe_port(name: &str, mode: Mode, new: &NewPort) -> String {
    let mut text = format!("{name}: attached");
    match mode {
        Mode::Observe => text.push_str(", acknowledging nothing early"),
        Mode::Accelerate => {
            let bounds = bounds_text(quota::bytes_of(&new.policy), new.policy.ahead);
            text.push_str(&format!(", {bounds}"));
        }
    }
    if new.policy.downloads != 0 {
        text.push_str(&splits_text(&new.policy));
    }
    if let Some(joined) = &new.incast {
        text.push_str(&format!(", with {}", joined.describe_joined()));
    }
    if let Some(kind) = &new.qdisc_replaced {
        text.push_str(&format!("; its default qdisc {kind} is now noqueue"));
    }
    text
}

#[cfg(test)]
mod tests {
    use vsnoop_bpf::types::policy;
    use vsnoop_host::incast::uplink::Joined;

    use super::*;
    use crate::longest;

    #[test]
    fn what_attach_says_stays_narrow() {
        for rate_bits_per_second in [0, u64::MAX] {
            let new = NewPort {
                policy: policy::default(),
                incast: Some(Joined {
                    uplink: longest::INTERFACE.into(),
                    ifindex: 1,
                    rate_bits_per_second,
                    buffer_bytes: u32::MAX,
                }),
                qdisc_replaced: Some("pfifo_fast".into()),
                no_downloads: None,
            };
            for mode in [Mode::Observe, Mode::Accelerate] {
                longest::assert_narrow(&fold_text(&describe_port(longest::INTERFACE, mode, &new)));
            }
        }
    }
}

//! The process of a link: enters its network namespace, runs the checks, and becomes the link.
//!
//! In the background (`--report`) it prints one line of JSON: that the link is up, or the error and
//! its exit code. In the foreground it notifies systemd, and returns errors.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use vsnoop_host::system::netns::Netns;
use vsnoop_linkd;
use vsnoop_linkd::config::Config;
use vsnoop_linkd::control::LogLevel;

use super::file::file_of;
use super::report::Report;
use super::{checks, notify};
use crate::background;
use crate::cli::{self, Cli};
use crate::error::exit_code;
use crate::log;

pub fn run(cli: &Cli, arguments: &cli::LinkUp) -> Result<u8> {
    if arguments.foreground {
        become_link(cli, arguments)?;
        return Ok(0);
    }
    let Err(error) = become_link(cli, arguments) else { return Ok(0) };
    let exit_code = exit_code(&error);
    let message = format!("{error:#}");
    tracing::error!("{message}");
    send_report(&Report::Failed { message, exit_code });
    Ok(exit_code)
}

fn become_link(cli: &Cli, arguments: &cli::LinkUp) -> Result<()> {
    if arguments.report {
        background::leave_the_terminal()?;
    }
    let config = Config::read(&file_of(&arguments.link)?)?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    if cli.netns.is_some() {
        netns.enter()?;
    }
    let warnings = checks::run_checks(&config, netns.label())?;
    let log_by = log::log_to(arguments.foreground)?;
    let name = config.name.clone();
    tracing::info!("link {name} starts, {}", config.file.display());
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let ready = || {
        tracing::info!("link {name} is up");
        if arguments.report {
            send_report(&Report::Up { warnings });
        } else if let Err(error) = notify::notify_ready() {
            tracing::warn!("{error:#}");
        }
    };
    let set_level = |level: LogLevel| -> std::result::Result<(), vsnoop_linkd::BoxedError> {
        // Other crates log at most at info: their details are rarely useful, and many.
        let others = level.min(LogLevel::Info);
        log_by(&format!("{others},vsnoop={level},vsnoop_link={level},vsnoop_linkd={level}"))?;
        tracing::info!("the log begins at level {level}");
        Ok(())
    };
    let log = vsnoop_linkd::Log { set_level: &set_level, lines_lost: log::lines_lost };
    vsnoop_linkd::run(config, ready, &log).with_context(|| format!("link {name}"))?;
    tracing::info!("link {name} ends");
    Ok(())
}

/// The reader may be gone; the log has the same text.
fn send_report(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
    let null = OpenOptions::new().write(true).open(Path::new("/dev/null"));
    let _ = null.map(nix::unistd::dup2_stdout);
}

//! `vsnoop top`: ports and their flows, refreshed; a table where there is no terminal.

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use anyhow::Result;

use crate::cli::{self, Cli};
use crate::error::usage_error;
use crate::top::{self, Source};

pub fn run(cli: &Cli, arguments: &cli::Top) -> Result<u8> {
    if cli.json {
        return Err(usage_error(
            "top is for people; for programs `vsnoop stats --watch --json` has the counters that \
             its rates are made of, and `vsnoop flows --watch --json` the flows",
        ));
    }
    let source = Source::new(&arguments.ports, cli.netns.as_deref())?;
    let interval = Duration::from_secs_f64(arguments.interval);
    let duration = arguments.duration.map(Duration::from_secs_f64);
    let is_interactive = stdin().is_terminal() && stdout().is_terminal();
    if arguments.once || !is_interactive {
        top::print(source, interval, duration)?;
    } else {
        top::show(source, interval, duration)?;
    }
    Ok(0)
}

//! `vsnoop link down`: asks a link to end, and waits until its process and its taps are gone.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use vsnoop_host::system::process::Process;
use vsnoop_linkd::control::{LinkFiles, Request};

use super::ask::tell_link;
use crate::cli::{self, Cli};
use crate::output::watch::print_text;

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct DownDocument<'a> {
    link: &'a str,
    result: &'static str,
}

pub fn run(cli: &Cli, arguments: &cli::LinkDown) -> Result<u8> {
    let name = &arguments.name;
    let files = LinkFiles::new(name);
    let process = files.read_pid().and_then(Process::from_pid);
    tell_link(name, &Request::Down)?;
    let start = Instant::now();
    while files.is_taken()? || process.as_ref().is_some_and(Process::is_alive) {
        if start.elapsed() > PATIENCE {
            let pid = files.read_pid().map_or("?".into(), |pid| pid.to_string());
            bail!(
                "link {name} was told to end, and process {pid} still runs after {} s; `kill -9 {pid}` ends it",
                PATIENCE.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    if cli.json {
        print_text(&serde_json::to_string(&DownDocument { link: name, result: "down" })?)?;
    } else {
        print_text(&format!("link {name} is down"))?;
    }
    Ok(0)
}

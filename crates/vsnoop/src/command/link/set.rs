//! `vsnoop link set`: changes which traffic is compressed, and how, or what is logged, while packets flow.

use anyhow::Result;
use serde::Serialize;
use vsnoop_link::daemon::config::{Method, Selector};
use vsnoop_link::daemon::control::{LogLevel, Request, Set};

use super::{require_root, tell};
use crate::cli::{self, Cli};
use crate::error::usage;
use crate::output::units;
use crate::output::watch::print;

#[derive(Serialize)]
struct Document<'a> {
    link: &'a str,
    result: &'static str,
    #[serde(flatten)]
    set: &'a Set,
}

#[derive(Serialize)]
struct Logging<'a> {
    link: &'a str,
    result: &'static str,
    log: LogLevel,
}

pub fn run(cli: &Cli, arguments: &cli::LinkSet) -> Result<u8> {
    require_root()?;
    match (arguments.log, arguments.compress) {
        (Some(level), _) => log(cli, &arguments.name, level)?,
        (None, Some(method)) => compress(cli, arguments, method)?,
        (None, None) => return Err(usage("give --compress or --log")),
    }
    Ok(0)
}

fn log(cli: &Cli, name: &str, level: LogLevel) -> Result<()> {
    tell(name, &Request::Log { level })?;
    if cli.json {
        print(&serde_json::to_string(&Logging { link: name, result: "set", log: level })?)
    } else {
        print(&format!("link {name}: the log begins at level {level}"))
    }
}

fn compress(cli: &Cli, arguments: &cli::LinkSet, method: Method) -> Result<()> {
    if arguments.dictionary.is_some() && matches!(method, Method::Off | Method::Lz4) {
        return Err(usage("--dictionary goes with the methods zstd and auto"));
    }
    let set = Set {
        selector: Selector {
            peer: arguments.peer.clone(),
            port: arguments.port.clone(),
            vm: arguments.vm,
            prefixes: arguments.prefix.iter().map(ipnet::IpNet::trunc).collect(),
        },
        method,
        dictionary_bytes: arguments.dictionary,
    };
    tell(&arguments.name, &Request::Set(set.clone()))?;
    if cli.json {
        print(&serde_json::to_string(&Document {
            link: &arguments.name,
            result: "set",
            set: &set,
        })?)?;
    } else {
        print(&line(&arguments.name, &set))?;
    }
    Ok(())
}

fn line(name: &str, set: &Set) -> String {
    let dictionary = set.dictionary_bytes.map_or(String::new(), |bytes| {
        format!(" with a dictionary of {}", units::memory(bytes.into()))
    });
    format!("link {name}: compression of {} is {}{dictionary}", set.selector, set.method)
}

//! `vsnoop link status`: the links, and the state of their peers.

use anyhow::Result;
use vsnoop_host::system::netns::Netns;
use vsnoop_linkd::control::{self, AskError};

use super::ask::status_of;
use super::document::{LinkStatusDocument, Silent};
use super::table;
use crate::cli::{self, Cli};
use crate::output::watch;

pub fn run(cli: &Cli, arguments: &cli::LinkStatus) -> Result<u8> {
    let netns = cli.netns.as_deref().map(Netns::open).transpose()?.map(|netns| netns.inode);
    watch::run_every(arguments.refresh.watch, cli.json, || {
        let mut document = read(arguments)?;
        if let (Some(netns), None) = (netns, &arguments.name) {
            document.links.retain(|status| status.netns == netns);
            document.silent.clear();
        }
        if cli.json {
            Ok(serde_json::to_string(&document)?)
        } else {
            Ok(table::render_status(&document, arguments.flows))
        }
    })?;
    Ok(0)
}

fn read(arguments: &cli::LinkStatus) -> Result<LinkStatusDocument> {
    if let Some(name) = &arguments.name {
        let links = vec![status_of(name, arguments.flows)?];
        return Ok(LinkStatusDocument { links, silent: Vec::new() });
    }
    let mut document = LinkStatusDocument { links: Vec::new(), silent: Vec::new() };
    for name in control::list_running()? {
        match status_of(&name, arguments.flows) {
            Ok(status) => document.links.push(status),
            Err(error) => match error.downcast_ref::<AskError>() {
                // It ended just now.
                Some(AskError::NotRunning(_)) => {}
                _ => document.silent.push(Silent { name, problem: format!("{error:#}") }),
            },
        }
    }
    Ok(document)
}

//! `vsnoop link up`: starts a link in the background and waits for its report.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use vsnoop_linkd::config::Config;
use vsnoop_linkd::control::{
    AlreadyUp, DivertStatus, LinkFiles, LinkPortStatus, MembershipStatus, PeerState, PeerStatus,
    Status,
};

use super::ask::status_of;
use super::file::file_of;
use super::report::Report;
use crate::background::own_program;
use crate::cli::{self, Cli};
use crate::error::Reported;
use crate::output::fold::fold_text;
use crate::output::watch::print_text;

#[derive(Serialize)]
struct UpDocument {
    links: [Status; 1],
    warnings: Vec<String>,
}

pub fn run(cli: &Cli, arguments: &cli::LinkUp) -> Result<u8> {
    let file = file_of(&arguments.link)?;
    // Read here too, so that an error is found before anything is started.
    let config = Config::read(&file)?;
    if LinkFiles::new(&config.name).is_taken()? {
        return Err(AlreadyUp(config.name).into());
    }
    let warnings = start_link(cli, &file)?;
    for warning in &warnings {
        eprintln!("vsnoop: {warning}");
    }
    let status = status_of(&config.name, false)?;
    if cli.json {
        print_text(&serde_json::to_string(&UpDocument { links: [status], warnings })?)?;
    } else {
        print_text(&fold_text(&describe_status(&status)))?;
    }
    Ok(0)
}

/// Returns the warnings of a link that is up.
fn start_link(cli: &Cli, file: &Path) -> Result<Vec<String>> {
    let program = own_program()?;
    let mut command = Command::new(&program);
    if let Some(netns) = &cli.netns {
        // The new process has another working directory.
        let absolute = std::path::absolute(netns).context("find the network namespace")?;
        let netns = if netns.contains('/') { absolute.as_os_str() } else { netns.as_ref() };
        command.arg("--netns").arg(netns);
    }
    let mut child = command
        .args(["link", "up", "--report", "--"])
        .arg(file)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("run {}", program.display()))?;
    match read_report(&mut child)? {
        Report::Up { warnings } => Ok(warnings),
        Report::Failed { message, exit_code } => Err(Reported { message, exit_code }.into()),
    }
}

fn read_report(child: &mut Child) -> Result<Report> {
    let out = child.stdout.take().context("the link has no standard output")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).context("wait for the link")?;
    serde_json::from_str(&line).map_err(|_| match child.wait() {
        Ok(status) => {
            anyhow!("the link's process ended at its start ({status}); its log says more")
        }
        Err(error) => anyhow!("the link's process said nothing: {error}"),
    })
}

fn describe_status(status: &Status) -> String {
    let mut parts: Vec<_> = status.ports.iter().map(describe_port).collect();
    parts.extend(status.peers.iter().map(describe_peer));
    parts.extend(status.diverts.iter().map(describe_divert));
    parts.extend(describe_members(&status.membership));
    format!("link {} is up: {}", status.name, parts.join("; "))
}

/// Hosts that etcd names may come at any time.
fn describe_members(membership: &MembershipStatus) -> Option<String> {
    membership.name.as_ref().map(|name| match (membership.connected, &membership.reason) {
        (true, _) => format!("in etcd as {name}, with {} other hosts", membership.hosts),
        (false, None) => format!("in etcd as {name}: connecting"),
        (false, Some(reason)) => format!("in etcd as {name}: not reached yet ({reason})"),
    })
}

fn describe_port(port: &LinkPortStatus) -> String {
    let mut text = format!("port {}", port.name);
    text.extend(port.bridge.iter().map(|bridge| format!(" in {bridge}")));
    match (&port.reason, port.up) {
        (Some(reason), false) => text += &format!(": down ({reason})"),
        (Some(reason), true) => text += &format!(" ({reason})"),
        (None, _) => {}
    }
    text
}

fn describe_divert(divert: &DivertStatus) -> String {
    format!("from {} to {} by peer {}", divert.interface, divert.prefix, divert.peer)
}

fn describe_peer(peer: &PeerStatus) -> String {
    let address = peer.address.as_deref().unwrap_or("its address");
    let name = &peer.name;
    match peer.state {
        PeerState::Up => format!("peer {name}: up at {address}"),
        PeerState::Dialling => format!("peer {name}: dialling {address}"),
        PeerState::Waiting => format!("peer {name}: waiting until it calls"),
        PeerState::Relayed => format!("peer {name}: reached {address}"),
        PeerState::Down => {
            let reason = peer.reason.as_deref().unwrap_or("not reached");
            format!("peer {name}: down ({reason}), dialling {address} again")
        }
    }
}

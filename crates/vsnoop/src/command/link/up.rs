//! `vsnoop link up`: starts a link in the background and waits for what it reports of its start.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use vsnoop_link::daemon::config::{self, Config, is_link_name};
use vsnoop_link::daemon::control::{
    AlreadyUp, DivertStatus, PeerState, PeerStatus, Place, PortStatus, Status,
};

use super::process::Report;
use super::{require_root, status_of};
use crate::background::own_program;
use crate::cli::{self, Cli};
use crate::error::{Reported, usage};
use crate::output::watch::print;

#[derive(Serialize)]
struct Document {
    links: [Status; 1],
    warnings: Vec<String>,
}

pub fn run(cli: &Cli, arguments: &cli::LinkUp) -> Result<u8> {
    require_root()?;
    let file = file_of(&arguments.link)?;
    // Here too, so that an error in it is found before anything is started.
    let config = Config::read(&file)?;
    if Place::of(&config.name).is_taken()? {
        return Err(AlreadyUp(config.name).into());
    }
    let warnings = start(cli, &file)?;
    for warning in &warnings {
        eprintln!("vsnoop: {warning}");
    }
    let status = status_of(&config.name, false)?;
    if cli.json {
        print(&serde_json::to_string(&Document { links: [status], warnings })?)?;
    } else {
        print(&line(&status))?;
    }
    Ok(0)
}

/// A word is the name of a file in [`config::DIRECTORY`].
pub fn file_of(link: &str) -> Result<PathBuf> {
    if link.contains('/') || link.ends_with(".toml") {
        return std::path::absolute(link).with_context(|| format!("find {link}"));
    }
    let file = Path::new(config::DIRECTORY).join(format!("{link}.toml"));
    if !is_link_name(link) || !file.exists() {
        return Err(usage(format!(
            "there is no {}; write one (docs/link.md), or give the path of a file, with a '/'",
            file.display()
        )));
    }
    Ok(file)
}

/// Returns the warnings of a link that is up.
fn start(cli: &Cli, file: &Path) -> Result<Vec<String>> {
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
    match report(&mut child)? {
        Report::Up { warnings } => Ok(warnings),
        Report::Failed { message, exit_code } => Err(Reported { message, exit_code }.into()),
    }
}

fn report(child: &mut Child) -> Result<Report> {
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

fn line(status: &Status) -> String {
    let mut parts: Vec<_> = status.ports.iter().map(port).collect();
    parts.extend(status.peers.iter().map(peer));
    parts.extend(status.diverts.iter().map(divert));
    format!("link {} is up: {}", status.name, parts.join("; "))
}

fn port(port: &PortStatus) -> String {
    let mut text = format!("port {}", port.name);
    text.extend(port.bridge.iter().map(|bridge| format!(" in {bridge}")));
    match (&port.reason, port.up) {
        (Some(reason), false) => text += &format!(": down ({reason})"),
        (Some(reason), true) => text += &format!(" ({reason})"),
        (None, _) => {}
    }
    text
}

fn divert(divert: &DivertStatus) -> String {
    format!("from {} to {} by peer {}", divert.interface, divert.prefix, divert.peer)
}

fn peer(peer: &PeerStatus) -> String {
    let address = peer.address.as_deref().unwrap_or("its address");
    let name = &peer.name;
    match peer.state {
        PeerState::Up => format!("peer {name}: up at {address}"),
        PeerState::Dialling => format!("peer {name}: dialling {address}"),
        PeerState::Waiting => format!("peer {name}: waiting until it calls"),
        PeerState::Down => {
            let reason = peer.reason.as_deref().unwrap_or("not reached");
            format!("peer {name}: down ({reason}), dialling {address} again")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_and_a_word_is_a_name() {
        assert_eq!(file_of("/x/y.conf").unwrap(), Path::new("/x/y.conf"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(file_of("a.toml").unwrap(), here.join("a.toml"));
        for word in ["no-such-link", "..", ""] {
            let error = file_of(word).unwrap_err();
            assert!(error.to_string().contains("/etc/vsnoop/link/"), "{error}");
            assert_eq!(crate::error::exit_code(&error), crate::error::EXIT_USAGE);
        }
    }
}

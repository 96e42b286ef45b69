//! The running link: threads, ports, sockets, control.

pub mod config;
pub mod control;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use config::{Config, PortKind};
use control::{
    ClassStatus, PeerState, PeerStatus, PortStatus, Request, Response, Server, Set, Status,
};

/// Runs a link until it is told to end, by [`Request::Down`] or by SIGTERM, SIGINT or SIGHUP. `ready` is called
/// when it is up: it has its name, its ports and its sockets. Called before the process has other threads.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("block signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("make a signalfd")?;
    let mut server = Server::bind(&config.name)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut config = config;
    ready();
    let mut ends = false;
    while !ends {
        let mut fds = [
            PollFd::new(server.poll_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut fds, PollTimeout::from(1000u16)).context("wait")?;
        server.serve(&mut |request| match request {
            Request::Status { .. } => Response::Status(Box::new(status(&config, since))),
            Request::Set(Set { selector, method, dictionary_bytes }) => {
                let rule = config::Compress { selector, method, owner: None, dictionary_bytes };
                let checked = config.check(&rule.selector);
                let set = checked
                    .and_then(|()| config.compress.set(rule).map_err(|error| error.to_string()));
                match set {
                    Ok(()) => Response::Done,
                    Err(reason) => Response::Refused { reason },
                }
            }
            Request::Down => {
                ends = true;
                Response::Done
            }
        })?;
        ends |= signals.read_signal().context("read a signal")?.is_some();
    }
    Ok(())
}

fn status(config: &Config, since: u64) -> Status {
    let ports = config.ports.iter().map(|port| {
        let (kind, bridge) = match &port.kind {
            PortKind::Bridge(bridge) => ("bridge", Some(bridge.clone())),
            PortKind::Tap => ("tap", None),
            PortKind::Interface => ("interface", None),
        };
        PortStatus { name: port.name.clone(), kind: kind.into(), bridge, ..PortStatus::default() }
    });
    let peers = config.peers.iter().map(|peer| PeerStatus {
        name: peer.name.clone(),
        state: if peer.address.is_some() { PeerState::Dialling } else { PeerState::Waiting },
        since,
        transport: Some(peer.transport),
        encrypted: peer.transport.is_encrypted(),
        address: peer.address.as_ref().map(ToString::to_string),
        ..PeerStatus::default()
    });
    let rules = config.compress.iter().cloned().map(Some).chain([None]);
    Status {
        name: config.name.clone(),
        network: config.network.clone(),
        netns: fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino()),
        pid: std::process::id(),
        since,
        config: config.file.display().to_string(),
        listen: config.listen.to_string(),
        mtu_bytes: config.mtu_bytes,
        ports: ports.collect(),
        peers: peers.collect(),
        classes: rules.map(|rule| ClassStatus { rule, ..ClassStatus::default() }).collect(),
        ..Status::default()
    }
}

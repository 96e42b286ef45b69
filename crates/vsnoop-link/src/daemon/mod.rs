//! The running link: threads, ports, sockets, control.

mod classes;
pub mod config;
pub mod control;
mod counts;
mod egress;
mod establish;
mod event;
mod ingress;
mod io;
mod shared;
mod stats;

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

pub fn scratch(tap: &str, local: &str, remote: &str, form: &str) {
    use std::sync::Arc;
    use crate::wire::seal::{Material, Opener, Sealer, Suite};
    let udp = io::udp::UdpSocket::bind(local.parse().unwrap()).unwrap();
    let port = io::port::Port::tap(tap).unwrap();
    let shared = Arc::new(shared::Shared::new(Default::default(), vec![port], 1, udp));
    let (events, ev_rx) = io::wake::channel().unwrap();
    let (eg, eg_rx) = io::wake::channel().unwrap();
    let (ing, ing_rx) = io::wake::channel().unwrap();
    let suite = if form.contains("aead") { Suite::Aes128Gcm } else { Suite::Plain };
    let m = Material { key: [1; 32], nonce: [2; 12] };
    let counts = Arc::new(counts::SessionCounts::default());
    let rules = Arc::new(config::Rules::default());
    let classes = classes::Classes::new(rules, Arc::new([]), Arc::new([]));
    let e = egress::Egress::new(shared.clone(), eg_rx, events.clone(), classes).unwrap();
    let i = ingress::Ingress::new(shared.clone(), ing_rx, events.clone()).unwrap();
    let t1 = std::thread::spawn(move || e.run());
    let t2 = std::thread::spawn(move || i.run());
    if form.starts_with("udp") {
        let s = Sealer::new(suite, &m, 7, 0, 0);
        let d = egress::datagrams::Datagrams::new(s, Some(remote.parse().unwrap()), 1472, counts.clone());
        eg.send(egress::Order::Install { peer: 0, session: 1, transport: Box::new(egress::outlet::Transport::Datagrams(Box::new(d))), current: true });
        let o = Opener::new(suite, &m, 0, 0);
        ing.send(ingress::Order::Datagrams { peer: 0, session: 1, index: 7, opened: Box::new(ingress::datagrams::DatagramSession::new(vec![o], counts)) });
    }
    std::thread::spawn(move || loop { for _e in ev_rx.drain() {} std::thread::sleep(std::time::Duration::from_millis(100)); });
    t1.join().unwrap(); t2.join().unwrap();
}

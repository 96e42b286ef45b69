//! A running link: threads, ports, sockets, files, control. What it carries and decides is
//! vsnoop-link, which is free of input and output.
//!
//! ```text
//! ports --> [egress] --orders--+                +--orders-- [ingress] --> ports
//!              |               |                |               ^
//!              v               +-- [control] ---+               |
//!           network               ^  |   ^                   network
//!                          events |  |   | commands, signals
//!                                    +-- short-lived threads: handshakes
//! ```
//! [`egress`] and [`ingress`] move frames; each owns what it needs, so that nothing on a frame's
//! way is waited for but the forwarding table. While there is little to do one thread does both
//! ([`threads`]). [`control_thread`] keeps the peers' sessions; it runs on the thread that called
//! [`run`], beside the control socket and the signals. [`establish`] makes sessions. [`divert`] is
//! the second way into the link, past ports and table.

mod bridge;
mod complaints;
mod compression_policy;
pub mod config;
pub mod control;
mod control_thread;
mod counted_port;
mod counts;
mod cpu;
pub mod credentials;
mod divert;
mod egress;
mod establish;
mod event;
mod fault;
mod frame;
mod ingress;
mod io;
pub mod key_file;
mod own;
mod ports;
mod shared;
mod stats;
mod status;
pub mod tcp_handshake;
mod threads;

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use socket2::{Domain, Socket, Type};

use self::compression_policy::{Policies, RuleSet};
use self::config::{Config, PortKind, TrustConfig};
use self::control::{LinkCpu, LogLevel, Request, Response, Server, Set};
use self::control_thread::{Control, Parts};
use self::divert::hooks::Hooks;
use self::divert::taps::DivertTaps;
use self::egress::Egress;
use self::ingress::Ingress;
use self::io::device::Device;
use self::io::poll::{Half, Poll, Watch};
use self::io::port::Port;
use self::io::udp::UdpSocket;
use self::io::wake;
use self::own::Own;
use self::ports::Ports;
use self::shared::Shared;
use self::status::About;
use self::threads::Crew;
use vsnoop_link::forwarding;
use vsnoop_link::identity::{self, PeerId};

const EVENTS: u64 = 0;
const COMMANDS: u64 = 1;
const SIGNALS: u64 = 2;
/// How long a survey of the flows is waited for.
const SURVEY: Duration = Duration::from_millis(200);
/// Callers that wait to be looked at.
const BACKLOG: i32 = 256;

/// Runs a link until it is told to end, by [`Request::Down`] or by SIGTERM, SIGINT or SIGHUP.
/// `ready` is called when it is up: it has its name, its ports and its sockets; `log` when another
/// level is wanted of the log. Called before the process has other threads.
pub fn run(
    config: Config,
    ready: impl FnOnce(),
    log: impl Fn(LogLevel) -> Result<()>,
) -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("block signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("make a signalfd")?;
    let mut server = Server::bind(&config.name)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());

    // Everything that may be refused comes before anything is made.
    let certificate = config.authority.as_ref().map(|authority| authority.cert.as_path());
    let identity = credentials::identity(&config.key, certificate)?;
    let trusts = trusts(&config)?;
    let acceptor = identity.acceptor(&trusts)?;
    let dialers = trusts
        .iter()
        .map(|(peer, trust)| identity.dialer(peer, trust))
        .collect::<Result<Vec<_>, _>>()?;
    let udp = UdpSocket::bind(config.listen).map_err(|error| in_use(&config, "UDP", &error))?;
    let listener = listen(&config)?;
    let ports = config.ports.iter().map(|port| open(&config, port)).collect::<Result<Vec<_>>>()?;
    let divert_taps = DivertTaps::open(&config)?;

    let ageing_ns = config.age.as_nanos() as u64;
    let table = forwarding::TableSettings { ageing_ns, ..forwarding::TableSettings::default() };
    let own = Own::new(&config);
    let shared = Arc::new(Shared::new(table, ports, divert_taps, config.peers.len(), udp, own));
    let mut hooks = Hooks::new(&config, Arc::clone(&shared))?;
    let (events, told) = wake::channel().context("making an eventfd")?;
    let (egress, egress_orders) = wake::channel().context("making an eventfd")?;
    let (ingress, ingress_orders) = wake::channel().context("making an eventfd")?;
    let mut rule_set = RuleSet::new(config.compress.clone());
    let policies = policies_of(&config, &rule_set);
    let both = Arc::new(Poll::new().context("making an epoll")?);
    let watch = |half| Watch::new(&both, half).context("making an epoll");
    let (out, back) = (watch(Half::Egress)?, watch(Half::Ingress)?);
    let crew = Arc::new(Crew::new(
        both,
        Egress::new(Arc::clone(&shared), egress_orders, events.clone(), policies, out)?,
        Ingress::new(Arc::clone(&shared), ingress_orders, events.clone(), back)?,
    )?);
    let second = Arc::clone(&crew);
    let threads = [
        spawn("egress", move || second.run_egress())?,
        spawn("ingress", move || crew.run_ingress())?,
    ];
    let ports = Ports::new(&config.ports, Arc::clone(&shared), egress.clone());
    let parts = Parts {
        shared: Arc::clone(&shared),
        ports,
        acceptor,
        dialers,
        ours: identity.public(),
        egress: egress.clone(),
        ingress,
        events,
    };
    let mut control = Control::new(&config, parts);
    control.listen(listener).context("starting the thread that takes callers")?;
    control.tick();
    hooks.follow(|peer| control.takes(peer));

    let poll = Poll::new().context("making an epoll")?;
    poll.watch(&told, EVENTS)?;
    poll.watch(server.poll_fd(), COMMANDS)?;
    poll.watch(&signals, SIGNALS)?;
    let about = About { since, key: identity.public().to_string() };
    ready();
    let mut load = cpu::Load::default();
    let mut ends = false;
    while !ends {
        let ready = poll.wait(Some(control.deadline())).context("wait")?;
        load.look(shared.now_ns(), cpu::process_ns());
        if ready.contains(&EVENTS) {
            told.drain().for_each(|event| control.event(event));
        }
        ends |= signals.read_signal().context("read a signal")?.is_some();
        server.serve(&mut |request| match request {
            Request::Status { addresses } => {
                let (done, is_done) = mpsc::sync_channel(1);
                egress.send(egress::Order::Survey(done));
                // A thread that hangs must not hide all the rest.
                let _ = is_done.recv_timeout(SURVEY);
                control.ports.look();
                let mut status =
                    status::of(&about, &config, &rule_set, &shared, &control, &hooks, addresses);
                let [egress, ingress] = &threads;
                status.cpu = LinkCpu {
                    egress_ns: cpu::thread_ns(egress),
                    ingress_ns: cpu::thread_ns(ingress),
                    process_ns: cpu::process_ns(),
                    cores: load.cores(),
                };
                Response::Status(Box::new(status))
            }
            Request::Set(Set { selector, method, dictionary_bytes }) => {
                let rule = config::Compress { selector, method, owner: None, dictionary_bytes };
                if let Err(reason) = config.check(&rule) {
                    return Response::Refused { reason };
                }
                let mut rules = rule_set.rules.clone();
                match rules.set(rule) {
                    Ok(outcome) => {
                        rule_set.replace(rules);
                        egress.send(egress::Order::Policies(policies_of(&config, &rule_set)));
                        Response::Set(outcome)
                    }
                    Err(error) => Response::Refused { reason: error.to_string() },
                }
            }
            Request::Log { level } => match log(level) {
                Ok(()) => Response::Done,
                Err(error) => Response::Refused { reason: format!("{error:#}") },
            },
            Request::Down => {
                ends = true;
                Response::Done
            }
        })?;
        control.tick();
        hooks.follow(|peer| control.takes(peer));
        if let Some(thread) = threads.iter().find(|thread| thread.is_finished()) {
            let name = thread.thread().name().unwrap_or("?").to_owned();
            bail!("the thread {name} of link {} has ended; this is a defect", config.name);
        }
    }
    // Before the peers hear that the link ends: from here on all goes its ordinary way.
    drop(hooks);
    control.close();
    for thread in threads {
        // One that panicked has said so.
        let _ = thread.join();
    }
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .with_context(|| format!("starting the thread {name}"))
}

/// The rules as the egress thread uses them.
fn policies_of(config: &Config, rule_set: &RuleSet) -> Policies {
    let peers = config.peers.iter().map(|peer| peer.name.clone()).collect();
    // Divert taps come after the ports.
    let ports = config.port_names().cloned().collect();
    Policies::new(rule_set.clone(), peers, ports)
}

fn trusts(config: &Config) -> Result<Vec<(PeerId, identity::Trust)>> {
    let authority =
        config.authority.as_ref().map(|files| credentials::authority(&files.ca)).transpose()?;
    let trust = |peer: &config::PeerConfig| {
        let trust = match (&peer.trust, &authority) {
            (TrustConfig::Key(key), _) => identity::Trust::Key(*key),
            (TrustConfig::Subject(name), Some(authority)) => {
                identity::Trust::named(authority, name)?
            }
            (TrustConfig::Subject(_), None) => bail!("peer {} needs a `ca`", peer.name),
        };
        Ok((PeerId::new(&peer.name), trust))
    };
    config.peers.iter().map(trust).collect()
}

fn listen(config: &Config) -> Result<TcpListener> {
    let make = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(config.listen), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if config.listen.is_ipv6() {
            socket.set_only_v6(!config.listen.ip().is_unspecified())?;
        }
        socket.bind(&config.listen.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    Ok(make().map_err(|error| in_use(config, "TCP", &error))?.into())
}

fn in_use(config: &Config, protocol: &str, error: &std::io::Error) -> anyhow::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            ": something listens there already (`ss -lntup`); `listen` names another"
        }
        Some(libc::EADDRNOTAVAIL) => ": `listen` must be an address of this host",
        _ => "",
    };
    anyhow::anyhow!("listening at {} ({protocol}): {error}{hint}", config.listen)
}

fn open(config: &Config, port: &config::PortConfig) -> Result<Port> {
    if port.kind == PortKind::Interface {
        return Port::interface(&port.name);
    }
    let opened = Port::tap(&port.name)?;
    let device = Device::new(&port.name)?;
    device.set_mtu(config.mtu_bytes)?;
    if let PortKind::Bridge(bridge) = &port.kind {
        device.join(bridge)?;
    }
    device.set_up()?;
    Ok(opened)
}

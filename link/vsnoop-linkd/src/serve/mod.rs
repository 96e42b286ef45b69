//! A link that runs: it waits for events of its threads, commands and signals, and answers.

mod members;
mod reload;
mod setup;
mod status;

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signalfd::SignalFd;
use vsnoop_link::identity::{Authority, Identity};

use self::setup::{Opened, PairThreads, Threads};
use self::status::About;
use crate::causes::with_causes;
use crate::config::{self, Config};
use crate::control::{LinkCpu, Request, Response, Server, Set, Status};
use crate::counters::cpu;
use crate::divert::hooks::DivertHooks;
use crate::divert::taps::{DivertTap, DivertTaps};
use crate::egress::Order;
use crate::error::LinkError;
use crate::frames::compression_policy::{Policies, RuleSet};
use crate::handshake::listen::listen_address;
use crate::identity::credentials::Credentials;
use crate::identity::revocation::RevocationLists;
use crate::io::packet_socket::SparePacketSocket;
use crate::io::poll::{Poll, Token};
use crate::io::udp_port::UdpPort;
use crate::io::wake;
use crate::log::Log;
use crate::membership::Members;
use crate::peers::{ControlThread, Parts};
use crate::ports::counted_port::CountedPort;
use crate::ports::own_packets::Own;
use crate::ports::state::Ports;
use crate::privileges;
use crate::threads::event::ControlEvent;
use crate::threads::orders::Orders;
use crate::threads::pairs::Pairs;
use crate::threads::shared::Shared;
use crate::threads::slots::Slots;
use vsnoop_link::slots::{PeerSlot, PortSlot, Slot};

type Result<T> = std::result::Result<T, LinkError>;

const EVENTS: Token = Token(0);
const COMMANDS: Token = Token(1);
const SIGNALS: Token = Token(2);
const MEMBERS: Token = Token(3);
/// How long a survey of the flows is waited for.
const SURVEY: Duration = Duration::from_millis(200);

pub struct Link {
    /// With the peers of now, wherever they come from.
    config: Config,
    members: Members,
    about: About,
    shared: Arc<Shared>,
    rule_set: RuleSet,
    hooks: DivertHooks,
    control: ControlThread,
    slots: PeersAndPorts,
    identity: Arc<Identity>,
    authority: Option<Arc<Authority>>,
    lists: RevocationLists,
    /// Why the revocation lists are not those of the files.
    lists_trouble: Option<String>,
    /// See [`Opened::spares`].
    spares: Vec<SparePacketSocket>,
    /// Privileges of the link.
    needs: privileges::Needs,
    orders: Orders,
    told: wake::Receiver<ControlEvent>,
    threads: Vec<PairThreads>,
    load: cpu::Load,
}

impl Link {
    /// Makes all of it. Everything that may be refused comes before anything is made that others
    /// see.
    pub fn build(config: Config) -> Result<Self> {
        let config = complete_config(config);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let plan = privileges::Plan::new(&config)?;
        let slots = PeersAndPorts::new(&config);
        let Opened { lists, credentials, etcd, spares, udp, listener, ports, divert_taps } =
            Opened::open(&config, &slots.peers)?;
        let Credentials { identity, authority, acceptor, initiators, .. } = credentials;
        let ours = identity.public_key();
        if let Some(account) = &plan.account {
            udp.receivers.iter().try_for_each(|socket| account.give_socket(&**socket))?;
        }
        let shared = Arc::new(make_shared(&config, &slots.peers, ports, divert_taps, udp));
        let mut hooks = DivertHooks::new(&config, Arc::clone(&shared), &slots.peers)?;
        // The last moment without other threads.
        plan.drop()?;
        let rule_set = RuleSet::new(config.compress.clone());
        let Threads { pairs: threads, orders, events, told } =
            Threads::start(&shared, || slots.make_policies(&rule_set, &shared))?;
        let ports = Ports::new(&config.ports, Arc::clone(&shared), orders.clone());
        let (in_control, to_threads) = (Arc::clone(&shared), orders.clone());
        let parts = Parts {
            shared: in_control,
            ports,
            acceptor,
            initiators,
            ours,
            orders: to_threads,
            events,
        };
        let control = start_control(&config, parts, listener)?;
        hooks.follow_peers(|peer| control.takes(peer));
        let members = Members::start(&config, etcd, ours)?;
        Ok(Self {
            members,
            about: About { since, key: ours.to_string() },
            lists,
            config,
            shared,
            rule_set,
            hooks,
            control,
            slots,
            identity,
            authority,
            lists_trouble: None,
            spares,
            needs: plan.needs,
            orders,
            told,
            threads,
            load: cpu::Load::default(),
        })
    }

    /// The events that [`Self::serve`] waits for.
    pub fn poll(&self, server: &Server, signals: &SignalFd) -> Result<Poll> {
        let poll = Poll::new().map_err(LinkError::call("making an epoll"))?;
        poll.watch(&self.told, EVENTS)?;
        poll.watch(server.poll_fd(), COMMANDS)?;
        poll.watch(signals, SIGNALS)?;
        poll.watch(&self.members.told, MEMBERS)?;
        Ok(poll)
    }

    /// Serves until it is told to end.
    pub fn serve(
        &mut self,
        poll: &Poll,
        server: &mut Server,
        signals: &SignalFd,
        log: &Log<'_>,
    ) -> Result<()> {
        let mut ends = false;
        while !ends {
            let deadline = self.control.time_to_deadline();
            let deadline = self.members.next_wait().map_or(deadline, |wait| wait.min(deadline));
            let ready = poll.wait(Some(deadline)).map_err(LinkError::call("wait"))?;
            self.load.measure(self.shared.now_ns(), cpu::process_ns());
            if ready.contains(&EVENTS) {
                self.told.drain().for_each(|event| self.control.handle_event(event));
            }
            if ready.contains(&MEMBERS) {
                self.members.hear_events(self.shared.now_ns());
            }
            self.follow_members();
            let signal = signals.read_signal().map_err(LinkError::call("read a signal"))?;
            match signal.map(|signal| signal.ssi_signo as i32) {
                Some(libc::SIGHUP) => self.reload_and_log(),
                Some(_) => ends = true,
                None => {}
            }
            server.serve(&mut |request| {
                ends |= matches!(request, Request::Down);
                self.answer_request(request, log)
            })?;
            if self.lists.are_due(self.lists_trouble.is_some()) {
                self.read_lists_again();
            }
            self.control.tick();
            self.hooks.follow_peers(|peer| self.control.takes(peer));
            self.check_threads()?;
        }
        Ok(())
    }

    fn answer_request(&mut self, request: Request, log: &Log<'_>) -> Response {
        match request {
            Request::Status { addresses } => {
                let log_lines_lost = (log.lines_lost)();
                Response::Status(Box::new(Status { log_lines_lost, ..self.status(addresses) }))
            }
            Request::Set(set) => self.set_rule(set),
            Request::Log { level } => match (log.set_level)(level) {
                Ok(()) => Response::Done,
                Err(error) => Response::Refused { reason: with_causes(&*error) },
            },
            Request::Reload => match self.reload() {
                Ok(change) => Response::Reloaded(Box::new(change)),
                Err(error) => Response::Refused { reason: with_causes(&error) },
            },
            Request::Down => Response::Done,
        }
    }

    fn status(&mut self, addresses: bool) -> Status {
        self.survey_flows();
        self.control.ports.check_all();
        let cpu = LinkCpu {
            egress_ns: self.threads.iter().map(|pair| cpu::thread_ns(&pair.egress)).sum(),
            ingress_ns: self.threads.iter().map(|pair| cpu::thread_ns(&pair.ingress)).sum(),
            threads: self.threads.len() as u64,
            process_ns: cpu::process_ns(),
            cores: self.load.cores(),
        };
        let sources = status::Sources {
            about: &self.about,
            config: &self.config,
            rule_set: &self.rule_set,
            shared: &self.shared,
            peers: &self.slots.peers,
            control: &self.control,
            hooks: &self.hooks,
            lists_trouble: self.lists_trouble.as_deref(),
            membership: self.members.membership.as_ref(),
        };
        Status { cpu, ..sources.status(addresses) }
    }

    /// Has the threads say what becomes of the flows. One that hangs must not hide all the rest:
    /// then the flows are those of the last survey.
    fn survey_flows(&self) {
        let (done, found) = mpsc::sync_channel(self.threads.len());
        self.orders.each_egress(|| Order::Survey(done.clone()));
        let until = Instant::now() + SURVEY;
        let answer = |_| found.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        if let Some(found) = self.threads.iter().map(answer).collect() {
            self.rule_set.set_flows(found);
        }
    }

    /// Sets a rule of compression.
    fn set_rule(&mut self, set: Set) -> Response {
        let Set { selector, method, dictionary_bytes } = set;
        let rule = config::Compress { selector, method, owner: None, dictionary_bytes };
        if let Err(error) = self.config.check_rule(&rule) {
            return Response::Refused { reason: error.to_string() };
        }
        let mut rules = self.rule_set.rules.clone();
        match rules.set_rule(rule) {
            Ok(outcome) => {
                self.rule_set.replace_rules(rules);
                self.send_policies();
                Response::Set(outcome)
            }
            Err(error) => Response::Refused { reason: error.to_string() },
        }
    }

    /// Has the threads compress by the present rules.
    fn send_policies(&self) {
        let policies = || self.slots.make_policies(&self.rule_set, &self.shared);
        self.orders.each_egress(|| Order::Policies(policies()));
    }

    fn check_threads(&self) -> Result<()> {
        let mut threads = self.threads.iter().flat_map(|pair| [&pair.egress, &pair.ingress]);
        if let Some(thread) = threads.find(|thread| thread.is_finished()) {
            let thread = thread.thread().name().unwrap_or("?").to_owned();
            return Err(LinkError::ThreadEnded { thread, link: self.config.name.clone() });
        }
        Ok(())
    }

    /// Tells the peers, and ends the threads.
    pub fn end(self) {
        let Self { hooks, mut control, threads, members, .. } = self;
        // Before the peers hear that the link ends: from here on all goes its ordinary way.
        drop(hooks);
        control.close_sessions();
        members.end();
        for thread in threads.into_iter().flat_map(|pair| [pair.egress, pair.ingress]) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// With what this machine decides where the file does not.
fn complete_config(config: Config) -> Config {
    let pairs = config.pairs.or_else(|| Some(Pairs::of_machine()));
    Config { listen: listen_address(config.listen), pairs, ..config }
}

/// The state that the threads share at first.
fn make_shared(
    config: &Config,
    peers: &Slots<PeerSlot>,
    ports: Vec<CountedPort>,
    divert_taps: Option<DivertTaps>,
    udp: UdpPort,
) -> Shared {
    let (table, own) = (config.table_settings(), Own::new(config));
    let mut shared = Shared::new(table, ports, divert_taps, config.peers.len(), udp, own);
    for (slot, port) in (0..).map_while(PortSlot::at).zip(&config.ports) {
        shared.allow_sources(slot, port);
    }
    shared.set_relayed(config, peers);
    shared
}

fn start_control(config: &Config, parts: Parts, listener: TcpListener) -> Result<ControlThread> {
    let mut control = ControlThread::new(config, parts);
    control.listen(listener).map_err(LinkError::call("starting the thread that takes callers"))?;
    control.tick();
    Ok(control)
}

/// The slots of peers and ports.
struct PeersAndPorts {
    peers: Slots<PeerSlot>,
    ports: Slots<PortSlot>,
}

impl PeersAndPorts {
    /// In the order of the configuration.
    fn new(config: &Config) -> Self {
        Self {
            peers: Slots::new(config.peers.iter().map(|peer| &peer.name)),
            ports: Slots::new(config.ports.iter().map(|port| &port.name)),
        }
    }

    /// Peers and ports that stay keep their slots.
    fn reloaded(&self, config: &Config) -> Self {
        Self {
            peers: self.peers.reloaded(config.peers.iter().map(|peer| &peer.name)),
            ports: self.ports.reloaded(config.ports.iter().map(|port| &port.name)),
        }
    }

    /// The rules as the egress thread uses them.
    fn make_policies(&self, rule_set: &RuleSet, shared: &Shared) -> Policies {
        let taps = shared.divert_taps.iter().flat_map(|divert_taps| divert_taps.taps.values());
        let interface = |tap: &Option<DivertTap>| tap.as_ref()?.interface.clone();
        let divert_taps = Arc::new(taps.map(|tap| interface(tap).unwrap_or_default()).collect());
        Policies::new(rule_set.clone(), self.peers.names(), self.ports.names(), divert_taps)
    }
}

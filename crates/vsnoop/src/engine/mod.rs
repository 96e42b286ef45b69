//! The engine: hands over to VMs what the hooks hold for them (crates/vsnoop-hold decides what).
//!
//! One process per host, started and watched by the helper while a port has a hold, and gone again
//! when none has. It waits for the doorbells of all ports, on which the hooks write the numbers of
//! holds with news, and looks [`TICK`] by [`TICK`] whether a timer is due. All that matters is in
//! pinned memory (`vsnoop_bpf::Memory`), so that it may be killed at any instant: the next one goes
//! on. While it lives it says so there, tick by tick; the hooks hold nothing for long on behalf of
//! an engine that does not.
//!
//! `port` is what the loop of crates/vsnoop-hold has around it, `device` the way into the tap.

mod device;
mod port;

use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use vsnoop_bpf::{Memory, Port};
use vsnoop_hold::{RETRY_NS, TICK_NS, Urgency};
use vsnoop_host::error::{Unfit, unfit};
use vsnoop_host::ports::{self, Attached, State};
use vsnoop_host::priority::Priority;
use vsnoop_host::system::netns::Netns;

use crate::background::{self, Instance, Role};
use crate::cli;
use crate::helper;
use crate::output::watch::Interrupt;
use port::EnginePort;

/// How often timers are looked at and a sign of life is given.
const TICK: Duration = Duration::from_nanos(TICK_NS);
/// A ring that took no more is tried again after this long, if the VM says nothing.
const RETRY: Duration = Duration::from_nanos(RETRY_NS);
/// How often ports are looked at, when none came or went.
const DISCOVERY: Duration = Duration::from_millis(1000);
/// A command that attaches waits at most this long for the engine.
const START: Duration = Duration::from_secs(2);
/// How long it stays without a port.
const LINGER: Duration = Duration::from_secs(2);
/// Before all ordinary processes it works for so long in a [`TICK`]: a VM that runs, and is short
/// of data, gives its core up. The kernel does as much within an interrupt when it is the sender
/// itself that the VM waits for.
const BUDGET: Duration = Duration::from_millis(25);

pub fn run(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(arguments.foreground)?;
    let Some(_instance) = Instance::take(Role::Engine)? else {
        if arguments.foreground {
            return Err(unfit(Unfit::Other, "another engine works already"));
        }
        return Ok(0);
    };
    let priority = Priority::take(BUDGET);
    tracing::info!("engine started");
    Engine::new()?.work(&interrupt, priority)?;
    tracing::info!("engine ends");
    Ok(0)
}

/// Waits until the engine looks after these ports, which have just been attached with a hold. That
/// it does not is a warning: until it does nothing is held.
pub fn ensure_working(names: &[String], netns: &Netns) {
    let start = Instant::now();
    let failed = background::start(Role::Engine).err();
    for name in names {
        let memory = ports::find(name, netns).and_then(|found| Ok(Memory::open(&found.port)?));
        let Ok(Some(memory)) = memory else { continue };
        while memory.engine_ns() == 0 {
            if failed.is_some() || start.elapsed() > START {
                let why = failed.as_ref().map(|error| format!(": {error:#}")).unwrap_or_default();
                eprintln!(
                    "vsnoop: port {name}: no engine works yet{why}; until one does, nothing is held"
                );
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Engine {
    epoll: Epoll,
    ports: HashMap<(u64, u32), EnginePort>,
    trouble: HashMap<(u64, u32), String>,
    /// What is pinned, as of the last discovery.
    listed: Vec<(PathBuf, Option<u64>)>,
}

impl Engine {
    fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll")?;
        Ok(Self { epoll, ports: HashMap::new(), trouble: HashMap::new(), listed: Vec::new() })
    }

    fn work(&mut self, interrupt: &Interrupt, mut priority: Priority) -> Result<()> {
        let mut discover_at = Instant::now();
        let mut tick_at = Instant::now();
        let mut last_port_at = Instant::now();
        let mut events = [EpollEvent::empty(); 64];
        while !interrupt.is_set() {
            let now = Instant::now();
            if now >= discover_at || (now >= tick_at && self.listed != Port::names()?) {
                discover_at = now + DISCOVERY;
                self.listed = Port::names()?;
                self.discover();
                helper::restart_if_needed();
                background::forget_children();
                if !self.ports.is_empty() {
                    last_port_at = now;
                }
                if last_port_at.elapsed() > LINGER {
                    return Ok(());
                }
            }
            if now >= tick_at {
                tick_at = now + TICK;
                priority.renew();
                self.ports.values_mut().for_each(EnginePort::tick);
            }
            self.ports.values_mut().for_each(EnginePort::work);
            let most = match self.ports.values().map(EnginePort::urgency).max() {
                Some(Urgency::Now) => Duration::ZERO,
                Some(Urgency::Soon) => RETRY,
                _ => tick_at.saturating_duration_since(Instant::now()),
            };
            let timeout = EpollTimeout::try_from(most.as_micros().div_ceil(1000) as u64)
                .unwrap_or(EpollTimeout::ZERO);
            match self.epoll.wait(&mut events, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno).context("wait for the doorbells"),
            }
        }
        Ok(())
    }

    /// Finds ports with a hold, and lets go of those that have gone.
    fn discover(&mut self) {
        let inventory = match ports::inventory() {
            Ok(inventory) => inventory,
            Err(error) => return tracing::warn!("{error:#}"),
        };
        let mut earlier = std::mem::take(&mut self.ports);
        for attached in inventory.ports {
            if attached.state == State::Gone {
                continue;
            }
            let key = (attached.meta.netns, attached.meta.ifindex);
            let known = earlier.remove(&key).filter(|port| port.is_of(&attached));
            let port = match known {
                Some(mut port) => {
                    port.is_called(&attached.name);
                    Ok(Some(port))
                }
                None => self.open(attached),
            };
            match port {
                Ok(Some(port)) => {
                    self.trouble.remove(&key);
                    self.ports.insert(key, port);
                }
                Ok(None) => {}
                Err(error) => self.complain(key, format!("{error:#}")),
            }
        }
    }

    fn open(&self, attached: Attached) -> Result<Option<EnginePort>> {
        let Some(memory) = Memory::open(&attached.port)? else { return Ok(None) };
        let name = attached.name.clone();
        let port = EnginePort::new(attached, memory)
            .with_context(|| format!("port {name}: what it holds cannot be handed over"))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        // Closed with the port, and then the kernel forgets it here by itself.
        self.epoll.add(port.doorbell(), event).context("listen to a doorbell")?;
        tracing::info!("port {name}: the engine looks after its hold");
        Ok(Some(port))
    }

    fn complain(&mut self, key: (u64, u32), text: String) {
        if self.trouble.get(&key) != Some(&text) {
            tracing::warn!("{text}");
            self.trouble.insert(key, text);
        }
    }
}

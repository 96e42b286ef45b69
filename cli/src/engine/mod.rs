//! The engine: hands over to VMs the bytes that the hooks hold for them (accel/vsnoop-hold
//! decides).
//!
//! One process per host. The helper starts and supervises it while a port has a hold; it exits when
//! none has. It waits for the doorbells of all ports, to which the hooks write the numbers of
//! holds, and serves timers every [`TICK`]. All state is in pinned memory (`vsnoop_bpf::HoldMaps`),
//! so it may be killed at any instant, and the next engine continues. It gives a sign of life there
//! at every tick; without one the hooks soon stop relying on it.
//!
//! `port` implements the surroundings of vsnoop-hold's loop, `device` sends frames to the tap.
//! `moved` follows VMs to other ports of the bridge, where `ear` hears them. `split_moves`
//! says so to the splitter.

mod device;
mod ear;
mod moved;
mod port;
mod split_moves;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use vsnoop_bpf::{HoldMaps, Port, Reserve};
use vsnoop_hold::{RETRY_NS, TICK_NS, Urgency};
use vsnoop_host::error::{Unfit, with_causes};
use vsnoop_host::ports::{self, Attached, AttachmentState};
use vsnoop_host::priority::Priority;
use vsnoop_host::system::headroom;
use vsnoop_host::system::netns::Netns;

use crate::background::{self, Instance, Linger, Role};
use crate::cli;
use crate::error::unfit_error;
use crate::helper;
use crate::log::note::LossNote;
use crate::output::watch::Interrupt;
use port::EnginePort;

/// Interval of timers and signs of life.
const TICK: Duration = Duration::from_nanos(TICK_NS);
/// Time after which a port is looked at again, unless its doorbell rings before.
const RETRY: Duration = Duration::from_nanos(RETRY_NS);
/// Between two additions to the reserve.
const REFILL: Duration = Duration::from_millis(10);
/// Interval at which ports are listed.
const DISCOVERY: Duration = Duration::from_millis(1000);
/// How long a command that attaches waits for the engine.
const START: Duration = Duration::from_secs(2);
/// CPU time at real-time priority in each [`TICK`]: a VM that runs, and is short of data, gives its
/// core up. The kernel does as much within an interrupt when the VM waits for the sender itself.
const BUDGET: Duration = Duration::from_millis(25);

pub fn run_engine(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(Role::Engine, arguments.foreground)?;
    let Some(_instance) = Instance::take_lock(Role::Engine)? else {
        if arguments.foreground {
            return Err(unfit_error(Unfit::Other, "another engine works already"));
        }
        return Ok(0);
    };
    let priority = Priority::take(BUDGET);
    tracing::info!("engine started");
    Engine::new()?.serve_ports(&interrupt, priority)?;
    tracing::info!("engine ends");
    Ok(0)
}

/// Waits until the engine serves these ports, which have just been attached with a hold. A failure
/// is a warning only: until the engine serves them nothing is held.
pub fn ensure_working(names: &[String], netns: &Netns) {
    let start = Instant::now();
    let failed = background::start(Role::Engine).err();
    for name in names {
        let memory = ports::find(name, netns).and_then(|found| Ok(HoldMaps::open(&found.port)?));
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

/// Network namespace and index of the tap, id of the attachment.
type PortKey = (u64, u32, u64);

/// The data of an event of epoll: which descriptors have something to read.
const DOORBELLS: u64 = 0;
const BRIDGES: u64 = 1;

struct Engine {
    epoll: Epoll,
    ports: HashMap<PortKey, EnginePort>,
    /// Memory for whichever port wants some.
    reserve: Reserve,
    /// Next addition to the reserve.
    refill_at: Instant,
    trouble: HashMap<PortKey, String>,
    /// Pinned ports at the last discovery.
    listed: Vec<(PathBuf, Option<u64>)>,
}

impl Engine {
    fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll")?;
        Ok(Self {
            epoll,
            ports: HashMap::new(),
            reserve: Reserve::within(headroom::own_bytes),
            refill_at: Instant::now(),
            trouble: HashMap::new(),
            listed: Vec::new(),
        })
    }

    fn serve_ports(&mut self, interrupt: &Interrupt, mut priority: Priority) -> Result<()> {
        let mut discover_at = Instant::now();
        let mut tick_at = Instant::now();
        let mut linger = Linger::default();
        let mut loss = LossNote::from_role(Role::Engine);
        let mut events = [EpollEvent::empty(); 64];
        while !interrupt.is_set() {
            let now = Instant::now();
            if now >= discover_at || (now >= tick_at && self.listed != Port::names()?) {
                discover_at = now + DISCOVERY;
                self.listed = Port::names()?;
                self.discover_ports();
                loss.update();
                helper::restart_if_needed();
                background::reap_children();
                if linger.is_over(!self.ports.is_empty(), Instant::now()) {
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
                Some(urgency) => {
                    let wake_at = self.refill_reserve(now).map_or(tick_at, |at| at.min(tick_at));
                    let rest = wake_at.saturating_duration_since(Instant::now());
                    if urgency == Urgency::Soon { RETRY } else { rest }
                }
                None => tick_at.saturating_duration_since(Instant::now()),
            };
            let timeout = EpollTimeout::try_from(most.as_micros().div_ceil(1000) as u64)
                .unwrap_or(EpollTimeout::ZERO);
            match self.epoll.wait(&mut events, timeout) {
                Ok(count) if events[..count].iter().any(|event| event.data() == BRIDGES) => {
                    self.ports.values_mut().for_each(EnginePort::notice_moves);
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno).context("wait for the doorbells"),
            }
        }
        Ok(())
    }

    /// Adds to the reserve, one slab each REFILL: this thread has a real-time priority, and the
    /// connection that has just used the reserve may need this CPU for its reply. Returns the time
    /// of the next one; `None`: the reserve is full.
    fn refill_reserve(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.refill_at {
            // If the kernel has no memory now, ports allocate later, on demand.
            if !self.reserve.refill().unwrap_or(false) {
                return None;
            }
            self.refill_at = now + REFILL;
        }
        Some(self.refill_at)
    }

    /// Opens new ports with a hold, and those whose tap left its network namespace and came back;
    /// drops those that are gone.
    fn discover_ports(&mut self) {
        let inventory = match ports::inventory() {
            Ok(inventory) => inventory,
            Err(error) => return tracing::warn!("{}", with_causes(&error)),
        };
        let key_of = |attached: &Attached| -> PortKey {
            (attached.meta.netns, attached.meta.ifindex, attached.port.id())
        };
        let present: HashSet<_> = inventory.ports.iter().map(key_of).collect();
        // A tap that comes again has another index: what is not forgotten stays for ever.
        self.trouble.retain(|key, _| present.contains(key));
        let mut earlier = std::mem::take(&mut self.ports);
        for attached in inventory.ports {
            if attached.state == AttachmentState::Gone {
                continue;
            }
            let key = key_of(&attached);
            // A port whose tap is elsewhere gets no sign of life: the hooks hold nothing for it.
            let known = earlier.remove(&key).filter(EnginePort::reaches_its_tap);
            let port = match known {
                Some(mut port) => {
                    if port.keeps_its_netns_alive() {
                        tracing::info!(
                            "port {}: nobody reads the tap, and its network namespace has neither \
                             a name nor a process any more",
                            attached.name
                        );
                        continue;
                    }
                    port.is_called(&attached.name);
                    port.follow_vms();
                    self.listen_to_bridges(&port);
                    Ok(Some(port))
                }
                None => self.open_port(attached),
            };
            match port {
                Ok(Some(port)) => {
                    self.trouble.remove(&key);
                    self.ports.insert(key, port);
                }
                Ok(None) => {}
                Err(error) => self.complain_once(key, format!("{error:#}")),
            }
        }
        let without_pins = |(_, port): &mut (PortKey, EnginePort)| port.is_needed_without_pins();
        let mut earlier: Vec<_> = earlier.into_iter().collect();
        earlier.retain_mut(without_pins);
        self.ports.extend(earlier);
    }

    fn open_port(&self, attached: Attached) -> Result<Option<EnginePort>> {
        let Some(memory) = HoldMaps::open(&attached.port)? else { return Ok(None) };
        let name = attached.name.clone();
        let mut port = EnginePort::new(attached, memory, &self.reserve)
            .with_context(|| format!("port {name}: what it holds cannot be handed over"))?;
        // Hears announcements from now on.
        port.follow_vms();
        self.listen_to_bridges(&port);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, DOORBELLS);
        // The kernel removes it when the port is closed.
        self.epoll.add(port.doorbell(), event).context("listen to a doorbell")?;
        tracing::info!("port {name}: the engine looks after its hold");
        Ok(Some(port))
    }

    fn listen_to_bridges(&self, port: &EnginePort) {
        if let Some(events) = port.bridge_events() {
            // Not if it is listened to already. The kernel removes it when it is closed.
            let _ = self.epoll.add(events, EpollEvent::new(EpollFlags::EPOLLIN, BRIDGES));
        }
    }

    fn complain_once(&mut self, key: PortKey, text: String) {
        if self.trouble.get(&key) != Some(&text) {
            tracing::warn!("{text}");
            self.trouble.insert(key, text);
        }
    }
}

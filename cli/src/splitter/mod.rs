//! The splitter: moves the bytes of split connections (accel/flow/split.h) between their sockets
//! (docs/decisions/0048-split-connections.md).
//!
//! One process per host, in the network namespace of the sockets. It is started with a port that
//! has downloads, and kept running by the helper; it exits when no port has downloads. The hooks
//! copy what late VMs have in flight, and ask; both sockets are made, and their bytes moved until
//! nothing has moved for a while, or nothing is to be split any more: then the ends talk to each
//! other again. What is decided about a port is in `vsnoop-splitter`; here are the maps
//! (`hooks.rs`) and the loop.
//!
//! A port belongs to it from the time that `downloads` is in the port's record: its pins, and its
//! pair of devices, are then there.
//!
//! | of the port's record | the splitter |
//! |---|---|
//! | `run` is another than `PORT_ACCELERATE` | joins what it can, while others wait |
//! | `downloads` is 0 | joins what it can, and resets the rest within `split::PATIENCE` |
//!
//! It may end, or be killed, at any time: the keeper (`keeper`) has the sockets, too, and the next
//! splitter goes on with them (`record.rs`). Without a keeper the kernel resets both ends.

mod hooks;
mod record;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use vsnoop_bpf::split::SplitPort;
use vsnoop_host::error::{Unfit, with_causes};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports::{self, Attached, AttachmentState};
use vsnoop_host::priority::Priority;
use vsnoop_host::split::{self, TapId, namespace};
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_service::control;
use vsnoop_split::{Side, Socket};
use vsnoop_splitter::{PortKey, Progress, RESET_AFTER_NS, SplitterPort};

use crate::background::{self, Instance, Linger, Role};
use crate::cli;
use crate::error::unfit_error;
use crate::keeper::{self, Keeper};
use crate::output::watch::Interrupt;
use hooks::Pins;
use record::{Left, left_of};

/// Interval of looks at idle connections.
const TICK: Duration = Duration::from_millis(100);
/// Interval of looks while a port is paused, whose connections are to be joined.
const SOON: Duration = Duration::from_millis(5);
/// Interval at which ports are listed.
const DISCOVERY: Duration = Duration::from_millis(250);

/// CPU time at real-time priority in each [`TICK`]: a VM that waits for its turn is answered at
/// once, and who moves much does it as an ordinary process.
const BUDGET: Duration = Duration::from_millis(25);
// What is reset is reset before the programs are taken off.
const _: () = assert!(RESET_AFTER_NS as u128 / 1_000_000 + 100 < split::PATIENCE.as_millis());
/// How long to wait at first for a keeper that runs.
const KEEPER: Duration = Duration::from_secs(10);

pub fn run_splitter(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(Role::Splitter, arguments.foreground)?;
    let Some(_instance) = Instance::take_lock(Role::Splitter)? else {
        if arguments.foreground {
            return Err(unfit_error(Unfit::Other, "another splitter works already"));
        }
        return Ok(0);
    };
    let priority = Priority::take(BUDGET);
    tracing::info!("splitter started");
    if let Some(namespace) = namespace::open()? {
        namespace.enter()?;
        let mut splitter = Splitter::new(namespace.inode)?;
        splitter.wait_for_keeper();
        splitter.serve_ports(&interrupt, priority)?;
    }
    tracing::info!("splitter ends");
    Ok(0)
}

/// Starts keeper and splitter. A failure is a warning only: until it works, no connection is split.
pub fn ensure_working() {
    keeper::ensure_working();
    if let Err(error) = background::start(Role::Splitter) {
        eprintln!("vsnoop: no splitter works yet: {error:#}; until one does, nothing is split");
    }
}

/// Removes what no port with downloads uses any more; not beside a service, which has too few
/// privileges to make it again. Best effort: the next command that finds it does so.
pub fn forget_unused(lock: &CommandLock) {
    if control::is_served() {
        return;
    }
    if let Err(error) = split::remove_namespace_if_unused(lock) {
        tracing::debug!("the network namespace of downloads stays: {}", with_causes(&error));
    }
}

/// A ring, or a connection: number of the port in the upper half, of the connection in the lower;
/// 0: the port's ring.
type Token = u64;

/// A port with downloads.
struct Served {
    pins: Pins,
    port: SplitterPort<Socket>,
}

struct Splitter {
    /// Inode of its network namespace.
    namespace: u64,
    epoll: Epoll,
    ports: HashMap<u32, Served>,
    numbers: HashMap<PortKey, u32>,
    next: u32,
    trouble: HashMap<PortKey, String>,
    keeper: Keeper,
    /// Connections that an earlier splitter has left, of ports that are not open yet.
    left: Vec<Left>,
}

impl Splitter {
    fn new(namespace: u64) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll")?;
        Ok(Self {
            namespace,
            epoll,
            ports: HashMap::new(),
            numbers: HashMap::new(),
            next: 1,
            trouble: HashMap::new(),
            keeper: Keeper::new(&keeper::socket_path()),
            left: Vec::new(),
        })
    }

    /// Nothing that an earlier splitter has left is given up before the keeper has been asked.
    fn wait_for_keeper(&mut self) {
        let since = Instant::now();
        while background::running_pid(Role::Keeper).is_some() && since.elapsed() < KEEPER {
            self.look_at_keeper();
            if self.keeper.is_ready() {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        tracing::warn!("no keeper answers");
    }

    /// Takes what the keeper hands over, and tells it what there is.
    fn look_at_keeper(&mut self) {
        let kept = self.keeper.find_kept();
        let mut live: HashSet<u64> = self.left.iter().map(|left| left.id).collect();
        for served in self.ports.values() {
            served.port.keep(&mut self.keeper, &mut live);
        }
        for one in kept.into_iter().filter(|one| !live.contains(&one.id)) {
            self.left.extend(left_of(one));
        }
        live.extend(self.left.iter().map(|left| left.id));
        self.keeper.forget_others(|id| live.contains(&id));
    }

    /// Works until it is interrupted, or no port has downloads.
    fn serve_ports(&mut self, interrupt: &Interrupt, mut priority: Priority) -> Result<()> {
        let mut linger = Linger::default();
        let (mut discover_at, mut tick_at) = (Instant::now(), Instant::now());
        let mut ready = BTreeSet::new();
        let mut events = [EpollEvent::empty(); 64];
        while !interrupt.is_set() {
            let now = Instant::now();
            if now >= discover_at {
                discover_at = now + DISCOVERY;
                ready.extend(self.discover_ports());
                if linger.is_over(!self.ports.is_empty(), Instant::now()) || self.is_astray() {
                    return Ok(());
                }
            }
            if now >= tick_at {
                priority.renew();
                self.look_at_keeper();
                tick_at = now + self.tick();
            }
            ready = self.serve_ready(ready);
            let most = if ready.is_empty() {
                tick_at.min(discover_at).saturating_duration_since(Instant::now())
            } else {
                Duration::ZERO
            };
            let timeout = EpollTimeout::try_from(most.as_micros().div_ceil(1000) as u64)
                .unwrap_or(EpollTimeout::ZERO);
            match self.epoll.wait(&mut events, timeout) {
                Ok(count) => ready.extend(events[..count].iter().map(EpollEvent::data)),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno).context("wait for sockets"),
            }
        }
        Ok(())
    }

    /// Was the network namespace removed, and made again? Without a port with downloads it is
    /// removed, so none is served from here. The helper starts another splitter then.
    fn is_astray(&self) -> bool {
        let now = namespace::open().ok().flatten();
        now.is_some_and(|now| now.inode != self.namespace)
    }

    /// Serves rings and connections. Returns those that can go on at once.
    fn serve_ready(&mut self, ready: BTreeSet<Token>) -> BTreeSet<Token> {
        let mut more = BTreeSet::new();
        for token in ready {
            let (number, connection) = ((token >> 32) as u32, token as u32);
            let Some(Served { pins, port }) = self.ports.get_mut(&number) else { continue };
            let Ok(now_ns) = monotonic_ns() else { continue };
            if connection != 0 {
                if port.serve(connection, pins, now_ns) == Progress::More {
                    more.insert(token);
                }
                continue;
            }
            for begun in port.listen(pins, &mut self.keeper, now_ns) {
                let token = u64::from(number) << 32 | u64::from(begun);
                match watch_socket(&self.epoll, port, begun, token) {
                    Ok(()) => drop(more.insert(token)),
                    Err(error) => tracing::warn!("port {}: {error:#}", port.name),
                }
            }
        }
        more
    }

    /// Returns when the next one is due.
    fn tick(&mut self) -> Duration {
        let mut pause = TICK;
        for Served { pins, port } in self.ports.values_mut() {
            if let Ok(now_ns) = monotonic_ns() {
                port.tick(pins, now_ns);
            }
            if port.is_paused() && port.are_any() {
                pause = SOON;
            }
        }
        pause
    }

    /// Opens new ports with downloads, and drops those that are gone. Returns what can go on at
    /// once.
    fn discover_ports(&mut self) -> Vec<Token> {
        let inventory = match ports::inventory() {
            Ok(inventory) => inventory,
            Err(error) => {
                tracing::warn!("{}", with_causes(&error));
                return Vec::new();
            }
        };
        let mut ready = Vec::new();
        let (mut present, mut deleted) = (HashSet::new(), HashSet::new());
        for attached in inventory.ports {
            let Some(pins) = vsnoop_bpf::split::id(&attached.port) else { continue };
            let key = (attached.meta.netns, attached.meta.ifindex, attached.port.id(), pins);
            let is_known = self.numbers.contains_key(&key);
            let has_downloads = attached.port.policy().is_ok_and(|policy| policy.downloads != 0);
            if attached.state == AttachmentState::Gone {
                deleted.insert(key);
                continue;
            }
            if !vsnoop_bpf::split::is_attached(&attached.port)
                || !(is_known
                    || has_downloads
                    || self.left.iter().any(|one| one.record.port == key))
            {
                continue;
            }
            present.insert(key);
            if is_known {
                continue;
            }
            match self.open_port(attached, key) {
                Ok(taken) => {
                    self.trouble.remove(&key);
                    ready.extend(taken);
                }
                Err(error) => self.complain_once(key, format!("{error:#}")),
            }
        }
        let gone: Vec<_> = self.numbers.extract_if(|key, _| !present.contains(key)).collect();
        for (key, number) in gone {
            let Some(Served { mut pins, mut port }) = self.ports.remove(&number) else { continue };
            tracing::info!("port {}: it has no downloads any more", port.name);
            let Ok(now_ns) = monotonic_ns() else { continue };
            match deleted.contains(&key) {
                true => port.leave_all(&mut pins, now_ns),
                false => port.reset_all(&mut pins, now_ns),
            }
        }
        self.trouble.retain(|key, _| present.contains(key));
        // Those of an open port come from a keeper that has answered too late.
        let numbers = &self.numbers;
        let is_late = |left: &mut Left| {
            let port = &left.record.port;
            !present.contains(port) || numbers.contains_key(port)
        };
        for left in self.left.extract_if(.., is_late) {
            left.drop_silently();
        }
        ready
    }

    /// Returns the connections that an earlier splitter has left there.
    fn open_port(&mut self, attached: Attached, key: PortKey) -> Result<Vec<Token>> {
        let device = TapId::from_port(&attached.port)?.far_name();
        let mut pins = Pins { maps: SplitPort::open(&attached.port)?, port: attached.port };
        let mut port = SplitterPort::new(attached.name, key, device);
        tracing::info!("port {}: the splitter looks after its downloads", port.name);
        let number = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(number) << 32);
        self.epoll.add(pins.maps.ring(), event).context("listen to a ring")?;
        self.numbers.insert(key, number);
        let left = self.left.extract_if(.., |left| left.record.port == key).collect();
        let mut taken = Vec::new();
        for connection in port.take_up(left, &mut pins, monotonic_ns()?) {
            let token = u64::from(number) << 32 | u64::from(connection);
            match watch_socket(&self.epoll, &port, connection, token) {
                Ok(()) => taken.push(token),
                Err(error) => tracing::warn!("port {}: {error:#}", port.name),
            }
        }
        self.ports.insert(number, Served { pins, port });
        Ok(taken)
    }

    /// Logs each trouble of a port once.
    fn complain_once(&mut self, key: PortKey, text: String) {
        if self.trouble.get(&key) != Some(&text) {
            tracing::warn!("{text}");
            self.trouble.insert(key, text);
        }
    }
}

/// Waits for both sockets of a connection.
fn watch_socket(
    epoll: &Epoll,
    port: &SplitterPort<Socket>,
    number: u32,
    token: Token,
) -> Result<()> {
    let Some(split) = port.connection(number).and_then(|connected| connected.split()) else {
        return Ok(());
    };
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP;
    for side in [Side::Vm, Side::Peer] {
        let event = EpollEvent::new(flags | EpollFlags::EPOLLET, token);
        epoll.add(split.socket(side).as_fd(), event).context("wait for a socket")?;
    }
    Ok(())
}

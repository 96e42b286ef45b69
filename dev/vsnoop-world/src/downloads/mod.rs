//! Split connections: the programs of accel/bpf/split.bpf.c and the decisions of vsnoop-splitter,
//! between simulated sockets.
//!
//! The sockets' TCP is the one that simulated Linux ends have, set to the numbers of a connection
//! as TCP_REPAIR does. A splitter can be killed at each of its calls; the keeper has the sockets,
//! too.

mod hooks;
mod namespace;
mod sockets;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use vsnoop_flow::testing::segment::Seg;
use vsnoop_split::{Direction, Pair, Parts, Side};
use vsnoop_splitter::{Keeper, Left, Progress, Record, SplitterPort};

use crate::host::{Vm, described};
use crate::kernel::SOCKETS;
use crate::wire::{self, Path};
use hooks::PortHooks;
pub use namespace::Namespace;
use sockets::{Pipe, Socket, enter};

/// Interval of the splitter's ticks, and the same while its port is paused.
const TICK_NS: u64 = 100_000_000;
const SOON_NS: u64 = 5_000_000;

/// The keeper's part of a connection.
#[derive(Clone, Debug)]
struct Kept {
    record: Record,
    parts: (Socket, Socket, Pipe, Pipe),
}

#[derive(Clone, Debug, Default)]
pub struct Keeping {
    is_there: bool,
    has: BTreeMap<u64, Kept>,
    latest: u64,
}

impl Keeper<Socket> for Keeping {
    fn next_id(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    fn has(&self, id: u64) -> bool {
        self.has.contains_key(&id)
    }

    fn keep(&mut self, id: u64, record: &Record, split: &Pair<Socket>) {
        if self.is_there && sockets::call(|_| Ok(())).is_ok() {
            let kept = Kept { record: *record, parts: parts_of(split) };
            self.has.insert(id, kept);
        }
    }
}

fn parts_of(split: &Pair<Socket>) -> Parts<Socket> {
    let pipe = |direction| *split.pipe(direction);
    let facing = |side| *split.facing(side);
    (facing(Side::Vm), facing(Side::Peer), pipe(Direction::ToPeer), pipe(Direction::ToVm))
}

/// The splitter of one port, its keeper, and their sockets.
#[derive(Clone, Debug)]
pub struct Downloads {
    pub namespace: Namespace,
    keeper: Keeping,
    splitter: Option<SplitterPort<Socket>>,
    /// Connections with something to do.
    ready: BTreeSet<u32>,
    tick_at: u64,
    /// The kernel has reset a connection, whose sockets no process had any more.
    pub has_lost: bool,
    /// When it runs next.
    pub at: u64,
}

impl Downloads {
    pub fn new(paths: Vec<(usize, Path)>, seed: u64) -> Self {
        Self {
            namespace: Namespace::new(paths, seed),
            keeper: Keeping { is_there: true, ..Keeping::default() },
            splitter: None,
            ready: BTreeSet::new(),
            tick_at: 0,
            has_lost: false,
            at: u64::MAX,
        }
    }

    /// Attaches the programs to a port.
    pub fn attach(vm: &mut Vm) {
        vm.port.has_downloads = true;
        vm.policy().downloads = 1;
        let tap = vm.port.ifindex;
        let port = vm.port.split_port();
        (port.socket_ifindex, port.tap_ifindex) = (SOCKETS, tap);
    }

    /// Runs `run` as the splitter's process; false if it is not there, or was killed meanwhile.
    fn run(
        &mut self,
        vm: &mut Vm,
        run: impl FnOnce(&mut SplitterPort<Socket>, &mut PortHooks, &mut Keeping),
    ) -> bool {
        let Some(mut splitter) = self.splitter.take() else { return false };
        self.namespace.now = vm.now;
        let keeper = &mut self.keeper;
        enter(&mut self.namespace, || run(&mut splitter, &mut PortHooks(vm), keeper));
        if self.namespace.is_killed {
            vm.note(|| "the splitter is KILLED".into());
            self.splitter_died();
            return false;
        }
        self.splitter = Some(splitter);
        true
    }

    /// Starts a splitter with what the keeper has; false if it was killed at once.
    pub fn start(&mut self, vm: &mut Vm) -> bool {
        vm.note(|| "a splitter starts".into());
        let key = (1, vm.port.ifindex, 1, 1);
        self.splitter = Some(SplitterPort::new("sim0".into(), key, "sim0".into()));
        let left = std::mem::take(&mut self.keeper.has);
        self.keeper.has = left.clone();
        let left = left.into_iter();
        let left = left.map(|(id, Kept { record, parts })| Left { id, record, parts }).collect();
        let now = vm.now;
        (self.tick_at, self.at) = (now, now);
        let mut taken = Vec::new();
        let is_alive =
            self.run(vm, |splitter, hooks, _| taken = splitter.take_up(left, hooks, now));
        if is_alive {
            self.ready.extend(taken);
        }
        is_alive
    }

    /// Runs the splitter once: it ticks when that is due, serves the connections that are ready,
    /// and reads its ring. Sets [`Self::at`], when it runs next. Returns false if it was killed.
    pub fn work(&mut self, vm: &mut Vm) -> bool {
        let now = vm.now;
        let is_due = now >= self.tick_at;
        let ready = std::mem::take(&mut self.ready);
        let mut more = BTreeSet::new();
        let mut pause = TICK_NS;
        let alive = self.run(vm, |splitter, hooks, keeper| {
            if is_due {
                let mut live = HashSet::new();
                splitter.keep(keeper, &mut live);
                keeper.has.retain(|id, _| live.contains(id));
                splitter.tick(hooks, now);
                if splitter.is_paused() && splitter.are_any() {
                    pause = SOON_NS;
                }
            }
            for number in ready {
                if splitter.serve(number, hooks, now) == Progress::More {
                    more.insert(number);
                }
            }
            more.extend(splitter.listen(hooks, keeper, now));
        });
        if !alive {
            self.at = u64::MAX;
            return false;
        }
        if is_due {
            self.tick_at = now + pause;
        }
        self.ready.extend(more);
        self.at = if self.ready.is_empty() { self.tick_at } else { now + 1_000 };
        true
    }

    /// Something has happened to its sockets, or its ring is woken: it runs some time later.
    pub fn hear(&mut self, vm: &mut Vm) {
        let events = std::mem::take(&mut self.namespace.events);
        let Some(splitter) = &self.splitter else { return };
        let before = self.ready.len();
        for (number, connected) in splitter.connections() {
            let Some(split) = connected.split() else { continue };
            if [Side::Vm, Side::Peer].iter().any(|side| events.contains(&split.facing(*side).0)) {
                self.ready.insert(number);
            }
        }
        if self.ready.len() > before || vm.port.map("split_ring").is_woken() {
            let soon = vm.rng.u64(1..=vm.fortune.latency_us.max(1)) * 1_000;
            self.at = self.at.min(vm.now + soon);
        }
    }

    /// Moves segments to the sockets and from them. `check` sees those that are for the VM, with
    /// their connection.
    pub fn exchange(&mut self, vm: &mut Vm, mut check: impl FnMut(&Namespace, usize, &Seg)) {
        self.namespace.now = vm.now;
        loop {
            while let Some(frame) = vm.port.to_sockets.pop_front() {
                vm.note(|| format!("   socket < {}", described(&frame)));
                self.namespace.input(&frame);
            }
            let out = self.namespace.output();
            if out.is_empty() {
                break;
            }
            if !vm.port.has_downloads {
                continue;
            }
            for frame in out {
                if let Some(c) = vm.connection(&frame.bytes, true)
                    && let Some(s) = wire::decode(&frame)
                {
                    check(&self.namespace, c, &s);
                }
                let fate = vm.from_socket(frame.clone());
                vm.note(|| format!("   socket > {} {fate:?}", described(&frame)));
            }
        }
    }

    pub fn has_splitter(&self) -> bool {
        self.splitter.is_some()
    }

    /// Has the splitter nothing to do before its next tick?
    pub fn waits(&self) -> bool {
        self.ready.is_empty()
    }

    /// When the splitter ticks next; `None`: there is none.
    pub fn next_tick(&self) -> Option<u64> {
        self.splitter.is_some().then_some(self.tick_at)
    }

    /// The splitter's next tick is due.
    pub fn tick_soon(&mut self) {
        self.tick_at = 0;
    }

    /// Appends all that distinguishes this state from another.
    pub fn digest(&self, into: &mut Vec<u8>) {
        let Namespace { sockets, pipes, events, .. } = &self.namespace;
        let processes = (&self.splitter, &self.keeper, &self.ready, self.tick_at, self.has_lost);
        into.extend(format!("{sockets:?} {pipes:?} {events:?} {processes:?}").bytes());
    }

    /// The kernel closes the sockets that no process has any more.
    fn splitter_died(&mut self) {
        self.namespace.is_killed = false;
        self.splitter = None;
        self.ready.clear();
        let ids = |kept: &Kept| [kept.parts.0.0, kept.parts.1.0];
        let kept: BTreeSet<u32> = self.keeper.has.values().flat_map(ids).collect();
        let all: Vec<u32> = self.namespace.sockets.keys().copied().collect();
        for one in all.into_iter().filter(|one| !kept.contains(one)) {
            self.has_lost |= self.namespace.reset(one);
        }
    }

    /// The splitter is killed, and with `keeper` the keeper before it.
    pub fn kill(&mut self, keeper: bool) {
        if keeper {
            self.keeper.has.clear();
        }
        self.splitter_died();
        self.at = u64::MAX;
    }

    /// The keeper is killed, and another one begins.
    pub fn kill_keeper(&mut self) {
        self.keeper.has.clear();
        if self.splitter.is_none() {
            self.splitter_died();
        }
    }

    /// The port is detached: nothing of its sockets reaches anybody any more.
    pub fn end(&mut self) {
        self.splitter = None;
        self.keeper.has.clear();
        self.namespace.sockets.clear();
        self.namespace.pipes.clear();
        self.ready.clear();
        self.at = u64::MAX;
    }
}

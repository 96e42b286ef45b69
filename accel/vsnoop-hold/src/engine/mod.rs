//! The engine's loop for one port: when it looks at a hold, and what it does with a frame.
//!
//! [`Engine`] does no input or output. Its surroundings are a [`PortAccess`]: the [`Memory`] that
//! it shares with the hooks, the [`Device`] into the VM, a [`Clock`], and the reset of a
//! connection. `vsnoop`'s engine implements it with mapped BPF maps and a packet socket;
//! simulations have their own.
//!
//! # When the engine looks at a hold
//! ```text
//!             doorbell, busy bit, inherited         poll() says no      its timer
//!   unknown ---------------------------------> due ------------------> busy ------> due
//!                                                |                         ^
//!                       the VM has acknowledged  |                         | something was kept
//!                       everything               v                         |
//!                                             watched, every WATCH_NS -----+
//!                                                |  nothing happened since the last look
//!                                                v
//!                                              quiet: no look at all, but reclaimed after
//!                                                |    IDLE_NS and then every IDLE_LONG_NS
//!                                                v  its flow is over
//!                                              ending: freed END_NS later
//! ```
//! - *Due* holds are served first come, first served: [`HOLD_FRAMES`] frames each, [`SERVED_HOLDS`]
//!   holds in one [`Engine::work`], so that a port with very many busy holds does not starve other
//!   ports.
//! - A *busy* hold has a timer, in the VM's run time or the clock's ([`Flow::deadline`]).
//! - A hook that keeps something sets the hold's *busy bit* if it is clear. The engine clears the
//!   bit when nothing happened for a while, and looks once more afterwards: a hook that found the
//!   bit still set has written its copy by then.
//!
//! # Killing an engine
//! An engine has no state that must survive: another [`Engine::new`] on the same memory continues.
//! A simulation kills an engine between any two calls of its `PortAccess`: from that call on the
//! host does nothing and refuses frames, and it drops the engine when the outermost call returns.

mod service;

use std::collections::{HashMap, HashSet, VecDeque};

use vsnoop_flow::types::seq;

use crate::chain::Chain;
use crate::flow::Flow;
use crate::late::{Lateness, WaitClock};
use crate::listeners::{Confirmed, Listener, Unconfirmed};
use crate::port_access::PortAccess;
use crate::time::{Deadline, TICK_NS, Time, Timer, Timers};
use crate::waits::Waits;

/// Time after which a device that refused a frame is tried again, and between two looks while
/// segments come: an engine that is woken for each of them costs ten times the CPU time.
pub const RETRY_NS: u64 = 1_000_000;

/// Frames of one connection before the next connection is served.
const HOLD_FRAMES: u32 = 8;
/// Holds served in one [`Engine::work`], before other ports and the next heartbeat.
const SERVED_HOLDS: usize = 256;
/// Timers served in one tick; the others wait for the next.
const TIMERS: usize = 4096;
/// Interval of looks at a hold whose bytes the VM has acknowledged, while its flow is active.
const WATCH_NS: u64 = 100_000_000;
/// Longest interval of looks at a hold with unacknowledged bytes, whether the VM runs or not.
const LOOK_NS: u64 = 1_000_000_000;
/// HOLD_IDLE_NS and HOLD_IDLE_LONG_NS of flow/hold_state.h, plus a tick.
const IDLE_NS: u64 = 10_000_000_000 + TICK_NS;
const IDLE_LONG_NS: u64 = 60_000_000_000 + TICK_NS;
/// After this time no hook uses a hold whose flow is over.
const END_NS: u64 = 20_000_000;
/// Ticks between attempts to give unused memory back.
const SHRINK_TICKS: u32 = 200;
/// Holds that share a word of busy bits.
const GROUP: u32 = 32;

/// When [`Engine::work`] must be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// When the doorbell rings, or at the next tick.
    None,
    /// The ring was full, or more may come: after [`RETRY_NS`].
    Soon,
    /// At once: there is more to do.
    Now,
}

/// One port and its holds.
#[derive(Clone, Debug)]
pub struct Engine {
    time: Time,
    was_waiting: bool,
    waits: Waits,
    wait_clock: WaitClock,
    mtu: u32,
    super_packets: bool,
    held: HashMap<u32, HoldState>,
    /// Holds of an earlier engine that this one has not looked at yet.
    inherited: HashSet<u32>,
    /// Numbers of due holds, each once.
    due: VecDeque<u32>,
    queued: HashSet<u32>,
    by_clock: Timers,
    by_run_time: Timers,
    /// Busy bits as last read.
    known: Vec<u32>,
    /// Holds whose VM has not acknowledged everything.
    waiting: usize,
    confirmed: Confirmed,
    ring_is_full: bool,
    /// The doorbell rang lately: until then the engine looks again every [`RETRY_NS`], and the
    /// hooks need not wake it for each segment that a sender sends. CLOCK_MONOTONIC.
    looks_until_ns: Option<u64>,
    ticks: u32,
}

/// State of one hold.
#[derive(Clone, Debug, Default)]
struct HoldState {
    /// None while the VM has nothing to acknowledge.
    course: Option<Course>,
    state: Phase,
    clock_timer: Timer,
    run_timer: Timer,
}

#[derive(Clone, Debug)]
struct Course {
    flow: Flow,
    listener: Listener,
    chain: Chain,
    marked: u32,
    lateness: Lateness,
}

/// Phases of the module's diagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Busy,
    /// Looked at every [`WATCH_NS`]; has what the last look saw.
    Watched {
        vm_acks: u32,
        tail: seq,
    },
    /// Nothing happened since the last look; the next look is the last.
    Leaving {
        vm_acks: u32,
        tail: seq,
    },
    Quiet,
    Ending,
}

impl Engine {
    /// Continues with the port's memory, as an earlier engine left it.
    pub fn new(host: &mut impl PortAccess) -> Self {
        let count = host.hold_count();
        let mut engine = Self {
            time: Time { now_ns: host.now_ns(), ..Time::default() },
            was_waiting: false,
            waits: Waits::default(),
            wait_clock: WaitClock::default(),
            mtu: host.mtu(),
            super_packets: host.takes_super_packets(),
            held: HashMap::new(),
            inherited: HashSet::new(),
            due: VecDeque::new(),
            queued: HashSet::new(),
            by_clock: Timers::default(),
            by_run_time: Timers::default(),
            known: Vec::new(),
            waiting: 0,
            confirmed: Confirmed::default(),
            ring_is_full: false,
            looks_until_ns: None,
            ticks: 0,
        };
        // The last engine may have been killed while it looked.
        host.set_looks(false);
        for number in 1..=count {
            if host.read(number).used == 0 {
                continue;
            }
            // The last engine may have been killed meanwhile.
            host.set_sending(number, None);
            engine.inherited.insert(number);
            engine.queue(number);
        }
        engine
    }

    /// When [`Engine::work`] must be called again.
    pub fn urgency(&self) -> Urgency {
        match (self.ring_is_full, self.due.is_empty()) {
            (true, _) => Urgency::Soon,
            (false, false) => Urgency::Now,
            (false, true) if self.looks_until_ns.is_some() => Urgency::Soon,
            (false, true) => Urgency::None,
        }
    }

    /// Sends a sign of life, and serves timers.
    pub fn tick(&mut self, host: &mut impl PortAccess) {
        self.time.now_ns = host.now_ns();
        host.heartbeat(self.time.now_ns);
        // ACKs of which the hooks have left notes have come in the run time until now.
        self.hear(host);
        self.serve_due(host);
        self.ticks += 1;
        self.look_at_clock(host);
        self.look_at_waits(host);
        host.grow();
        if self.ticks.is_multiple_of(SHRINK_TICKS) {
            host.shrink();
            self.mtu = host.mtu();
            self.super_packets = host.takes_super_packets();
        }
        self.look_at_busy_bits(host);
        self.attempt_others();
        for (at, number) in self.by_run_time.take(self.time.run_time_ns, TIMERS) {
            self.run_timer_rings(at, number);
        }
        for (at, number) in self.by_clock.take(self.time.now_ns, TIMERS) {
            self.clock_timer_rings(host, at, number);
        }
    }

    /// Serves due holds, some frames of each.
    pub fn work(&mut self, host: &mut impl PortAccess) {
        self.ring_is_full = false;
        let has_rung = self.hear(host);
        if self.due.is_empty() && self.looks_until_ns.is_none() {
            return;
        }
        self.time.now_ns = host.now_ns();
        self.look_by_itself(host, has_rung);
        self.serve_due(host);
    }

    fn serve_due(&mut self, host: &mut impl PortAccess) {
        for _ in 0..self.due.len().min(SERVED_HOLDS) {
            let Some(number) = self.due.pop_front() else { break };
            self.queued.remove(&number);
            if self.serve(host, number) {
                self.queue(number);
            }
            if self.ring_is_full {
                break;
            }
        }
    }

    /// Attempts connections of listeners that accept again.
    fn attempt_others(&mut self) {
        if self.confirmed.is_empty() {
            return;
        }
        let waiting = self.held.iter().filter_map(|(&number, held)| {
            let course = held.course.as_ref()?;
            let attempted_ns = course.flow.attempted_ns()?;
            Some(Unconfirmed { attempted_ns, number, listener: course.listener })
        });
        for number in self.confirmed.choose_others(waiting.collect()) {
            let course = self.held.get_mut(&number).and_then(|held| held.course.as_mut());
            if let Some(course) = course {
                course.flow.attempt_at_once(self.time);
                self.queue(number);
            }
        }
    }

    /// Begins to look without being woken, or ends that.
    fn look_by_itself(&mut self, host: &mut impl PortAccess, has_rung: bool) {
        let now_ns = self.time.now_ns;
        if has_rung {
            if self.looks_until_ns.is_none() {
                host.set_looks(true);
            }
            self.looks_until_ns = Some(now_ns + RETRY_NS);
        } else if self.looks_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.looks_until_ns = None;
            host.set_looks(false);
            // What the hooks have left before they saw that.
            self.hear(host);
        }
    }

    /// Reads the doorbell; false if it was empty.
    fn hear(&mut self, host: &mut impl PortAccess) -> bool {
        let woken = host.take_woken();
        let has_rung = !woken.is_empty();
        for number in woken {
            if number == 0 {
                host.grow();
            } else {
                self.queue(number);
            }
        }
        has_rung
    }

    fn queue(&mut self, number: u32) {
        if self.queued.insert(number) {
            self.due.push_back(number);
        }
    }

    fn look_at_clock(&mut self, host: &mut impl PortAccess) {
        let is_waiting = self.waiting > 0;
        // One tick longer than needed, so that a wait always begins with a fresh sample.
        if is_waiting || self.was_waiting {
            let passed = host.run_time();
            self.time.run_time_ns += passed.ns;
            self.time.live_ns += passed.live_ns;
        } else {
            host.forget_run_time();
        }
        self.was_waiting = is_waiting;
    }

    fn look_at_waits(&mut self, host: &mut impl PortAccess) {
        let now_ns = self.time.now_ns;
        if self.waits.is_due(now_ns, self.waiting > 0) {
            let waited = host.waited();
            if self.waits.sample(now_ns, waited.map(|waited| waited.vcpu_ns)) {
                host.starves(now_ns);
            }
            self.wait_clock.samples += 1;
            match waited {
                Some(waited) => self.wait_clock.waited_ns += waited.process_ns,
                None => self.wait_clock.gaps += 1,
            }
        }
    }

    fn look_at_busy_bits(&mut self, host: &mut impl PortAccess) {
        let groups = host.hold_count().div_ceil(GROUP);
        self.known.resize(groups as usize, 0);
        for group in 0..groups {
            let bits = host.busy(group);
            let mut new = bits & !self.known[group as usize];
            self.known[group as usize] = bits;
            while new != 0 {
                self.queue(group * GROUP + new.trailing_zeros() + 1);
                new &= new - 1;
            }
        }
    }

    fn clear_busy(&mut self, host: &mut impl PortAccess, number: u32) {
        let (group, bit) = ((number - 1) / GROUP, (number - 1) % GROUP);
        host.clear_busy(number);
        if let Some(known) = self.known.get_mut(group as usize) {
            *known &= !(1 << bit);
        }
    }

    fn run_timer_rings(&mut self, at: u64, number: u32) {
        let Some(held) = self.held.get_mut(&number) else { return };
        if self.by_run_time.is_due(&mut held.run_timer, at, self.time.run_time_ns, number) {
            self.queue(number);
        }
    }

    fn clock_timer_rings(&mut self, host: &mut impl PortAccess, at: u64, number: u32) {
        let Some(held) = self.held.get_mut(&number) else { return };
        if !self.by_clock.is_due(&mut held.clock_timer, at, self.time.now_ns, number) {
            return;
        }
        match held.state {
            Phase::Quiet => self.reclaim(host, number, false),
            Phase::Ending => self.reclaim(host, number, true),
            Phase::Busy | Phase::Watched { .. } | Phase::Leaving { .. } => self.queue(number),
        }
    }

    /// Sets the timers of a busy hold. There is always one by the clock: a VM that has acknowledged
    /// everything may not run again for long.
    fn set_timers(&mut self, number: u32, deadline: Deadline) {
        let Some(held) = self.held.get_mut(&number) else { return };
        let latest = self.time.now_ns + LOOK_NS;
        let by_clock = deadline.now_ns.map_or(latest, |at| at.min(latest));
        self.by_clock.set(&mut held.clock_timer, by_clock, number);
        match deadline.run_time_ns {
            Some(at) => self.by_run_time.set(&mut held.run_timer, at, number),
            None => held.run_timer.stop(),
        }
    }

    fn set_clock_timer(&mut self, number: u32, at: u64) {
        if let Some(held) = self.held.get_mut(&number) {
            self.by_clock.set(&mut held.clock_timer, at, number);
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(held) = self.held.remove(&number)
            && held.course.is_some()
        {
            self.waiting -= 1;
        }
    }
}

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

use std::collections::{HashMap, HashSet, VecDeque};

use vsnoop_flow::hold::Reclaimed;
use vsnoop_flow::types::{HOLD_OVER, LATE_ACKS, LATE_LOSSES, hold, seq};

use crate::chain::{Chain, Chunks, Slice};
use crate::flow::Flow;
use crate::frame::headers;
use crate::giving_up::Reason;
use crate::hold_frame::{HoldFrame, Kind};
use crate::late::{DueAcks, Lateness, WaitClock};
use crate::run_time::RunTime;
use crate::time::{Deadline, TICK_NS, Time, Timer, Timers};
use crate::view::View;
use crate::waits::Waits;

/// Time after which a device that refused a frame is tried again.
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

/// One port's memory, which the engine shares with the hooks (flow/types/hold.h, `struct
/// hold_slab`).
///
/// Numbers of holds begin at 1. The hooks may change anything between two calls.
pub trait Memory {
    /// Number of holds in the port's slabs.
    fn hold_count(&mut self) -> u32;
    /// Reads the hold with this number; a free one (`used == 0`) if no slab has it.
    fn read(&mut self, number: u32) -> hold;
    /// SEQ of the chain's first byte, and the number of its first chunk.
    fn front(&mut self, number: u32) -> (seq, u32);
    /// The successor of a chunk; undefined for the last chunk, and for one in no chain.
    fn next(&mut self, chunk: u32) -> u32;

    /// Takes the numbers of holds from the doorbell, since the last call; 0: the hooks want memory.
    fn take_woken(&mut self) -> Vec<u32>;
    /// Lets the hooks ring for this hold again.
    fn clear_woken(&mut self, number: u32);
    /// Busy bits of the 32 holds from number 32 * `group` + 1.
    fn busy(&mut self, group: u32) -> u32;
    /// Clears a busy bit: the hooks set it when they keep something.
    fn clear_busy(&mut self, number: u32);
    /// Tells the hooks whether to ring for each ACK of the VM.
    fn set_wants_acks(&mut self, number: u32, wants: bool);
    /// Tells the hooks that a frame is being written since `now_ns`; `None`: it has been.
    fn set_sending(&mut self, number: u32, now_ns: Option<u64>);
    /// Notes whether an ACK that the hooks dropped waits for a frame.
    fn set_ack_waits(&mut self, number: u32, waits: bool);
    /// Sign of life for the hooks.
    fn heartbeat(&mut self, now_ns: u64);
    /// Notes that the VM waits for a CPU, for the hooks.
    fn starves(&mut self, now_ns: u64);

    /// Notes that the VM was handed all bytes below `handed`.
    fn set_handed(&mut self, number: u32, handed: seq);
    /// Notes when data were handed to a VM that had acknowledged everything before.
    fn set_handed_ns(&mut self, number: u32, now_ns: u64);
    /// Notes for the hooks why the connection is to be left to the VM (`LATE_*`).
    fn set_late(&mut self, number: u32, why: u32);
    /// Notes the TSval of the frames that follow.
    fn set_handed_tsval(&mut self, number: u32, tsval: u32);
    /// Counts a frame that the VM was handed for the first time.
    fn count_handover(&mut self, number: u32);
    /// Counts a frame that the VM was handed again.
    fn count_resend(&mut self, number: u32, bytes: u32);
    /// Counts a probe, before it is sent.
    fn count_probe(&mut self, number: u32);

    /// Frees the chunks that the VM has acknowledged, and with `end` the hold itself if its flow is
    /// over.
    fn reclaim(&mut self, number: u32, end: bool) -> Reclaimed;
    /// Adds memory if the hooks want it.
    fn grow(&mut self);
    /// Gives unused memory back.
    fn shrink(&mut self);
}

/// The way into the VM.
pub trait Device {
    /// Its current MTU, bytes.
    fn mtu(&mut self) -> u32;
    /// Does the VM take super-packets of TCP at present?
    fn takes_super_packets(&mut self) -> bool;
    /// Hands a frame over: `virtio_net_hdr` of 10 bytes, headers, and payload out of the chunks'
    /// memory.
    fn send(&mut self, headers: &[u8], payload: &[Slice]) -> Sent;
}

/// Result of sending a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The ring has it.
    Taken,
    /// The ring is full.
    Refused,
    /// A segment is larger than the MTU.
    TooLarge,
    /// Another error, which may be temporary.
    Failed,
}

/// The two clocks of the engine, ns.
pub trait Clock {
    /// CLOCK_MONOTONIC.
    fn now_ns(&mut self) -> u64;
    /// Time of the VM since the last call or `forget_run_time()`.
    fn run_time(&mut self) -> RunTime;
    /// Discards the run time up to now.
    fn forget_run_time(&mut self);
    /// Time that the VM waited for a CPU since the last call; none if that is not known.
    fn waited(&mut self) -> Option<Waited>;
}

/// Time that the VM waited for a CPU, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// The vCPU that waited longest.
    pub vcpu_ns: u64,
    /// All threads of the process together: more than the VM itself may have waited.
    pub process_ns: u64,
}

/// The surroundings of one port.
pub trait PortAccess: Memory + Device + Clock {
    /// Resets the connection of this hold at both ends, and counts the reason. Returns false, and
    /// does nothing, if the VM has acknowledged something since.
    fn give_up(&mut self, hold: &hold, reason: Reason) -> bool;
}

/// When [`Engine::work`] must be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// When the doorbell rings, or at the next tick.
    None,
    /// The ring was full: after [`RETRY_NS`].
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
    ring_is_full: bool,
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

/// The fate of a frame.
enum HandOver {
    Taken,
    /// The ring is full.
    Refused,
    /// Not sent: the VM has acknowledged its bytes meanwhile, the connection is over, or the device
    /// had an error.
    Later,
}

struct Links<'a, H> {
    host: &'a mut H,
    number: u32,
}

impl<H: Memory> Chunks for Links<'_, H> {
    fn front(&mut self) -> (seq, u32) {
        self.host.front(self.number)
    }

    fn next(&mut self, chunk: u32) -> u32 {
        self.host.next(chunk)
    }
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
            ring_is_full: false,
            ticks: 0,
        };
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
            (false, true) => Urgency::None,
        }
    }

    /// Sends a sign of life, and serves timers.
    pub fn tick(&mut self, host: &mut impl PortAccess) {
        self.time.now_ns = host.now_ns();
        host.heartbeat(self.time.now_ns);
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
        for number in host.take_woken() {
            if number == 0 {
                host.grow();
            } else {
                self.queue(number);
            }
        }
        if self.due.is_empty() {
            return;
        }
        self.time.now_ns = host.now_ns();
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

    /// Serves a hold; true if it has more to send.
    fn serve(&mut self, host: &mut impl PortAccess, number: u32) -> bool {
        // First of all: changes after this ring again.
        host.clear_woken(number);
        let is_inherited = self.inherited.remove(&number);
        for _ in 0..HOLD_FRAMES {
            let hold = host.read(number);
            if hold.used == 0 {
                return self.is_taken_again(host, number);
            }
            if u32::from(hold.flags) & HOLD_OVER != 0 {
                self.reclaim(host, number, false);
                return false;
            }
            let mut view = View::new(&hold);
            view.super_packets = self.super_packets;
            if view.is_done() && !view.ack_waits {
                self.rest(host, number, &hold);
                return false;
            }
            let (time, clock) = (self.time, self.wait_clock);
            let course = self.course(number, &view, &hold, is_inherited);
            let due = due_acks(&hold).and(course.flow.due_acks());
            let is_late = course.lateness.look(due, clock);
            let frame = course.flow.poll(&view, time);
            let is_lossy = course.flow.is_lost_on_a_path(&view);
            if hold.late == 0 && (is_late || is_lossy) {
                host.set_late(number, if is_lossy { LATE_LOSSES } else { LATE_ACKS });
            }
            if let Some(reason) = course.flow.given_up() {
                return self.give_up(host, number, &hold, reason);
            }
            let Some(frame) = frame else {
                let (deadline, wants) = (course.flow.deadline(&view), course.flow.wants_acks());
                self.set_timers(number, deadline);
                // An ACK may have come before the hooks knew.
                return set_wants_acks(host, number, &hold, wants)
                    && wants
                    && host.read(number).vm_acks != hold.vm_acks;
            };
            match self.send(host, number, &view, &frame) {
                HandOver::Taken => {}
                HandOver::Refused => {
                    self.ring_is_full = true;
                    return true;
                }
                HandOver::Later => {
                    self.set_clock_timer(number, time.now_ns + TICK_NS);
                    return false;
                }
            }
        }
        true
    }

    /// The [`Course`] of a hold whose VM has not acknowledged everything.
    fn course(&mut self, number: u32, view: &View, hold: &hold, inherited: bool) -> &mut Course {
        let held = self.held.entry(number).or_default();
        held.state = Phase::Busy;
        let waiting = &mut self.waiting;
        let (time, clock) = (self.time, self.wait_clock);
        held.course.get_or_insert_with(|| {
            *waiting += 1;
            let flow = if inherited { Flow::resumed } else { Flow::new }(view, time);
            let lateness = Lateness::since(due_acks(hold), clock);
            Course { flow, chain: Chain::default(), marked: hold.marked, lateness }
        })
    }

    /// Gives a connection up. True if the VM has acknowledged something meanwhile, and the hold
    /// must be looked at again.
    fn give_up(
        &mut self,
        host: &mut impl PortAccess,
        number: u32,
        hold: &hold,
        why: Reason,
    ) -> bool {
        self.forget(number);
        if !host.give_up(hold, why) {
            return true;
        }
        self.reclaim(host, number, false);
        false
    }

    /// The VM has acknowledged everything: watches the hold.
    fn rest(&mut self, host: &mut impl PortAccess, number: u32, hold: &hold) {
        let held = self.held.entry(number).or_default();
        if held.course.take().is_some() {
            self.waiting -= 1;
        }
        held.run_timer.stop();
        let (vm_acks, tail) = (hold.vm_acks, hold.tail);
        let next = match held.state {
            Phase::Watched { vm_acks: before, tail: end } if (before, end) == (vm_acks, tail) => {
                Phase::Leaving { vm_acks, tail }
            }
            Phase::Leaving { vm_acks: before, tail: end } if (before, end) == (vm_acks, tail) => {
                Phase::Quiet
            }
            _ => Phase::Watched { vm_acks, tail },
        };
        held.state = next;
        match next {
            Phase::Leaving { .. } => self.clear_busy(host, number),
            Phase::Quiet => return self.set_clock_timer(number, self.time.now_ns + IDLE_NS),
            _ => {}
        }
        self.set_clock_timer(number, self.time.now_ns + WATCH_NS);
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

    /// The hold is free. A hook sets the busy bit for the next flow only if it is clear: true if
    /// a flow has it already, whose copies may have left the bit as it was.
    fn is_taken_again(&mut self, host: &mut impl PortAccess, number: u32) -> bool {
        self.forget(number);
        self.clear_busy(host, number);
        host.read(number).used != 0
    }

    fn forget(&mut self, number: u32) {
        if let Some(held) = self.held.remove(&number)
            && held.course.is_some()
        {
            self.waiting -= 1;
        }
    }

    fn send(
        &mut self,
        host: &mut impl PortAccess,
        number: u32,
        view: &View,
        frame: &HoldFrame,
    ) -> HandOver {
        let course = self.held.get_mut(&number).and_then(|held| held.course.as_mut());
        let Some(course) = course else { return HandOver::Later };
        let mut payload = Vec::new();
        if frame.len > 0 {
            let mut links = Links { host: &mut *host, number };
            let found = course.chain.find(&mut links, frame.seq, frame.len);
            let Some(found) = found else { return HandOver::Later };
            payload = found;
        }
        if frame.kind == Kind::Probe {
            host.count_probe(number);
        }
        // As late as possible, so that the frame has the sender's latest ACK and window.
        let newest = host.read(number);
        if newest.used == 0 || u32::from(newest.flags) & HOLD_OVER != 0 {
            return HandOver::Later;
        }
        let marked = frame.kind == Kind::Handover && newest.marked != course.marked;
        // Before the frame is sent: ACKs that the hooks forward must not have a later TSval (RFC
        // 7323).
        host.set_handed_tsval(number, newest.tsval);
        if frame.kind == Kind::Resend {
            set_wants_acks(host, number, &newest, true);
        }
        if newest.ack_waits != 0 {
            host.set_ack_waits(number, false);
        }
        host.set_sending(number, Some(self.time.now_ns));
        let mut sent = host.send(&headers(&newest, frame, marked, self.mtu), &payload);
        if sent == Sent::TooLarge {
            self.mtu = host.mtu();
            sent = host.send(&headers(&newest, frame, marked, self.mtu), &payload);
        }
        host.set_sending(number, None);
        if sent != Sent::Taken {
            if newest.ack_waits != 0 {
                host.set_ack_waits(number, true);
            }
            course.flow.refused();
            return if sent == Sent::Refused { HandOver::Refused } else { HandOver::Later };
        }
        if marked {
            course.marked = newest.marked;
        }
        course.flow.sent(view, frame);
        match frame.kind {
            Kind::Handover => {
                if view.handed == view.vm_seq {
                    host.set_handed_ns(number, self.time.now_ns);
                }
                host.set_handed(number, frame.end());
                host.count_handover(number);
            }
            Kind::Resend => host.count_resend(number, frame.len),
            Kind::Ack | Kind::Probe => {}
        }
        HandOver::Taken
    }

    /// Reclaims the memory of a hold whose flow is over, or whose VM has acknowledged everything.
    fn reclaim(&mut self, host: &mut impl PortAccess, number: u32, end: bool) {
        let was_quiet = self.held.get(&number).is_some_and(|held| held.state == Phase::Quiet);
        let reclaimed = host.reclaim(number, end);
        if reclaimed == Reclaimed::Free {
            if self.is_taken_again(host, number) {
                self.queue(number);
            }
            return;
        }
        let held = self.held.entry(number).or_default();
        if held.course.take().is_some() {
            self.waiting -= 1;
        }
        held.run_timer.stop();
        let (state, wait) = match reclaimed {
            Reclaimed::Over => (Phase::Ending, END_NS),
            _ if was_quiet => (Phase::Quiet, IDLE_LONG_NS),
            _ => (Phase::Quiet, IDLE_NS),
        };
        held.state = state;
        self.set_clock_timer(number, self.time.now_ns + wait);
    }
}

/// Tells the hooks whether to ring for each ACK of the VM; true if that is new to them. `seen`: the
/// hold as last read.
fn set_wants_acks(host: &mut impl Memory, number: u32, seen: &hold, wants: bool) -> bool {
    let is_new = (seen.wants_acks != 0) != wants;
    if is_new {
        host.set_wants_acks(number, wants);
    }
    is_new
}

fn due_acks(hold: &hold) -> DueAcks {
    DueAcks { acks: hold.due_acks, ns: hold.due_ns }
}

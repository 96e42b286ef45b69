//! The simulated world: senders, network, host with hooks, hold and engine, ring, one VM.
//!
//! Discrete events on a simulated clock; everything random comes from the scenario's seed, so that a
//! failure can be replayed. The ends are `vsnoop_flow::testing::tcp`, the hooks `hooks.rs`, the engine
//! `engine.rs`.

use std::collections::VecDeque;

use fastrand::Rng;
use vsnoop_flow::testing::clock::{Events, MS, START};
use vsnoop_flow::testing::memory::Memory;
use vsnoop_flow::testing::record::Record;
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{State, Tcp};
use vsnoop_flow::{flow, flow_key, policy, types::*};
use vsnoop_hold::{Frame, Slice};

use crate::checks::{Checks, Made};
use crate::engine::{self, Crashed, Engine};
use crate::scenario::{Act, Scenario};

/// From the end of hostility to the end of all connections, at most.
const PATIENCE: u64 = 600_000 * MS;
const MAX_STEPS: u64 = 6_000_000;
/// Memory of what is over has been given back after this.
const GRACE: u64 = 30_000 * MS;
/// HOLD_STALE_NS of flow/hold.h.
pub const STALE: u64 = 1_000 * MS;
/// HOLD_ABANDONED_NS of flow/hold.h.
const ABANDONED: u64 = 5_000 * MS;
const HELPER: u64 = 250 * MS;

#[derive(Debug)]
enum Event {
    Open(usize),
    AtHost(usize, Seg),
    AtSender(usize, Seg),
    VmPoll,
    VmTimer(usize),
    SenderTimer(usize),
    Act(Act),
    Shrink(usize),
    Abort(usize, bool),
    Helper,
    Free,
    MustBeDrained,
    EngineStarts,
    EngineRuns,
}

macro_rules! tally {
    ($($name:ident)*) => {
        /// How often the interesting things happened, over all scenarios.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Tally {
            $(pub $name: u64,)*
        }

        impl Tally {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

tally! {
    exact reset early held ahead strict reacked forwarded dropped
    busy suppressed rewritten releases resends engine_acks probes crashes gone_for_good abandoned
    losses helper_resets full without_hold aside closed drained_detach drained_pause steps engine_step
}

pub struct Connection {
    pub key: flow_key,
    pub sender: Tcp,
    pub vm: Tcp,
    pub record: Record,
    /// The flow that has just ended.
    last: Option<flow>,
    /// The helper has seen it behind: VM_SEQ, and since when.
    suspect: Option<(u32, u64)>,
    pub checks: Checks,
    sender_timer: u64,
    vm_timer: u64,
}

pub struct World {
    pub sc: Scenario,
    trace: bool,
    pub now: u64,
    pub rng: Rng,
    events: Events<Event>,
    pub connections: Vec<Connection>,
    pub ring: VecDeque<(usize, Seg)>,
    vm_poll_due: bool,
    pub tally: Tally,
    // The host.
    pub attached: bool,
    detaching: bool,
    pub memory: Memory,
    pub doorbell: Vec<u32>,
    /// Holds whose claim another CPU has, to give chunks back.
    pub frees: Vec<u32>,
    engine: Option<Engine>,
    engine_at: u64,
}

impl World {
    pub fn new(sc: Scenario) -> Self {
        let policy = policy {
            run: port_run::PORT_ACTIVE,
            buf_size: sc.buf_size,
            thin: sc.thin.into(),
            hold_chunks: sc.chunks,
            hold_flow: sc.per_flow,
            ..Default::default()
        };
        let connections = (0..).zip(&sc.connections).map(|(port, connection)| Connection {
            key: flow_key { sender_port: port, ..flow_key::default() },
            sender: Tcp::new(connection.sender.clone(), 0),
            vm: Tcp::new(connection.vm.clone(), 1),
            record: Record::default(),
            last: None,
            suspect: None,
            checks: Checks::default(),
            sender_timer: u64::MAX,
            vm_timer: u64::MAX,
        });
        let mut w = World {
            trace: std::env::var_os("VSNOOP_TRACE").is_some(),
            now: START,
            rng: Rng::with_seed(sc.seed),
            events: Events::default(),
            connections: connections.collect(),
            ring: VecDeque::new(),
            vm_poll_due: false,
            tally: Tally::default(),
            attached: true,
            detaching: false,
            memory: Memory::new(policy, sc.holds),
            doorbell: Vec::new(),
            frees: Vec::new(),
            engine: None,
            engine_at: u64::MAX,
            sc,
        };
        for (ms, act) in w.sc.acts.clone() {
            w.at(START + ms * MS, Event::Act(act));
        }
        for (c, connection) in w.sc.connections.clone().into_iter().enumerate() {
            w.at(START + connection.start_ms * MS, Event::Open(c));
            if let Some(ms) = connection.shrink_ms {
                w.at(START + ms * MS, Event::Shrink(c));
            }
            if let Some((vm, ms)) = connection.abort {
                w.at(START + ms * MS, Event::Abort(c, vm));
            }
        }
        if let Some(ms) = w.sc.drained_by_ms {
            w.at(START + ms * MS, Event::MustBeDrained);
        }
        w.at(START, Event::EngineStarts);
        w.at(START, Event::Helper);
        w
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.at(time, event);
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>10.3} ms  {}", (self.now - START) as f64 / 1e6, what());
        }
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.u32(0..1000) < per_mille
    }

    pub fn hostile(&self) -> bool {
        self.now < START + self.sc.hostile_ms * MS
    }

    fn are_over(&self) -> bool {
        self.connections.iter().all(|c| c.sender.is_over() && c.vm.is_over())
    }

    /// Runs all connections to their ends, and the port until it has its memory back.
    pub fn run(mut self) -> Tally {
        let deadline = START + self.sc.hostile_ms * MS + PATIENCE;
        let mut over_at = None;
        loop {
            let (time, event) = self.events.pop().expect("the helper never ends");
            self.tally.steps += 1;
            let end = over_at.map_or(deadline, |at| at + GRACE);
            // Without an engine nobody gives memory back; the next one will.
            let is_left = self.engine.is_none() && !self.sc.engine.returns;
            if over_at.is_some() && (time >= end || self.memory.used() == 0 || is_left) {
                break;
            }
            assert!(
                time < end && self.tally.steps < MAX_STEPS,
                "a connection hangs after {} ms and {} steps: {}",
                (time - START) / MS,
                self.tally.steps,
                self.summary()
            );
            self.now = time;
            self.handle(event);
            self.flush();
            if over_at.is_none() && self.are_over() {
                over_at = Some(self.now);
                self.sc.hostile_ms = 0;
            }
        }
        self.finish()
    }

    pub fn summary(&self) -> String {
        let end = |t: &Tcp| {
            format!(
                "{:?} sent {}..{} of {} edge {} received {} fin {} right edge {}",
                t.state, t.una, t.nxt, t.cfg.bytes, t.snd_edge, t.rcv_nxt, t.got_fin, t.right_edge
            )
        };
        let mut text = format!(
            "\n ring {} chunks {} run {} engine {} ms ago",
            self.ring.len(),
            self.memory.used(),
            self.memory.policy.run,
            (self.now - self.memory.port.engine_ns) / MS
        );
        for (c, connection) in self.connections.iter().enumerate() {
            let (sender, vm) = (end(&connection.sender), end(&connection.vm));
            text += &format!("\n{c} sender {sender}\n  vm {vm}\n  {:?}", connection.record.flow);
            if self.number(c) != 0 {
                text += &format!("\n  {:?}", self.memory.hold(self.number(c)));
            }
        }
        text
    }

    /// Both streams whole, or both ends know that they are not; and all memory is free.
    fn finish(mut self) -> Tally {
        for connection in &self.connections {
            let (a, b) = (&connection.sender, &connection.vm);
            if a.is_done() && b.is_done() {
                assert_eq!(b.rcv_nxt, a.cfg.bytes + 2, "the VM's copy has the wrong length");
                assert_eq!(a.rcv_nxt, b.cfg.bytes + 2, "the sender's copy has the wrong length");
                self.tally.exact += 1;
            } else {
                let is_excused = !connection.checks.excuses.is_empty();
                assert!(is_excused, "reset without a reason: {}", self.summary());
                let whole = |t: &Tcp, peer: &Tcp| !t.is_done() || peer.rcv_nxt == t.cfg.bytes + 2;
                assert!(whole(a, b) && whole(b, a), "an end believes in more than arrived");
                self.tally.reset += 1;
            }
        }
        if self.attached {
            self.memory.check();
            let used = if self.engine.is_none() { 0 } else { self.memory.used() };
            assert_eq!(used, 0, "memory was not given back: {}", self.summary());
        }
        self.tally
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(c) => {
                let connection = &mut self.connections[c];
                let is_of_vm = self.sc.connections[c].vm_opens;
                let opener = if is_of_vm { &mut connection.vm } else { &mut connection.sender };
                opener.open(self.now);
            }
            Event::AtHost(c, s) => {
                self.note(|| format!("{c}  host < {}", brief(&s)));
                self.towards_vm(c, s, 0);
            }
            Event::AtSender(c, s) => {
                self.note(|| format!("{c}      sender < {}", brief(&s)));
                self.connections[c].sender.input(self.now, &s, &mut self.rng);
            }
            Event::VmPoll => {
                self.vm_poll_due = false;
                if let Some(end) = self.sc.freezes.until(self.now) {
                    self.vm_poll_due = true;
                    self.at(end, Event::VmPoll);
                } else {
                    self.vm_poll();
                }
            }
            Event::VmTimer(c) => {
                let connection = &mut self.connections[c];
                connection.vm_timer = u64::MAX;
                if self.sc.freezes.until(self.now).is_none() {
                    connection.vm.timers(self.now, &mut self.rng);
                }
            }
            Event::SenderTimer(c) => {
                let connection = &mut self.connections[c];
                connection.sender_timer = u64::MAX;
                connection.sender.timers(self.now, &mut self.rng);
            }
            Event::Act(act) => self.act(act),
            Event::Shrink(c) => {
                self.note(|| format!("{c}  the VM's window shrinks"));
                self.connections[c].checks.vm_is_at_fault = true;
                self.connections[c].vm.shrink();
            }
            Event::Abort(c, vm) => {
                self.note(|| format!("{c}  abort, by the VM: {vm}"));
                let connection = &mut self.connections[c];
                connection.checks.excuses.push("abort");
                if vm { connection.vm.abort() } else { connection.sender.abort() }
            }
            Event::Helper => self.helper(),
            Event::Free => self.finish_frees(),
            Event::MustBeDrained => self.must_be_drained(),
            Event::EngineStarts => {
                if self.attached {
                    self.note(|| "an engine starts".into());
                    self.engine = Some(Engine::new(self));
                    self.engine_at = u64::MAX;
                    self.engine_runs_at(self.now);
                }
            }
            Event::EngineRuns => {
                if self.now >= self.engine_at {
                    self.engine_at = u64::MAX;
                    self.engine_runs();
                }
            }
        }
    }

    /// The VM takes some frames off its ring.
    pub fn vm_poll(&mut self) {
        for _ in 0..self.rng.u32(1..8) {
            let Some((c, s)) = self.ring.pop_front() else { break };
            let guest_loss = self.sc.guest_loss;
            let lossy = self.hostile() && s.has(ACK);
            let is_lost = lossy && self.chance(guest_loss);
            let connection = &mut self.connections[c];
            if is_lost {
                connection.checks.vm_is_at_fault = true;
                self.note(|| format!("{c}          guest LOSES {}", brief(&s)));
                continue;
            }
            connection.vm.input(self.now, &s, &mut self.rng);
            self.note(|| format!("{c}          vm < {}", brief(&s)));
        }
        self.wake_vm();
    }

    /// In the midst of something else.
    pub fn vm_acts(&mut self) {
        if self.sc.freezes.until(self.now).is_some() {
            return;
        }
        self.vm_poll();
        self.hear_vm();
    }

    fn wake_vm(&mut self) {
        if !self.ring.is_empty() && !self.vm_poll_due {
            self.vm_poll_due = true;
            let soon = self.rng.u64(1_000..60_000);
            self.at(self.now + soon, Event::VmPoll);
        }
    }

    /// The tap's ring takes a frame, or is full.
    pub fn push(&mut self, c: usize, s: Seg) -> bool {
        if self.ring.len() >= self.sc.ring_slots {
            return false;
        }
        let connection = &mut self.connections[c];
        if !s.corrupt {
            let near = connection.vm.rcv_nxt;
            let start = position(s.seq, connection.sender.cfg.iss, near);
            let end = start + i64::from(s.len()) + i64::from(s.has(FIN)) + i64::from(s.has(SYN));
            if start >= 0 {
                connection.checks.handed.insert(start as u64, end as u64);
            }
        }
        self.ring.push_back((c, s));
        self.wake_vm();
        true
    }

    /// What the VM has to say meets the hooks.
    fn hear_vm(&mut self) {
        for c in 0..self.connections.len() {
            while let Some(s) = self.connections[c].vm.out.pop_front() {
                self.note(|| format!("{c}          vm > {}", brief(&s)));
                self.vm_sends(c, s);
            }
        }
    }

    /// Everything that the ends have to say goes on its way.
    fn flush(&mut self) {
        self.hear_vm();
        for c in 0..self.connections.len() {
            while let Some(mut s) = self.connections[c].sender.out.pop_front() {
                self.note(|| format!("{c}      sender > {}", brief(&s)));
                let (attacks, foreign) = (self.sc.attacks, self.sc.foreign);
                if self.hostile() && s.len() > 0 && self.rng.u32(0..10_000) < foreign {
                    s.foreign = true;
                }
                let is_open = self.connections[c].sender.state == State::Open;
                if self.hostile() && is_open && self.chance(attacks) {
                    self.attack(c);
                }
                self.travel(c, s, true);
            }
            let now = self.now;
            let connection = &mut self.connections[c];
            if let Some(t) = connection.sender.next_timer(now)
                && t < connection.sender_timer
            {
                connection.sender_timer = t;
                self.events.at(t, Event::SenderTimer(c));
            }
            if let Some(t) = connection.vm.next_timer(now) {
                // After a freeze some VMs look at their timers first, some at the ring.
                let lag = if self.sc.seed.is_multiple_of(2) { 0 } else { 200_000 };
                let t = self.sc.freezes.until(t).map_or(t, |end| end + lag);
                if t < connection.vm_timer {
                    connection.vm_timer = t;
                    self.events.at(t, Event::VmTimer(c));
                }
            }
        }
    }

    fn travel(&mut self, c: usize, s: Seg, to_vm: bool) {
        let link = &self.sc.connections[c];
        let link = if to_vm { &link.to_vm } else { &link.from_vm };
        let (hostile, ecn) = (self.hostile(), self.connections[c].vm.ecn);
        for (delay, s) in link.carry(s, hostile, ecn, &mut self.rng) {
            let event = if to_vm { Event::AtHost(c, s) } else { Event::AtSender(c, s) };
            self.events.at(self.now + delay, event);
        }
    }

    /// Somebody who knows the addresses, but not where the stream is: a RST is beyond its end, so that
    /// it is never exact.
    fn attack(&mut self, c: usize) {
        let sender = &self.connections[c].sender;
        let mut s = Seg::bare(0, sender.wire(0), RST);
        s.seq = sender.wire(sender.cfg.bytes + 3 + self.rng.u64(0..100_000));
        if self.rng.bool() {
            s.seq = self.rng.u32(..);
            s.flags = SYN;
        }
        self.travel(c, s, true);
    }

    /// A segment leaves the host for the sender, made or let through.
    pub fn send_to_sender(&mut self, c: usize, s: Seg, made: Made) {
        self.note(|| format!("{c}  host {made:?} > {}", brief(&s)));
        let connection = &mut self.connections[c];
        let flow = connection.record.flow.as_ref();
        let flow = flow.or(connection.last.as_ref().filter(|_| made == Made::Rewritten));
        let flow = flow.filter(|_| self.attached);
        // One that has gone believes nothing any more.
        if connection.sender.state != State::Reset {
            let (vm, iss) = (&connection.vm, connection.sender.cfg.iss);
            connection.checks.for_sender(&s, made, flow, &self.memory, vm, iss);
        }
        self.travel(c, s, false);
    }

    /// The VM speaks, and grants a window with it.
    pub fn granted(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        connection.checks.vm_edge = connection.checks.vm_edge.max(connection.vm.right_edge);
    }

    /// The record against what has happened.
    pub fn audit(&mut self, c: usize) {
        let thorough = self.rng.u8(0..16) == 0;
        self.memory.check();
        let connection = &self.connections[c];
        let Some(f) = connection.record.flow else { return };
        let is_over =
            u32::from(f.mode) == flow_mode::FLOW_RESET || u32::from(f.flags) & FLOW_F_CLOSED != 0;
        if connection.vm.state != State::Open || is_over {
            return;
        }
        let (checks, sender, vm) = (&connection.checks, &connection.sender, &connection.vm);
        checks.record(&f, &self.memory, sender, vm, thorough);
        checks.pieces(&f, &self.memory, sender, vm);
    }

    /// A record is forgotten.
    pub fn remove(&mut self, c: usize) {
        if let Some(f) = self.connections[c].record.flow.take() {
            self.connections[c].checks.removal(&f);
            self.connections[c].last = Some(f);
        }
    }

    /// The other CPU that has claimed chains to give chunks back is done.
    pub fn finish_frees(&mut self) {
        for number in std::mem::take(&mut self.frees) {
            self.memory.release(number, false);
        }
    }

    pub fn free_soon(&mut self) {
        let races = self.sc.races;
        if self.chance(races) {
            let soon = self.rng.u64(1_000..100_000);
            self.at(self.now + soon, Event::Free);
        } else {
            self.finish_frees();
        }
    }

    pub fn wake_engine(&mut self) {
        let latency = self.rng.u64(1..=self.sc.engine.latency_us);
        self.engine_runs_at(self.now + latency * 1_000);
    }

    fn engine_runs_at(&mut self, time: u64) {
        let time =
            if self.hostile() { self.sc.engine.stops.until(time).unwrap_or(time) } else { time };
        if self.engine.is_some() && time < self.engine_at {
            self.engine_at = time;
            self.at(time, Event::EngineRuns);
        }
    }

    /// The engine has its turn, if there is one, and it is not in the middle of it.
    pub fn engine_runs(&mut self) {
        if self.hostile() && self.sc.engine.stops.until(self.now).is_some() {
            return self.engine_runs_at(self.now);
        }
        let Some(mut engine) = self.engine.take() else { return };
        match engine.run(self) {
            Ok(again_at) => {
                self.engine = Some(engine);
                self.engine_runs_at(again_at);
            }
            Err(Crashed) => {
                self.note(|| "the engine is KILLED".into());
                self.tally.crashes += 1;
                self.engine_at = u64::MAX;
                let absence = self.rng.u64(0..=self.sc.engine.absence_ms);
                if self.sc.engine.returns {
                    self.at(self.now + absence * MS, Event::EngineStarts);
                } else {
                    self.tally.gone_for_good += 1;
                }
            }
        }
    }

    /// Between two steps of the engine: it may be killed here, and others may do something.
    pub fn engine_step(&mut self) -> Result<(), Crashed> {
        let fate = &self.sc.engine;
        self.tally.engine_step += 1;
        let step = self.tally.engine_step;
        let crashes = if self.hostile() { fate.crashes } else { 0 };
        if fate.crash_at == Some(step) || self.rng.u32(0..10_000) < crashes {
            return Err(Crashed);
        }
        let races = self.sc.races;
        if self.chance(races) {
            match self.rng.u8(0..2) {
                0 => self.vm_acts(),
                _ => self.finish_frees(),
            }
        }
        Ok(())
    }

    /// The engine's frame goes to the ring.
    pub fn frame_for_vm(
        &mut self,
        hold: &hold,
        frame: &Frame,
        marked: bool,
        slices: &[Slice],
    ) -> bool {
        let s = engine::segment(hold, frame, marked, slices, &self.memory);
        let c = usize::from(hold.key.sender_port);
        self.note(|| format!("{c}  engine {:?} > {}", frame.kind, brief(&s)));
        self.push(c, s)
    }

    /// bpf/hold.h, hold_tend().
    pub fn tend(&mut self, number: u32, end: bool) -> i32 {
        let c = usize::from(self.memory.hold(number).key.sender_port);
        let flow = self.connections[c].record.flow.as_mut();
        self.memory.now = self.now;
        self.memory.tend(number, end, flow)
    }

    /// The engine finds that the VM's end is dead.
    pub fn give_up(&mut self, hold: &hold) {
        panic!("the engine gave up on a VM that runs: {hold:?} {}", self.summary());
    }

    /// A connection is reset because the engine that has its bytes is gone.
    pub fn may_be_abandoned(&mut self, c: usize) {
        let silent = self.now - self.memory.port.engine_ns;
        assert!(silent >= ABANDONED, "abandoned after {silent} ns: {}", self.summary());
        self.connections[c].checks.excuses.push("abandoned");
    }

    /// A connection is reset because the guest lost what nobody has a copy of.
    pub fn may_be_lost(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        assert!(connection.checks.vm_is_at_fault, "a loss in the guest where there was none");
        connection.checks.excuses.push("loss");
    }

    fn act(&mut self, act: Act) {
        self.note(|| format!("operator: {act:?}"));
        let policy = &mut self.memory.policy;
        match act {
            Act::Activate => {
                self.detaching = false;
                policy.run = port_run::PORT_ACTIVE;
            }
            Act::Pause => policy.run = port_run::PORT_PAUSED,
            Act::Buffer(bytes) => policy.buf_size = bytes,
            Act::Thin(thin) => policy.thin = thin.into(),
            Act::Detach => {
                policy.run = port_run::PORT_PAUSED;
                self.detaching = true;
            }
        }
    }

    /// A port that was paused.
    fn must_be_drained(&mut self) {
        for c in 0..self.connections.len() {
            self.audit(c);
            let Some(f) = self.connections[c].record.flow else { continue };
            let mode = u32::from(f.mode);
            let outstanding = f.next_seq.diff(f.vm_seq).max(0);
            assert!(
                mode == flow_mode::FLOW_RESET
                    || u32::from(f.flags) & FLOW_F_CLOSED != 0
                    || outstanding == 0,
                "{outstanding} bytes are outstanding long after the port was paused: {}",
                self.summary()
            );
            self.tally.drained_pause += 1;
        }
    }

    /// What the user-space helper does: it resets what nobody can hand over, and what a VM that ran
    /// has not acknowledged and nobody has a copy of; it forgets records.
    fn helper(&mut self) {
        self.at(self.now + HELPER, Event::Helper);
        if !self.attached || !self.sc.helper {
            return;
        }
        let is_gone = self.now - self.memory.port.engine_ns >= ABANDONED;
        let mut outstanding = 0;
        for c in 0..self.connections.len() {
            self.audit(c);
            let Some(f) = self.connections[c].record.flow else { continue };
            let (mode, flags) = (u32::from(f.mode), u32::from(f.flags));
            let (behind, idle) = (f.next_seq.diff(f.vm_seq).max(0), self.now - f.last_ns);
            if mode == flow_mode::FLOW_RESET {
                if idle > 60_000 * MS {
                    self.remove(c);
                }
                continue;
            }
            if flags & FLOW_F_CLOSED != 0 {
                if idle > 10_000 * MS {
                    self.remove(c);
                }
                continue;
            }
            outstanding += behind;
            let is_held = mode == flow_mode::FLOW_HOLDING;
            let is_kept = self.is_kept(c);
            // As crates/vsnoop/src/helper/loss.rs: since it was first seen to be behind.
            let is_suspect = behind > 0 && (is_gone || !is_kept);
            let suspect = &mut self.connections[c].suspect;
            let since = suspect.filter(|&(vm_seq, _)| vm_seq == f.vm_seq.v);
            *suspect = is_suspect.then(|| since.unwrap_or((f.vm_seq.v, self.now)));
            let ran = suspect.map_or(0, |(_, since)| self.sc.freezes.run_time(since, self.now));
            if is_held && is_gone {
                self.may_be_abandoned(c);
                self.reset(c);
            } else if ran >= 1_000 * MS {
                self.may_be_lost(c);
                self.reset(c);
            } else if behind == 0 && idle > self.sc.idle_ms * MS {
                self.remove(c);
            }
        }
        if self.detaching && outstanding == 0 {
            self.note(|| "detached".into());
            self.tally.drained_detach += 1;
            self.detaching = false;
            self.attached = false;
            self.engine = None;
            self.frees.clear();
            for connection in &mut self.connections {
                connection.record = Record::default();
            }
        }
    }

    /// Is there a copy of the byte that the VM is to acknowledge next?
    fn is_kept(&self, c: usize) -> bool {
        let Some(f) = self.connections[c].record.flow.filter(|f| f.hold != 0) else { return false };
        let h = self.memory.hold(f.hold.into());
        h.chunks > 0 && f.vm_seq.diff(h.first) >= 0 && f.vm_seq.diff(h.tail) < 0
    }

    /// crates/vsnoop/src/helper/reset.rs.
    fn reset(&mut self, c: usize) {
        self.tally.helper_resets += 1;
        self.note(|| format!("{c}  helper resets both ends"));
        let Some(f) = &mut self.connections[c].record.flow else { return };
        f.mode = flow_mode::FLOW_RESET as u8;
        f.last_ns = self.now;
        let (vm_seq, snd_nxt) = (f.vm_seq.v, f.snd_nxt.v);
        self.push(c, Seg::bare(vm_seq, 0, RST));
        self.send_to_sender(c, Seg::bare(snd_nxt, 0, RST), Made::Early);
    }
}

//! One VM on its host: the port with the programs, the product's engine, and the VM behind the
//! ring. Its modules implement the calls of the engine.

mod calls;
mod memory;

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use vsnoop_flow::testing::segment::{FIN, Seg, brief};
use vsnoop_flow::types::*;
use vsnoop_hold::engine_silence::EngineSilence;
use vsnoop_hold::grants::Rounds;
use vsnoop_hold::initial_policy;
use vsnoop_hold::reset::{self, Bridge, Way, WayToVm};
use vsnoop_hold::rst_repeats::RstRepeats;
use vsnoop_hold::{Clock, Engine, RETRY_NS, Reason, TICK_NS, Threads, Tick, Urgency};

use crate::away::{self, Away};
pub use crate::bytes::bytes_of;
use crate::frame::Frame;
use crate::guest::Guest;
use crate::kernel::{Fate, SimulatedPort};
use crate::layout;
use crate::native::Program;
use crate::schedule::Schedule;
use crate::torn::Before;
use crate::wire::{self, Path};

const ETHERNET: usize = 14;

/// The VM's threads do this while it has no frame to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vcpus {
    /// They run: the VM has other work.
    Busy,
    /// They are halted, but for a timer interrupt now and then.
    Halted,
    /// They are halted, and their monitor gives them unknown names.
    Unnamed,
}

/// Faults of a VM and of its host.
#[derive(Clone, Debug)]
pub struct Fortune {
    /// When it runs.
    pub schedule: Schedule,
    pub vcpus: Vcpus,
    /// The engine hands it super-packets.
    pub super_packets: bool,
    /// Frames that the VM loses after its ring, and before its tap, per thousand.
    pub loss: (u32, u32),
    /// Wake-ups that the VM misses while its ring has something, per thousand: only another frame
    /// wakes it.
    pub misses: u32,
    /// Another CPU acts between two steps of the host, per thousand. The engine then reads a hold
    /// with words of before and after the latest run of a hook.
    pub races: u32,
    /// The probability that the engine is killed at a step, per 100,000.
    pub crashes: u32,
    /// The engine is killed at this step, counted over all engines.
    pub crash_at: Option<u64>,
    /// When the engine's process runs.
    pub engine: Schedule,
    /// Longest delay from the doorbell to the engine, us.
    pub latency_us: u64,
}

impl Fortune {
    /// No faults; the engine reacts to its doorbell within `latency_us` microseconds.
    pub fn kind(latency_us: u64) -> Self {
        Self {
            schedule: Schedule::Always,
            vcpus: Vcpus::Busy,
            super_packets: true,
            loss: (0, 0),
            misses: 0,
            races: 0,
            crashes: 0,
            crash_at: None,
            engine: Schedule::Always,
            latency_us,
        }
    }
}

/// A VM and the engine that serves it.
#[derive(Clone)]
pub struct Served {
    pub vm: Vm,
    engine: Option<Engine>,
    /// When the engine runs next.
    pub engine_at: u64,
    next_tick: u64,
}

/// All parts but the engine; this is the engine's `Host`.
#[derive(Clone)]
pub struct Vm {
    pub port: SimulatedPort,
    pub guest: Box<dyn Guest>,
    pub fortune: Fortune,
    pub now: u64,
    pub rng: Rng,
    pub trace: bool,
    pub paths: Vec<(usize, Path)>,
    pub mtu: u32,
    /// No more faults happen.
    pub calm: bool,
    /// Frames in the ring of which it has missed the wake-up.
    missed: usize,
    looked_at: u64,
    threads: Threads,
    waited_at: u64,
    /// The running engine was killed.
    killed: bool,
    pub steps: u64,
    /// Highest ACK of a sender in the ring, by connection.
    acked: Vec<Option<u32>>,
    /// A hold as it was before the latest frame for the VM.
    before: Option<Before>,
    pub resets: Vec<(usize, Reason)>,
    pub helper: HelperState,
    pub away: Away,
}

/// The helper's state of a port between two rounds (helper.rs).
#[derive(Clone, Debug, Default)]
pub struct HelperState {
    pub rst_repeats: RstRepeats,
    pub silence: EngineSilence,
    pub grants: Option<Rounds>,
    /// Connections that user space reset, by reason.
    pub counted: [u64; reset_reason::RESET_REASONS as usize],
}

impl Vm {
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            let start = vsnoop_flow::testing::clock::START;
            eprintln!("{:>10.3} ms  {}", self.now.saturating_sub(start) as f64 / 1e6, what());
        }
    }

    fn run_time(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.u32(0..1000) < per_mille
    }

    /// The connection of a frame.
    pub fn connection(&self, bytes: &[u8], to_vm: bool) -> Option<usize> {
        let (from, to) = layout::ports(bytes)?;
        let ports = if to_vm { (from, to) } else { (to, from) };
        let found = self.paths.iter().find(|(_, path)| (path.sender.1, path.vm.1) == ports);
        found.map(|(c, _)| *c)
    }

    /// A frame leaves the host for the VM.
    pub fn egress(&mut self, frame: Frame) -> Fate {
        self.note_before(&frame);
        let Vm { port, guest, fortune, now, rng, calm, away, .. } = self;
        port.now = *now;
        port.racing = fortune.races > 0 && !*calm;
        let races = fortune.races;
        let mut gap = |port: &mut SimulatedPort, _: &'static str| {
            if rng.u32(0..20_000) < races {
                run_guest(port, &mut **guest, fortune, *calm, *now, rng, away);
            }
        };
        port.to_vm(frame, &mut gap)
    }

    /// Keeps a copy of the hold that this frame may change.
    fn note_before(&mut self, frame: &Frame) {
        self.before = None;
        if self.calm || self.fortune.races == 0 {
            return;
        }
        let connection = self.connection(&frame.bytes, true);
        let Some((_, flow)) = connection.and_then(|c| self.flow_of(c)) else { return };
        let number = u32::from(flow.hold);
        self.before = self.hold(number).map(|hold| Before { number, hold: *hold });
    }

    /// A socket of a split connection sends a frame.
    pub fn from_socket(&mut self, frame: Frame) -> Fate {
        self.port.now = self.now;
        self.port.from_socket(frame, &mut |_, _| {})
    }

    /// The VM reads its ring, if it runs.
    pub fn run_guest(&mut self) {
        if !self.is_woken() {
            return;
        }
        let Vm { port, guest, fortune, now, rng, calm, away, .. } = self;
        if run_guest(port, &mut **guest, fortune, *calm, *now, rng, away) {
            self.missed = 0;
        }
    }

    /// Does it know of what is in its ring?
    pub fn is_woken(&self) -> bool {
        self.ring().len() > self.missed
    }

    /// It misses the wake-up of what is in its ring now.
    pub fn miss_wake_up(&mut self) {
        self.note(|| "the VM MISSES a wake-up".into());
        self.missed = self.ring().len();
    }

    /// Chance has it miss the wake-up. A full ring has no room for a frame that would wake it.
    pub fn may_miss_wake_up(&mut self) -> bool {
        let most = self.fortune.misses;
        let is_full = self.ring().len() >= self.port.ring_slots;
        if self.calm || most == 0 || is_full || self.rng.u32(0..1000) >= most {
            return false;
        }
        self.miss_wake_up();
        true
    }

    /// The VM takes one frame off its ring, or loses it.
    pub fn take_one(&mut self, is_lost: bool) {
        self.missed = 0;
        if let Some(frame) = self.ring_mut().pop_front()
            && !is_lost
        {
            self.guest.input(self.now, &frame, &mut self.rng);
        }
    }

    /// The ring that the VM reads.
    pub fn ring(&self) -> &VecDeque<Frame> {
        if self.away.has_moved { &self.away.ring } else { &self.port.ring }
    }

    fn ring_mut(&mut self) -> &mut VecDeque<Frame> {
        if self.away.has_moved { &mut self.away.ring } else { &mut self.port.ring }
    }

    /// The way of a RST to the VM.
    pub fn way_to_vm(&self) -> WayToVm {
        const BRIDGE: Bridge = Bridge { ifindex: 98, mac: [2, 0, 0, 0, 0, 98] };
        if self.away.has_moved { WayToVm::Port(away::PORT, BRIDGE) } else { WayToVm::Tap }
    }

    /// Returns the VM's threads as /proc shows them.
    fn sample(&self) -> Threads {
        let start = vsnoop_flow::testing::clock::START;
        let lived_ns = self.now - start;
        let schedule = &self.fortune.schedule;
        let ran_ns = if self.calm { lived_ns } else { schedule.run_time(start, self.now) };
        let stands = self.stands_until().is_some();
        let is_busy = self.fortune.vcpus == Vcpus::Busy;
        let tick = Tick {
            tid: 1,
            // In a stop it waits for a CPU.
            state: if stands || is_busy { 'R' } else { 'S' },
            run_ns: if is_busy { ran_ns } else { ran_ns / 1_000 },
            wait_ns: lived_ns - ran_ns,
        };
        let are_vcpus = self.fortune.vcpus != Vcpus::Unnamed;
        Threads { are_vcpus, ticks: vec![tick], stopped: false, slept: Duration::ZERO }
    }

    /// When the VM's present stop ends.
    pub fn stands_until(&self) -> Option<u64> {
        if self.calm { None } else { self.fortune.schedule.until(self.now) }
    }

    /// Serves the VM's timers, if it runs.
    pub fn timers(&mut self) {
        if self.stands_until().is_none() {
            self.guest.timers(self.now, &mut self.rng);
            self.hear();
        }
    }

    /// Sends the VM's output through the programs.
    pub fn hear(&mut self) {
        let Vm { port, guest, fortune, now, rng, calm, away, .. } = self;
        hear(port, &mut **guest, fortune, *calm, *now, rng, away);
    }

    /// Counts a step of the engine; false: it was killed, and its calls have no effect.
    fn step(&mut self) -> bool {
        if self.killed {
            return false;
        }
        self.steps += 1;
        let crashes = if self.calm { 0 } else { self.fortune.crashes };
        if self.fortune.crash_at == Some(self.steps)
            || (crashes > 0 && self.rng.u32(0..100_000) < crashes)
        {
            self.note(|| "the engine is KILLED".into());
            self.killed = true;
            return false;
        }
        let races = if self.calm { 0 } else { self.fortune.races };
        if self.run_time(races / 4) {
            self.run_guest();
        }
        true
    }

    /// Runs the program `reclaim` for a hold.
    pub(crate) fn run_reclaim(&mut self, number: u32, why: reclaim::Type) -> reclaimed::Type {
        let mut frame = Frame::new(vec![0; ETHERNET]);
        (frame.cb[0], frame.cb[1]) = (number, why);
        self.port.now = self.now;
        self.port.test_run(Program::Reclaim, &mut frame, &mut |_, _| {}) as reclaimed::Type
    }

    pub fn state(&mut self) -> &mut port_state {
        &mut self.port.shared().state
    }

    pub fn policy(&mut self) -> &mut policy {
        &mut self.port.shared().policy
    }

    /// The settings of a port that was just attached.
    pub fn attach_settings(&mut self) -> &mut policy {
        let policy = self.policy();
        *policy = initial_policy::initial();
        policy
    }

    /// All flows of the port.
    pub fn flows(&self) -> Vec<(flow_key, flow)> {
        self.port.entries("flows")
    }

    pub fn flow(&mut self, key: &flow_key) -> Option<&mut flow> {
        self.port.value("flows", bytes_of(key))
    }

    /// The slab with a hold, or a chunk.
    fn slab(&mut self, index: u32) -> Option<&mut hold_slab> {
        self.port.slab(index)
    }

    /// Takes the last slab away if nothing in it is used.
    fn take_last(&mut self, last: u32) -> bool {
        let Some(slab) = self.slab(last) else { return false };
        let is_used = slab.chunks.iter().any(|chunk| chunk.owner != 0)
            || slab.holds.iter().any(|hold| hold.used != 0);
        if !is_used {
            self.state().slabs = last;
            self.port.remove_slab(last);
        }
        !is_used
    }

    /// The hold with this number, from 1.
    pub fn hold(&mut self, number: u32) -> Option<&mut hold> {
        let at = number.checked_sub(1)?;
        let slab = self.slab(at / SLAB_HOLDS)?;
        Some(&mut slab.holds[(at % SLAB_HOLDS) as usize])
    }

    pub fn chunk(&mut self, chunk: u32) -> Option<(hold_chunk, &[u8])> {
        let slab = self.slab(chunk / SLAB_CHUNKS)?;
        let at = (chunk % SLAB_CHUNKS) as usize;
        let bytes = &slab.bytes[at * HOLD_CHUNK as usize..][..HOLD_CHUNK as usize];
        Some((slab.chunks[at], bytes))
    }

    /// The flow of connection `c`.
    pub fn flow_of(&self, c: usize) -> Option<(flow_key, flow)> {
        let path = &self.paths.iter().find(|(other, _)| *other == c)?.1;
        let ports = (path.sender.1.to_be(), path.vm.1.to_be());
        self.flows().into_iter().find(|(key, _)| (key.sender_port, key.vm_port) == ports)
    }
}

/// Sends both ends of a connection their RSTs: the tap always has a reader.
pub fn tell(vm: &mut Vm, key: &flow_key, flow: &flow) -> bool {
    let to_vm = vm.way_to_vm();
    reset::send(vm, key, flow, to_vm, Way::Tap)
}

/// Returns whether it runs.
fn run_guest(
    port: &mut SimulatedPort,
    guest: &mut dyn Guest,
    fortune: &Fortune,
    calm: bool,
    now: u64,
    rng: &mut Rng,
    away: &mut Away,
) -> bool {
    if !calm && fortune.schedule.until(now).is_some() {
        return false;
    }
    for _ in 0..rng.u32(1..8) {
        let ring = if away.has_moved { &mut away.ring } else { &mut port.ring };
        let Some(frame) = ring.pop_front() else { break };
        if !calm && fortune.loss.0 > 0 && rng.u32(0..1000) < fortune.loss.0 {
            continue;
        }
        guest.input(now, &frame, rng);
    }
    hear(port, guest, fortune, calm, now, rng, away);
    true
}

fn hear(
    port: &mut SimulatedPort,
    guest: &mut dyn Guest,
    fortune: &Fortune,
    calm: bool,
    now: u64,
    rng: &mut Rng,
    away: &mut Away,
) {
    port.now = now;
    for frame in guest.output() {
        if !calm && fortune.loss.1 > 0 && rng.u32(0..1000) < fortune.loss.1 {
            continue;
        }
        if away.has_moved {
            away.send(frame);
        } else {
            port.from_vm(frame, &mut |_, _| {});
        }
    }
}

impl Served {
    pub fn new(
        port: SimulatedPort,
        guest: Box<dyn Guest>,
        fortune: Fortune,
        paths: Vec<(usize, Path)>,
        connections: usize,
        seed: u64,
    ) -> Self {
        let vm = Vm {
            port,
            guest,
            fortune,
            now: 0,
            rng: Rng::with_seed(seed ^ 0x5e5e),
            trace: std::env::var_os("VSNOOP_TRACE").is_some(),
            paths,
            mtu: 1500,
            calm: false,
            missed: 0,
            looked_at: 0,
            threads: Threads::default(),
            waited_at: 0,
            killed: false,
            steps: 0,
            acked: vec![None; connections],
            before: None,
            resets: Vec::new(),
            helper: HelperState::default(),
            away: Away::default(),
        };
        Self { vm, engine: None, engine_at: u64::MAX, next_tick: 0 }
    }

    /// Starts an engine, as the helper does; false if it was killed at once.
    pub fn start_engine(&mut self, now: u64) -> bool {
        self.vm.now = now;
        self.vm.killed = false;
        self.vm.forget_run_time();
        self.vm.waited_at = now;
        self.vm.away.forget_engine();
        self.vm.note(|| "an engine starts".into());
        let engine = Engine::new(&mut self.vm);
        if std::mem::take(&mut self.vm.killed) {
            return false;
        }
        self.next_tick = now;
        self.engine_at = now;
        self.engine = Some(engine);
        true
    }

    pub fn stop_engine(&mut self) {
        self.engine = None;
        self.engine_at = u64::MAX;
    }

    pub fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Appends all that distinguishes this state from another.
    pub fn digest(&self, into: &mut Vec<u8>) {
        self.vm.port.digest(&["stats", "flows", "split_port"], into);
        let jiffy = self.vm.port.jiffy();
        for (key, mut f) in self.vm.flows() {
            // Counters without effect on the behaviour.
            (f.offline, f.suppressed, f.rewritten, f.reacked) = (0, 0, 0, 0);
            (f.early_bytes, f.early_acks) = (0, 0);
            if f.lease_jiffy != jiffy as u32 {
                (f.lease_jiffy, f.lease_edge.v, f.lease_tsval) = (0, 0, 0);
            }
            // One of another jiffy differs from none, but has no end and no date.
            if f.vm_lease != 0 && f.vm_lease != jiffy as u32 {
                (f.vm_lease, f.vm_lease_end.v) = (u32::MAX, 0);
            }
            into.extend(bytes_of(&key));
            into.extend(bytes_of(&f));
        }
        into.extend(format!("{:?} {:?} {}", self.vm.guest, self.engine, self.next_tick).bytes());
        into.extend(format!("{} {:?}", self.vm.missed, self.vm.threads.slept).bytes());
        if self.vm.away.has_moved {
            into.extend(format!("{:?}", self.vm.away).bytes());
        }
    }

    /// Time of the engine's next tick.
    pub fn next_tick(&self) -> u64 {
        self.next_tick
    }

    /// Runs the engine once; false if it was killed meanwhile.
    pub fn run_engine(&mut self, now: u64) -> bool {
        self.vm.now = now;
        let Some(mut engine) = self.engine.take() else {
            self.engine_at = u64::MAX;
            return true;
        };
        if let Some(end) = self.vm.fortune.engine.until(now).filter(|_| !self.vm.calm) {
            self.engine = Some(engine);
            self.engine_at = end;
            return true;
        }
        if now >= self.next_tick {
            engine.tick(&mut self.vm);
            self.next_tick = now + TICK_NS;
        }
        self.vm.follow();
        engine.work(&mut self.vm);
        if std::mem::take(&mut self.vm.killed) {
            self.engine_at = u64::MAX;
            return false;
        }
        self.engine_at = match engine.urgency() {
            Urgency::Now => now + 10_000,
            Urgency::Soon => (now + RETRY_NS).min(self.next_tick),
            Urgency::None if self.vm.away.is_followed() => (now + RETRY_NS).min(self.next_tick),
            Urgency::None => self.next_tick,
        };
        self.engine = Some(engine);
        true
    }

    /// After a ring of the doorbell the engine runs some time later.
    pub fn hear_doorbell(&mut self, now: u64) {
        let rings = self.vm.port.map("doorbell").is_woken();
        if rings && self.engine.is_some() {
            let soon = self.vm.rng.u64(1..=self.vm.fortune.latency_us.max(1)) * 1_000;
            self.engine_at = self.engine_at.min(now + soon);
        }
    }
}

/// One line about a frame.
pub fn described(frame: &Frame) -> String {
    let gso = if frame.gso_size == 0 { String::new() } else { format!(" gso {}", frame.gso_size) };
    match wire::decode(frame) {
        Some(s) => brief(&s) + &gso,
        None => format!("{} bytes with a wrong checksum", frame.bytes.len()),
    }
}

impl Vm {
    /// Notes that the VM has the ACK of a sender's frame, unless the frame is not acceptable (RFC
    /// 9293, section 3.10.7.4): all of it lies beyond the VM's window, or all of its data, if it
    /// has any, below what the VM has acknowledged.
    pub fn acked(&mut self, c: usize, s: &Seg) {
        let is_acceptable = |f: &flow| {
            let start = seq::new(s.seq);
            let end = start.add(s.len() + u32::from(s.has(FIN)));
            f.right_edge.diff(start) >= 0 && (end == start || end.diff(f.vm_seq) > 0)
        };
        if self.flow_of(c).is_some_and(|(_, f)| !is_acceptable(&f)) {
            return;
        }
        let newest = self.acked[c].get_or_insert(s.ack);
        if (s.ack.wrapping_sub(*newest) as i32) > 0 {
            *newest = s.ack;
        }
    }
}

//! The simulated world: senders, network, hosts with the programs and the engine, VMs.
//!
//! Discrete events on a simulated clock. All randomness comes from the scenario's seed, so that a
//! failure can be replayed. `VSNOOP_TRACE=1` prints every segment.

mod splitting;

use fastrand::Rng;
use vsnoop_flow::incast::uplink_rate;
use vsnoop_flow::testing::clock::{Events, MS, START};
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{Tcp, TcpState};
use vsnoop_flow::types::*;
use vsnoop_hold::{LOOK_NS, drain_limit};

use crate::checks::{self, Told};
use crate::downloads::Downloads;
use crate::frame::{Frame, Summed};
use crate::guest::{self, Guest, Kind, Lwip};
use crate::host::{Served, described};
use crate::kernel::SimulatedPort;
use crate::layout;
use crate::scenario::{Act, Scenario};
use crate::too_big::{self, TooBig};
use crate::wire::{self, Path};

const MAX_STEPS: u64 = 20_000_000;
/// The interface by which packets for VMs come in.
const UPLINK: u32 = 3;

#[derive(Debug)]
enum Event {
    Open(usize),
    /// It arrives at the last hop.
    AtLastHop(usize, Seg),
    LeavesLastHop(usize, Seg),
    AtHost(usize, Seg),
    AtSender(usize, Seg),
    /// A report of a smaller path MTU arrives.
    TooBig(usize, TooBig),
    SenderTimer(usize),
    Abort(usize, bool),
    OtherSynAck(usize),
    VmPoll(usize),
    VmTimer(usize),
    Act(usize, Act),
    Helper(usize),
    OpensWindows(usize),
    Drains(usize),
    EngineStarts(usize),
    EngineRuns(usize),
    SplitterStarts(usize),
    SplitterRuns(usize),
    SocketTimer(usize),
    /// Faults end.
    Calm,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both streams whole.
    Exact,
    Reset,
    /// It had not ended after `patience_ms`.
    Hung,
    /// After a detach the VM's TCP took the FIN of a segment that it had cut at its window for the
    /// end, and lost the bytes between (docs/reference/limits.md). All frames that it got were
    /// right.
    CutShort,
    /// Both ends have all but the VM's FIN, which was lost, and which a VM of smoltcp 0.14 does not
    /// repeat after three duplicate ACKs: it takes them for a lost segment with data.
    LacksFin,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// End and duration (ns) of each connection.
    pub ends: Vec<(Ending, u64)>,
    /// Bytes of each that the host has acknowledged and the VM has not.
    pub outstanding: Vec<u32>,
    pub stats: port_stats,
    pub steps: u64,
    pub engine_steps: u64,
    pub crashes: u64,
    /// Segments that the last hop dropped, and grants of incast control.
    pub dropped: u64,
    pub grants: u64,
    /// Splitter and keeper of the first VM died, and the kernel has reset what was split.
    pub has_lost_sockets: bool,
    /// Connections that were reset because the first VM has moved.
    pub moved: u64,
    /// The first VM's splitter has counted these.
    pub split: split_totals,
    /// TCP payload that VMs have forwarded, lost bytes too.
    pub leg_bytes: u64,
    /// Reasons, where a connection hung or was reset.
    pub summary: String,
}

struct ConnectionState {
    path: Path,
    vm: usize,
    sender: Tcp,
    timer: u64,
    told: Told,
    over_at: Option<u64>,
    /// A detach has ended since the start.
    was_detached: bool,
    /// The next SYN-ACK of the VM is lost.
    loses_syn_ack: bool,
}

struct MachineState {
    served: Served,
    /// If connections are split.
    downloads: Option<Downloads>,
    poll_at: u64,
    timer: u64,
    engine_event: u64,
    splitter_event: u64,
    socket_timer: u64,
    /// When a detach began that has not ended.
    detaching: Option<u64>,
    saved: Option<Box<dyn Guest>>,
    was_rolled_back: bool,
}

pub struct World {
    sc: Scenario,
    now: u64,
    rng: Rng,
    events: Events<Event>,
    connections: Vec<ConnectionState>,
    machines: Vec<MachineState>,
    /// In the place of the senders.
    lwip: Option<Lwip>,
    /// Bytes in the queue of the last hop, and until when it is busy.
    queued: u32,
    busy_until: u64,
    dropped: u64,
    steps: u64,
    crashes: u64,
    trace: bool,
}

/// Bytes of a frame without its payload, and of FCS, preamble and gap on the wire.
const HEADERS: u32 = 66;
const WIRE: u32 = 24;

fn segments(s: &Seg) -> u32 {
    if s.unit == 0 { 1 } else { s.len().div_ceil(s.unit.into()).max(1) }
}

/// Bytes that a segment, or the segments of a super-packet, take in a queue.
fn frame_bytes(s: &Seg) -> u32 {
    s.len() + segments(s) * HEADERS
}

impl World {
    pub fn new(sc: Scenario) -> Self {
        let paths: Vec<Path> = (0..)
            .zip(&sc.connections)
            .map(|(number, connection)| {
                let mut path = Path::new(connection.vm as u8, number, connection.ipv6);
                path.vlan = connection.vlan;
                if connection.is_asymmetric {
                    path.next_hop[5] ^= 0x10;
                }
                path
            })
            .collect();
        let connections =
            sc.connections.iter().zip(&paths).map(|(connection, path)| ConnectionState {
                path: path.clone(),
                vm: connection.vm,
                sender: Tcp::new(connection.sender.clone(), 0),
                timer: u64::MAX,
                // Packets of two CPUs at the same time may be reordered.
                told: Told {
                    keeps_its_edge: sc.machines[connection.vm].fortune.races == 0,
                    ..Told::default()
                },
                over_at: None,
                was_detached: false,
                loses_syn_ack: connection.has_two_listeners,
            });
        let machines = sc.machines.iter().enumerate().map(|(vm, machine)| {
            let of_vm = || sc.connections.iter().enumerate().filter(move |(_, c)| c.vm == vm);
            let ends: Vec<_> = of_vm()
                .map(|(c, connection)| (c, paths[c].clone(), connection.guest.clone()))
                .collect();
            let paths = of_vm().map(|(c, _)| (c, paths[c].clone())).collect();
            let mut guest = guest::make(machine.kind, &ends, sc.seed);
            for (c, _) in of_vm().filter(|(_, connection)| connection.has_two_listeners) {
                guest.listen_twice(c);
            }
            if let Some(leg) = machine.leg {
                guest = Box::new(guest::Forwarder::new(leg, guest));
            }
            let mut port = SimulatedPort::new(10 + vm as u32, machine.ring_slots, |_, _| {});
            if !machine.gso {
                port.device.features = 0;
            }
            let fortune = machine.fortune.clone();
            let mut served =
                Served::new(port, guest, fortune, paths, sc.connections.len(), sc.seed);
            served.vm.port.attached = false;
            let downloads = machine.downloads.then(|| {
                let paths = served.vm.paths.clone();
                let mut downloads = Downloads::new(paths, sc.seed);
                downloads.namespace.lies = machine.joins_early;
                downloads.namespace.crashes = machine.splitter_crashes;
                downloads
            });
            attach_settings(&mut served, machine);
            MachineState {
                served,
                downloads,
                poll_at: u64::MAX,
                timer: u64::MAX,
                engine_event: u64::MAX,
                splitter_event: u64::MAX,
                socket_timer: u64::MAX,
                detaching: None,
                saved: None,
                was_rolled_back: false,
            }
        });
        let of_lwip = sc.connections.iter().enumerate().filter(|(_, c)| c.sender_is_lwip);
        let of_lwip: Vec<_> =
            of_lwip.map(|(c, settings)| (c, paths[c].clone(), settings.sender.clone())).collect();
        let lwip = (!of_lwip.is_empty()).then(|| Lwip::of_sender(&of_lwip, sc.seed));
        let mut w = Self {
            now: START,
            rng: Rng::with_seed(sc.seed),
            events: Events::default(),
            connections: connections.collect(),
            machines: machines.collect(),
            lwip,
            queued: 0,
            busy_until: 0,
            dropped: 0,
            steps: 0,
            crashes: 0,
            trace: std::env::var_os("VSNOOP_TRACE").is_some(),
            sc,
        };
        w.schedule();
        w
    }

    fn schedule(&mut self) {
        for (c, connection) in self.sc.connections.clone().into_iter().enumerate() {
            self.events.at(START + connection.start_ms * MS, Event::Open(c));
            if let Some((vm, ms)) = connection.abort {
                self.events.at(START + ms * MS, Event::Abort(c, vm));
            }
            for ms in connection.other_syn_acks {
                self.events.at(START + ms * MS, Event::OtherSynAck(c));
            }
        }
        for (m, machine) in self.sc.machines.clone().into_iter().enumerate() {
            let without = self.sc.without;
            for (ms, act) in machine.acts.into_iter().filter(|(_, act)| !without || act.is_of_vm())
            {
                self.events.at(START + ms * MS, Event::Act(m, act));
            }
            if without {
                continue;
            }
            if machine.attached {
                self.act(m, Act::Attach);
            }
            self.events.at(START, Event::Helper(m));
        }
        self.events.at(START + self.sc.hostile_ms * MS, Event::Calm);
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>10.3} ms  {}", (self.now - START) as f64 / 1e6, what());
        }
    }

    fn hostile(&self) -> bool {
        self.now < START + self.sc.hostile_ms * MS
    }

    /// Runs all connections to their ends, or until patience ends.
    pub fn run(mut self) -> Outcome {
        let deadline = START + self.sc.patience_ms * MS;
        self.flush();
        while !self.are_over() {
            let Some((time, event)) = self.events.pop() else { break };
            self.steps += 1;
            if time > deadline || self.steps > MAX_STEPS {
                break;
            }
            assert!(time >= self.now, "an event of the past: {event:?}");
            self.now = time;
            for machine in &mut self.machines {
                machine.served.vm.now = time;
            }
            self.handle(event);
            self.flush();
        }
        self.finish()
    }

    fn are_over(&mut self) -> bool {
        let mut all = true;
        for c in 0..self.connections.len() {
            let progress = self.progress(c);
            let connection = &mut self.connections[c];
            // A VM that was rolled back may wait for what its sender does not have any more.
            let is_lost = self.machines[connection.vm].was_rolled_back;
            let vm_is_over = progress.is_done || progress.is_reset || is_lost;
            let sender_is_over = match &self.lwip {
                Some(lwip) => {
                    let progress = lwip.progress(c);
                    progress.is_done || progress.is_reset
                }
                None => connection.sender.is_over(),
            };
            let is_over = sender_is_over && vm_is_over;
            if is_over && connection.over_at.is_none() {
                connection.over_at = Some(self.now);
            }
            all &= is_over;
        }
        all
    }

    fn progress(&self, c: usize) -> guest::Progress {
        self.machines[self.connections[c].vm].served.vm.guest.progress(c)
    }

    fn finish(mut self) -> Outcome {
        let mut ends = Vec::new();
        for c in 0..self.connections.len() {
            let progress = self.progress(c);
            let connection = &self.connections[c];
            let sender = &connection.sender;
            let started = START + self.sc.connections[c].start_ms * MS;
            let took = connection.over_at.unwrap_or(self.now) - started.min(self.now);
            let is_cut_short = connection.was_detached
                && !sender.is_done()
                && progress.early_fin == Some(sender.cfg.bytes + 1);
            let lacks_fin = self.sc.machines[connection.vm].kind == Kind::Smol
                && sender.state == TcpState::Open
                && sender.una == sender.cfg.bytes + 2
                && progress.accepted == sender.cfg.bytes + 2
                && sender.rcv_nxt == self.sc.connections[c].guest.bytes + 1;
            let end = if is_cut_short {
                Ending::CutShort
            } else if connection.over_at.is_none() && lacks_fin {
                Ending::LacksFin
            } else if connection.over_at.is_none() {
                Ending::Hung
            } else if self.lwip.as_ref().is_some_and(|lwip| lwip.progress(c).is_done) {
                assert_eq!(progress.accepted, sender.cfg.bytes + 2, "{c}: the VM's copy is short");
                Ending::Exact
            } else if sender.is_done() && progress.is_done || self.is_reset_after_all(c) {
                let sent = sender.cfg.bytes + 2;
                assert_eq!(progress.accepted, sent, "{c}: the VM's copy has the wrong length");
                let received = self.sc.connections[c].guest.bytes + 2;
                assert_eq!(sender.rcv_nxt, received, "{c}: the sender's copy has the wrong length");
                Ending::Exact
            } else {
                // A VM that has closed, and then resets the connection, does not wait for what its
                // sender has closed with.
                let is_aborted = matches!(self.sc.connections[c].abort, Some((true, _)));
                let is_whole = progress.accepted >= sender.cfg.bytes + 2
                    || is_aborted
                    || self.machines[connection.vm].was_rolled_back
                    || self.has_lost_sockets(connection.vm);
                assert!(
                    !sender.is_done() || is_whole,
                    "{c}: the sender believes in more than arrived: {}",
                    self.summary()
                );
                Ending::Reset
            };
            ends.push((end, took));
        }
        let summary = self.summary();
        let mut stats = port_stats::default();
        if !self.sc.without {
            let found = self.machines[0].served.vm.port.value::<port_stats>("stats", &[0; 4]);
            stats = found.map(|stats| *stats).unwrap_or_default();
        }
        let engine_steps = self.machines.iter().map(|m| m.served.vm.steps).sum();
        let outstanding = (0..self.connections.len()).map(|c| self.outstanding(c)).collect();
        let granted =
            |m: &MachineState| u64::from(m.served.vm.port.shared_now().state.incast.grants);
        let grants = self.machines.iter().map(granted).sum();
        let leg_bytes = self.machines.iter().map(|m| m.served.vm.guest.leg_bytes()).sum();
        Outcome {
            ends,
            outstanding,
            stats,
            steps: self.steps,
            engine_steps,
            crashes: self.crashes,
            dropped: self.dropped,
            grants,
            has_lost_sockets: self.has_lost_sockets(0),
            moved: self.machines[0].served.vm.helper.counted[reset_reason::RESET_MOVED as usize],
            split: self.machines[0].served.vm.port.split_port().totals,
            leg_bytes,
            summary,
        }
    }

    fn outstanding(&self, c: usize) -> u32 {
        let flow = self.machines[self.connections[c].vm].served.vm.flow_of(c);
        let outstanding = flow.map(|(_, f)| (f.mode, f.next_seq.diff(f.vm_seq)));
        let waits = outstanding.filter(|(mode, _)| u32::from(*mode) != flow_mode::FLOW_RESET);
        waits.map_or(0, |(_, bytes)| bytes.max(0) as u32)
    }

    pub fn summary(&self) -> String {
        let mut text = format!("\n after {} ms", (self.now - START) / MS);
        for machine in &self.machines {
            let vm = &machine.served.vm;
            let state = vm.port.shared_now().state;
            text += &format!("\n ring {} {state:?} {:?}", vm.port.ring.len(), vm.resets);
        }
        for (c, connection) in self.connections.iter().enumerate() {
            let t = &connection.sender;
            text += &format!(
                "\n{c} sender {:?} sent {}..{} of {} edge {} received {} fin {} right edge {}\n  vm {:?}",
                t.state,
                t.una,
                t.nxt,
                t.cfg.bytes,
                t.snd_edge,
                t.rcv_nxt,
                t.got_fin,
                t.right_edge,
                self.progress(c),
            );
            let vm = &self.machines[connection.vm].served.vm;
            if let Some((_, f)) = vm.flow_of(c) {
                text += &format!("\n  {f:?}");
            }
        }
        text
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(c) => {
                if self.sc.connections[c].vm_opens {
                    let m = self.connections[c].vm;
                    self.machines[m].served.vm.guest.open(c, self.now);
                    self.machines[m].served.vm.hear();
                } else if let Some(lwip) = &mut self.lwip {
                    lwip.open(c, self.now);
                } else {
                    self.connections[c].sender.open(self.now);
                }
            }
            Event::AtLastHop(c, s) => self.at_last_hop(c, s),
            Event::LeavesLastHop(c, s) => {
                self.queued -= frame_bytes(&s);
                self.at_host(c, &s);
            }
            Event::AtHost(c, s) => self.at_host(c, &s),
            Event::AtSender(c, s) => {
                self.note(|| format!("{c}      sender < {}", brief(&s)));
                if let Some(lwip) = &mut self.lwip {
                    let path = self.connections[c].path.of_sender();
                    let frame = wire::encode(&s, &path, true, Summed::Unnecessary);
                    return lwip.input(self.now, &frame, &mut self.rng);
                }
                self.connections[c].sender.input(self.now, &s, &mut self.rng);
            }
            Event::TooBig(c, said) => {
                self.note(|| format!("{c}      sender < {said:?}"));
                self.connections[c].sender.too_big(self.now, said.seq, said.mtu, &mut self.rng);
            }
            Event::SenderTimer(c) => {
                self.connections[c].timer = u64::MAX;
                if let Some(lwip) = &mut self.lwip {
                    return lwip.timers(self.now, &mut self.rng);
                }
                self.connections[c].sender.timers(self.now, &mut self.rng);
            }
            Event::Abort(c, by_vm) => {
                self.note(|| format!("{c}  abort, by the VM: {by_vm}"));
                let m = self.connections[c].vm;
                if by_vm {
                    self.machines[m].served.vm.guest.abort(c);
                    self.machines[m].served.vm.timers();
                } else {
                    self.connections[c].sender.abort();
                }
            }
            Event::OtherSynAck(c) => self.other_syn_ack(c),
            Event::VmPoll(m) => {
                let machine = &mut self.machines[m];
                machine.poll_at = u64::MAX;
                if let Some(end) = machine.served.vm.stands_until() {
                    machine.poll_at = end;
                    self.events.at(end, Event::VmPoll(m));
                } else {
                    machine.served.vm.run_guest();
                }
            }
            // An earlier event has replaced it.
            Event::VmTimer(m) if self.machines[m].timer > self.now => {}
            Event::VmTimer(m) => {
                self.machines[m].timer = u64::MAX;
                self.machines[m].served.vm.timers();
            }
            Event::Act(m, act) => self.act(m, act),
            Event::Helper(m) => self.helper(m),
            Event::OpensWindows(m) => self.opens_windows(m),
            Event::Drains(m) => self.drains(m),
            Event::EngineStarts(m) => {
                if !self.machines[m].served.start_engine(self.now) {
                    self.engine_died(m);
                }
            }
            // An earlier event has replaced it.
            Event::EngineRuns(m) if self.machines[m].engine_event > self.now => {}
            Event::EngineRuns(m) => {
                let machine = &mut self.machines[m];
                machine.engine_event = u64::MAX;
                if machine.served.engine_at <= self.now && !machine.served.run_engine(self.now) {
                    self.engine_died(m);
                }
            }
            Event::SplitterStarts(m) => self.splitter_starts(m),
            Event::SplitterRuns(m) => self.splitter_runs(m),
            Event::SocketTimer(m) => self.socket_timer(m),
            Event::Calm => {
                for machine in &mut self.machines {
                    machine.served.vm.calm = true;
                    if let Some(downloads) = &mut machine.downloads {
                        downloads.namespace.crashes = 0;
                    }
                }
            }
        }
    }

    /// Another socket of the VM repeats its SYN-ACK, once the sender is established.
    fn other_syn_ack(&mut self, c: usize) {
        let connection = &self.connections[c];
        if !matches!(connection.sender.state, TcpState::Open) {
            if !connection.sender.is_over() {
                self.events.at(self.now + MS, Event::OtherSynAck(c));
            }
            return;
        }
        self.note(|| format!("{c}  another socket of the VM repeats its SYN-ACK"));
        let frame =
            wire::other_syn_ack(self.rng.u32(..), connection.sender.cfg.iss, &connection.path);
        let vm = &mut self.machines[connection.vm].served.vm;
        if vm.away.has_moved {
            return vm.away.send(frame);
        }
        vm.port.now = self.now;
        vm.port.from_vm(frame, &mut |_, _| {});
    }

    /// The helper starts another engine, unless it is gone too.
    fn engine_died(&mut self, m: usize) {
        self.crashes += 1;
        if let Some(absence) = self.sc.machines[m].absence_ms {
            let absence = self.rng.u64(0..=absence) * MS;
            self.events.at(self.now + absence, Event::EngineStarts(m));
        }
    }

    /// Queues the segment, or drops it.
    fn at_last_hop(&mut self, c: usize, s: Seg) {
        let hop = self.sc.last_hop.as_ref().expect("there is a last hop");
        let bytes = frame_bytes(&s);
        if self.queued + bytes > hop.queue {
            self.note(|| format!("{c}  the last hop drops {}", brief(&s)));
            self.dropped += 1;
            return;
        }
        self.queued += bytes;
        let wire_ns = u64::from(bytes + segments(&s) * WIRE) * 8_000 / hop.mbps;
        self.busy_until = self.busy_until.max(self.now) + wire_ns;
        self.events.at(self.busy_until, Event::LeavesLastHop(c, s));
    }

    fn at_host(&mut self, c: usize, s: &Seg) {
        self.note(|| format!("{c}  host < {}", brief(s)));
        let connection = &self.connections[c];
        let vm = &mut self.machines[connection.vm].served.vm;
        // State of the checksum that the device reports.
        let summed = match self.sc.seed % 4 {
            0 => Summed::None,
            1 => Summed::Complete(0),
            2 => Summed::Unnecessary,
            _ => Summed::Partial,
        };
        let mut frame = wire::encode(s, &connection.path, true, summed);
        if self.sc.seed.is_multiple_of(3) {
            frame.linear = self.rng.u32(14..=frame.bytes.len() as u32);
        }
        if vm.away.has_moved {
            return vm.arrives_elsewhere(c, frame);
        }
        vm.port.comes_in(&mut frame);
        let fate = vm.egress(frame);
        vm.note(|| format!("{c}  to_vm: {fate:?}"));
        let newest = vm.port.ring.back();
        if let Some(newest) = newest.filter(|frame| vm.connection(&frame.bytes, true) == Some(c))
            && let Some(newest) = wire::decode(newest)
            && newest.has(ACK)
        {
            vm.acked(c, &newest);
        }
    }

    /// Applies an action of the operator.
    fn act(&mut self, m: usize, act: Act) {
        self.note(|| format!("operator: {act:?}"));
        let machine = &mut self.machines[m];
        let sc = &self.sc.machines[m];
        match act {
            Act::Attach => {
                if !machine.served.vm.port.attached {
                    machine.served.vm.port.load();
                    attach_settings(&mut machine.served, sc);
                    machine.served.vm.port.attached = true;
                    // The VM answers for what the sender was shown before.
                    let keeps_order = sc.fortune.races == 0 && !machine.served.vm.away.has_moved;
                    for c in self.connections.iter_mut().filter(|c| c.vm == m) {
                        c.told = Told { keeps_its_edge: keeps_order, ..Told::default() };
                    }
                    self.events.at(self.now, Event::EngineStarts(m));
                    self.events.at(self.now, Event::OpensWindows(m));
                    self.attach_downloads(m);
                }
                let machine = &mut self.machines[m];
                machine.detaching = None;
                machine.served.vm.policy().run = port_run::PORT_ACCELERATE;
            }
            Act::Save => machine.saved = Some(machine.served.vm.guest.copy()),
            Act::RollBack => {
                machine.served.vm.guest = machine.saved.take().expect("its state was saved");
                machine.was_rolled_back = true;
            }
            Act::HasNoMemory | Act::HasMemory => {
                machine.served.vm.guest.has_memory(self.now, act == Act::HasMemory);
            }
            Act::Move => {
                machine.served.vm.away.has_moved = true;
                // The sender sees the VM's own windows, too.
                for c in self.connections.iter_mut().filter(|c| c.vm == m) {
                    c.told.keeps_its_edge = false;
                }
            }
            Act::KillSplitter | Act::KillSplitting | Act::KillKeeper => self.kill_splitting(m, act),
            Act::Resume => machine.served.vm.policy().run = port_run::PORT_ACCELERATE,
            Act::Pause => {
                machine.served.vm.policy().run = port_run::PORT_PAUSED;
                if machine.downloads.is_some() {
                    self.show_no_room(m);
                }
            }
            Act::Detach => {
                machine.served.vm.policy().run = port_run::PORT_PAUSED;
                machine.served.vm.policy().downloads = 0;
                machine.detaching = Some(self.now);
                self.events.at(self.now, Event::Drains(m));
                if machine.downloads.is_some() {
                    self.show_no_room(m);
                }
            }
        }
    }

    fn helper(&mut self, m: usize) {
        self.events.at(self.now + LOOK_NS, Event::Helper(m));
        let machine = &mut self.machines[m];
        if !machine.served.vm.port.attached {
            return;
        }
        machine.served.vm.helper();
    }

    fn opens_windows(&mut self, m: usize) {
        let vm = &mut self.machines[m].served.vm;
        if vm.port.attached
            && let Some(next) = vm.open_windows()
        {
            self.events.at(next, Event::OpensWindows(m));
        }
    }

    /// A detach waits, and then takes the port off.
    fn drains(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        let Some(since) = machine.detaching else { return };
        if !machine.served.vm.is_drained(since) || machine.are_any_split(since) {
            self.events.at(self.now + drain_limit::STEP_NS, Event::Drains(m));
            return;
        }
        machine.detaching = None;
        machine.served.vm.detach();
        machine.served.stop_engine();
        machine.detach_downloads();
        for c in self.connections.iter_mut().filter(|c| c.vm == m) {
            c.told.keeps_its_edge = false;
            c.was_detached = true;
        }
        self.note(|| "detached".into());
    }

    /// Moves all output to its next stop.
    fn flush(&mut self) {
        for m in 0..self.machines.len() {
            self.machines[m].served.vm.now = self.now;
            self.machines[m].served.vm.hear();
            self.flush_sockets(m);
            while let Some(frame) = self.machines[m].served.vm.port.to_host.pop_front() {
                self.leaves(m, frame);
            }
            while let Some(frame) = self.machines[m].served.vm.away.sent.pop_front() {
                self.leaves_elsewhere(m, &frame);
            }
            self.wake(m);
        }
        for frame in self.lwip.iter_mut().flat_map(Lwip::output).collect::<Vec<_>>() {
            let ports = layout::ports(&frame.bytes);
            let is_its = |c: &ConnectionState| Some((c.path.sender.1, c.path.vm.1)) == ports;
            let c = self.connections.iter().position(is_its).expect("a connection");
            let s = wire::decode(&frame).expect("a whole frame");
            self.note(|| format!("{c}      sender > {}", brief(&s)));
            self.travel(c, s, true);
        }
        for c in 0..self.connections.len() {
            while let Some(s) = self.connections[c].sender.out.pop_front() {
                self.note(|| format!("{c}      sender > {}", brief(&s)));
                self.travel(c, s, true);
            }
            let now = self.now;
            let connection = &mut self.connections[c];
            let next = match &mut self.lwip {
                Some(lwip) => lwip.next_timer(now),
                None => connection.sender.next_timer(now),
            };
            if let Some(t) = next
                && t < connection.timer
            {
                connection.timer = t;
                self.events.at(t, Event::SenderTimer(c));
            }
        }
    }

    /// A frame leaves the host for the sender.
    fn leaves(&mut self, m: usize, frame: Frame) {
        if let Some(said) = too_big::read(&frame) {
            let ports = (said.sender_port, said.vm_port);
            let of_them = |c: &ConnectionState| (c.path.sender.1, c.path.vm.1) == ports;
            if let Some(c) = self.connections.iter().position(of_them) {
                let delay_ns = self.sc.connections[c].from_vm.delay_us * 1_000;
                self.events.at(self.now + delay_ns, Event::TooBig(c, said));
            }
            return;
        }
        let vm = &mut self.machines[m].served.vm;
        let Some(c) = vm.connection(&frame.bytes, false) else { return };
        vm.note(|| format!("{c}  host > {}", described(&frame)));
        let Some(s) = wire::decode(&frame) else {
            panic!("{c}: a broken frame leaves the host: {:02x?}", frame.bytes)
        };
        let connection = &mut self.connections[c];
        // The checks know what the VM has; one that was rolled back has less than it acknowledged.
        let has_lost = self.machines[m].was_rolled_back;
        let MachineState { served, downloads, .. } = &mut self.machines[m];
        let vm = &mut served.vm;
        let is_known = self.lwip.is_none() && !has_lost;
        if vm.port.attached && connection.sender.state != TcpState::Reset && is_known {
            let ConnectionState { told, sender, path, .. } = connection;
            let sockets = downloads.as_ref().map(|downloads| &downloads.namespace);
            checks::told(told, (vm, sockets), c, &frame, &s, sender, path);
        }
        self.travel(c, s, false);
    }

    /// A frame leaves by another port than the tap: the host has no part in it.
    fn leaves_elsewhere(&mut self, m: usize, frame: &Frame) {
        let Some(c) = self.machines[m].served.vm.connection(&frame.bytes, false) else { return };
        self.note(|| format!("{c}  by the other port > {}", described(frame)));
        if let Some(s) = wire::decode(frame) {
            self.travel(c, s, false);
        }
    }

    fn travel(&mut self, c: usize, s: Seg, to_vm: bool) {
        if !to_vm && s.has(SYN) && std::mem::take(&mut self.connections[c].loses_syn_ack) {
            return self.note(|| format!("{c}  the network loses {}", brief(&s)));
        }
        let connection = &self.sc.connections[c];
        let link = if to_vm { &connection.to_vm } else { &connection.from_vm };
        let (hostile, ecn) = (self.hostile(), self.connections[c].sender.ecn);
        for (delay, s) in link.carry(s, hostile, ecn, &mut self.rng) {
            let event = match self.sc.last_hop {
                _ if !to_vm => Event::AtSender(c, s),
                Some(_) => Event::AtLastHop(c, s),
                None => Event::AtHost(c, s),
            };
            self.events.at(self.now + delay, event);
        }
    }

    /// Adds events for all parts that have something to do.
    fn wake(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        let vm = &mut machine.served.vm;
        if machine.poll_at == u64::MAX && vm.is_woken() && !vm.may_miss_wake_up() {
            machine.poll_at = self.now + vm.rng.u64(1_000..60_000);
            self.events.at(machine.poll_at, Event::VmPoll(m));
        }
        if let Some(timer) = vm.guest.next_timer(self.now) {
            let schedule = &vm.fortune.schedule;
            let stands = if vm.calm { None } else { schedule.until(timer) };
            // After a stop some VMs serve their timers first, some their ring.
            let lag = if self.sc.seed.is_multiple_of(2) { 0 } else { 200_000 };
            let timer = stands.map_or(timer, |end| end + lag);
            if timer < machine.timer {
                machine.timer = timer;
                self.events.at(timer, Event::VmTimer(m));
            }
        }
        machine.served.hear_doorbell(self.now);
        if machine.served.engine_at < machine.engine_event {
            machine.engine_event = machine.served.engine_at;
            self.events.at(machine.served.engine_at.max(self.now), Event::EngineRuns(m));
        }
    }
}

/// The settings that the command writes when it attaches a port.
fn attach_settings(served: &mut Served, machine: &crate::scenario::Machine) {
    let policy = served.vm.attach_settings();
    policy.run = port_run::PORT_ACCELERATE;
    policy.hold_chunks = machine.chunks;
    policy.ahead = machine.ahead;
    if let Some((bits_per_second, buffer)) = machine.incast {
        let port = &mut served.vm.port;
        port.uplink_ifindex = Some(UPLINK);
        let uplink = port.uplink();
        uplink.rate = uplink_rate(bits_per_second);
        uplink.buffer = buffer;
        uplink.ingress[0] = UPLINK;
    }
}

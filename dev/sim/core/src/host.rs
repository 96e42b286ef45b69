//! The host: its ports, which share an uplink, and what runs on it beside them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use vsnoop_flow::incast::uplink_rate;
use vsnoop_flow::testing::clock::START;
use vsnoop_flow::types::*;
use vsnoop_hold::LOOK_NS;
use vsnoop_packet::headers::Headers;
use vsnoop_world::downloads::Downloads;
use vsnoop_world::frame::Frame;
use vsnoop_world::host::{Fortune, Served};
use vsnoop_world::kernel::SimulatedPort;
use vsnoop_world::schedule::{Schedule, Turn};
use vsnoop_world::wire::Path;

use crate::incoming::{frame_for_sockets, verified_frame};
use crate::no_guest::NoGuest;

/// `struct vsnoop_sim_counts`.
#[repr(C)]
#[derive(Default)]
pub struct CCounts {
    pub shaped: u64,
    pub grants: u64,
    pub base_rtt_ns: u64,
    pub ring_drops: u64,
    pub early_acks: u64,
    pub hold_bytes_most: u64,
    pub hold_bytes_host_most: u64,
    pub engine_runs: u64,
}

/// Interfaces of the host.
const UPLINK: u32 = 3;
const FIRST_TAP: u32 = 1_000;
/// Connections of a port that the engine can serve.
const MOST_CONNECTIONS: usize = 4_096;
/// From the stops of a VM to those of the next, ms: no divisor of a usual period.
const PHASE_MS: u64 = 37;
/// From the doorbell to the engine at most, us.
const DOORBELL_US: u64 = 20;

/// Does the host acknowledge early?
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Early {
    Never,
    /// With an engine and a hold.
    Held,
    /// The same, and connections of late VMs are split.
    Split,
}

/// When VMs stand, each at a time of its own.
pub enum Stops {
    Never,
    /// For the first of the second, ms.
    Periodic(u64, u64),
    Recorded(Arc<[Turn]>),
}

impl Stops {
    fn schedule(&self, vm: u64) -> Schedule {
        match *self {
            Stops::Never => Schedule::Always,
            Stops::Periodic(stop, period) => {
                Schedule::Periodic { from: vm * PHASE_MS % period, period, stop }
            }
            Stops::Recorded(ref turns) => {
                Schedule::Recorded { from_us: vm * PHASE_MS * 1_000, turns: turns.clone() }
            }
        }
    }
}

pub struct Settings {
    pub ports: u32,
    /// vsnoop is attached; else the host passes frames on, and VMs stand all the same.
    pub attached: bool,
    /// Rate and queue of the last hop.
    pub incast: Option<(u64, u32)>,
    pub early: Early,
    /// Memory of a port's hold.
    pub hold_bytes: u64,
    pub stops: Stops,
    pub ring_frames: usize,
    pub seed: u64,
}

/// A frame that leaves the host.
pub struct Leaving {
    pub port: usize,
    pub to_vm: bool,
    pub bytes: Vec<u8>,
}

struct Machine {
    served: Served,
    /// Keeps the frames that its VM sends while it stands.
    unsent: VecDeque<Frame>,
    grants_at: u64,
    helper_at: u64,
    held: u64,
    held_most: u64,
    engine_runs: u64,
    /// Split connections, and when a timer of their sockets is due.
    downloads: Option<Downloads>,
    sockets_at: u64,
    /// When it has something to do, as it stands in `Host::due`.
    due: u64,
}

pub struct Host {
    machines: Vec<Machine>,
    /// When machines have something to do.
    due: BTreeSet<(u64, usize)>,
    /// Bytes in all holds, now and at most.
    held: u64,
    held_most: u64,
    has_uplink: bool,
    early: Early,
    /// The port whose programs ran last: its record of the uplink, which all share, is valid.
    latest: usize,
    leaving: VecDeque<Leaving>,
    /// The frame that the caller reads.
    taken: Option<Leaving>,
}

#[allow(clippy::wrong_self_convention, reason = "named as the programs are, to_vm and from_vm")]
impl Host {
    pub fn new(settings: &Settings) -> Self {
        let machines = (0..settings.ports).map(|number| Machine::new(settings, number)).collect();
        let mut host = Self {
            machines,
            due: BTreeSet::new(),
            held: 0,
            held_most: 0,
            has_uplink: settings.incast.is_some(),
            early: settings.early,
            latest: 0,
            leaving: VecDeque::new(),
            taken: None,
        };
        if let Some((rate, buffer)) = settings.incast {
            let uplink = host.machines[0].served.vm.port.uplink();
            (uplink.rate, uplink.buffer) = (uplink_rate(rate), buffer);
            uplink.ingress[0] = UPLINK;
        }
        (0..host.machines.len()).for_each(|port| host.plan(port));
        host
    }

    /// The programs of this port run next.
    fn switch_to(&mut self, port: usize, now_ns: u64) -> &mut Machine {
        if port != self.latest && self.has_uplink {
            let uplink = *self.machines[self.latest].served.vm.port.uplink();
            *self.machines[port].served.vm.port.uplink() = uplink;
        }
        self.latest = port;
        let machine = &mut self.machines[port];
        machine.served.vm.now = START + now_ns;
        machine.served.vm.port.now = START + now_ns;
        machine
    }

    pub fn to_vm(&mut self, port: usize, bytes: &[u8], now_ns: u64) {
        let is_early = self.early != Early::Never;
        let machine = self.switch_to(port, now_ns);
        let mut frame = machine.come_in(bytes);
        if is_early {
            machine.note_path(bytes, true);
        }
        let vm = &mut machine.served.vm;
        vm.port.comes_in(&mut frame);
        vm.egress(frame);
        self.collect(port);
    }

    pub fn from_vm(&mut self, port: usize, bytes: &[u8], now_ns: u64) {
        let machine = self.switch_to(port, now_ns);
        let frame = machine.come_in(bytes);
        if machine.served.vm.stands_until().is_some() {
            machine.unsent.push_back(frame);
            self.plan(port);
            return;
        }
        machine.served.vm.port.from_vm(frame, &mut |_, _| {});
        self.collect(port);
    }

    pub fn run(&mut self, now_ns: u64) {
        let now = START + now_ns;
        let is_early = self.early != Early::Never;
        let due: Vec<usize> =
            self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, port)| *port).collect();
        for port in due {
            let machine = self.switch_to(port, now_ns);
            let before = machine.held;
            machine.run(now, is_early);
            let held = machine.held;
            self.held = self.held - before + held;
            self.held_most = self.held_most.max(self.held);
            self.collect(port);
        }
    }

    /// When it has to run next, after `now_ns`; `u64::MAX`: never.
    pub fn next(&self, now_ns: u64) -> u64 {
        match self.due.first() {
            None => u64::MAX,
            Some((next, _)) => next.saturating_sub(START).max(now_ns + 1),
        }
    }

    /// Notes when a machine has to run next.
    fn plan(&mut self, port: usize) {
        let machine = &mut self.machines[port];
        self.due.remove(&(machine.due, port));
        machine.due = machine.next();
        if machine.due < u64::MAX {
            self.due.insert((machine.due, port));
        }
    }

    pub fn take(&mut self) -> Option<&Leaving> {
        self.taken = self.leaving.pop_front();
        self.taken.as_ref()
    }

    /// Collects what leaves a port.
    fn collect(&mut self, port: usize) {
        let machine = &mut self.machines[port];
        machine.serve_sockets();
        let vm = &mut machine.served.vm;
        let mut leaving = |to_vm: bool, mut frame: Frame| {
            frame.settle();
            self.leaving.push_back(Leaving { port, to_vm, bytes: frame.bytes });
        };
        if vm.stands_until().is_none() {
            vm.port.ring.drain(..).for_each(|frame| leaving(true, frame));
        }
        vm.port.to_host.drain(..).for_each(|frame| leaving(false, frame));
        if machine.served.has_engine() {
            machine.served.hear_doorbell(machine.served.vm.now);
        }
        self.plan(port);
    }

    pub fn counts(&mut self) -> CCounts {
        let mut counts = CCounts { hold_bytes_host_most: self.held_most, ..CCounts::default() };
        let uplink = *self.machines[self.latest].served.vm.port.uplink();
        counts.shaped = uplink.all.open.max(0) as u64;
        counts.base_rtt_ns = uplink.base_rtt_ns.into();
        for machine in &mut self.machines {
            let vm = &mut machine.served.vm;
            counts.grants += u64::from(vm.port.shared_now().state.incast.grants);
            counts.ring_drops += vm.port.refused;
            let stats = vm.port.value::<port_stats>("stats", &[0; 4]);
            counts.early_acks += stats.map_or(0, |stats| stats.early_acks);
            counts.hold_bytes_most += machine.held_most;
            counts.engine_runs += machine.engine_runs;
        }
        counts
    }
}

impl Machine {
    fn new(settings: &Settings, number: u32) -> Self {
        let mut port = SimulatedPort::new(FIRST_TAP + number, settings.ring_frames, |_, _| {});
        // ns-3 has no super-packets.
        port.device.features = 0;
        let schedule = settings.stops.schedule(number.into());
        let fortune = Fortune { schedule, super_packets: false, ..Fortune::kind(DOORBELL_US) };
        let seed = settings.seed + u64::from(number);
        let mut served =
            Served::new(port, Box::new(NoGuest), fortune, Vec::new(), MOST_CONNECTIONS, seed);
        served.vm.now = START;
        served.vm.port.attached = settings.attached;
        let policy = served.vm.attach_settings();
        if settings.early != Early::Never {
            policy.run = port_run::PORT_ACCELERATE;
            policy.hold_chunks = (settings.hold_bytes / u64::from(HOLD_CHUNK)) as u32;
            served.start_engine(START);
        }
        if settings.incast.is_some() {
            served.vm.port.uplink_ifindex = Some(UPLINK);
        }
        let downloads = (settings.early == Early::Split).then(|| {
            Downloads::attach(&mut served.vm);
            let mut downloads = Downloads::new(Vec::new(), seed);
            downloads.namespace.super_packet_bytes = 0;
            downloads.start(&mut served.vm);
            downloads
        });
        let grants_at = if settings.incast.is_some() { START } else { u64::MAX };
        Self {
            served,
            unsent: VecDeque::new(),
            grants_at,
            helper_at: if settings.attached { START + LOOK_NS } else { u64::MAX },
            held: 0,
            held_most: 0,
            engine_runs: 0,
            downloads,
            sockets_at: u64::MAX,
            due: u64::MAX,
        }
    }

    fn come_in(&self, bytes: &[u8]) -> Frame {
        if self.downloads.is_some() { frame_for_sockets(bytes) } else { verified_frame(bytes) }
    }

    /// When it has something to do.
    fn next(&self) -> u64 {
        let waits = !self.served.vm.port.ring.is_empty() || !self.unsent.is_empty();
        let runs_at = if waits { self.served.vm.stands_until() } else { None };
        let runs_at = runs_at.unwrap_or(if waits { 0 } else { u64::MAX });
        let splitter_at = self.downloads.as_ref().map_or(u64::MAX, |downloads| downloads.at);
        let own = [self.grants_at, self.helper_at, self.served.engine_at, self.sockets_at];
        own.into_iter().fold(runs_at.min(splitter_at), u64::min)
    }

    fn run(&mut self, now: u64, is_early: bool) {
        if self.served.vm.stands_until().is_none() {
            for frame in std::mem::take(&mut self.unsent) {
                self.served.vm.port.from_vm(frame, &mut |_, _| {});
            }
        }
        if self.grants_at <= now {
            self.grants_at = self.served.vm.open_windows().unwrap_or(u64::MAX);
        }
        if self.served.engine_at <= now {
            self.served.run_engine(now);
            self.engine_runs += 1;
        }
        if let Some(downloads) = &mut self.downloads {
            if self.sockets_at <= now {
                downloads.namespace.timers(now);
            }
            if downloads.at <= now {
                downloads.work(&mut self.served.vm);
            }
        }
        if self.helper_at <= now {
            self.served.vm.helper();
            self.helper_at = now + LOOK_NS;
        }
        if is_early {
            let chunks = self.served.vm.state().chunks_used;
            self.held = u64::from(chunks) * u64::from(HOLD_CHUNK);
            self.held_most = self.held_most.max(self.held);
        }
    }

    /// Moves segments to the sockets of split connections and from them.
    fn serve_sockets(&mut self) {
        let Some(downloads) = &mut self.downloads else { return };
        let vm = &mut self.served.vm;
        downloads.exchange(vm, |_, _, _| {});
        downloads.hear(vm);
        self.sockets_at = downloads.namespace.next_timer(vm.now).unwrap_or(u64::MAX);
    }

    /// Tells the simulated devices of the engine and of sockets which connections there are.
    fn note_path(&mut self, bytes: &[u8], to_vm: bool) {
        let vm = &mut self.served.vm;
        if vm.connection(bytes, to_vm).is_some() || vm.paths.len() >= MOST_CONNECTIONS {
            return;
        }
        let Some(headers) = Headers::of_start(bytes).filter(Headers::tcp) else { return };
        let Some([sender, own]) = headers.ports(bytes) else { return };
        let Some([sender_ip, own_ip]) = headers.ips(bytes) else { return };
        let number = vm.paths.len();
        let [vm_mac, from_mac] = [0, 6].map(|at| bytes[at..at + 6].try_into().expect("6 bytes"));
        let path = Path {
            sender: (sender_ip, sender),
            vm: (own_ip, own),
            vm_mac,
            from_mac,
            next_hop: from_mac,
            vlan: None,
        };
        if let Some(downloads) = &mut self.downloads {
            downloads.namespace.paths.push((number, path.clone()));
        }
        vm.paths.push((number, path));
    }
}

//! Exhaustive search: one connection, and all events in every order.
//!
//! A state is a copy of sender, network, port with programs, maps and ring, engine, and VM. From
//! each state the search tries all actions that its [`Budget`] allows; it does not expand a state
//! twice.
//!
//! - *Safety*: every ACK to the sender is checked ([`checks::told`]), and so is every byte that
//!   either end receives.
//!   Of a split connection (`splitting`) the sockets must have, in every state, what either end was
//!   told of and the other has not received.
//! - *Progress*: from each state a fair continuation, without further faults and with all parts
//!   running, must end. A reset of a split connection must be the wish of an end, or counted.
//!
//! The clock moves only by one action, which goes to the next timer.

mod splitting;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use vsnoop_flow::testing::clock::{MS, START};
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{Tcp, TcpState};
use vsnoop_flow::types::{flow_mode, port_run};
use vsnoop_hold::LOOK_NS;

use crate::checks::{self, Told};
use crate::downloads::Downloads;
use crate::frame::Summed;
use crate::guest::{self, Guest, Kind};
use crate::host::{Fortune, Served, Vcpus, described};
use crate::kernel::SimulatedPort;
use crate::wire::{self, Path};

/// How often each fault may happen in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Losses between sender and host, both ways.
    pub network_losses: u8,
    /// A segment overtakes the one before it.
    pub overtakes: u8,
    /// Losses after the ring.
    pub guest_losses: u8,
    /// The VM misses the wake-up of its ring.
    pub misses: u8,
    /// The ring is full for a while.
    pub full_rings: u8,
    /// Deaths of the engine, between two of its runs or within one.
    pub kills: u8,
    /// Deaths of the helper.
    pub helper_kills: u8,
    /// SYN-ACKs of another socket of the VM that listens on the same port.
    pub other_syn_acks: u8,
    /// The VM is rolled back to its state at the start.
    pub roll_backs: u8,
    /// Moves of the VM to another port of the bridge.
    pub moves: u8,
    /// Deaths of the splitter, between two of its runs or at any call of one; of its keeper; and of
    /// both.
    pub splitter_kills: u8,
    pub keeper_kills: u8,
    pub splitting_kills: u8,
    /// Packets for the sockets of split connections wait for a while.
    pub socket_waits: u8,
    /// The splitter's ticks come sooner than by the clock: at any time.
    pub splitter_ticks: u8,
    /// The port is paused for a while.
    pub pauses: u8,
    /// An end resets the connection.
    pub aborts: u8,
    /// Steps of the clock to the next timer.
    pub times: u8,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    AtHost,
    AtHostSecond,
    LoseToHost,
    AtSender,
    LoseToSender,
    VmTakes,
    VmLoses,
    VmMisses,
    RingFills,
    RingEmpties,
    EngineRuns,
    EngineDies,
    /// The engine dies within a run, at this step.
    EngineDiesAt(u64),
    EngineStarts,
    HelperDies,
    /// Another helper starts, and looks at the port at once.
    HelperStarts,
    /// Another socket of the VM repeats its SYN-ACK.
    OtherSynAck,
    VmRollsBack,
    /// The VM is behind another port from now on.
    VmMoves,
    SplitterRuns,
    SplitterTicks,
    SplitterDies,
    /// The splitter dies at this call of a run, or of its start.
    SplitterDiesAt(u64),
    SplitterDiesAtStart(u64),
    SplitterStarts,
    KeeperDies,
    /// Splitter and keeper die.
    SplittingDies,
    SocketsWait,
    SocketsGoOn,
    PortPauses,
    PortResumes,
    VmAborts,
    SenderAborts,
    TimePasses,
}

/// Steps of an engine's run at which it may die; later ones add nothing.
const DEATHS: [u64; 6] = [2, 5, 8, 11, 13, 16];
/// A fair continuation must end by then.
const PATIENCE_NS: u64 = 400_000 * MS;
/// A fair continuation in which neither end closes must end by then: before a keep-alive probe of
/// an end, which wakes a VM too.
const PATIENCE_OPEN_NS: u64 = 4_000 * MS;

/// Parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub budget: Budget,
    /// Length of the sender's stream, segments.
    pub segments: u64,
    /// The VM's window, segments.
    pub window: u64,
    /// Length of the VM's stream, segments. If there are any, the VM is late, and the connection is
    /// split as soon as the splitter runs.
    pub vm_segments: u64,
    /// The splitter has run before the search begins.
    pub begins_split: bool,
    /// A fault for the checks to find: see [`crate::scenario::Machine::joins_early`].
    pub joins_early: bool,
    pub timestamps: bool,
    pub sack: bool,
    /// Includes the handshake; else the connection is established, and the VM has sent data.
    pub handshake: bool,
    /// Neither end closes: no FIN that the sender repeats comes behind the stream.
    pub stays_open: bool,
    /// The state of the VM's threads while it has nothing to read.
    pub vcpus: Vcpus,
}

impl Setting {
    /// Window of the sender, segments. A VM that is not acknowledged yet has more to send.
    fn sender_window(&self) -> u64 {
        if self.vm_segments > 0 { 2 } else { 8 }
    }
}

#[derive(Clone)]
struct SearchState {
    now: u64,
    served: Served,
    sender: Tcp,
    path: Path,
    told: Told,
    to_host: Vec<Seg>,
    to_sender: Vec<Seg>,
    budget: Budget,
    ring_is_full: bool,
    /// The helper's last look; none while it is dead.
    helped_at: Option<u64>,
    /// The VM at the start.
    saved: Option<Box<dyn Guest>>,
    was_rolled_back: bool,
    stays_open: bool,
    /// Bytes of the VM's stream.
    vm_bytes: u64,
    /// If the connection may be split.
    downloads: Option<Downloads>,
    sockets_wait: bool,
    was_aborted: bool,
}

const MSS: u16 = 100;

fn end(bytes: u64, window: u64, setting: &Setting) -> EndSettings {
    EndSettings {
        iss: 0u32.wrapping_sub(150),
        mss: MSS,
        units: 1,
        bytes,
        writes: 1,
        write_gap_ms: 1,
        rcvbuf: window * u64::from(MSS),
        scale: Some(1),
        timestamps: setting.timestamps,
        ts_offset: 0,
        sack: setting.sack,
        ecn: false,
        read: 1_000_000,
        read_gap_ms: 1,
        rto_ms: 200,
        retries: u32::MAX,
        data_probes: true,
        trims: true,
        dsack: false,
        closes_last: bytes == 0 || setting.stays_open,
        delayed_ack: false,
        tiny: 0,
        urgent: 0,
    }
}

fn rng() -> Rng {
    Rng::with_seed(1)
}

use Action::*;

impl SearchState {
    fn new(setting: &Setting) -> Self {
        let path = Path::new(0, 0, false);
        let bytes = setting.segments * u64::from(MSS);
        let vm_bytes = setting.vm_segments * u64::from(MSS);
        let ends = [(0, path.clone(), end(vm_bytes, setting.window, setting))];
        let fortune = Fortune { vcpus: setting.vcpus, ..Fortune::kind(1) };
        let mut port = SimulatedPort::new(10, 16, |name, shape| {
            // Small, because states are copied.
            let is_ring = name.starts_with("doorbell") || name == "split_ring";
            if shape.max_entries > 16 && !is_ring && name != "slabs" {
                shape.max_entries = 16;
            }
        });
        port.device.features = 0;
        let paths = vec![(0, path.clone())];
        let guest = guest::make(Kind::Linux, &ends, 0);
        let mut w = Self {
            now: START,
            served: Served::new(port, guest, fortune, paths, 1, 1),
            sender: Tcp::new(end(bytes, setting.sender_window(), setting), 0),
            path,
            told: Told { keeps_its_edge: true, ..Told::default() },
            to_host: Vec::new(),
            to_sender: Vec::new(),
            budget: setting.budget,
            ring_is_full: false,
            helped_at: Some(START),
            saved: None,
            was_rolled_back: false,
            stays_open: setting.stays_open,
            vm_bytes,
            downloads: None,
            sockets_wait: false,
            was_aborted: false,
        };
        let policy = w.served.vm.attach_settings();
        policy.run = port_run::PORT_ACCELERATE;
        // A VM whose connection is split may be ahead by a part of it.
        policy.hold_chunks = if vm_bytes > 0 { 256 } else { 16 };
        // The host never takes the VM for prompt, so that it acts wherever it can.
        policy.passive = 0;
        if vm_bytes > 0 {
            w.split(setting.joins_early);
        }
        w.served.start_engine(w.now);
        w.sender.open(w.now);
        w.flush();
        if !setting.handshake {
            w.budget = Budget::default();
            for action in [AtHost, VmTakes, AtSender, AtHost, VmTakes, EngineRuns] {
                w.act(action);
            }
            if setting.begins_split {
                w.act(SplitterRuns);
            }
            w.budget = setting.budget;
        }
        w.saved = (w.budget.roll_backs > 0).then(|| w.served.vm.guest.copy());
        w
    }

    /// The actions that are possible now.
    fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        let b = &self.budget;
        let mut allow = |action, is_possible: bool| {
            if is_possible {
                all.push(action);
            }
        };
        allow(AtHost, !self.to_host.is_empty());
        allow(AtHostSecond, self.to_host.len() > 1 && b.overtakes > 0);
        allow(LoseToHost, !self.to_host.is_empty() && b.network_losses > 0);
        allow(AtSender, !self.to_sender.is_empty());
        allow(LoseToSender, !self.to_sender.is_empty() && b.network_losses > 0);
        let is_woken = self.served.vm.is_woken();
        allow(VmTakes, is_woken);
        allow(VmLoses, is_woken && b.guest_losses > 0);
        allow(VmMisses, is_woken && !self.ring_is_full && b.misses > 0);
        allow(RingFills, !self.ring_is_full && b.full_rings > 0);
        allow(RingEmpties, self.ring_is_full);
        let lives = self.served.has_engine();
        allow(EngineRuns, lives && !self.is_split_only());
        allow(EngineDies, lives && b.kills > 0);
        for step in DEATHS {
            allow(EngineDiesAt(step), lives && b.kills > 0);
        }
        allow(EngineStarts, !lives);
        allow(HelperDies, self.helped_at.is_some() && b.helper_kills > 0);
        allow(HelperStarts, self.helped_at.is_none());
        let is_open = matches!(self.sender.state, TcpState::Open);
        allow(OtherSynAck, is_open && b.other_syn_acks > 0);
        allow(VmRollsBack, b.roll_backs > 0);
        allow(VmMoves, b.moves > 0);
        allow(TimePasses, b.times > 0);
        self.split_actions(&mut all);
        all
    }

    fn act(&mut self, action: Action) {
        match action {
            AtHost => {
                let s = self.to_host.remove(0);
                self.at_host(&s);
            }
            AtHostSecond => {
                self.budget.overtakes -= 1;
                let s = self.to_host.remove(1);
                self.at_host(&s);
            }
            LoseToHost => {
                self.budget.network_losses -= 1;
                self.to_host.remove(0);
            }
            AtSender => {
                let s = self.to_sender.remove(0);
                self.sender.input(self.now, &s, &mut rng());
            }
            LoseToSender => {
                self.budget.network_losses -= 1;
                self.to_sender.remove(0);
            }
            VmTakes => self.served.vm.take_one(false),
            VmLoses => {
                self.budget.guest_losses -= 1;
                self.served.vm.take_one(true);
            }
            VmMisses => {
                self.budget.misses -= 1;
                self.served.vm.miss_wake_up();
            }
            RingFills => {
                self.budget.full_rings -= 1;
                self.ring_is_full = true;
                self.served.vm.port.ring_slots = 0;
            }
            RingEmpties => {
                self.ring_is_full = false;
                self.served.vm.port.ring_slots = 16;
            }
            EngineRuns => {
                self.served.run_engine(self.now);
            }
            EngineDies => {
                self.budget.kills -= 1;
                self.served.stop_engine();
            }
            EngineDiesAt(step) => {
                self.budget.kills -= 1;
                self.served.vm.fortune.crash_at = Some(self.served.vm.steps + step);
                if self.served.run_engine(self.now) {
                    self.served.stop_engine();
                }
                self.served.vm.fortune.crash_at = None;
            }
            EngineStarts => {
                self.served.start_engine(self.now);
            }
            HelperDies => {
                self.budget.helper_kills -= 1;
                self.helped_at = None;
                self.served.vm.forget_helper();
            }
            HelperStarts => self.help(),
            OtherSynAck => {
                self.budget.other_syn_acks -= 1;
                let frame = wire::other_syn_ack(77_000, self.sender.cfg.iss, &self.path);
                self.served.vm.port.now = self.now;
                self.served.vm.port.from_vm(frame, &mut |_, _| {});
            }
            VmRollsBack => {
                self.budget.roll_backs -= 1;
                self.was_rolled_back = true;
                self.served.vm.guest = self.saved.take().expect("its state was saved");
            }
            VmMoves => {
                self.budget.moves -= 1;
                self.served.vm.away.has_moved = true;
                self.told.keeps_its_edge = false;
            }
            TimePasses => {
                self.budget.times -= 1;
                self.pass_time();
            }
            of_downloads => self.act_on_split(of_downloads),
        }
        self.flush();
    }

    fn at_host(&mut self, s: &Seg) {
        let frame = wire::encode(s, &self.path, true, Summed::Unnecessary);
        self.served.vm.now = self.now;
        if self.served.vm.away.has_moved {
            return self.served.vm.arrives_elsewhere(0, frame);
        }
        self.served.vm.egress(frame);
        let newest = self.served.vm.port.ring.back().and_then(wire::decode);
        if let Some(newest) = newest.filter(|newest| newest.has(ACK)) {
            self.served.vm.acked(0, &newest);
        }
    }

    /// Moves the clock to the next timer, if there is one.
    fn pass_time(&mut self) {
        let sender = self.sender.next_timer(self.now);
        let vm = self.served.vm.guest.next_timer(self.now);
        let engine = self.served.has_engine().then(|| self.served.next_tick().max(self.now + MS));
        let helper = self.helped_at.map(|at| at + LOOK_NS);
        let (sockets, splitter) = self.split_timers();
        let all = [sender, vm, engine, helper, sockets, splitter];
        let Some(next) = all.into_iter().flatten().min() else { return };
        self.now = next;
        self.served.vm.now = next;
        if sender.is_some_and(|at| at <= next) {
            self.sender.timers(next, &mut rng());
        }
        if vm.is_some_and(|at| at <= next) {
            self.served.vm.guest.timers(next, &mut rng());
        }
        self.serve_sockets();
        if self.helped_at.is_some_and(|at| next >= at + LOOK_NS) {
            self.help();
        }
    }

    /// The helper looks at the port.
    fn help(&mut self) {
        self.helped_at = Some(self.now);
        self.served.vm.helper();
    }

    /// Moves all output to its next stop.
    fn flush(&mut self) {
        self.served.vm.now = self.now;
        self.served.vm.rng = rng();
        self.served.vm.hear();
        self.flush_sockets();
        while let Some(frame) = self.served.vm.port.to_host.pop_front() {
            self.served.vm.note(|| format!("   host > {}", described(&frame)));
            let s = wire::decode(&frame).expect("a whole frame");
            // The checks know what the VM has; one that was rolled back has less than it
            // acknowledged.
            if self.sender.state != TcpState::Reset && !self.was_rolled_back {
                let Self { told, served, sender, path, downloads, .. } = self;
                let sockets = downloads.as_ref().map(|downloads| &downloads.namespace);
                checks::told(told, (&mut served.vm, sockets), 0, &frame, &s, sender, path);
            }
            self.to_sender.push(s);
        }
        while let Some(frame) = self.served.vm.away.sent.pop_front() {
            self.to_sender.push(wire::decode(&frame).expect("a whole frame"));
        }
        while let Some(s) = self.sender.out.pop_front() {
            self.served.vm.note(|| format!("   sender > {}", brief(&s)));
            self.to_host.push(s);
        }
        self.check_sockets();
    }

    fn is_over(&self) -> bool {
        // Its ends may wait for each other for ever, as without vsnoop; the host may not.
        if self.was_rolled_back && self.host_has_let_go() {
            return true;
        }
        let progress = self.served.vm.guest.progress(0);
        let vm_is_over = progress.is_done || progress.is_reset;
        vm_is_over && self.sender.is_over() || self.is_exact()
    }

    /// Has each end what it waits for?
    fn is_exact(&self) -> bool {
        let (sender, progress) = (&self.sender, self.served.vm.guest.progress(0));
        if self.stays_open {
            let bytes = sender.cfg.bytes;
            let is_received = sender.rcv_nxt == self.vm_bytes + 1;
            return sender.una == bytes + 1 && progress.accepted == bytes + 1 && is_received;
        }
        sender.is_done() && progress.is_done || self.is_reset_after_all()
    }

    /// Is nothing outstanding that the host has acknowledged?
    fn host_has_let_go(&self) -> bool {
        self.served.vm.flow_of(0).is_none_or(|(_, f)| {
            u32::from(f.mode) == flow_mode::FLOW_RESET || f.next_seq.diff(f.vm_seq) <= 0
        })
    }

    /// Continues without faults. Returns whether it ends in a reset; an error if it does not end.
    fn continue_fairly(mut self) -> Result<bool, String> {
        let deadline = self.now + if self.stays_open { PATIENCE_OPEN_NS } else { PATIENCE_NS };
        let mut engine_waits = 0;
        self.act_if(self.ring_is_full, Action::RingEmpties);
        self.act_if(self.helped_at.is_none(), Action::HelperStarts);
        self.act_if(self.sockets_wait, Action::SocketsGoOn);
        while !self.is_over() {
            if self.now > deadline {
                return Err(format!("it hangs: {}", self.describe()));
            }
            self.act_if(!self.to_host.is_empty(), Action::AtHost);
            self.act_if(!self.to_sender.is_empty(), Action::AtSender);
            self.act_if(self.served.vm.is_woken(), Action::VmTakes);
            if !self.served.has_engine() {
                self.act(Action::EngineStarts);
            }
            self.act(Action::EngineRuns);
            self.continue_split();
            let is_quiet = self.to_host.is_empty()
                && self.to_sender.is_empty()
                && !self.served.vm.is_woken()
                && self.split_waits();
            engine_waits = if is_quiet { engine_waits + 1 } else { 0 };
            if engine_waits > 1 {
                self.pass_time();
                self.flush();
            }
        }
        let is_exact = self.is_exact();
        if !is_exact && !self.has_reason() {
            return Err(format!("it is reset for no reason: {}", self.describe()));
        }
        Ok(is_exact)
    }

    fn act_if(&mut self, is_wanted: bool, action: Action) {
        if is_wanted {
            self.act(action);
        }
    }

    fn describe(&self) -> String {
        let t = &self.sender;
        format!(
            "after {} ms, sender {:?} {}..{} edge {} received {} fin {}, vm {:?}, {:?}",
            (self.now - START) / MS,
            t.state,
            t.una,
            t.nxt,
            t.snd_edge,
            t.rcv_nxt,
            t.got_fin,
            self.served.vm.guest.progress(0),
            self.served.vm.flow_of(0)
        )
    }

    fn digest(&self, into: &mut Vec<u8>) -> u128 {
        into.clear();
        self.served.digest(into);
        self.digest_split(into);
        let rest = (&self.sender, &self.told, &self.to_host, &self.to_sender, self.now);
        let faults = (&self.budget, self.ring_is_full, self.helped_at, self.was_rolled_back);
        let of_split = (self.sockets_wait, self.was_aborted);
        into.extend(format!("{rest:?} {faults:?} {of_split:?}").bytes());
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &into[..]).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(1) << 64 | half(2)
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    pub states: usize,
    pub transitions: usize,
    /// Fair continuations that ended in a reset.
    pub resets: usize,
    pub exact: usize,
    /// States in which the host holds bytes that the VM was not handed yet.
    pub holding: usize,
    /// States in which the connection is split.
    pub split: usize,
    /// States in which it was joined.
    pub joined: usize,
    /// A history that leads to a violation, and the violation.
    pub wrong: Option<(Vec<Action>, String)>,
    /// All states were visited; else the search stopped at its limit.
    pub is_complete: bool,
}

struct Search {
    found: Found,
    met: HashSet<u128>,
    history: Vec<Action>,
    most: usize,
    buffer: Vec<u8>,
}

/// Searches all histories, up to `most` states.
pub fn search(setting: &Setting, most: usize) -> Found {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut search = Search {
        found: Found::default(),
        met: HashSet::new(),
        history: Vec::new(),
        most,
        buffer: Vec::new(),
    };
    search.visit(SearchState::new(setting));
    std::panic::set_hook(hook);
    search.found.is_complete = search.found.states < most;
    search.found
}

/// Replays one history, with a trace if `VSNOOP_TRACE` is set.
pub fn replay(setting: &Setting, history: &[Action]) -> Result<bool, String> {
    let mut w = SearchState::new(setting);
    for &action in history {
        w.served.vm.note(|| format!("{action:?}"));
        w.act(action);
    }
    w.served.vm.note(|| "and fairly".into());
    w.continue_fairly()
}

fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
}

impl Search {
    fn visit(&mut self, w: SearchState) {
        let digest = w.digest(&mut self.buffer);
        if self.found.wrong.is_some() || self.found.states >= self.most || !self.met.insert(digest)
        {
            return;
        }
        self.found.states += 1;
        let mode = w.served.vm.flow_of(0).map(|(_, f)| u32::from(f.mode));
        self.found.holding += usize::from(mode == Some(flow_mode::FLOW_HOLDING));
        self.found.split += usize::from(w.is_split());
        self.found.joined += usize::from(w.was_joined());
        let copy = AssertUnwindSafe(w.clone());
        match catch_unwind(|| { copy }.0.continue_fairly()).unwrap_or_else(|e| Err(message(e))) {
            Ok(true) => self.found.exact += 1,
            Ok(false) => self.found.resets += 1,
            Err(why) => return self.is_wrong(why),
        }
        for action in w.actions() {
            self.found.transitions += 1;
            let mut next = w.clone();
            self.history.push(action);
            match catch_unwind(AssertUnwindSafe(|| next.act(action))) {
                Ok(()) => self.visit(next),
                Err(panic) => self.is_wrong(message(panic)),
            }
            self.history.pop();
            if self.found.wrong.is_some() {
                return;
            }
        }
    }

    fn is_wrong(&mut self, why: String) {
        if self.found.wrong.is_none() {
            self.found.wrong = Some((self.history.clone(), why));
        }
    }
}

//! The scenarios that are run with vsnoop and without it, one for each kind of fault or load.

use fastrand::Rng;
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::network::Network;

use crate::guest::{Kind, Link};
use crate::host::{Fortune, Vcpus};
use crate::scenario::{Act, Connection, LastHop, Machine, Scenario};
use crate::schedule::Schedule;

/// A fault or load of the VM, its connections, or vsnoop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Healthy,
    /// The VM stops repeatedly: for this many ms of each 400 ms.
    Frozen(u64),
    /// The VM stops once, for 5 s.
    FrozenLong,
    /// The VM loses frames after its ring, and before its tap, per thousand.
    Lossy(u32, u32),
    /// A VM whose vCPUs are halted when it has nothing to do loses frames after its ring, per
    /// thousand.
    Idle(u32),
    /// The VM of [`Self::Idle`] takes no super-packets, and its monitor's threads have unknown
    /// names.
    IdleInSegments(u32),
    /// A VM whose vCPUs are halted, or whose monitor's threads have unknown names, misses wake-ups
    /// of its ring, per thousand.
    MissesWakeUps(u32, Vcpus),
    /// The network loses and reorders frames, per thousand.
    LossyNetwork(u32),
    /// The network loses and reorders frames each way, per thousand; the ends have no SACK, no
    /// timestamps and a window of four small segments, which are lwIP's defaults.
    LossyWithoutSack(u32),
    /// lwIP itself sends over a network with the same loss, per thousand, and the VM has a window
    /// of this many bytes (Linux only).
    LwipSends(u32, u64),
    SlowReader,
    SmallWindow,
    /// The VM sends until long after the sender has closed.
    HalfClosed,
    BothWays,
    Abort(bool),
    /// Two sockets of the VM listen on the port (smoltcp only). The SYN-ACK of one is lost, the
    /// repeated SYN meets the other one, and the first repeats its SYN-ACK.
    TwoListeners,
    /// Another socket of the VM that listens on the port repeats its SYN-ACK, while the VM stops
    /// for 50 ms of each 100 ms.
    OtherSynAck,
    SmallRing,
    AttachedLate,
    DetachedEarly,
    Paused,
    EngineKilled,
    EngineKilledForGood,
    /// The VM is rolled back in mid-transfer to what it was before (Linux only).
    RolledBack,
    /// The VM is rolled back to what it was before the connection, whose ends are idle and send
    /// keep-alive probes (Linux only).
    RolledBackIdle,
    /// The VM's TCP has no memory for this many ms, and drops what it was handed (Linux only).
    WithoutMemory(u64),
    /// The senders of several connections, without SACK, share a small hold.
    SmallHold,
    /// The VM moves to another port of the bridge in mid-transfer.
    Moves,
    /// Several CPUs of the host run the programs at the same time.
    Races,
    /// Many senders answer at the same time through a last hop with a short queue, incast control
    /// is on, and the VM stops for this many ms of each 100 ms.
    Incast(u64),
    /// The VM forwards to a slower path, and stops for this many ms of each 100 ms.
    Forwards(u64),
    /// The VM of [`Self::Forwards`] forwards to 10 Mb/s at 50 ms each way behind a short queue,
    /// with a wide window.
    ForwardsFar(u64),
    /// The VM forwards to a link with a smaller MTU, and stops for this many ms of each 100 ms.
    ForwardsSmaller(u64),
    /// The VM, which stops for 80 ms of each 100 ms, sends, and its connection is split; the
    /// network loses and reorders frames, per thousand.
    Downloads(u32),
    /// The VM of [`Self::Downloads`] sends three answers, between which the connection is joined.
    DownloadsJoined(u32),
    /// The port is paused for a while amid [`Self::Downloads`], so that the connection is joined.
    DownloadsPaused(u32),
    /// The splitter is killed again and again amid [`Self::Downloads`], at any of its calls.
    DownloadsKilled(u32),
    /// An upload of the same length runs beside [`Self::Downloads`].
    DownloadsBothWays(u32),
    /// The VM, or its peer, resets the connection amid a download.
    DownloadsAborted(bool),
}

/// A fifth of the sender's least retransmission timeout.
const NOISE_MS: u64 = 50;
/// The time until another engine begins, ms.
const ABSENCE_MS: u64 = 500;
/// A VM has slept for 1 s beside an unread ring before the engine's timeouts count.
const MISSED_MS: u64 = 1_300;
/// The engine asks where its VM is at this interval, ms.
const LOOK_MS: u64 = vsnoop_hold::moves::LOOK_NS / 1_000_000;

impl Case {
    /// May a connection be reset that is not reset without vsnoop? Yes, where an end aborts it,
    /// because its progress by then is a matter of time; and where no engine is left to hand over
    /// its bytes.
    pub fn may_be_reset(self) -> bool {
        matches!(self, Case::Abort(_) | Case::DownloadsAborted(_) | Case::EngineKilledForGood)
    }

    /// The time by which it may be longer than a third more than without vsnoop, ms; `None` if its
    /// duration is a matter of chance. A missing engine delays what only it can hand over.
    pub fn delay_ms(self) -> Option<u64> {
        match self {
            Case::Abort(_) | Case::DownloadsAborted(_) => None,
            Case::EngineKilled => Some(NOISE_MS + ABSENCE_MS),
            Case::DownloadsKilled(_) => None,
            Case::Moves => Some(NOISE_MS + LOOK_MS),
            Case::MissesWakeUps(..) => Some(NOISE_MS + MISSED_MS),
            _ => Some(NOISE_MS),
        }
    }

    /// Can this VM have the fault?
    pub fn is_for(self, kind: Kind) -> bool {
        let is_of_linux =
            matches!(self, Case::RolledBack | Case::RolledBackIdle | Case::WithoutMemory(_));
        match self {
            Case::TwoListeners => kind == Kind::Smol,
            // smoltcp forgets the FIN of a segment beyond a hole, and then takes it no more.
            Case::LwipSends(..) => kind == Kind::Linux,
            _ => !is_of_linux || kind == Kind::Linux,
        }
    }

    /// Is there incast control? Then many senders share a last hop.
    pub fn has_incast(self) -> bool {
        matches!(self, Case::Incast(_))
    }

    /// Are connections split?
    pub fn has_downloads(self) -> bool {
        use Case::*;
        matches!(
            self,
            Downloads(_)
                | DownloadsJoined(_)
                | DownloadsPaused(_)
                | DownloadsKilled(_)
                | DownloadsBothWays(_)
                | DownloadsAborted(_)
        )
    }

    /// Are connections split, joined, and split again?
    pub fn is_split_again(self) -> bool {
        matches!(self, Case::DownloadsJoined(0))
    }

    /// Does the VM forward to a path that takes less than the VM is sent at first?
    pub fn is_forwarded_far(self) -> bool {
        matches!(self, Case::ForwardsFar(_))
    }

    /// All cases.
    pub fn all() -> Vec<Self> {
        use Case::*;
        vec![
            Healthy,
            Frozen(50),
            Frozen(150),
            Frozen(300),
            FrozenLong,
            Lossy(10, 0),
            Lossy(0, 10),
            Lossy(50, 0),
            Lossy(0, 50),
            Lossy(50, 50),
            Idle(50),
            IdleInSegments(50),
            MissesWakeUps(20, Vcpus::Halted),
            MissesWakeUps(20, Vcpus::Unnamed),
            LossyNetwork(20),
            LossyWithoutSack(50),
            LwipSends(50, 4 * 1_440),
            LwipSends(10, 16_384),
            SlowReader,
            SmallWindow,
            HalfClosed,
            BothWays,
            Abort(false),
            Abort(true),
            TwoListeners,
            OtherSynAck,
            SmallRing,
            AttachedLate,
            DetachedEarly,
            Paused,
            EngineKilled,
            EngineKilledForGood,
            RolledBack,
            RolledBackIdle,
            WithoutMemory(100),
            SmallHold,
            Moves,
            Races,
            Incast(0),
            Incast(50),
            Forwards(0),
            Forwards(50),
            ForwardsFar(0),
            ForwardsFar(50),
            ForwardsSmaller(0),
            ForwardsSmaller(50),
            Downloads(0),
            Downloads(20),
            DownloadsJoined(0),
            DownloadsJoined(20),
            DownloadsPaused(0),
            DownloadsPaused(20),
            DownloadsKilled(20),
            DownloadsBothWays(0),
            DownloadsBothWays(20),
            DownloadsAborted(false),
            DownloadsAborted(true),
        ]
    }
}

/// An end with ordinary properties.
pub(crate) fn end(rng: &mut Rng, bytes: u64) -> EndSettings {
    EndSettings {
        iss: if rng.bool() { 0u32.wrapping_sub(rng.u32(0..200_000)) } else { rng.u32(..) },
        mss: 1448,
        units: if rng.bool() { 1 } else { 20 },
        bytes,
        writes: 1,
        write_gap_ms: 1,
        rcvbuf: 65_535,
        scale: Some(7),
        timestamps: true,
        ts_offset: rng.u32(..),
        sack: true,
        ecn: false,
        read: 1_000_000,
        read_gap_ms: 1,
        rto_ms: 250,
        retries: 15,
        data_probes: rng.bool(),
        trims: true,
        dsack: rng.bool(),
        closes_last: false,
        delayed_ack: true,
        tiny: 0,
        urgent: 0,
    }
}

/// A VM that runs undisturbed, and its port.
pub(crate) fn machine(kind: Kind) -> Machine {
    Machine {
        kind,
        leg: None,
        fortune: Fortune::kind(100),
        ring_slots: 500,
        gso: kind == Kind::Linux,
        downloads: false,
        joins_early: false,
        splitter_crashes: 0,
        chunks: 1024,
        ahead: u32::MAX,
        incast: None,
        absence_ms: Some(ABSENCE_MS),
        acts: Vec::new(),
        attached: true,
    }
}

/// The scenario of this case, receiver and seed.
pub fn scenario(case: Case, kind: Kind, seed: u64, without: bool) -> Scenario {
    let mut rng = Rng::with_seed(seed);
    let sizes: &[u64] = match case {
        // Long enough for the fault to occur.
        Case::Frozen(_)
        | Case::FrozenLong
        | Case::Lossy(..)
        | Case::Idle(_)
        | Case::IdleInSegments(_)
        | Case::TwoListeners
        | Case::Moves
        | Case::RolledBack => &[300_000, 1_000_000],
        Case::Incast(_) => &[20_000, 60_000],
        Case::LossyWithoutSack(_) => &[100_000],
        Case::LwipSends(..) => &[300_000],
        Case::WithoutMemory(_) => &[10_000],
        Case::ForwardsFar(_) => &[1_000_000, 3_000_000],
        _ => &[1_000, 10_000, 100_000, 300_000, 1_000_000],
    };
    let bytes = sizes[rng.usize(0..sizes.len())];
    let mut connection = connection(kind, bytes, &mut rng);
    let mut machine = machine(kind);
    arrange(case, &mut machine, &mut connection, &mut rng);
    let (mut connections, mut last_hop) = (vec![connection], None);
    if case == Case::SmallHold {
        add_connections(&mut connections, 6, &mut rng);
    }
    if case.has_incast() {
        last_hop = Some(incast(&mut machine, &mut connections, 8, &mut rng));
    }
    Scenario {
        seed,
        machines: vec![machine],
        connections,
        last_hop,
        hostile_ms: 300_000,
        patience_ms: 400_000,
        without,
    }
}

/// Makes `count` connections of the first one, which begin together, behind a last hop that incast
/// control knows.
pub(crate) fn incast(
    machine: &mut Machine,
    connections: &mut Vec<Connection>,
    count: usize,
    rng: &mut Rng,
) -> LastHop {
    let hop = LastHop { mbps: 1_000, queue: [32 << 10, 64 << 10][rng.usize(0..2)] };
    machine.incast = Some((hop.mbps * 1_000_000, hop.queue));
    add_connections(connections, count, rng);
    hop
}

/// Makes `count` connections of the first one.
fn add_connections(connections: &mut Vec<Connection>, count: usize, rng: &mut Rng) {
    for _ in 1..count {
        let mut other = connections[0].clone();
        other.sender.iss = rng.u32(..);
        other.guest.iss = rng.u32(..);
        connections.push(other);
    }
}

/// A connection without faults; the sender has `bytes`.
fn connection(kind: Kind, bytes: u64, rng: &mut Rng) -> Connection {
    let delay_us = [50, 500, 5_000][rng.usize(0..3)];
    let link = Network {
        delay_us,
        jitter_us: 0,
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        reorder: 0,
        congestion: 0,
    };
    let mut connection = Connection {
        vm: 0,
        ipv6: kind != Kind::Smol && rng.u8(0..4) == 0,
        vlan: (kind != Kind::Smol && rng.u8(0..4) == 0).then_some(7),
        is_asymmetric: rng.u8(0..4) == 0,
        vm_opens: kind != Kind::Smol && rng.u8(0..4) == 0,
        sender: end(rng, bytes),
        guest: end(rng, 200),
        to_vm: link.clone(),
        from_vm: link,
        start_ms: 0,
        abort: None,
        other_syn_acks: Vec::new(),
        has_two_listeners: false,
        sender_is_lwip: false,
    };
    connection.guest.closes_last = true;
    if kind == Kind::Linux && rng.u8(0..4) == 0 {
        connection.guest.timestamps = false;
    }
    if kind == Kind::Lwip && rng.u8(0..4) == 0 {
        // lwIP uses timestamps if its peer does.
        connection.sender.timestamps = false;
    }
    if kind == Kind::Smol {
        // It accepts no segment larger than its MTU unless the device takes super-packets.
        connection.guest.rcvbuf = 65_536;
    }
    connection
}

/// A late VM sends, and its connections are split.
fn download(loss: u32, machine: &mut Machine, connection: &mut Connection, rng: &mut Rng) {
    machine.downloads = true;
    machine.fortune.schedule = Schedule::Periodic { from: rng.u64(0..5), period: 100, stop: 80 };
    // Tags are not for sockets.
    connection.vlan = None;
    connection.guest.bytes = [300_000, 1_000_000][rng.usize(0..2)];
    connection.sender.bytes = 200;
    connection.sender.rcvbuf = 1_000_000;
    (connection.sender.closes_last, connection.guest.closes_last) = (true, false);
    for link in [&mut connection.to_vm, &mut connection.from_vm] {
        (link.delay_us, link.loss, link.reorder) = (10_000, loss, loss);
    }
}

/// Adds what the case is about to a machine and its connection.
fn arrange(case: Case, machine: &mut Machine, connection: &mut Connection, rng: &mut Rng) {
    let some_time = rng.u64(1..300);
    match case {
        Case::Healthy => {}
        Case::Frozen(stop) => {
            machine.fortune.schedule =
                Schedule::Periodic { from: rng.u64(0..100), period: 400, stop };
        }
        Case::FrozenLong => {
            machine.fortune.schedule = Schedule::Once { at: rng.u64(0..3), stop: 5_000 };
        }
        Case::Lossy(after_ring, before_tap) => machine.fortune.loss = (after_ring, before_tap),
        Case::Idle(loss) => {
            machine.fortune.vcpus = Vcpus::Halted;
            machine.fortune.loss = (loss, 0);
        }
        Case::IdleInSegments(loss) => {
            machine.fortune.vcpus = Vcpus::Unnamed;
            machine.fortune.super_packets = false;
            machine.fortune.loss = (loss, 0);
        }
        Case::MissesWakeUps(misses, vcpus) => {
            machine.fortune.vcpus = vcpus;
            machine.fortune.misses = misses;
        }
        Case::LossyNetwork(loss) => {
            for link in [&mut connection.to_vm, &mut connection.from_vm] {
                (link.loss, link.reorder, link.duplicate) = (loss, loss, loss / 4);
                link.corrupt = loss / 4;
            }
        }
        Case::LossyWithoutSack(loss) => {
            (connection.to_vm.loss, connection.from_vm.loss) = (loss, loss);
            for end in [&mut connection.sender, &mut connection.guest] {
                (end.mss, end.units, end.sack, end.timestamps) = (536, 1, false, false);
            }
            connection.guest.rcvbuf = 4 * 536;
        }
        Case::LwipSends(loss, window) => {
            (connection.to_vm.loss, connection.from_vm.loss) = (loss, loss);
            (connection.sender_is_lwip, connection.vm_opens) = (true, false);
            let guest = &mut connection.guest;
            (guest.mss, guest.sack, guest.timestamps) = (1_440, false, false);
            guest.rcvbuf = window;
        }
        Case::SlowReader => {
            (connection.guest.read, connection.guest.read_gap_ms) = (8_000, 10);
        }
        Case::SmallWindow => connection.guest.rcvbuf = 4_344,
        Case::HalfClosed => {
            connection.guest.bytes = 100_000;
            (connection.guest.writes, connection.guest.write_gap_ms) = (20, 40);
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::BothWays => {
            connection.guest.bytes = connection.sender.bytes;
            connection.guest.closes_last = false;
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::Abort(by_vm) => {
            connection.abort = Some((by_vm, some_time));
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::OtherSynAck => {
            // They come when lost SYN-ACKs are repeated, and in the midst of the transfer.
            connection.other_syn_acks = vec![rng.u64(0..20), rng.u64(20..60), some_time];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::TwoListeners => {
            connection.has_two_listeners = true;
            // It lasts beyond the second SYN-ACK.
            (connection.sender.writes, connection.sender.write_gap_ms) = (40, 100);
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::SmallRing => {
            machine.ring_slots = 8;
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::AttachedLate => {
            machine.attached = false;
            machine.acts = vec![(some_time / 4, Act::Attach)];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::DetachedEarly => {
            machine.acts = vec![(some_time / 2, Act::Detach), (some_time + 300, Act::Attach)];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::Paused => {
            machine.acts = vec![(some_time / 2, Act::Pause), (some_time + 300, Act::Resume)];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::EngineKilled => {
            machine.fortune.crashes = 500;
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::EngineKilledForGood => {
            machine.fortune.crash_at = Some(rng.u64(1..400));
            machine.absence_ms = None;
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::RolledBack => {
            (connection.sender.writes, connection.sender.write_gap_ms) = (40, 20);
            // Once all is acknowledged the sender waits for the VM, and has nothing to repeat.
            connection.sender.closes_last = true;
            connection.guest.closes_last = false;
            (connection.guest.writes, connection.guest.write_gap_ms) = (2, 300_000);
            machine.acts = vec![(some_time, Act::Save), (some_time + 200, Act::RollBack)];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::WithoutMemory(ms) => {
            // The host leaves a segment with FIN to the VM.
            (connection.sender.closes_last, connection.guest.closes_last) = (true, false);
            // It is handed all, drops it, and shows its window again before the sender repeats it.
            machine.acts = vec![(0, Act::HasNoMemory), (ms, Act::HasMemory)];
        }
        Case::SmallHold => {
            machine.chunks = 16;
            for end in [&mut connection.sender, &mut connection.guest] {
                end.sack = false;
            }
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::RolledBackIdle => {
            connection.vm_opens = false;
            connection.sender.closes_last = true;
            connection.guest.closes_last = false;
            (connection.guest.writes, connection.guest.write_gap_ms) = (2, 300_000);
            machine.acts = vec![(0, Act::Save), (2_000, Act::RollBack)];
        }
        Case::Moves => {
            machine.acts = vec![(some_time, Act::Move)];
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
        Case::Incast(stop) => {
            // Only flows with short round trips are shaped.
            (connection.to_vm.delay_us, connection.from_vm.delay_us) = (50, 50);
            // Super-packets are made behind the last hop.
            connection.sender.units = 1;
            if stop > 0 {
                let from = rng.u64(0..5);
                machine.fortune.schedule = Schedule::Periodic { from, period: 100, stop };
            }
        }
        Case::Forwards(stop) => {
            machine.leg =
                Some(Link { mbps: 50, queue: 256 << 10, delay_ns: 10_000_000, mtu: None });
            if stop > 0 {
                machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop };
            }
        }
        Case::ForwardsFar(stop) => {
            machine.leg = Some(Link { mbps: 10, queue: 64 << 10, delay_ns: 50_000_000, mtu: None });
            if machine.kind != Kind::Lwip {
                connection.guest.rcvbuf = 300_000;
            }
            if stop > 0 {
                machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop };
            }
        }
        Case::ForwardsSmaller(stop) => {
            let delay_ns = 10_000_000;
            machine.leg = Some(Link { mbps: 50, queue: 256 << 10, delay_ns, mtu: Some(1_400) });
            (connection.ipv6, connection.vlan, connection.is_asymmetric) = (false, None, false);
            // By then the VM was seen to wait.
            connection.start_ms = 2_500;
            if stop > 0 {
                machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop };
            }
        }
        Case::Downloads(loss) => download(loss, machine, connection, rng),
        Case::DownloadsJoined(loss) => {
            download(loss, machine, connection, rng);
            (connection.guest.writes, connection.guest.write_gap_ms) = (3, 4_000);
        }
        Case::DownloadsPaused(loss) => {
            download(loss, machine, connection, rng);
            (connection.guest.writes, connection.guest.write_gap_ms) = (20, 100);
            let at = rng.u64(300..1_500);
            machine.acts = vec![(at, Act::Pause), (at + 600, Act::Resume)];
        }
        Case::DownloadsKilled(loss) => {
            download(loss, machine, connection, rng);
            (connection.guest.writes, connection.guest.write_gap_ms) = (20, 100);
            machine.splitter_crashes = 200;
        }
        Case::DownloadsBothWays(loss) => {
            download(loss, machine, connection, rng);
            connection.sender.bytes = connection.guest.bytes;
        }
        Case::DownloadsAborted(by_vm) => {
            download(0, machine, connection, rng);
            connection.abort = Some((by_vm, rng.u64(100..1_000)));
        }
        Case::Races => {
            machine.fortune.races = 300;
            machine.fortune.schedule = Schedule::Periodic { from: 0, period: 100, stop: 50 };
        }
    }
}

//! A VM and senders of its owner attack the time of engine and helper, beside another VM.
//!
//! The attackers do only what a port may: they have connections in its table, and bytes in its
//! hold. Each costs the engine more than it costs them: one byte in a segment, and an ACK that
//! opens the window by one byte, after which the engine hands over the next, or that closes it, so
//! that it is probed. Other connections of theirs are reset and begin anew as fast as they can be
//! written.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::format::{ACK, RST, SYN};
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::net::{Tap, TapOptions};
use vsnoop_testbed::raw_vm;

use crate::attack::{count, ensure_unharmed, good, stats};
use crate::helper::{AttachedNetwork, Pair};
use crate::hold::{MUCH, freeze_with_much};
use crate::sandbox::{PORT, TapHost, pid_of, running, vsnoop, wait_until};
use crate::spent::{by_this_thread, watch};
use crate::surroundings::{port_of, wait_for_a_look};

/// Connections of the attackers for which the engine has work, and those that are reset and begin
/// again; by their numbers.
const STAYING: Range<u32> = 0..2000;
const RESET: Range<u32> = 2000..2500;
/// Those that only stay on record: the helper looks at each of them, which takes it more than the
/// tenth of a CPU that it may have.
const IDLE: Range<u32> = 60_000..160_000;
/// Limit of connections of the attackers' port, so that theirs fit.
const MAX_FLOWS: u32 = 1 << 17;
/// Connections of each of the senders.
const OF_SENDER: u32 = 60_000;
/// The engine's CPU time by that of the attackers, who write each frame to a tap, hooks included: a
/// fifth to a third, and more than this if the engine worked without any work to do.
const ENGINE_PER_ATTACKER: f64 = 0.75;
/// A tenth of a CPU, and room for one look more: the time that is measured is no whole number of
/// the helper's periods.
const HELPER_SHARE: f64 = 0.15;
/// How often the helper is waited for, after all else: five periods at least.
const LOOKS: usize = 3;
/// Bytes that a sender is ahead of its VM, each in a segment.
const AHEAD: u32 = 8;
/// The fewest rounds over all connections; they go on while the other VM works.
const ROUNDS: u32 = 20;
/// Exchanges of the other VM during the attack.
const EXCHANGES: usize = 20;

const VM: ([u8; 6], [u8; 4]) = ([2; 6], [10, 66, 0, 2]);
/// The first of them; the others have the next addresses.
const SENDER: ([u8; 6], [u8; 4]) = ([4; 6], [10, 66, 0, 9]);
const SERVER: u16 = 80;
/// First bytes of both directions.
const FROM_SENDER: u32 = 1000;
const FROM_VM: u32 = 5000;

pub fn trials() -> Vec<Trial> {
    trials![a_vm_that_occupies_engine_and_helper_takes_nothing_from_a_vm_beside_it]
}

/// A VM and its senders, at two taps of one bridge.
struct Attackers {
    host: TapHost,
    senders: Tap,
}

impl Attackers {
    fn new() -> Result<Self> {
        let host = TapHost::new("occupies")?;
        host.netns.bridge("br0")?;
        let senders = host.netns.tap("senders", &TapOptions::default())?;
        for port in [PORT, "senders"] {
            host.netns.add_port("br0", port)?;
        }
        let flows = MAX_FLOWS.to_string();
        let options = ["--no-passive", "--hold", "16M", "--max-flows", &flows];
        host.vsnoop([&["attach", PORT], &options[..]].concat())?.ok()?;
        Ok(Self { host, senders })
    }

    fn say(&self, from_vm: bool, number: u32, segment: Segment) -> Result<()> {
        let mut sender = SENDER;
        sender.1[3] += (number / OF_SENDER) as u8;
        let port = 1 + (number % OF_SENDER) as u16;
        let (tap, from, to, ports) = match from_vm {
            true => (&self.host.tap, VM, sender, (SERVER, port)),
            false => (&self.senders, sender, VM, (port, SERVER)),
        };
        let ethernet = Ethernet { source: from.0, destination: to.0, ..Ethernet::default() };
        let route = Route::new(ethernet, Addresses::V4(from.1, to.1));
        let Segment { flags, sequence, acknowledgment, window, payload } = segment;
        let frame = TcpFrame::new(route, ports.0, ports.1);
        let frame = TcpFrame { flags, sequence, acknowledgment, window, ..frame };
        raw_vm::send(tap, &frame.build(payload))
    }

    fn open(&self, number: u32) -> Result<()> {
        let window = u16::MAX;
        let from = |sequence, acknowledgment, flags| Segment {
            flags,
            sequence,
            acknowledgment,
            window,
            payload: b"",
        };
        self.say(false, number, from(FROM_SENDER - 1, 0, SYN))?;
        self.say(true, number, from(FROM_VM - 1, FROM_SENDER, SYN | ACK))?;
        self.say(false, number, from(FROM_SENDER, FROM_VM, ACK))?;
        // With data of the VM the connection is confirmed.
        let first = Segment { window: 1, payload: b"x", ..from(FROM_VM, FROM_SENDER, ACK) };
        self.say(true, number, first)
    }

    fn reset(&self, number: u32) -> Result<()> {
        let (sequence, acknowledgment) = (FROM_VM + 1, FROM_SENDER);
        let reset = Segment { flags: RST | ACK, sequence, acknowledgment, window: 0, payload: b"" };
        self.say(true, number, reset)
    }

    /// One byte more of a sender, and of the VM an ACK of one more, which opens its window by one
    /// byte or closes it.
    fn trickle(&self, number: u32, round: u32) -> Result<()> {
        let sequence = FROM_SENDER + round + AHEAD - 1;
        let acknowledgment = FROM_VM + 1;
        let byte =
            Segment { flags: ACK, sequence, acknowledgment, window: u16::MAX, payload: b"y" };
        self.say(false, number, byte)?;
        let (sequence, acknowledgment) = (FROM_VM + 1, FROM_SENDER + round);
        let window = u16::from(!(round + number).is_multiple_of(5));
        let ack = Segment { flags: ACK, sequence, acknowledgment, window, payload: b"" };
        self.say(true, number, ack)
    }

    /// Reads what came at both taps, so that no ring is full.
    fn drain(&self) -> Result<()> {
        let mut packet = Pool::default().take();
        for tap in [&self.host.tap, &self.senders] {
            while tap.read(&mut packet).context("read a frame")? {}
        }
        Ok(())
    }

    /// Opens what stays.
    fn begin(&self) -> Result<()> {
        for number in IDLE {
            self.open(number)?;
            if number.is_multiple_of(16) {
                self.drain()?;
            }
        }
        for number in STAYING {
            self.open(number)?;
            for ahead in 0..AHEAD - 1 {
                let (sequence, acknowledgment) = (FROM_SENDER + ahead, FROM_VM + 1);
                let (flags, window) = (ACK, u16::MAX);
                let payload = b"y";
                let byte = Segment { flags, sequence, acknowledgment, window, payload };
                self.say(false, number, byte)?;
            }
            self.drain()?;
        }
        Ok(())
    }

    /// Until it is told to end, and for [`ROUNDS`] at least.
    fn attack(&self, is_over: &AtomicBool) -> Result<Attack> {
        let before = by_this_thread()?;
        let mut round = 0;
        while round < ROUNDS || !is_over.load(Ordering::Relaxed) {
            for number in STAYING {
                self.trickle(number, round)?;
                if number.is_multiple_of(16) {
                    self.drain()?;
                }
            }
            for number in RESET {
                self.open(number)?;
                self.reset(number)?;
            }
            self.drain()?;
            round += 1;
        }
        Ok(Attack { rounds: round, cpu: by_this_thread()? - before })
    }
}

/// The rounds of an attack, and its CPU time.
#[derive(Debug)]
struct Attack {
    rounds: u32,
    cpu: Duration,
}

struct Segment {
    flags: u8,
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    payload: &'static [u8],
}

/// The engine hands over bytes that were acknowledged for a VM that stood still.
fn held_bytes_arrive(network: &AttachedNetwork, pair: &mut Pair) -> Result<()> {
    freeze_with_much(network, pair)?;
    network.thaw();
    let mut received = vec![0; MUCH];
    pair.server.read_exact(&mut received).context("what was held")?;
    ensure!(received == vec![7; MUCH], "the VM received something else");
    pair.server.write_all(b"done")?;
    pair.client.read_exact(&mut [0; 4]).context("its answer")
}

fn work_beside(network: &AttachedNetwork, pair: &mut Pair) -> Result<()> {
    for _ in 0..EXCHANGES {
        pair.exchange(300_000)?;
    }
    held_bytes_arrive(network, pair)?;
    // The helper has its turn, too: it starts the next engine.
    let before = running("engine")?;
    kill(Pid::from_raw(before), Signal::SIGKILL)?;
    wait_until("another engine runs", || Ok(pid_of("engine")?.is_some_and(|pid| pid != before)))?;
    held_bytes_arrive(network, pair)?;
    network.connect_to(5002)?.exchange(300_000)
}

fn a_vm_that_occupies_engine_and_helper_takes_nothing_from_a_vm_beside_it() -> Result<()> {
    let (network, mut pair) = good("works")?;
    let early = network.early_acks()?;
    let attackers = Attackers::new()?;
    attackers.begin()?;
    let port = port_of(&attackers.host)?;
    let (is_over, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (attack, [engine, helper]) = thread::scope(|scope| {
        let watching = ["engine", "helper"].map(|role| scope.spawn(|| watch(role, &is_done)));
        let attacking = scope.spawn(|| attackers.attack(&is_over));
        let worked = work_beside(&network, &mut pair)
            .and_then(|()| (0..LOOKS).try_for_each(|_| wait_for_a_look(&port)));
        is_over.store(true, Ordering::Relaxed);
        let attack = joined(attacking);
        is_done.store(true, Ordering::Relaxed);
        let spent = watching.map(joined);
        worked.and(attack).map(|attack| (attack, spent))
    })?;
    ensure_unharmed(&network, early)?;
    let attacked = stats(attackers.host.netns.name(), PORT)?;
    let handovers = attacked["hold"]["handovers"].as_u64().context("no handovers")?;
    ensure!(handovers > STAYING.len() as u64, "the engine had little to do: {attacked}");
    let created = count(&attacked, "flows_created")?;
    let staying = (STAYING.len() + IDLE.len()) as u64;
    ensure!(created > staying, "{created} connections in {} rounds: {attacked}", attack.rounds);
    let per_attacker = engine.cpu.as_secs_f64() / attack.cpu.as_secs_f64();
    let is_bounded = per_attacker < ENGINE_PER_ATTACKER && helper.share() < HELPER_SHARE;
    let share = helper.share();
    ensure!(is_bounded, "{per_attacker:.2}: {engine:?} for {attack:?}; {share:.2}: {helper:?}");
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

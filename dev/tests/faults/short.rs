//! Many short connections of a late VM whose downloads are split: each ends as its ends want it,
//! and leaves no socket, descriptor or entry behind. With `VSNOOP_SOAK=1` there are
//! `VSNOOP_SHORT_CONNECTIONS` of them, and the memory of splitter and keeper is printed.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use socket2::{SockRef, Socket};
use vsnoop_bpf::Port;
use vsnoop_bpf::split::SplitPort;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::soak::is_soak;
use vsnoop_testbed::topology::{
    CLIENT_DEVICE, Family, PORT, Side, Topology, UPLINK, VM_DEVICE, address,
};

use crate::attached::Attached;
use crate::background::Process::{Keeper, Splitter};
use crate::case::{Case, SHARING_A_CORE};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial("short::connections_end_as_their_ends_want_and_leave_nothing", many)]
}

const FEW: u64 = 3_000;
const MANY: u64 = 1_000_000;
/// Connections at a time: one worker has each, and waits for the VM's turns.
const WORKERS: u64 = 320;
const REQUEST: usize = 200;
const SMALL: usize = 1_000;
const LARGE: usize = 100_000;
/// The client reads this much of a large answer before it resets.
const PART: usize = 20_000;
/// All that one end writes fits in: one thread has both ends.
const BUFFER: usize = 212_992;
/// Far longer than a machine takes on which each of several runs waits for a CPU.
const PATIENCE: Duration = Duration::from_secs(120);
/// So few that they are soon used again.
const PORTS: (&str, &str) = ("net.ipv4.ip_local_port_range", "32768 33791");
/// Queues in which nothing is lost.
const FRAMES: usize = 100_000;
/// One connection in this many may miss its reset.
const SELDOM: u64 = 500;
/// Ends that had to ask whether they were reset.
static MISSED_RESETS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Samples of a run.
const SAMPLES: u64 = 20;

/// How a connection goes.
#[derive(Clone, Copy, Debug)]
enum Script {
    /// A request, an answer, and the VM closes.
    Small,
    Large,
    /// The client closes first.
    ClientCloses,
    /// The client closes its direction with the request.
    HalfClosed,
    /// Much in both directions at once.
    Both,
    /// Several answers on one connection.
    KeptOpen,
    ClientResets,
    VmResets,
}

const SCRIPTS: [Script; 8] = [
    Script::Small,
    Script::Large,
    Script::ClientCloses,
    Script::HalfClosed,
    Script::Both,
    Script::KeptOpen,
    Script::ClientResets,
    Script::VmResets,
];

/// Bytes of a pattern; connections begin at different places of it.
struct Pattern(Vec<u8>);

impl Pattern {
    const CYCLE: usize = 251;

    fn new() -> Self {
        Self((0..LARGE + Self::CYCLE).map(|at| (at % Self::CYCLE) as u8).collect())
    }

    fn bytes_for(&self, number: u64, bytes: usize) -> &[u8] {
        let begin = (number % Self::CYCLE as u64) as usize;
        &self.0[begin..begin + bytes]
    }
}

struct Pair {
    client: TcpStream,
    vm: TcpStream,
}

/// Runs one connection.
fn run(script: Script, pair: Pair, number: u64, pattern: &Pattern) -> Result<()> {
    let Pair { mut client, mut vm } = pair;
    let request = pattern.bytes_for(number + 1, REQUEST);
    client.write_all(request)?;
    if matches!(script, Script::HalfClosed) {
        client.shutdown(Shutdown::Write)?;
    }
    expect(&mut vm, request).context("the request")?;
    let (small, large) = (pattern.bytes_for(number, SMALL), pattern.bytes_for(number, LARGE));
    match script {
        Script::Small => answer(&mut vm, &mut client, small)?,
        Script::Large | Script::ClientCloses => answer(&mut vm, &mut client, large)?,
        Script::HalfClosed => {
            expect_end(&mut vm)?;
            answer(&mut vm, &mut client, large)?;
        }
        Script::Both => {
            client.write_all(large)?;
            answer(&mut vm, &mut client, large)?;
            expect(&mut vm, large).context("the upload")?;
        }
        Script::KeptOpen => {
            for bytes in [small, large, small, large] {
                answer(&mut vm, &mut client, bytes)?;
            }
        }
        Script::ClientResets => {
            vm.write_all(large)?;
            expect(&mut client, &large[..PART]).context("a part of the answer")?;
            reset(client)?;
            return expect_reset(&mut vm, &[]).context("the VM");
        }
        Script::VmResets => {
            vm.write_all(large)?;
            reset(vm)?;
            return expect_reset(&mut client, large).context("the client");
        }
    }
    let (first, mut second) = match script {
        Script::ClientCloses | Script::HalfClosed => (client, vm),
        _ => (vm, client),
    };
    close_both(first, &mut second, matches!(script, Script::HalfClosed))
}

fn answer(vm: &mut TcpStream, client: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    vm.write_all(bytes)?;
    expect(client, bytes).context("the answer")
}

fn close_both(mut first: TcpStream, second: &mut TcpStream, has_closed: bool) -> Result<()> {
    if !has_closed {
        first.shutdown(Shutdown::Write)?;
        expect_end(second)?;
    }
    second.shutdown(Shutdown::Write)?;
    expect_end(&mut first)
}

fn expect(end: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut received = vec![0; bytes.len()];
    end.read_exact(&mut received)?;
    ensure!(received == bytes, "wrong bytes");
    Ok(())
}

fn expect_end(end: &mut TcpStream) -> Result<()> {
    ensure!(end.read(&mut [0]).context("waiting for the end")? == 0, "more bytes than wanted");
    Ok(())
}

fn reset(end: TcpStream) -> Result<()> {
    Ok(Socket::from(end).set_linger(Some(Duration::ZERO))?)
}

/// Expects the beginning of `bytes`, and then the reset. An end whose reset was lost asks the
/// other, which sends one again.
fn expect_reset(end: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut buffer = vec![0; LARGE];
    let (mut left, mut has_asked) = (bytes, false);
    loop {
        match end.read(&mut buffer) {
            Ok(0) => bail!("an end instead of a reset, {} bytes before all", left.len()),
            Ok(count) => {
                let expected = left.split_off(..count).context("more bytes than wanted")?;
                ensure!(buffer[..count] == *expected, "wrong bytes");
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !has_asked => {
                has_asked = true;
                let which = format!("{end:?}, {} bytes before all", left.len());
                MISSED_RESETS.lock().unwrap_or_else(PoisonError::into_inner).push(which);
                end.write_all(&[0]).context("ask the other end")?;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("no reset, {} to come", left.len()));
            }
        }
    }
}

/// Opens connections one after the other, from the namespace of the calling thread.
struct Worker<'a> {
    opener: Side,
    listener: TcpListener,
    at: SocketAddr,
    pattern: &'a Pattern,
}

impl<'a> Worker<'a> {
    fn new(topology: &Topology, number: u64, pattern: &'a Pattern) -> Result<Self> {
        let family = if number.is_multiple_of(4) { Family::V6 } else { Family::V4 };
        let (opener, acceptor) = match number % 3 {
            0 => (Side::Vm, Side::Client),
            _ => (Side::Client, Side::Vm),
        };
        let to = SocketAddr::new(address(acceptor, family), 0);
        let listener = topology.netns(acceptor).run(|| Ok(TcpListener::bind(to)?))?;
        let at = listener.local_addr()?;
        Ok(Self { opener, listener, at, pattern })
    }

    /// After a failure no other is begun.
    fn work(&self, next: &AtomicU64, count: u64) -> Result<()> {
        let worked = self.work_on(next, count);
        if worked.is_err() {
            next.fetch_max(count, Ordering::Relaxed);
        }
        worked
    }

    fn work_on(&self, next: &AtomicU64, count: u64) -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let script = SCRIPTS[number as usize % SCRIPTS.len()];
            let pair = self.connect().with_context(|| {
                format!("connection {number}, {script:?}, by {:?}, {}", self.opener, self.at)
            })?;
            let ends = format!("{:?}, {:?}", pair.client, pair.vm);
            run(script, pair, number, self.pattern)
                .with_context(|| format!("connection {number}, {script:?}: {ends}"))?;
        }
    }

    fn connect(&self) -> Result<Pair> {
        let opened = TcpStream::connect(self.at).context("connect")?;
        let (accepted, _) = self.listener.accept().context("accept")?;
        for end in [&opened, &accepted] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(PATIENCE))?;
            end.set_write_timeout(Some(PATIENCE))?;
            SockRef::from(end).set_send_buffer_size(BUFFER)?;
        }
        Ok(match self.opener {
            Side::Client => Pair { client: opened, vm: accepted },
            Side::Vm => Pair { client: accepted, vm: opened },
        })
    }
}

/// Memory and descriptors of the background processes at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    splitter_kib: u64,
    keeper_kib: u64,
    descriptors: usize,
}

impl Sample {
    fn take() -> Result<Self> {
        let (splitter, keeper) = (Splitter.next(None)?, Keeper.next(None)?);
        Ok(Self {
            splitter_kib: resident_kib(splitter)?,
            keeper_kib: resident_kib(keeper)?,
            descriptors: descriptors(splitter)? + descriptors(keeper)?,
        })
    }
}

fn resident_kib(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn descriptors(pid: i32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Lists the open files of splitter and keeper, for a failure.
fn open_descriptors() -> Result<Vec<PathBuf>> {
    let mut open = Vec::new();
    for pid in [Splitter.next(None)?, Keeper.next(None)?] {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            open.extend(fs::read_link(entry?.path()));
        }
    }
    Ok(open)
}

/// Sockets of TCP in the network namespace of the splitter, but for those that only wait for the
/// last segments of what is over.
fn sockets() -> Result<usize> {
    const TIME_WAIT: &str = "06";
    let pid = Splitter.next(None)?;
    let mut count = 0;
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        let state = |line: &str| Some(line.split_whitespace().nth(3)? != TIME_WAIT);
        count += text.lines().skip(1).filter(|line| state(line) == Some(true)).count();
    }
    Ok(count)
}

/// Packets that the kernel has dropped because too many waited on a CPU
/// (net.core.netdev_max_backlog, which is the machine's).
fn kernel_drops() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat")?;
    let dropped = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().map(|line| dropped(line).with_context(|| format!("no drops in {line}"))).sum()
}

fn wanted_count() -> u64 {
    if !is_soak() {
        return FEW;
    }
    let count = std::env::var("VSNOOP_SHORT_CONNECTIONS").ok().and_then(|it| it.parse().ok());
    count.unwrap_or(MANY)
}

fn many() -> Result<()> {
    let delay = Faults { delay: Duration::from_millis(5), ..Faults::default() };
    let case = Case {
        options: &["--downloads", "on"],
        hold: Some("64M"),
        freezes: &[SHARING_A_CORE],
        sysctls: vec![PORTS, ("net.ipv4.tcp_tw_reuse", "1")],
        network: delay,
        ..Case::default()
    };
    let topology = case.build()?;
    // A RST that is lost would be missed by an end that only reads, with and without vsnoop.
    topology.vm.set_txqueuelen(VM_DEVICE, FRAMES)?;
    for device in [PORT, UPLINK] {
        topology.host.set_txqueuelen(device, FRAMES)?;
    }
    topology.client.set_txqueuelen(CLIENT_DEVICE, FRAMES)?;
    let mut attached = case.attach(&topology)?;
    let split = open(&topology)?;
    // It opens the port's pins, and speaks to the keeper, some time after the attachment.
    attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
    let (before, dropped) = (Sample::take()?, kernel_drops()?);
    let count = wanted_count();
    let samples = connect_all(&topology, &attached, count, &split)?;
    let asked = split.counters().wanted;
    ensure!(asked > count / 10, "only {asked} of {count} were to be split");
    let dropped = kernel_drops()? - dropped;
    let missed = MISSED_RESETS.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        missed.len() as u64 <= dropped.min(count / SELDOM),
        "resets were missed by {missed:#?}; {dropped} packets dropped"
    );
    drop(missed);
    topology.guest().set_freeze(Freeze::Never);
    attached.wait_until("no connection is split", || Ok(split.split_flows().is_empty()))?;
    attached.wait_until("the sockets are closed", || Ok(sockets()? == 0))?;
    let are_closed = || Ok(Sample::take()?.descriptors <= before.descriptors);
    attached
        .wait_until("the descriptors are closed", are_closed)
        .with_context(|| format!("{before:?}, open are {:#?}", open_descriptors()))?;
    ensure!(split.counters().splits == 0, "{} are counted", split.counters().splits);
    ensure_flat(&samples)?;
    attached.detach()
}

fn open(topology: &Topology) -> Result<SplitPort> {
    let host = &topology.host;
    let index = host.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
    Ok(SplitPort::open(&Port::open(host.inode()?, index)?)?)
}

/// Returns what there was meanwhile, at equal distances.
fn connect_all(
    topology: &Topology,
    attached: &Attached<'_>,
    count: u64,
    split: &SplitPort,
) -> Result<Vec<Sample>> {
    let (pattern, next, began) = (Pattern::new(), AtomicU64::new(0), Instant::now());
    let mut samples = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for number in 0..WORKERS {
            let worker = Worker::new(topology, number, &pattern)?;
            let (netns, next) = (topology.netns(worker.opener), &next);
            running.push(scope.spawn(move || netns.run(|| worker.work(next, count))));
        }
        for step in 1..=SAMPLES {
            while next.load(Ordering::Relaxed) < count * step / SAMPLES {
                thread::sleep(Duration::from_millis(100));
            }
            let sample = Sample::take()?;
            let (done, asked) = (next.load(Ordering::Relaxed), split.counters().wanted);
            eprintln!("{done} connections, {asked} asked, {:?}: {sample:?}", began.elapsed());
            samples.push(sample);
        }
        for worker in running {
            worker.join().ok().context("a worker panicked")?.with_context(|| state(attached))?;
        }
        Ok(())
    })?;
    Ok(samples)
}

/// Describes the port for a failure: it has too many connections to show them all.
fn state(attached: &Attached<'_>) -> String {
    attached.run(&["stats", PORT, "--json"]).unwrap_or_else(|error| format!("{error:#}"))
}

/// The later half of the samples has no more memory than the earlier one, but for some noise. A
/// splitter that had little of a CPU in the earlier half reaches its 25 MB in the later one.
fn ensure_flat(samples: &[Sample]) -> Result<()> {
    const NOISE_KIB: u64 = 8 << 10;
    const SETTLED_KIB: u64 = 32 << 10;
    let (earlier, later) = samples.split_at(samples.len() / 2);
    let most = |size: fn(&Sample) -> u64, samples: &[Sample]| samples.iter().map(size).max();
    for size in [|it: &Sample| it.splitter_kib, |it: &Sample| it.keeper_kib] {
        let (before, after) = (most(size, earlier).unwrap_or(0), most(size, later).unwrap_or(0));
        ensure!(
            after <= SETTLED_KIB.max(before + before / 4 + NOISE_KIB),
            "{before} KiB became {after}: {samples:?}"
        );
    }
    Ok(())
}

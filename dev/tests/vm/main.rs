//! Transfers to real virtual machines while the worst happens to them.
//!
//! Two guests share a core; what is done to the first must leave transfers to the second alone. All
//! tests run one after the other on the same guests and the same attached port. Each transfer is
//! verified byte by byte by its receiver. No test looks at a clock: a transfer that comes to
//! nothing within its (generous) limit has hung. How long a transfer lasts depends on the machine,
//! so what is to happen in the middle of one is tried again with more bytes where it came too late.
//!
//! `VSNOOP_VM_TESTS=detached` runs the same without vsnoop, which shows what the guests and the
//! tests themselves are worth. Where the tests cannot run they say why and count as ignored.

mod behind;
mod hold;
mod link;
mod rollback;

use std::net::{SocketAddr, SocketAddrV4};
use std::process::{Command as Process, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use vsnoop_guest::control::{Command, ROUNDS_PORT, Reply};
use vsnoop_guest::transfer::Direction::{self, Download, Upload};
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage};
use vsnoop_testbed::vm::{self, Share};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait;
use vsnoop_testbed::workspace;
use vsnoop_tests::{PREFIX, background};

use behind::Behind;

/// The machine that suffers, and its neighbour.
const VICTIM: usize = 0;
const NEIGHBOUR: usize = 1;
const KB: u64 = 1000;
const MB: u64 = 1000 * KB;
/// A tap's ring as the kernel makes it, in frames.
const DEFAULT_RING: usize = 1000;
/// Far longer than any of these transfers takes with all its recoveries, also on a slow machine.
const LIMIT: Duration = Duration::from_secs(600);
const BOOT_TIMEOUT: Duration = Duration::from_secs(600);
/// A ring that is not full after this time will not be.
const FULL: Duration = Duration::from_secs(2);
/// Time for which a test watches a transfer whose other end has vanished and that cannot be reset.
const LONELY: Duration = Duration::from_secs(20);

struct Bench {
    // Before the stage, in whose namespaces it is.
    behind: Behind,
    // Before the session, which expects that its machines are gone.
    stage: Stage,
    attached: bool,
    _session: Session,
}

type Test = fn(&Bench) -> Result<()>;

const TESTS: [(&str, Test); 20] = [
    ("rounds_of_dctcp_senders_in_a_guest_are_exact", rounds),
    ("streams_of_all_sizes_and_both_directions_are_exact", exact_streams),
    ("a_loaded_vm_receives_exact_streams", loaded),
    ("a_vm_frozen_in_mid_transfer_loses_nothing", frozen),
    ("a_link_over_udp_carries_exact_streams_of_a_machine", link::by_udp),
    ("a_link_over_tls_carries_exact_streams_of_a_machine", link::by_tls),
    ("a_small_ring_loses_nothing", small_ring),
    ("a_ring_shrunk_while_full_loses_nothing", shrunk_ring),
    ("detach_and_attach_in_mid_transfer_lose_nothing", detach_and_attach),
    ("a_guest_firewall_that_loses_segments_harms_no_connection", firewall),
    ("hold_mends_what_a_guest_firewall_loses_1_percent", hold::firewall_of_1_percent),
    ("hold_mends_what_a_guest_firewall_loses_20_percent", hold::firewall_of_20_percent),
    ("hold_outlives_its_engine_in_mid_transfer", hold::engine_killed),
    ("hold_keeps_what_a_paused_guest_has_no_time_for", hold::paused),
    ("an_idle_guest_that_loses_what_it_was_handed_gets_it_again", behind::idle_guest),
    ("uploads_through_a_router_guest_end_as_without_vsnoop", behind::router),
    ("the_peer_of_a_guest_that_is_rolled_back_sees_an_end", rollback::rolled_back),
    // Bonds the cards of that guest permanently.
    ("a_guest_that_fails_over_to_its_second_card_leaves_no_hang", behind::fail_over),
    // Removes the victim's network permanently.
    ("a_tap_deleted_in_mid_transfer_harms_nobody_else", deleted_tap),
    // Removes the neighbour permanently.
    ("hold_resets_the_sender_of_a_guest_that_is_killed", hold::killed),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let shown = if arguments.list { Some("only listed".to_owned()) } else { obstacle() };
    if let Some(reason) = shown {
        eprintln!("VM tests: {reason}");
        return libtest_mimic::run(&arguments, trials(&Err(reason), true)).exit_code();
    }
    // On this thread, which outlives the machines: they die with the thread that started them.
    let bench = prepare().map(Arc::new).map_err(|error| format!("no machines: {error:#}"));
    let conclusion = libtest_mimic::run(&arguments, trials(&bench, false));
    drop(bench);
    conclusion.exit_code()
}

fn trials(bench: &Result<Arc<Bench>, String>, ignored: bool) -> Vec<Trial> {
    let trial = |&(name, test): &(&str, Test)| {
        let bench = bench.clone();
        let run = move || match bench {
            Ok(bench) => test(&bench).map_err(|error| Failed::from(format!("{error:#}"))),
            Err(reason) => Err(reason.into()),
        };
        Trial::test(name, run).with_kind("vm").with_ignored_flag(ignored)
    };
    TESTS.iter().map(trial).collect()
}

/// Why this machine cannot run VM tests at all; anything else that goes wrong is a failure.
fn obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("they need root".into());
    }
    if let Err(error) = vm::require_two_cores() {
        return Some(format!("{error:#}"));
    }
    vm::require_qemu().err().map(|error| format!("{error:#}"))
}

fn prepare() -> Result<Bench> {
    let detached = std::env::var_os("VSNOOP_VM_TESTS").is_some_and(|value| value == "detached");
    let vsnoop = if detached { None } else { Some(Vsnoop::find()?) };
    interrupt::install()?;
    let image = guest::prepare(guest::Options {
        firewall: true,
        dctcp: true,
        ..guest::Options::default()
    })?;
    let mut session = Session::begin()?;
    let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
    let mut stage = Stage::build(&mut session, &image, accelerator, 2, vsnoop.as_ref())?;
    let behind = Behind::build(&mut session, accelerator, &stage)?;
    vm::pin_self()?;
    stage.share(Share::Slices)?;
    if !detached {
        stage.attach(VICTIM)?;
        stage.attach(NEIGHBOUR)?;
    }
    Ok(Bench { behind, stage, attached: !detached, _session: session })
}

impl Bench {
    fn request(&self, machine: usize, direction: Direction, size_bytes: u64) -> Request {
        Request {
            server: self.stage.server(machine),
            direction,
            size_bytes,
            seed: fastrand::u64(..),
            congestion_control: CONGESTION_CONTROL,
            timeout: LIMIT,
        }
    }

    fn transfer(&self, machine: usize, direction: Direction, size_bytes: u64) -> Result<Outcome> {
        client::transfer(self.stage.client(), &self.request(machine, direction, size_bytes))
    }

    fn exact(&self, machine: usize, direction: Direction, size_bytes: u64) -> Result<()> {
        match self.transfer(machine, direction, size_bytes)? {
            Outcome::Exact(_) => Ok(()),
            other => bail!("{direction:?} of {size_bytes} bytes to VM {machine}: {other:?}"),
        }
    }

    fn early_acks(&self, machine: usize) -> Result<u64> {
        if !self.attached {
            return Ok(0);
        }
        let stats = self.stage.vsnoop()?.stats(self.stage.tap(machine))?;
        find_count(&stats, "early_acks").with_context(|| format!("no early_acks in {stats}"))
    }

    /// An error with the port's counters unless it has acknowledged early since it had `before`.
    fn ensure_early_acks(&self, before: u64, when: &str) -> Result<()> {
        if self.attached && self.early_acks(VICTIM)? <= before {
            bail!("nothing was acknowledged early {when}: {}", self.story(VICTIM));
        }
        Ok(())
    }

    /// Waits until the victim's tap has carried `bytes` more than at `since`.
    fn until_moved(&self, since: u64, bytes: u64) -> Result<()> {
        wait_until("the transfer moves", || {
            Ok(self.stage.tap_counts(VICTIM)?.to_vm_bytes >= since + bytes)
        })
    }

    /// The output of `vsnoop status` for a machine's port; `None` when it does not list it.
    fn status(&self, machine: usize) -> Result<Option<Value>> {
        let output = Process::new(workspace::vsnoop_command()?)
            .args(["--netns", self.stage.host().name(), "status", "--json"])
            .stdin(Stdio::null())
            .output()
            .context("run vsnoop status")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vsnoop status failed: {}", complaint.trim());
        let status: Value =
            serde_json::from_slice(&output.stdout).context("vsnoop status printed no JSON")?;
        let ports = status["ports"].as_array().context("vsnoop status lists no ports")?;
        Ok(ports.iter().find(|port| port["port"] == self.stage.tap(machine)).cloned())
    }

    /// Bytes that vsnoop acknowledged for the victim, and that it has not acknowledged itself.
    fn outstanding_bytes(&self) -> Result<u64> {
        let status = self.status(VICTIM)?.context("the victim's port is not attached")?;
        status["outstanding_bytes"].as_u64().context("vsnoop status has no outstanding_bytes")
    }

    /// Freezes the victim at a moment when bytes are outstanding, if vsnoop is attached; `None`
    /// when `over` before that. A frozen machine acknowledges nothing, so that they stay
    /// outstanding.
    fn freeze_with_outstanding(&self, over: impl Fn() -> bool) -> Result<Option<Frozen<'_>>> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            interrupt::check()?;
            let frozen = Frozen::begin(self)?;
            // Frames under way arrive in the ring.
            let mut carried = 0;
            wait_until("no more frames come", || {
                let before = carried;
                carried = self.stage.tap_counts(VICTIM)?.to_vm_bytes;
                Ok(carried == before)
            })?;
            if over() {
                return Ok(None);
            }
            if !self.attached || self.outstanding_bytes()? > 0 {
                return Ok(Some(frozen));
            }
            let moved = self.stage.tap_counts(VICTIM)?.to_vm_bytes + MB;
            drop(frozen);
            wait_until("the transfer moves on", || {
                Ok(over() || self.stage.tap_counts(VICTIM)?.to_vm_bytes >= moved)
            })?;
        }
        bail!("nothing is ever outstanding: {}", self.story(VICTIM))
    }

    /// Waits until the guest's server has no connection left: its TCP, too, must know the end.
    fn until_no_connection(&self, machine: usize) -> Result<()> {
        wait_until("the guest's connections end", || Ok(self.stage.vm(machine).stats()?.open == 0))
            .with_context(|| self.story(machine))
    }

    /// Reports of vsnoop about a machine's port, for a failure's message.
    fn story(&self, machine: usize) -> String {
        let tell = || -> Result<String> {
            let vsnoop = self.stage.vsnoop()?;
            let port = self.stage.tap(machine);
            Ok(format!("stats {} flows {}", vsnoop.stats(port)?, vsnoop.flows(port)?))
        };
        tell().unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// The victim asks its neighbour, on connections that begin anew in the middle. DCTCP is none
/// without ECN, which is noticed.
fn rounds(bench: &Bench) -> Result<()> {
    const COUNT: u16 = 5;
    let (receiver, sender) = (bench.stage.vm(VICTIM), bench.stage.vm(NEIGHBOUR));
    let SocketAddr::V4(server) = bench.stage.server(NEIGHBOUR) else {
        bail!("guests have addresses of IPv4");
    };
    let to = (0..COUNT).map(|number| SocketAddrV4::new(*server.ip(), ROUNDS_PORT + number));
    let to: Vec<_> = to.collect();
    let open = || -> Result<Reply> {
        let congestion_control = "dctcp".to_owned();
        sender.command(&Command::ListenForRounds { first: 0, count: COUNT, congestion_control })?;
        receiver.command(&Command::OpenRounds { to: to.clone(), congestion_control: None })?;
        sender.command(&Command::AcceptRounds)
    };
    let close = || {
        receiver.command(&Command::CloseRounds)?;
        sender.command(&Command::CloseRounds)
    };
    let ecn = |value: &str| {
        let (key, value) = ("net.ipv4.tcp_ecn".to_owned(), value.to_owned());
        receiver.command(&Command::Sysctl { key, value })
    };
    let round = |senders: usize, limit_ms: u64| {
        receiver.command(&Command::Round { senders, bytes: 64 * KB, limit_ms })
    };
    ensure!(round(1, 1).is_err(), "a round without connections");
    ensure!(open().is_err(), "a connection without ECN was taken for DCTCP");
    close()?;
    ecn("1")?;
    for _ in 0..2 {
        open()?;
        for senders in [1, usize::from(COUNT), 2] {
            let reply = round(senders, 100_000)?;
            let Reply::Round { took_ns: Some(_), missing } = reply else {
                bail!("a round of {senders} senders: {reply:?}");
            };
            ensure!(missing.is_empty(), "a round that is over misses {missing:?}");
        }
        close()?;
    }
    // The kernel's default.
    ecn("2").map(drop)
}

fn exact_streams(bench: &Bench) -> Result<()> {
    let before = bench.early_acks(VICTIM)?;
    thread::scope(|scope| {
        let jobs: Vec<_> = [10 * KB, 100 * KB, MB, 10 * MB]
            .into_iter()
            .flat_map(|size| [(Upload, size), (Download, size)])
            .map(|(direction, size)| scope.spawn(move || bench.exact(VICTIM, direction, size)))
            .collect();
        jobs.into_iter().try_for_each(joined)
    })?;
    for _ in 0..20 {
        bench.exact(VICTIM, Upload, 100 * KB)?;
    }
    bench.ensure_early_acks(before, "in any transfer")?;
    bench.until_no_connection(VICTIM)
}

fn loaded(bench: &Bench) -> Result<()> {
    let _load = Load::start(bench)?;
    thread::scope(|scope| {
        let jobs = [(VICTIM, Upload), (VICTIM, Download), (NEIGHBOUR, Upload)].map(
            |(machine, direction)| scope.spawn(move || bench.exact(machine, direction, 5 * MB)),
        );
        jobs.into_iter().try_for_each(joined)
    })
}

fn frozen(bench: &Bench) -> Result<()> {
    for _ in 0..2 {
        with_enough_bytes("the transfer was over before the machine froze", |times| {
            let since = bench.stage.tap_counts(VICTIM)?.to_vm_bytes;
            thread::scope(|scope| {
                let up = scope.spawn(move || bench.exact(VICTIM, Upload, 60 * MB * times));
                let down = scope.spawn(move || bench.exact(VICTIM, Download, 20 * MB * times));
                bench.until_moved(since, 2 * MB)?;
                let frozen = Frozen::begin(bench)?;
                // Connections to a frozen machine, and a neighbour that still runs.
                let repeated = || bench.stage.client().counter("TcpExt", "TCPSynRetrans");
                let before = repeated()?;
                let late = scope.spawn(|| bench.exact(VICTIM, Upload, 100 * KB));
                bench.exact(NEIGHBOUR, Upload, MB)?;
                wait_until("a SYN was sent again", || Ok(repeated()? > before))?;
                let in_time = !up.is_finished();
                drop(frozen);
                joined(up)?;
                joined(down)?;
                joined(late)?;
                Ok(in_time)
            })
        })?;
    }
    bench.until_no_connection(VICTIM)
}

fn small_ring(bench: &Bench) -> Result<()> {
    let _ring = Ring::set(bench, 4)?;
    with_enough_bytes("the ring was never full: nothing was tested", |times| {
        let since = bench.stage.tap_counts(VICTIM)?;
        thread::scope(|scope| {
            // Few bytes: TCP recovers from this loss by its timer, which doubles each time.
            let upload = || bench.exact(VICTIM, Upload, MB * times);
            let jobs: Vec<_> = (0..4).map(|_| scope.spawn(upload)).collect();
            bench.until_moved(since.to_vm_bytes, 500 * KB)?;
            let frozen = Frozen::begin(bench)?;
            let full = wait::wait_until("the ring is full", FULL, || {
                Ok(bench.stage.tap_counts(VICTIM)?.drops > since.drops)
            });
            drop(frozen);
            jobs.into_iter().try_for_each(joined)?;
            Ok(full.is_ok())
        })
    })?;
    bench.until_no_connection(VICTIM)
}

fn shrunk_ring(bench: &Bench) -> Result<()> {
    let _load = Load::start(bench)?;
    with_enough_bytes("the transfers were over before bytes were outstanding", |times| {
        let since = bench.stage.tap_counts(VICTIM)?.to_vm_bytes;
        thread::scope(|scope| {
            let upload = || bench.exact(VICTIM, Upload, 20 * MB * times);
            let jobs: Vec<_> = (0..4).map(|_| scope.spawn(upload)).collect();
            bench.until_moved(since, MB)?;
            let over = || jobs.iter().any(|job| job.is_finished());
            let frozen = bench.freeze_with_outstanding(over)?;
            let in_time = frozen.is_some();
            if in_time {
                // Shrinking frees memory beyond the new size: delivered bytes are gone,
                // and sent again from the copy.
                drop(Ring::set(bench, 1)?);
            }
            drop(frozen);
            jobs.into_iter().try_for_each(joined)?;
            Ok(in_time)
        })
    })?;
    bench.exact(VICTIM, Upload, MB)?;
    bench.until_no_connection(VICTIM)
}

fn detach_and_attach(bench: &Bench) -> Result<()> {
    if !bench.attached {
        return bench.exact(VICTIM, Upload, 10 * MB);
    }
    // Machines that wait for their time slice have something to gain at every moment.
    let _load = Load::start(bench)?;
    with_enough_bytes("the transfer was over before the port was switched twice", |times| {
        let since = bench.stage.tap_counts(VICTIM)?.to_vm_bytes;
        let before = bench.early_acks(VICTIM)?;
        thread::scope(|scope| {
            let up = scope.spawn(move || bench.exact(VICTIM, Upload, 100 * MB * times));
            let down = scope.spawn(move || bench.exact(VICTIM, Download, 50 * MB * times));
            bench.until_moved(since, 2 * MB)?;
            bench.ensure_early_acks(before, "before the detach")?;
            let mut switches = 0;
            while !up.is_finished() && switches < 8 {
                bench.stage.detach(VICTIM).context("detach in mid-transfer")?;
                bench.exact(VICTIM, Upload, 10 * KB)?;
                bench.stage.attach(VICTIM).context("attach in mid-transfer")?;
                bench.exact(VICTIM, Upload, 10 * KB)?;
                switches += 1;
            }
            joined(up)?;
            joined(down)?;
            Ok(switches >= 2)
        })
    })?;
    bench.exact(VICTIM, Upload, MB)?;
    bench.ensure_early_acks(0, "after the last attach")?;
    bench.until_no_connection(VICTIM)
}

fn firewall(bench: &Bench) -> Result<()> {
    let victim = bench.stage.vm(VICTIM);
    victim.command(&Command::Firewall { drop_percent: 1 })?;
    let result = thread::scope(|scope| {
        // Many rounds of several: the rule hits at random.
        let jobs: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    for size in [10 * KB, 100 * KB, MB, 4 * MB].into_iter().cycle().take(16) {
                        bench.exact(VICTIM, Upload, size)?;
                    }
                    bench.exact(VICTIM, Download, 2 * MB)
                })
            })
            .collect();
        jobs.into_iter().try_for_each(joined)
    });
    let drops = victim.stats()?.firewall_drops;
    victim.command(&Command::Firewall { drop_percent: 0 })?;
    result?;
    ensure!(drops > 0, "the firewall has dropped nothing: nothing was tested");
    bench.until_no_connection(VICTIM)?;
    bench.exact(VICTIM, Upload, MB)
}

fn deleted_tap(bench: &Bench) -> Result<()> {
    let port = bench.stage.tap(VICTIM);
    let since = bench.stage.tap_counts(VICTIM)?.to_vm_bytes;
    // Machines that wait for their time slice have something to gain at every moment.
    let load = Load::start(bench)?;
    thread::scope(|scope| {
        let neighbour = scope.spawn(|| bench.exact(NEIGHBOUR, Upload, 60 * MB));
        // More than comes through before it is cut.
        let request = Request {
            timeout: if bench.attached { LIMIT } else { LONELY },
            ..bench.request(VICTIM, Upload, 100_000 * MB)
        };
        let up = scope.spawn(move || client::transfer(bench.stage.client(), &request));
        bench.until_moved(since, 2 * MB)?;
        let over = || up.is_finished();
        let frozen =
            bench.freeze_with_outstanding(over)?.context("a transfer without end ended")?;
        bench.stage.host().delete(port)?;
        drop(frozen);
        // The VM is unreachable, so neither an answer nor a wrong byte can come. A sender whose
        // data was acknowledged early must get a reset; another one retransmits until its TCP gives
        // up.
        match joined(up)? {
            Outcome::Broken(_) => (),
            Outcome::Hung if !bench.attached => (),
            other => bail!("a transfer to a machine without a network: {other:?}"),
        }
        joined(neighbour)
    })?;
    drop(load);
    bench.exact(NEIGHBOUR, Upload, 5 * MB)?;
    if bench.attached {
        // Until the helper has noticed, the operator may detach as well.
        wait_until("the helper clears up after the deleted tap", || {
            Ok(bench.status(VICTIM)?.is_none())
        })?;
        match bench.stage.detach(VICTIM) {
            Ok(()) => bail!("{port} was detached after the helper had cleared up"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("does not exist"), "detaching a deleted port: {text}");
            }
        }
        bench.stage.detach(NEIGHBOUR).context("detach the neighbour")?;
        bench.stage.attach(NEIGHBOUR).context("attach the neighbour again")?;
        bench.exact(NEIGHBOUR, Upload, MB)?;
    }
    Ok(())
}

/// Does something in the middle of transfers; `attempt` takes how many times the usual bytes they
/// have and says whether it came in time.
fn with_enough_bytes(otherwise: &str, mut attempt: impl FnMut(u64) -> Result<bool>) -> Result<()> {
    for times in [1, 8, 64] {
        if attempt(times)? {
            return Ok(());
        }
        eprintln!("{otherwise}: again, with more bytes");
    }
    bail!("{otherwise}")
}

/// Machines under CPU load until this is dropped.
struct Load<'a>(&'a Bench);

impl<'a> Load<'a> {
    fn start(bench: &'a Bench) -> Result<Self> {
        let load = Self(bench);
        load.set(0.6)?;
        Ok(load)
    }

    fn set(&self, share: f64) -> Result<()> {
        [VICTIM, NEIGHBOUR].into_iter().try_for_each(|machine| {
            let command = Command::Load { share, period_ms: 100 };
            self.0.stage.vm(machine).command(&command).map(drop)
        })
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.set(0.0) {
            eprintln!("{error:#}");
        }
    }
}

/// The victim, stopped until this is dropped.
struct Frozen<'a>(&'a Bench);

impl<'a> Frozen<'a> {
    fn begin(bench: &'a Bench) -> Result<Self> {
        bench.stage.vm(VICTIM).freeze()?;
        Ok(Self(bench))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.stage.vm(VICTIM).thaw() {
            eprintln!("{error:#}");
        }
    }
}

/// The victim's ring, of another size until this is dropped.
struct Ring<'a>(&'a Bench);

impl<'a> Ring<'a> {
    fn set(bench: &'a Bench, frames: usize) -> Result<Self> {
        bench.stage.host().set_txqueuelen(bench.stage.tap(VICTIM), frames)?;
        Ok(Self(bench))
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        let Bench { stage, .. } = self.0;
        if let Err(error) = stage.host().set_txqueuelen(stage.tap(VICTIM), DEFAULT_RING) {
            eprintln!("{error:#}");
        }
    }
}

fn joined<T>(job: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match job.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn wait_until(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::wait_until(what, LIMIT, done)
}

/// The sum of all numbers with this name, wherever in the document they are.
fn find_count(document: &Value, name: &str) -> Option<u64> {
    let below: Vec<u64> = match document {
        Value::Object(map) => map
            .iter()
            .filter_map(|(key, value)| match value.as_u64() {
                Some(count) if key == name => Some(count),
                _ => find_count(value, name),
            })
            .collect(),
        Value::Array(items) => items.iter().filter_map(|item| find_count(item, name)).collect(),
        _ => Vec::new(),
    };
    (!below.is_empty()).then(|| below.iter().sum())
}

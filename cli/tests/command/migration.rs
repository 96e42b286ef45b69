//! The service and VMs that migrate. This process holds the taps, and answers as their QEMU.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use vsnoop_hold::LOOK_NS;
use vsnoop_testbed::net::TapOptions;
use vsnoop_testbed::process::Stopped;
use vsnoop_testbed::soak::soaked;
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::helper::{AttachedNetwork, expect_reset};
use crate::hold::{ConfigFile, freeze_with_much};
use crate::metrics::{DEFAULT, Scraped, until_scraped};
use crate::sandbox::{PORT, PREFIX, TapHost, vsnoop, vsnoop_in, wait_until};
use crate::service::{Service, port, ports, until_port};
use crate::split::{End, Late};

/// Looks of the helper, which detaches ports of deleted taps.
const LOOKS: Duration = Duration::from_nanos(4 * LOOK_NS);
/// Metric of undelivered bytes.
const UNDELIVERED: &str = "vsnoop_migrations_undelivered_bytes_total";

/// Longer than the bursts that sockets and buffers take at once.
const FLOOD: Duration = Duration::from_secs(4);

pub fn trials() -> Vec<Trial> {
    trials![
        a_port_is_paused_while_its_vm_migrates_and_goes_on_when_that_is_cancelled,
        a_snapshot_pauses_a_port_for_its_time,
        a_vm_that_comes_is_accelerated_and_one_that_has_left_takes_its_attachment_along,
        a_vm_that_came_once_and_is_paused_is_here,
        what_an_operator_paused_stays_paused_after_a_migration,
        a_service_that_is_killed_in_a_migration_finds_its_port_paused_and_resumes_it,
        a_port_paused_for_a_migration_is_resumed_by_hand_when_no_service_runs,
        a_monitor_that_is_silent_or_says_something_else_harms_nothing,
        a_qemu_that_floods_events_has_a_bounded_part_of_the_service,
        a_transfer_goes_on_through_a_migration_that_is_cancelled,
        a_download_goes_on_through_migrations_that_are_cancelled,
        undelivered_bytes_and_the_resets_of_a_detach_are_metrics,
        undelivered_bytes_count_when_qemu_ends_before_the_service_has_its_turn,
        undelivered_bytes_of_a_vm_that_does_not_migrate_do_not_count,
    ]
}

/// State of this QEMU, and the client that is told of its events.
struct State {
    run_state: &'static str,
    migration: Option<&'static str>,
    client: Option<UnixStream>,
}

impl State {
    fn client(&self) -> Result<&UnixStream> {
        self.client.as_ref().context("the service is not connected to this monitor")
    }
}

/// A QMP monitor.
pub struct Qemu {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Qemu {
    /// In a directory of this name. `run_state`: `running`, or `inmigrate`.
    pub fn start(role: &str, run_state: &'static str) -> Result<Self> {
        let path = socket(role)?;
        let listener = UnixListener::bind(&path)?;
        let state = State { run_state, migration: None, client: None };
        let state = Arc::new(Mutex::new(state));
        let serving = Arc::clone(&state);
        // One client after the other, as QEMU does it; until the test process ends.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = serve(client, &serving);
            }
        });
        Ok(Self { path, state })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key of a `[[port]]`.
    pub fn key(&self) -> String {
        format!("qmp = \"{}\"\n", self.path.display())
    }

    /// Sends events: a status of `MIGRATION`, or a name in capitals.
    pub fn say(&self, events: &[&'static str]) -> Result<()> {
        let mut state = lock(&self.state);
        for event in events {
            let line = match *event {
                name @ ("STOP" | "RESUME") => {
                    state.run_state = if name == "STOP" { "paused" } else { "running" };
                    json!({ "event": name })
                }
                status => {
                    if status == "completed" && state.run_state == "paused" {
                        state.run_state = "postmigrate";
                    }
                    state.migration = Some(status);
                    json!({ "event": "MIGRATION", "data": { "status": status } })
                }
            };
            let mut client = state.client()?;
            writeln!(client, "{line}")?;
        }
        Ok(())
    }

    /// Its process ends: the connection is closed, and the socket is gone.
    pub fn end(&self) -> Result<()> {
        fs::remove_file(&self.path)?;
        let state = lock(&self.state);
        Ok(state.client()?.shutdown(Shutdown::Both)?)
    }

    pub fn until_followed(&self) -> Result<()> {
        wait_until("the service follows the monitor", || Ok(lock(&self.state).client.is_some()))
    }
}

/// A path in a directory of its own.
fn socket(role: &str) -> Result<PathBuf> {
    let directory = PathBuf::from(format!("/run/qemu-{role}"));
    fs::create_dir_all(&directory)?;
    Ok(directory.join("monitor.qmp"))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(client: UnixStream, state: &Mutex<State>) -> Result<()> {
    writeln!(&client, "{}", json!({ "QMP": { "version": {}, "capabilities": [] } }))?;
    for line in BufReader::new(client.try_clone()?).lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let mut state = lock(state);
        let answer = match request["execute"].as_str() {
            Some("query-status") => {
                json!({ "status": state.run_state, "running": state.run_state == "running" })
            }
            Some("query-migrate") => {
                // All is asked: from now on events are understood.
                state.client = Some(client.try_clone()?);
                state.migration.map_or(json!({}), |status| json!({ "status": status }))
            }
            _ => json!({}),
        };
        writeln!(&client, "{}", json!({ "return": answer, "id": request["id"] }))?;
    }
    lock(state).client = None;
    Ok(())
}

pub fn is_active(port: &Value) -> bool {
    port["state"] == "active"
}

pub fn is_paused_for_migration(port: &Value) -> bool {
    port["state"] == "paused" && port["paused_by"] == "migration"
}

/// A host whose only tap follows this QEMU.
fn followed(role: &str) -> Result<(TapHost, Qemu, ConfigFile, Service)> {
    let host = TapHost::new(role)?;
    let qemu = Qemu::start(role, "running")?;
    let config = ConfigFile::new(&host, &format!("[[port]]\n{}", qemu.key()))?;
    let service = Service::start(&host.netns, Some(&config))?;
    until_port(&host.netns, "the tap is attached", is_active)?;
    qemu.until_followed()?;
    Ok((host, qemu, config, service))
}

fn a_port_is_paused_while_its_vm_migrates_and_goes_on_when_that_is_cancelled() -> Result<()> {
    let (host, qemu, _config, service) = followed("move")?;
    let before = port(&host.netns)?;
    for end in ["cancelled", "failed"] {
        qemu.say(&["setup", "active"])?;
        until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
        let text = vsnoop_in(host.netns.name(), ["status"])?.ok()?.unfolded();
        ensure!(text.contains("its VM is migrated or saved"), "{text}");
        let text = host.vsnoop(["resume", PORT])?.ok()?.unfolded();
        ensure!(text.contains("stays paused by the service"), "{text}");
        qemu.say(&["cancelling", end])?;
        until_port(&host.netns, "the port goes on", is_active)?;
    }
    ensure!(port(&host.netns)?["attached_at"] == before["attached_at"], "it was attached anew");
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_snapshot_pauses_a_port_for_its_time() -> Result<()> {
    let (host, qemu, _config, service) = followed("save")?;
    qemu.say(&["STOP", "setup"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    qemu.say(&["completed"])?;
    service.until_logged("its VM has left, with all")?;
    ensure!(is_paused_for_migration(&port(&host.netns)?), "the VM does not run yet");
    qemu.say(&["RESUME"])?;
    until_port(&host.netns, "the port goes on", is_active)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_vm_that_comes_is_accelerated_and_one_that_has_left_takes_its_attachment_along() -> Result<()> {
    let host = TapHost::new("come")?;
    let qemu = Qemu::start("come", "inmigrate")?;
    let text = format!("[[port]]\ninterface = \"vnet*\"\n{}", qemu.key());
    let config = ConfigFile::new(&host, &text)?;
    let service = Service::start(&host.netns, Some(&config))?;
    let persistent = TapOptions { persistent: true, ..TapOptions::default() };
    let tap = host.netns.tap("vnet0", &persistent)?;
    host.netns.up("vnet0")?;
    until_port(&host.netns, "the tap is attached before its VM comes", is_active)?;
    qemu.until_followed()?;
    qemu.say(&["active", "RESUME", "completed"])?;
    qemu.say(&["setup"])?;
    until_port(&host.netns, "it leaves, so what came before was not it", is_paused_for_migration)?;
    qemu.say(&["STOP", "completed"])?;
    service.until_logged("its VM has left, with all")?;
    // Its QEMU ends, and the next one waits for a VM.
    drop(tap);
    wait_until("the port is detached", || Ok(ports(&host.netns)?.is_empty()))?;
    lock(&qemu.state).run_state = "inmigrate";
    lock(&qemu.state).migration = None;
    let _tap = host.netns.tap("vnet0", &persistent)?;
    until_port(&host.netns, "the next VM's port is attached", is_active)?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// QEMU says `completed` for ever of a VM that came, or of which a snapshot was taken.
fn a_vm_that_came_once_and_is_paused_is_here() -> Result<()> {
    let host = TapHost::new("suspend")?;
    let qemu = Qemu::start("suspend", "paused")?;
    lock(&qemu.state).migration = Some("completed");
    let config = ConfigFile::new(&host, &format!("[[port]]\n{}", qemu.key()))?;
    let service = Service::start(&host.netns, Some(&config))?;
    qemu.until_followed()?;
    until_port(&host.netns, "the tap is attached", is_active)?;
    // The service looks before each answer, also after that of its monitor.
    for _ in 0..5 {
        ensure!(is_active(&port(&host.netns)?), "{}", port(&host.netns)?);
    }
    ensure!(!service.log()?.contains("paused"), "{}", service.log()?);
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn what_an_operator_paused_stays_paused_after_a_migration() -> Result<()> {
    let (host, qemu, _config, service) = followed("hand")?;
    qemu.say(&["setup"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    host.vsnoop(["pause", PORT])?.ok()?;
    qemu.say(&["cancelled"])?;
    let is_operators = |port: &Value| port["state"] == "paused" && port["paused_by"] == "operator";
    until_port(&host.netns, "the operator has paused it", is_operators)?;
    host.vsnoop(["resume", PORT])?.ok()?;
    until_port(&host.netns, "it goes on when the operator says so", is_active)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_service_that_is_killed_in_a_migration_finds_its_port_paused_and_resumes_it() -> Result<()> {
    let (host, qemu, config, service) = followed("kill")?;
    qemu.say(&["setup", "active"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    service.end(Signal::SIGKILL)?;
    ensure!(is_paused_for_migration(&port(&host.netns)?), "{}", port(&host.netns)?);
    wait_until("the monitor has lost its client", || Ok(lock(&qemu.state).client.is_none()))?;
    let service = Service::start(&host.netns, Some(&config))?;
    qemu.until_followed()?;
    ensure!(is_paused_for_migration(&port(&host.netns)?), "{}", port(&host.netns)?);
    qemu.say(&["failed"])?;
    until_port(&host.netns, "the port goes on", is_active)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_port_paused_for_a_migration_is_resumed_by_hand_when_no_service_runs() -> Result<()> {
    let (host, qemu, _config, service) = followed("left")?;
    qemu.say(&["setup"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["resume", PORT])?.ok()?;
    ensure!(is_active(&port(&host.netns)?), "{}", port(&host.netns)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_monitor_that_is_silent_or_says_something_else_harms_nothing() -> Result<()> {
    const SILENT: &str = "";
    let host = TapHost::new("odd")?;
    let monitors = [
        ("odd-silent", SILENT),
        ("odd-rubbish", "HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("odd-json", "[1, 2, {\"a\": null}]\n"),
        ("odd-error", "{\"error\": {\"desc\": \"no\"}, \"id\": 1}\n{\"return\": {}}\n"),
    ];
    for (role, text) in monitors {
        let listener = UnixListener::bind(socket(role)?)?;
        thread::spawn(move || {
            let mut clients = Vec::new();
            for mut client in listener.incoming().flatten() {
                let _ = client.write_all(text.as_bytes());
                clients.push(client);
            }
        });
    }
    // Much in one line; closed at once.
    let listener = UnixListener::bind(socket("odd-flood")?)?;
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            while client.write_all(&[b'x'; 4096]).is_ok() {}
        }
    });
    let listener = UnixListener::bind(socket("odd-closed")?)?;
    thread::spawn(move || listener.incoming().flatten().for_each(drop));
    let config = ConfigFile::new(&host, "[[port]]\nqmp = \"/run/qemu-odd-*/*.qmp\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    until_port(&host.netns, "the tap is attached", is_active)?;
    let reasons = [
        ("odd-silent", "no answer within 5s"),
        ("odd-rubbish", "what is not QMP"),
        ("odd-json", "what is not QMP"),
        ("odd-error", "refuses qmp_capabilities: no"),
        // Where the service has too little of a CPU to read so much, the time is over first.
        ("odd-flood", "a line is longer|no answer within 5s"),
        ("odd-closed", "closed before it said how its VM is"),
    ];
    for (role, words) in reasons {
        let is_said =
            |line: &str| line.contains(role) && words.split('|').any(|words| line.contains(words));
        wait_until(&format!("{role}: {words}"), || Ok(service.log()?.lines().any(is_said)))
            .with_context(|| service.log().unwrap_or_default())?;
    }
    let _tap = host.netns.tap("vnet1", &TapOptions::default())?;
    host.netns.up("vnet1")?;
    wait_until("another tap is attached", || Ok(ports(&host.netns)?.len() == 2))?;
    ensure!(ports(&host.netns)?.iter().all(is_active), "{:?}", ports(&host.netns)?);
    // They were tried several times meanwhile, and each reason was said once.
    let log = service.log()?;
    let said: Vec<_> = log.lines().filter(|line| line.contains("QMP monitor")).collect();
    let each: HashSet<_> = said.iter().collect();
    ensure!(each.len() == said.len(), "{log}");
    ensure!(said.iter().all(|line| line.starts_with("<4>")), "no warnings: {log}");
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// CPU time of the service's loop so far, in nanoseconds (proc_pid_schedstat).
fn loop_time_ns(pid: i64) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    Ok(text.split(' ').next().context("no time")?.parse()?)
}

fn a_qemu_that_floods_events_has_a_bounded_part_of_the_service() -> Result<()> {
    const EVENTS: usize = 1000;
    let lines = "{\"event\": \"RESUME\"}\n".repeat(EVENTS);
    let (host, qemu, _config, _service) = followed("flood")?;
    let status = vsnoop(["status", "--json"])?.json()?;
    let pid = status["service"]["pid"].as_i64().context("no service")?;
    let (began, before_ns) = (Instant::now(), loop_time_ns(pid)?);
    let mut events = 0;
    while began.elapsed() < FLOOD {
        lock(&qemu.state).client.as_ref().context("it left")?.write_all(lines.as_bytes())?;
        events += EVENTS;
    }
    let spent = Duration::from_nanos(loop_time_ns(pid)? - before_ns);
    ensure!(events > 5_000, "{events} events: nothing was flooded");
    ensure!(spent < began.elapsed() / 3, "{spent:?} of {:?} for {events} events", began.elapsed());
    // What comes after it is noticed all the same.
    qemu.say(&["setup"])?;
    until_port(&host.netns, "the port is paused", is_paused_for_migration)?;
    qemu.say(&["cancelled"])?;
    until_port(&host.netns, "the port goes on", is_active)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// A network whose VM is followed by this QEMU.
fn followed_network(role: &str) -> Result<(AttachedNetwork, Qemu, ConfigFile, Service)> {
    followed_network_with(role, "")
}

/// With more keys of its table.
fn followed_network_with(
    role: &str,
    keys: &str,
) -> Result<(AttachedNetwork, Qemu, ConfigFile, Service)> {
    let prefix = format!("{PREFIX}{role}-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let qemu = Qemu::start(role, "running")?;
    let text = format!(
        "[[port]]\ninterface = \"{}\"\npassive = false\n{keys}{}",
        topology::PORT,
        qemu.key()
    );
    let config = ConfigFile::for_netns(&topology.host, &text)?;
    let service = Service::start(&topology.host, Some(&config))?;
    until_port(&topology.host, "the tap is attached", is_active)?;
    qemu.until_followed()?;
    Ok((AttachedNetwork { topology }, qemu, config, service))
}

fn a_transfer_goes_on_through_a_migration_that_is_cancelled() -> Result<()> {
    let (network, qemu, _config, service) = followed_network("moves")?;
    let netns = &network.topology.host;
    let mut pair = network.connect()?;
    for _ in 0..10 {
        pair.exchange(100_000)?;
        qemu.say(&["setup", "active"])?;
        pair.exchange(100_000)?;
        let drained =
            |port: &Value| is_paused_for_migration(port) && port["outstanding_bytes"] == 0;
        until_port(netns, "nothing is outstanding", drained)?;
        let early = port(netns)?["early_acks"].clone();
        pair.exchange(100_000)?;
        ensure!(port(netns)?["early_acks"] == early, "an early ACK of a paused port");
        qemu.say(&["STOP", "cancelled", "RESUME"])?;
        until_port(netns, "the port goes on", is_active)?;
    }
    let early = port(netns)?["early_acks"].as_u64();
    ensure!(early > Some(0), "nothing was acknowledged early: nothing was tested");
    network.expect_no_reset()?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// It is split when the VM begins to move, joined, and split again when the VM stays.
fn a_download_goes_on_through_migrations_that_are_cancelled() -> Result<()> {
    const SOME: u64 = 200_000;
    let wanted = soaked(20, 100);
    let (network, qemu, _config, service) = followed_network_with("moved", "downloads = true\n")?;
    let late = Late::on(network)?;
    let mut download = late.download()?;
    let (mut migrations, mut again) = (0, 0);
    while migrations < wanted {
        if late.split.split_flows().is_empty() {
            // A VM that sends without a pause may send more whenever it could be split.
            again += 1;
            ensure!(download.end()? == End::Complete, "it was reset");
            download = late.download()?;
            continue;
        }
        migrations += 1;
        qemu.say(&["setup", "active"])?;
        let netns = &late.network.topology.host;
        until_port(netns, "the port is paused", is_paused_for_migration)?;
        wait_until("it is joined", || Ok(late.split.split_flows().is_empty()))?;
        download.until_more(SOME)?;
        qemu.say(&["STOP", "cancelled", "RESUME"])?;
        until_port(netns, "the port goes on", is_active)?;
        wait_until("the splitter goes on", || Ok(late.split.counters().is_on == 1))?;
        download.until_more(SOME)?;
    }
    ensure!(download.end()? == End::Complete, "it was reset");
    ensure!(again < wanted, "no download was split in two migrations: {again}");
    late.network.expect_no_reset()?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn undelivered_bytes_and_the_resets_of_a_detach_are_metrics() -> Result<()> {
    const RESETS: &str = "vsnoop_detached_resets_total";
    let (network, qemu, _config, service) = followed_network("metrics")?;
    let netns = &network.topology.host;
    let has = |name: &'static str, value: f64| {
        move |scraped: &Scraped| scraped.value(name, &[]) == Some(value)
    };
    until_scraped(netns, "no byte is undelivered", has(UNDELIVERED, 0.0))?;
    let mut pair = network.connect()?;
    freeze_with_much(&network, &mut pair)?;
    qemu.say(&["setup", "active"])?;
    until_port(netns, "the port is paused", is_paused_for_migration)?;
    // A snapshot, which does not count: the VM runs on.
    qemu.say(&["STOP", "completed"])?;
    service.until_logged("its VM has left without")?;
    qemu.say(&["RESUME"])?;
    until_port(netns, "the port goes on", is_active)?;
    qemu.say(&["setup", "STOP", "completed"])?;
    until_port(netns, "the port is paused", is_paused_for_migration)?;
    let bytes = network.outstanding_bytes()?;
    ensure!(bytes > 0, "nothing is outstanding");
    until_scraped(netns, "undelivered bytes are counted", has(UNDELIVERED, bytes as f64))?;
    until_scraped(netns, "the reset is counted", has(RESETS, 1.0))?;
    wait_until("the port is detached", || Ok(ports(netns)?.is_empty()))?;
    service.end(Signal::SIGTERM)
}

fn undelivered_bytes_count_when_qemu_ends_before_the_service_has_its_turn() -> Result<()> {
    let cases: [(&str, &[&str], &[&str]); 3] = [
        ("slow", &["setup", "STOP", "completed"], &[]),
        ("quick", &["setup"], &["STOP", "completed"]),
        ("quicker", &[], &["STOP", "setup", "active", "completed"]),
    ];
    for (role, seen, unseen) in cases {
        ends_unseen(role, seen, unseen).with_context(|| format!("{role}: {unseen:?} unseen"))?;
    }
    Ok(())
}

fn ends_unseen(role: &str, seen: &[&'static str], unseen: &[&'static str]) -> Result<()> {
    let Ended { network, service, bytes, .. } = end(role, seen, unseen)?;
    let netns = &network.topology.host;
    service.until_logged("its VM has left without")?;
    let is_counted = |scraped: &Scraped| scraped.value(UNDELIVERED, &[]) == Some(bytes as f64);
    until_scraped(netns, "undelivered bytes are counted", is_counted)?;
    wait_until("the port is detached", || Ok(ports(netns)?.is_empty()))?;
    let log = service.log()?;
    ensure!(log.matches("its VM has left").count() == 1, "{log}");
    ensure!(!log.contains("QMP monitor"), "its end is no trouble: {log}");
    service.end(Signal::SIGTERM)
}

fn undelivered_bytes_of_a_vm_that_does_not_migrate_do_not_count() -> Result<()> {
    let cases: [(&str, &[&str], &[&str]); 3] = [
        ("killed", &[], &[]),
        ("back", &["setup", "active"], &["cancelled"]),
        ("saved", &["STOP", "setup"], &["completed", "RESUME"]),
    ];
    for (role, seen, unseen) in cases {
        let Ended { network, service, .. } = end(role, seen, unseen)?;
        let netns = &network.topology.host;
        wait_until("the service has read the note", || {
            Ok(fs::read_dir("/run/vsnoop/undelivered")?.next().is_none())
        })?;
        // It looks once more before it answers.
        ports(netns)?;
        let scraped = Scraped::read(netns, DEFAULT)?;
        ensure!(scraped.value(UNDELIVERED, &[]) == Some(0.0), "{role}: it is counted");
        ensure!(!service.log()?.contains("has left"), "{role}: {}", service.log()?);
        service.end(Signal::SIGTERM)?;
    }
    Ok(())
}

/// A VM whose QEMU has ended, and its tap with it, under bytes that were acknowledged early.
struct Ended {
    network: AttachedNetwork,
    service: Service,
    _config: ConfigFile,
    bytes: u64,
}

/// The service has its turn after the events that are `seen`, and again when QEMU has ended.
fn end(role: &str, seen: &[&'static str], unseen: &[&'static str]) -> Result<Ended> {
    let (network, qemu, _config, service) = followed_network(role)?;
    let netns = &network.topology.host;
    let mut pair = network.connect()?;
    freeze_with_much(&network, &mut pair)?;
    qemu.say(seen)?;
    if !seen.is_empty() {
        until_port(netns, "the port is paused", is_paused_for_migration)?;
    }
    if seen.contains(&"completed") {
        service.until_logged("its VM has left without")?;
    }
    let bytes = network.outstanding_bytes()?;
    ensure!(bytes > 0, "nothing is outstanding");
    let stopped = Stopped::process(service.pid())?;
    qemu.say(unseen)?;
    qemu.end()?;
    netns.ip(&format!("link del {}", topology::PORT))?;
    // The helper needs no service.
    expect_reset(&mut pair.client)?;
    thread::sleep(LOOKS);
    drop(stopped);
    Ok(Ended { network, service, _config, bytes })
}

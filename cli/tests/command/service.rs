//! The service: taps come and go, its configuration changes, it is killed.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_testbed::net::{Net, Netns, Tap, TapOptions};
use vsnoop_testbed::soak::soaked;
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::helper::{AttachedNetwork, Pair};
use crate::hold::{ConfigFile, freeze_with_much};
use crate::sandbox::{
    PORT, PREFIX, Ran, TapHost, pid_of, program, running, vsnoop, vsnoop_in, vsnoop_under,
    wait_until,
};

/// Half of them are more than programs have slots for (PORT_SLOTS).
const TAPS: usize = 140;
const TAPS_SOAKED: usize = 200;
const KILLS: usize = 50;
/// Limit of descriptors in a test: fewer than helper, engine and `status` need for its taps.
const SOFT_LIMIT: usize = 128;
const LIMITED_TAPS: usize = 40;

pub fn trials() -> Vec<Trial> {
    trials![
        without_a_configuration_taps_are_observed_and_none_is_accelerated,
        taps_that_come_are_attached_and_nothing_is_left_of_those_that_go,
        more_ports_than_the_soft_limit_on_descriptors_allows_are_served,
        a_reload_changes_what_the_service_attached,
        a_wrong_configuration_keeps_the_running_one,
        what_commands_attach_and_detach_is_left_as_it_is,
        ports_outlive_a_service_that_ends_or_is_killed_and_the_next_one_knows_them,
        what_an_operator_takes_off_while_the_service_detaches_it_stays_off,
        helper_and_engine_that_others_have_started_come_again,
        a_tap_is_known_by_bridge_process_and_namespace,
        a_host_without_names_of_namespaces_is_looked_at_until_it_has_some,
        status_and_reload_say_how_the_service_is,
        a_second_service_and_a_wrong_configuration_are_refused,
    ]
}

/// A running service; killed when dropped.
pub struct Service {
    child: Child,
    log: String,
}

impl Service {
    /// With this configuration, or without any.
    pub fn start(netns: &Netns, config: Option<&ConfigFile>) -> Result<Self> {
        Self::run(Self::command(netns, config), netns)
    }

    pub fn command(netns: &Netns, config: Option<&ConfigFile>) -> Command {
        let mut command = Command::new(program());
        command.args(["--netns", netns.name(), "run"]);
        if let Some(config) = config {
            command.args(["--config", &config.path]);
        }
        command
    }

    /// By this command.
    pub fn run(mut command: Command, netns: &Netns) -> Result<Self> {
        let log = format!("/run/{}.log", netns.name());
        // As systemd does, which says where standard error leads to.
        let stderr = File::create(&log)?;
        let stream = stderr.metadata()?;
        command.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
        let child = command.stdin(Stdio::null()).stderr(stderr).spawn()?;
        let service = Self { child, log };
        service.until_logged("[[port]]|taps are observed")?;
        Ok(service)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Waits for one of these texts, between `|`.
    pub fn until_logged(&self, texts: &str) -> Result<()> {
        wait_until(&format!("the log of the service has {texts}"), || {
            let log = self.log()?;
            Ok(texts.split('|').any(|text| log.contains(text)))
        })
        .with_context(|| self.log().unwrap_or_default())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()), signal)?)
    }

    /// Waits for its end.
    pub fn end(mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let status = self.child.wait()?;
        ensure!(signal == Signal::SIGKILL || status.success(), "{status}: {}", self.log()?);
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ports of the namespace in `status`.
pub fn ports(netns: &Netns) -> Result<Vec<Value>> {
    let status = vsnoop_in(netns.name(), ["status", "--json"])?.json()?;
    Ok(status["ports"].as_array().context("no ports")?.clone())
}

pub fn port(netns: &Netns) -> Result<Value> {
    Ok(ports(netns)?.into_iter().next().unwrap_or_default())
}

pub fn until_port(netns: &Netns, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut found = Value::Null;
    wait_until(what, || {
        found = port(netns)?;
        Ok(is_so(&found))
    })
    .with_context(|| format!("{found}"))?;
    Ok(found)
}

fn without_a_configuration_taps_are_observed_and_none_is_accelerated() -> Result<()> {
    let host = TapHost::new("bare")?;
    let before = host.state()?;
    let service = Service::start(&host.netns, None)?;
    let port = until_port(&host.netns, "the tap is attached", |port| port["port"] == PORT)?;
    ensure!(port["state"] == "observing" && port["attached_by"] == "service", "{port}");
    ensure!(port["table"] == "default", "{port}");
    ensure!(host.state()?.qdiscs == before.qdiscs, "a qdisc was changed");
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn taps_that_come_are_attached_and_nothing_is_left_of_those_that_go() -> Result<()> {
    let netns = Net::new(PREFIX).host("many")?;
    let config =
        ConfigFile::for_netns(&netns, "[[port]]\ninterface = \"vnet*\"\nhold = \"256K\"\n")?;
    let service = Service::start(&netns, Some(&config))?;
    let (count, mut taps) = (soaked(TAPS, TAPS_SOAKED), Vec::new());
    for i in 0..count {
        let name = format!("vnet{i}");
        taps.push(netns.tap(&name, &TapOptions::default())?);
        netns.up(&name)?;
        // Every other one goes soon, whether it is attached by then or not.
        if i % 2 == 1 {
            drop(taps.pop());
        }
    }
    wait_until("those that are there are attached", || {
        Ok(ports(&netns)?.iter().filter(|port| port["state"] == "active").count() == count / 2)
    })
    .with_context(|| service.log().unwrap_or_default())?;
    drop(taps);
    wait_until("nothing is left", || Ok(ports(&netns)?.is_empty()))?;
    service.end(Signal::SIGTERM)
}

fn more_ports_than_the_soft_limit_on_descriptors_allows_are_served() -> Result<()> {
    let netns = Net::new(PREFIX).host("files")?;
    let config = ConfigFile::for_netns(&netns, "[[port]]\nhold = \"256K\"\n")?;
    let limited = |command: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -Sn {SOFT_LIMIT}; exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        shell
    };
    let service = Service::run(limited(&Service::command(&netns, Some(&config))), &netns)?;
    let mut taps = Vec::new();
    for i in 0..LIMITED_TAPS {
        let name = format!("vnet{i}");
        taps.push(netns.tap(&name, &TapOptions::default())?);
        netns.up(&name)?;
    }
    let mut status = Command::new(program());
    status.args(["--netns", netns.name(), "status", "--json"]);
    wait_until("the engine serves all of them", || {
        let status = Ran::from_output(limited(&status).output()?)?.json()?;
        let ports = status["ports"].as_array().context("no ports")?;
        Ok(ports.iter().filter(|port| port["hold"]["engine"] == "alive").count() == LIMITED_TAPS)
    })
    .with_context(|| service.log().unwrap_or_default())?;
    drop(taps);
    wait_until("nothing is left", || Ok(ports(&netns)?.is_empty()))?;
    service.end(Signal::SIGTERM)
}

fn a_reload_changes_what_the_service_attached() -> Result<()> {
    let host = TapHost::new("load")?;
    let before = host.state()?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"1M\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    let quota = |bytes: u64| move |port: &Value| port["hold"]["size_bytes"] == bytes;
    let first = until_port(&host.netns, "the tap is attached", quota(1 << 20))?;
    ensure!(first["table"] == "line 1", "{first}");
    // Bounds change while packets flow, other settings by attaching anew.
    let reload = |text: &str| {
        config.write(text)?;
        service.signal(Signal::SIGHUP)
    };
    reload("[[port]]\nname = \"all\"\nhold = \"2M\"\n")?;
    let second = until_port(&host.netns, "the hold is larger, for the other table", |port| {
        quota(2 << 20)(port) && port["table"] == "all"
    })?;
    ensure!(second["attached_at"] == first["attached_at"], "{second}");
    reload("[[port]]\nname = \"all\"\nmode = \"observe\"\n")?;
    until_port(&host.netns, "the port is observed", |port| port["state"] == "observing")?;
    ensure!(host.state()?.qdiscs == before.qdiscs, "the qdisc is not what it was");
    reload("[[port]]\ninterface = \"other\"\n")?;
    wait_until("nothing is attached", || Ok(ports(&host.netns)?.is_empty()))?;
    // A port is not listed any more shortly before the last of it is gone.
    wait_until("nothing is left", || Ok(host.state()? == before))?;
    service.end(Signal::SIGTERM)
}

fn a_wrong_configuration_keeps_the_running_one() -> Result<()> {
    let host = TapHost::new("keep")?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"1M\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    let is_active = |port: &Value| port["state"] == "active";
    let before = until_port(&host.netns, "the tap is attached", is_active)?;
    config.write("[[port]]\nhold = \"2M\"\nholds = 1\n")?;
    service.signal(Signal::SIGHUP)?;
    service.until_logged("line 3, column 1: unknown field `holds`")?;
    let error = format!("<3>{}, line 3", config.path);
    ensure!(service.log()?.lines().any(|line| line.starts_with(&error)), "{}", service.log()?);
    // The command is told as well.
    let words = ["the service goes on as it was", "line 3, column 1", "holds"];
    vsnoop(["reload"])?.failed(2, &words)?;
    let tap = host.netns.tap("vnet1", &TapOptions::default())?;
    host.netns.up("vnet1")?;
    wait_until("another tap is attached", || Ok(ports(&host.netns)?.len() == 2))?;
    let found = ports(&host.netns)?;
    let quotas: Vec<_> = found.iter().map(|port| port["hold"]["size_bytes"].as_u64()).collect();
    ensure!(quotas == [Some(1 << 20); 2], "{quotas:?}");
    let same = found.iter().find(|port| port["port"] == PORT).context("the first one is gone")?;
    ensure!(same["attached_at"] == before["attached_at"], "{same}");
    service.end(Signal::SIGTERM)?;
    drop(tap);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn what_commands_attach_and_detach_is_left_as_it_is() -> Result<()> {
    let host = TapHost::new("hand")?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"2M\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    // Each tap that comes is attached after the service has looked at the others.
    let mut taps: Vec<Tap> = Vec::new();
    let mut look_again = || -> Result<()> {
        let name = format!("vnet{}", taps.len());
        taps.push(host.netns.tap(&name, &TapOptions::default())?);
        host.netns.up(&name)?;
        wait_until("the next tap is attached", || {
            Ok(ports(&host.netns)?.iter().any(|port| port["port"] == name.as_str()))
        })
    };
    let of_command = || -> Result<Option<Value>> {
        Ok(ports(&host.netns)?.into_iter().find(|port| port["port"] == PORT))
    };
    look_again()?;
    let port = of_command()?.context("it was detached")?;
    ensure!(port["attached_by"] == "command" && port["table"].is_null(), "{port}");
    ensure!(port["hold"]["size_bytes"] == 1 << 20, "{port}");
    config.write("[[port]]\ninterface = \"vnet*\"\n")?;
    service.signal(Signal::SIGHUP)?;
    look_again()?;
    ensure!(of_command()?.is_some(), "a reload has detached it");
    config.write("[[port]]\n")?;
    host.vsnoop(["detach", PORT])?.ok()?;
    look_again()?;
    ensure!(of_command()?.is_none(), "what an operator has detached came back");
    wait_until("status says that the tap stays off", || {
        let status = vsnoop(["status"])?.ok()?.unfolded();
        let json = vsnoop(["status", "--service", "--json"])?.json()?;
        Ok(json["detached_by_operator"][0]["port"] == PORT
            && status.contains("`vsnoop reload` attaches it"))
    })?;
    service.signal(Signal::SIGHUP)?;
    wait_until("a reload attaches it", || Ok(of_command()?.is_some()))?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn ports_outlive_a_service_that_ends_or_is_killed_and_the_next_one_knows_them() -> Result<()> {
    let prefix = format!("{PREFIX}dies-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let text = format!("[[port]]\ninterface = \"{}\"\npassive = false\n", topology::PORT);
    let config = ConfigFile::for_netns(&topology.host, &text)?;
    let service = Service::start(&topology.host, Some(&config))?;
    let netns = &topology.host;
    until_port(netns, "the tap is attached", |port| port["state"] == "active")?;
    let network = AttachedNetwork { topology };
    let netns = &network.topology.host;
    let before = port(netns)?;
    let mut pair = network.connect()?;
    let load = Load::default();
    let service = thread::scope(|scope| {
        let exchanging = scope.spawn(|| load.exchange(&mut pair));
        let killed = kill_often(&network, &config, service, &load);
        load.is_over.store(true, Ordering::Relaxed);
        exchanging.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        killed
    })?;
    let after = port(netns)?;
    ensure!(after["attached_at"] == before["attached_at"], "{after}");
    ensure!(after["attached_by"] == "service", "{after}");
    network.expect_no_reset()?;
    // The last one still knows it as its own.
    config.write("[[port]]\ninterface = \"other\"\n")?;
    service.signal(Signal::SIGHUP)?;
    wait_until("it is detached", || Ok(ports(netns)?.is_empty()))?;
    pair.exchange(100_000)?;
    service.end(Signal::SIGTERM)
}

/// Exchanges of a connection, one after the other.
#[derive(Default)]
struct Load {
    exchanges: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    fn exchange(&self, pair: &mut Pair) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            pair.exchange(100_000)?;
            self.exchanges.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns once an exchange that began after this call is over, and more is acknowledged early.
    fn until_it_goes_on(&self, network: &AttachedNetwork) -> Result<()> {
        let exchanges = || self.exchanges.load(Ordering::Relaxed);
        let (before, early) = (exchanges(), network.early_acks()?);
        wait_until("exchanges go on, and are acknowledged early", || {
            Ok(exchanges() > before + 1 && network.early_acks()? > early)
        })
    }
}

/// Ends and kills the service in the midst of exchanges, and returns the last one.
fn kill_often(
    network: &AttachedNetwork,
    config: &ConfigFile,
    mut service: Service,
    load: &Load,
) -> Result<Service> {
    for i in 0..KILLS {
        load.until_it_goes_on(network)?;
        service.end(if i % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM })?;
        load.until_it_goes_on(network)?;
        service = Service::start(&network.topology.host, Some(config))?;
    }
    load.until_it_goes_on(network)?;
    Ok(service)
}

/// A reload has asked for other settings, and the VM does not acknowledge.
fn what_an_operator_takes_off_while_the_service_detaches_it_stays_off() -> Result<()> {
    let prefix = format!("{PREFIX}panic-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let network = AttachedNetwork { topology };
    let netns = &network.topology.host;
    let table = format!("[[port]]\ninterface = \"{}\"\n", topology::PORT);
    let config = ConfigFile::for_netns(netns, &format!("{table}passive = false\n"))?;
    let service = Service::start(netns, Some(&config))?;
    until_port(netns, "the tap is attached", |port| port["state"] == "active")?;
    let mut pair = network.connect()?;
    freeze_with_much(&network, &mut pair)?;
    config.write(&format!("{table}mode = \"observe\"\n"))?;
    service.signal(Signal::SIGHUP)?;
    until_port(netns, "the service detaches it", |port| port["state"] == "paused")?;
    vsnoop(["off", "--all"])?.ok()?;
    for look in 0..5 {
        // It looks before it answers.
        let state = vsnoop(["status", "--service", "--json"])?.json()?;
        ensure!(
            state["detached_by_operator"].as_array().is_some_and(|all| all.len() == 1),
            "{look}: {state}"
        );
        ensure!(ports(netns)?.is_empty(), "{look}: it was attached again");
    }
    service.end(Signal::SIGTERM)
}

fn helper_and_engine_that_others_have_started_come_again() -> Result<()> {
    let host = TapHost::new("orphan")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let before = [running("helper")?, running("engine")?];
    let service = Service::start(&host.netns, None)?;
    // It has looked, and rests: nothing tells it what comes now.
    thread::sleep(Duration::from_millis(500));
    for pid in before {
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    }
    for (role, pid) in ["helper", "engine"].into_iter().zip(before) {
        wait_until(&format!("another {role} runs"), || {
            Ok(pid_of(role)?.is_some_and(|other| other != pid))
        })?;
    }
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_tap_is_known_by_bridge_process_and_namespace() -> Result<()> {
    let host = TapHost::new("known")?;
    let pod = TapHost::new("pod")?;
    host.netns.bridge("br-web")?;
    // This process holds the taps. The service's own namespace has a name as well.
    let own = fs::read_to_string("/proc/self/comm")?;
    let text = format!(
        "[[port]]\nname = \"pod\"\nnetns = [\"*-pod\", \"*-known\"]\nmode = \"observe\"\n\
         [[port]]\nname = \"web\"\nbridge = \"br-*\"\nprocess = \"{}\"\n",
        own.trim()
    );
    let config = ConfigFile::new(&host, &text)?;
    let service = Service::start(&host.netns, Some(&config))?;
    until_port(&pod.netns, "the pod's tap is observed", |port| port["table"] == "pod")?;
    ensure!(ports(&host.netns)?.is_empty(), "a tap without its bridge was attached");
    host.netns.add_port("br-web", PORT)?;
    until_port(&host.netns, "the bridge's tap is attached", |port| port["table"] == "web")?;
    service.until_logged(&format!("port {PORT} (netns {}): observed", pod.netns.name()))?;
    service.until_logged(&format!("port {PORT}: accelerated"))?;
    // Namespaces come and go, too.
    let late = TapHost::new("pod")?;
    until_port(&late.netns, "a pod's tap that came later is observed", |port| {
        port["table"] == "pod"
    })?;
    // No table names a pod any more.
    config.write("[[port]]\nname = \"web\"\nbridge = \"br-*\"\n")?;
    service.signal(Signal::SIGHUP)?;
    for pod in [&pod, &late] {
        wait_until("a pod's tap is detached", || Ok(ports(&pod.netns)?.is_empty()))?;
    }
    until_port(&host.netns, "the bridge's tap stays", |port| port["table"] == "web")?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// The service runs as under its unit, for which /run is read-only, on a host where no namespace
/// has a name.
fn a_host_without_names_of_namespaces_is_looked_at_until_it_has_some() -> Result<()> {
    const READ_ONLY_RUN: &str = "mkdir -p /run/vsnoop && mount -t tmpfs none /mnt && \
        mkdir /mnt/vsnoop && mount --bind /run/vsnoop /mnt/vsnoop && mount -o remount,ro /mnt && \
        mount -n --move /mnt /run && exec \"$@\"";
    let host = TapHost::new("nameless")?;
    let config = std::env::temp_dir().join("nameless.toml");
    fs::write(&config, "[[port]]\nname = \"pod\"\nnetns = \"*-pod\"\n[[port]]\nname = \"own\"\n")?;
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", host.netns.name()))
        .args(["unshare", "--mount", "sh", "-c", READ_ONLY_RUN, "sh"])
        .arg(program())
        .args(["run", "--config"])
        .arg(&config);
    let service = Service::run(command, &host.netns)?;
    until_port(&host.netns, "the service's own tap is attached", |port| port["table"] == "own")?;
    let run = format!("/proc/{}/root/run", service.pid());
    ensure!(!Path::new(&run).join("netns").exists(), "the test has no read-only /run");
    let target = format!("--target={}", service.pid());
    let writable = ["--mount", &target, "mount", "-n", "-o", "remount,rw", "/run"];
    ensure!(Command::new("nsenter").args(writable).status()?.success(), "/run stays read-only");
    wait_until("the service has a directory of names", || {
        Ok(Path::new(&run).join("netns").exists())
    })?;
    service.end(Signal::SIGTERM)?;
    fs::remove_file(&config)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn status_and_reload_say_how_the_service_is() -> Result<()> {
    let host = TapHost::new("says")?;
    vsnoop(["reload"])?.failed(3, &["no service runs"])?;
    vsnoop(["status", "--service"])?.failed(3, &["no service runs"])?;
    host.tc(&format!("qdisc add dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let config = ConfigFile::new(&host, "[[port]]\nname = \"web\"\ninterface = \"no\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    let state =
        || -> Result<Value> { Ok(vsnoop(["status", "--json"])?.json()?["service"].clone()) };
    let mut said = Value::Null;
    wait_until("the service says how it is", || {
        said = state()?;
        Ok(said["tables"] == serde_json::json!(["web"]))
    })?;
    ensure!(said["running"] == true && said["pid"] == service.child.id(), "{said}");
    ensure!(said["file"] == config.path.as_str(), "{said}");
    config.write("[[port]]\nname = \"db\"\n")?;
    let reloaded = vsnoop(["reload", "--json"])?.json()?;
    ensure!(reloaded["tables"] == serde_json::json!(["db"]), "{reloaded}");
    wait_until("it says what it cannot attach, and why", || {
        said = state()?;
        Ok(said["failed"][0]["port"] == PORT)
    })?;
    let reason = said["failed"][0]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("tbf"), "{said}");
    ensure!(vsnoop(["status", "--service", "--json"])?.json()? == state()?);
    let text = vsnoop(["status"])?.ok()?.unfolded();
    for words in ["the service runs", "1 table [[port]]", "the service cannot attach it"] {
        ensure!(text.contains(words), "{words:?} is not in: {text}");
    }
    // Another user is not even let in.
    let other = vsnoop_under(&["setpriv", "--reuid=65534", "--clear-groups"], &["reload"])?;
    other.failed(36, &["as root"])?;
    service.end(Signal::SIGTERM)?;
    ensure!(state()?["running"] == false, "it has ended");
    Ok(())
}

fn a_second_service_and_a_wrong_configuration_are_refused() -> Result<()> {
    let host = TapHost::new("two")?;
    let config = ConfigFile::new(&host, "[[port]]\ninterface = \"other\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    host.vsnoop(["run", "--config", &config.path])?.failed(3, &["a service runs already"])?;
    service.end(Signal::SIGTERM)?;
    config.write("[[port]]\nhold = 1\n")?;
    let words = ["line 2, column 8", "port.hold = 1"];
    host.vsnoop(["run", "--config", &config.path])?.failed(2, &words)
}

//! The helper: it runs when needed, exits when not, and resets connections with lost data.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::check;
use vsnoop_testbed::relay::{Direction, Faults, Freeze};
use vsnoop_testbed::topology::{self, Family, Side, Topology, TopologyOptions, address};

use crate::sandbox::{
    PORT, PREFIX, TapHost, helper_pid, is_running, program, running_helper, text, vsnoop,
    vsnoop_in, wait_for_no_pins, wait_until,
};

/// Longer than the helper's timeout for lost data where it cannot know whether a VM runs.
const FROZEN: Duration = Duration::from_secs(7);

pub fn trials() -> Vec<Trial> {
    trials![
        the_helper_runs_while_a_port_is_attached_and_not_longer,
        a_killed_helper_is_replaced_by_the_next_command,
        the_helper_cleans_up_after_a_deleted_tap,
        a_deleted_namespace_goes_with_its_persistent_tap_though_the_engine_serves_it,
        what_the_guest_lost_is_mended_from_the_copy,
        a_frozen_vm_is_never_suspected,
        detach_waits_until_the_vm_has_everything,
        detach_of_all_waits_for_vms_of_several_namespaces_at_the_same_time,
        detach_says_what_was_still_on_its_way,
    ]
}

fn the_helper_runs_while_a_port_is_attached_and_not_longer() -> Result<()> {
    let host = TapHost::new("help")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let first = running_helper()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    wait_until("the helper has ended", || Ok(!is_running(first)))?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let second = running_helper()?;
    ensure!(first != second, "the helper had not ended");
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

fn a_killed_helper_is_replaced_by_the_next_command() -> Result<()> {
    let host = TapHost::new("kill")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let first = running_helper()?;
    kill(Pid::from_raw(first), Signal::SIGKILL)?;
    wait_until("another helper runs", || Ok(helper_pid()?.is_some_and(|second| second != first)))?;
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

/// No process holds the tap, and none is in the namespace: the engine's socket is all that is left.
fn a_deleted_namespace_goes_with_its_persistent_tap_though_the_engine_serves_it() -> Result<()> {
    let name = format!("{PREFIX}pod-{}", std::process::id());
    let ip = |words: &str| check(Command::new("ip").args(words.split(' ')));
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} tuntap add {PORT} mode tap"))?;
    ip(&format!("-n {name} link set {PORT} up"))?;
    vsnoop_in(&name, ["attach", PORT])?.ok()?;
    wait_until("the engine serves it", || {
        let status = vsnoop_in(&name, ["status", "--json"])?.json()?;
        Ok(status["ports"][0]["hold"]["engine"] == "alive")
    })?;
    ip(&format!("netns del {name}"))?;
    wait_for_no_pins()
}

fn the_helper_cleans_up_after_a_deleted_tap() -> Result<()> {
    let host = TapHost::new("swept")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let pins = host.pins()?;
    host.netns.ip(&format!("link del {PORT}"))?;
    wait_until("the pins have vanished", || Ok(!pins.exists()))
}

fn what_the_guest_lost_is_mended_from_the_copy() -> Result<()> {
    let network = AttachedNetwork::new("lost")?;
    let mut pair = network.connect()?;
    network.until_new_ones_are_acknowledged_early()?;
    pair.exchange(10_000)?;
    let lossy = Faults { loss: 1.0, data_only: true, ..Faults::default() };
    network.topology.set_guest_faults(Side::Vm, lossy);
    pair.client.write_all(&[7; 1000])?;
    wait_until("the host has acknowledged what the guest lost", || {
        let lost = network.topology.guest().counters(Direction::LeftToRight).lost;
        Ok(lost > 0 && network.outstanding_bytes()? == 1000)
    })?;
    network.thaw();
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("what was lost")?;
    ensure!(received == [7; 1000]);
    pair.exchange(10_000)?;
    network.expect_no_reset()?;
    network.detach()
}

fn a_frozen_vm_is_never_suspected() -> Result<()> {
    let network = AttachedNetwork::new("frozen")?;
    let mut pair = network.connect()?;
    network.freeze_with_bytes_outstanding(&mut pair)?;
    thread::sleep(FROZEN);
    network.thaw();
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("the bytes that were in the ring")?;
    ensure!(received == [7; 1000]);
    pair.exchange(10_000)?;
    network.expect_no_reset()?;
    network.detach()
}

fn detach_waits_until_the_vm_has_everything() -> Result<()> {
    let network = AttachedNetwork::new("wait")?;
    let mut pair = network.connect()?;
    network.freeze_with_bytes_outstanding(&mut pair)?;
    let mut detach = Command::new(program());
    let detach = detach.args(["--netns", network.topology.host.name(), "detach", "--json"]);
    let detach = detach.args([topology::PORT, "--timeout", "600"]);
    let child = detach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_until("the port is paused", || {
        let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
        Ok(status["ports"][0]["state"] == "paused")
    })?;
    network.thaw();
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(json["ports"][0]["outstanding_bytes"] == 0, "{json}");
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received)?;
    pair.exchange(10_000)
}

fn detach_of_all_waits_for_vms_of_several_namespaces_at_the_same_time() -> Result<()> {
    let networks = [AttachedNetwork::new("all1")?, AttachedNetwork::new("all2")?];
    let mut pairs = Vec::new();
    for network in &networks {
        let mut pair = network.connect()?;
        network.freeze_with_bytes_outstanding(&mut pair)?;
        pairs.push(pair);
    }
    let child = Command::new(program())
        .args(["detach", "--all", "--json", "--timeout", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // It waits for one VM, whichever is the first, and has paused the port of the other.
    for network in &networks {
        wait_until("the port is paused", || {
            let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
            Ok(status["ports"][0]["state"] == "paused")
        })?;
    }
    networks.iter().for_each(AttachedNetwork::thaw);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    for port in 0..networks.len() {
        let port = &json["ports"][port];
        ensure!(port["result"] == "detached" && port["outstanding_bytes"] == 0, "{json}");
    }
    for pair in &mut pairs {
        let mut received = [0; 1000];
        pair.server.read_exact(&mut received)?;
        pair.exchange(10_000)?;
    }
    let ran = vsnoop(["detach", "--all"])?.ok()?;
    ensure!(ran.out.contains("nothing was attached"), "{ran:?}");
    Ok(())
}

fn detach_says_what_was_still_on_its_way() -> Result<()> {
    let network = AttachedNetwork::new("drain")?;
    let mut pair = network.connect()?;
    network.freeze_with_bytes_outstanding(&mut pair)?;
    let host = network.topology.host.name();
    let paused = vsnoop_in(host, ["pause", topology::PORT, "--timeout", "0.1"])?;
    paused.failed(1, &["1000 B of 1 connection"])?;
    vsnoop_in(host, ["resume", topology::PORT])?.ok()?;
    let ran = vsnoop_in(host, ["detach", topology::PORT, "--timeout", "0.1", "--json"])?;
    ensure!(ran.err.contains("1000 B of 1 connection"), "{ran:?}");
    let json = ran.json()?;
    ensure!(json["ports"][0]["outstanding_bytes"] == 1000, "{json}");
    network.thaw();
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("the bytes that were in the ring")?;
    pair.exchange(10_000)
}

/// A client, a host and a stand-in for a VM, attached.
pub struct AttachedNetwork {
    pub topology: Topology,
}

pub struct Pair {
    pub client: TcpStream,
    pub server: TcpStream,
}

impl AttachedNetwork {
    /// Leaves a thousand sevens that were acknowledged early while the VM is frozen.
    pub fn freeze_with_bytes_outstanding(&self, pair: &mut Pair) -> Result<()> {
        self.until_new_ones_are_acknowledged_early()?;
        pair.exchange(10_000)?;
        let frozen = Faults { freeze: Freeze::Now, ..Faults::default() };
        self.topology.set_guest_faults(Side::Vm, frozen);
        pair.client.write_all(&[7; 1000])?;
        wait_until("the host has acknowledged", || Ok(self.outstanding_bytes()? == 1000))
    }

    pub fn thaw(&self) {
        self.topology.set_guest_faults(Side::Vm, Faults::default());
    }

    pub fn new(role: &str) -> Result<Self> {
        let prefix = format!("{PREFIX}{role}-");
        let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
        vsnoop_in(topology.host.name(), ["attach", topology::PORT])?.ok()?;
        Ok(Self { topology })
    }

    pub fn connect(&self) -> Result<Pair> {
        self.connect_to(0)
    }

    /// Connects to this port of the VM; 0: any. No port can be listened at again at once: a child
    /// of another test that has not called `exec` yet has a copy of the socket that listened.
    pub fn connect_to(&self, number: u16) -> Result<Pair> {
        let host = SocketAddr::new(address(Side::Vm, Family::V4), number);
        let listener = self.topology.vm.run(|| Ok(TcpListener::bind(host)?))?;
        let host = listener.local_addr()?;
        let client = self.topology.client.run(|| Ok(TcpStream::connect(host)?))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(Duration::from_secs(120)))?;
        }
        Ok(Pair { client, server })
    }

    pub fn vsnoop(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        vsnoop_in(self.topology.host.name(), arguments)?.json()
    }

    /// The output as a table.
    pub fn table(&self, command: &str) -> Result<String> {
        Ok(vsnoop_in(self.topology.host.name(), [command, topology::PORT])?.ok()?.unfolded())
    }

    pub fn outstanding_bytes(&self) -> Result<u64> {
        let status = self.vsnoop(&["status", topology::PORT, "--json"])?;
        status["ports"][0]["outstanding_bytes"].as_u64().context("no outstanding_bytes")
    }

    pub fn early_acks(&self) -> Result<u64> {
        let stats = self.vsnoop(&["stats", topology::PORT, "--json"])?;
        stats["ports"][0]["early_acks"].as_u64().context("no early_acks")
    }

    /// The first segments of a port may find no engine and no memory yet. Over new connections: a
    /// VM that answers at once is left alone, but not in their beginning.
    pub fn until_new_ones_are_acknowledged_early(&self) -> Result<()> {
        wait_until("the host acknowledges early", || {
            self.connect()?.exchange(1000)?;
            Ok(self.early_acks()? > 0)
        })
    }

    pub fn expect_no_reset(&self) -> Result<()> {
        let stats = self.vsnoop(&["stats", topology::PORT, "--json"])?;
        let resets = stats["ports"][0]["resets"].as_object().context("no resets")?;
        ensure!(resets.values().all(|count| count == 0), "{stats}");
        Ok(())
    }

    pub fn detach(&self) -> Result<()> {
        vsnoop_in(self.topology.host.name(), ["detach", topology::PORT])?.ok().map(drop)
    }
}

impl Pair {
    /// Bytes to the VM and back.
    pub fn exchange(&mut self, bytes: usize) -> Result<()> {
        let sent: Vec<_> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let mut received = vec![0; bytes];
        self.client.write_all(&sent)?;
        self.server.read_exact(&mut received).context("reading in the VM")?;
        ensure!(received == sent, "the VM received something else");
        self.server.write_all(&received)?;
        self.client.read_exact(&mut received).context("reading at the client")?;
        ensure!(received == sent, "the client received something else");
        Ok(())
    }
}

pub fn expect_reset(end: &mut TcpStream) -> Result<()> {
    match restarted(|| end.read(&mut [0])) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => bail!("instead of a reset: {other:?}"),
    }
}

//! The hold in the commands: its bounds, the host's configuration, and held bytes.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use libtest_mimic::Trial;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_bpf::Record;
use vsnoop_bpf::types::port_stats;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::process::Stopped;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::topology::{self, Side};

use crate::helper::{AttachedNetwork, Pair};
use crate::sandbox::{
    PORT, TapHost, foreground_helper, running_helper, vsnoop, vsnoop_in, wait_until,
};

/// More than the window that the stand-in for a VM begins with.
pub const MUCH: usize = 400_000;

pub fn trials() -> Vec<Trial> {
    trials![
        a_hold_is_said_shown_and_given_back,
        the_largest_hold_can_be_attached,
        wrong_bounds_of_a_hold_are_usage_errors,
        a_port_holds_without_being_asked_to_and_is_not_refused_for_its_share,
        set_changes_the_bounds_of_an_attached_port,
        a_larger_hold_takes_more_at_once_and_a_smaller_one_keeps_what_there_is,
        the_holds_of_all_ports_together_are_bounded,
        a_wrong_configuration_is_named_with_line_and_key_and_keeps_nobody_from_detaching,
        doctor_says_what_the_configuration_leaves_for_holds,
        doctor_recommends_a_hold_for_a_vm_that_waits_for_its_cpu,
        what_is_held_is_shown_with_its_age_and_reaches_the_vm,
        an_engine_that_stands_still_is_said,
        the_log_says_what_the_kernel_side_has_reset,
        a_port_that_is_only_observed_says_nothing_of_a_hold,
    ]
}

fn a_hold_is_said_shown_and_given_back() -> Result<()> {
    let host = TapHost::new("hold")?;
    let before = host.state()?;
    let said = host.vsnoop(["attach", PORT, "--hold", "16M"])?.ok()?.unfolded();
    ensure!(said.contains("attached, holds at most 16 MiB;"), "{said}");
    host.vsnoop(["detach", PORT])?.ok()?;
    let some = ["attach", PORT, "--hold", "1M", "--ahead", "64K"];
    let said = host.vsnoop(some)?.ok()?.unfolded();
    let words = "holds at most 1 MiB, senders at most 64 KiB ahead of the VM's window";
    ensure!(said.contains(words), "{said}");
    host.vsnoop(["detach", PORT])?.ok()?;
    let arguments = ["attach", PORT, "--hold", "1M", "--ahead", "0", "--json"];
    let json = host.vsnoop(arguments)?.json()?;
    let port = &json["ports"][0];
    ensure!(port["hold_bytes"] == 1 << 20 && port["ahead_bytes"] == 0, "{json}");
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    Ok(())
}

fn the_largest_hold_can_be_attached() -> Result<()> {
    let host = TapHost::new("large")?;
    host.vsnoop(["attach", PORT, "--hold", "256M"])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn wrong_bounds_of_a_hold_are_usage_errors() -> Result<()> {
    let host = TapHost::new("bounds")?;
    let before = host.state()?;
    for (arguments, words) in [
        (&["attach", PORT, "--hold", "1K"][..], ["--hold", "256K to 256M"]),
        (&["attach", PORT, "--hold", "1G"], ["--hold", "256K to 256M"]),
        (&["attach", PORT, "--ahead", "2G"], ["--ahead", "up to 1G"]),
        (&["set", PORT, "--hold", "1K"], ["--hold", "256K to 256M"]),
        (&["set", PORT], ["--hold", "--ahead"]),
        (&["observe", PORT, "--hold", "1M"], ["--hold", "unexpected"]),
    ] {
        let ran = host.vsnoop(arguments)?;
        ensure!(ran.code == 2, "{arguments:?}: exit code {}: {}", ran.code, ran.err);
        for word in words {
            ensure!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
    }
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

fn a_port_holds_without_being_asked_to_and_is_not_refused_for_its_share() -> Result<()> {
    let (one, two) = (TapHost::new("share1")?, TapHost::new("share2")?);
    let attach = |host: &TapHost, total: &str| -> Result<u64> {
        let file = ConfigFile::new(host, &format!("[hold]\ntotal = \"{total}\"\n"))?;
        let json = host.vsnoop(["attach", PORT, "--json", "--config", &file.path])?.json()?;
        let status = host.vsnoop(["status", PORT, "--json"])?.json()?;
        let hold_bytes = json["ports"][0]["hold_bytes"].as_u64().context("no hold")?;
        ensure!(status["ports"][0]["hold"]["size_bytes"] == hold_bytes, "{status}");
        Ok(hold_bytes)
    };
    // Both are VMs of this host, and this process has no other taps.
    ensure!(attach(&one, "8M")? == 4 << 20);
    ensure!(attach(&two, "8M")? == 4 << 20);
    two.vsnoop(["detach", PORT])?.ok()?;
    ensure!(attach(&two, "1M")? == 256 << 10, "the least, where nothing is left");
    for host in [&one, &two] {
        host.vsnoop(["detach", PORT])?.ok()?;
    }
    let json = one.vsnoop(["attach", PORT, "--json"])?.json()?;
    ensure!(json["ports"][0]["hold_bytes"].as_u64() >= Some(256 << 10), "{json}");
    one.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn set_changes_the_bounds_of_an_attached_port() -> Result<()> {
    let host = TapHost::new("set")?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    let attached = host.state()?;
    let shown = || -> Result<(Value, Value)> {
        let json = host.vsnoop(["status", PORT, "--json"])?.json()?;
        let port = &json["ports"][0];
        Ok((port["hold"]["size_bytes"].clone(), port["ahead_bytes"].clone()))
    };
    ensure!(shown()? == (Value::from(1 << 20), Value::Null), "{:?}", shown()?);
    let json = host.vsnoop(["set", PORT, "--hold", "2M", "--json"])?.json()?;
    ensure!(json["ports"][0]["hold_bytes"] == 2 << 20, "{json}");
    let said = host.vsnoop(["set", PORT, "--ahead", "0"])?.ok()?.unfolded();
    let words = "holds at most 2 MiB, senders not ahead of the VM's window";
    ensure!(said.contains(words), "{said}");
    ensure!(shown()? == (Value::from(2 << 20), Value::from(0)), "{:?}", shown()?);
    let file = ConfigFile::new(&host, "[hold]\ntotal = \"3M\"\n")?;
    let set = |bytes| host.vsnoop(["set", PORT, "--hold", bytes, "--config", &file.path]);
    // Its own quota does not count.
    set("3M")?.ok()?;
    set("4M")?.failed(3, &[PORT, "4 MiB", "3 MiB", &file.path])?;
    ensure!(shown()?.0 == 3 << 20, "{:?}", shown()?);
    ensure!(host.state()? == attached, "the attachment changed");
    host.vsnoop(["detach", PORT])?.ok()?;
    host.vsnoop(["set", PORT, "--hold", "1M"])?.failed(39, &[PORT, "not attached"])?;
    host.vsnoop(["attach", PORT, "--observe"])?.ok()?;
    host.vsnoop(["set", PORT, "--hold", "1M"])?.failed(3, &[PORT, "only being observed"])?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_larger_hold_takes_more_at_once_and_a_smaller_one_keeps_what_there_is() -> Result<()> {
    let network = network_with_hold("resize")?;
    let set =
        |bytes| vsnoop_in(network.topology.host.name(), ["set", topology::PORT, "--hold", bytes]);
    set("256K")?.ok()?;
    let mut pair = network.connect()?;
    until_acknowledged_early(&network, &mut pair)?;
    let frozen = Faults { freeze: Freeze::Now, ..Faults::default() };
    network.topology.set_guest_faults(Side::Vm, frozen);
    pair.client.write_all(&[7; MUCH])?;
    wait_until("the hold is full", || Ok(network.outstanding_bytes()? > 128 << 10))?;
    let outstanding = network.outstanding_bytes()?;
    ensure!(outstanding <= 256 << 10, "{outstanding} bytes in a hold of 256 KiB");
    set("4M")?.ok()?;
    wait_until("all is held", || Ok(network.outstanding_bytes()? == MUCH as u64))?;
    let said = set("256K")?.ok()?.unfolded();
    ensure!(said.contains("are in use: none are dropped"), "{said}");
    let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
    let hold = &status["ports"][0]["hold"];
    ensure!(hold["size_bytes"] == 256 << 10, "{hold}");
    ensure!(hold["used_bytes"].as_u64() >= Some(MUCH as u64), "{hold}");
    ensure!(hold["memory_bytes"].as_u64() >= hold["used_bytes"].as_u64(), "{hold}");
    network.thaw();
    let mut received = vec![0; MUCH];
    pair.server.read_exact(&mut received).context("what was held")?;
    ensure!(received.iter().all(|byte| *byte == 7), "the VM received something else");
    wait_until("the VM has caught up", || Ok(network.outstanding_bytes()? == 0))?;
    pair.exchange(10_000)?;
    network.detach()
}

fn the_holds_of_all_ports_together_are_bounded() -> Result<()> {
    let (one, two) = (TapHost::new("one")?, TapHost::new("two")?);
    let before = two.state()?;
    let file = ConfigFile::new(&one, "[hold]\ntotal = \"3M\"\n")?;
    let attach = |host: &TapHost, bytes: &str| {
        host.vsnoop(["--config", &file.path, "attach", PORT, "--hold", bytes])
    };
    attach(&one, "4M")?.failed(3, &[PORT, "4 MiB", "3 MiB", &file.path, "--hold"])?;
    attach(&one, "2M")?.ok()?;
    let attached = one.state()?;
    let words = [PORT, "hold of 2 MiB", "may have 3 MiB", "2 MiB are given", "vsnoop set"];
    attach(&two, "2M")?.failed(3, &words)?;
    ensure!(two.state()?.programs == before.programs, "something was attached");
    ensure!(one.state()? == attached, "the other port changed");
    // The rest is enough for this, and always for a port's default.
    attach(&two, "1M")?.ok()?;
    two.vsnoop(["detach", PORT])?.ok()?;
    two.vsnoop(["--config", &file.path, "attach", PORT])?.ok()?;
    one.vsnoop(["detach", PORT])?.ok()?;
    two.vsnoop(["detach", PORT])?.ok()?;
    // Returned memory can be given again.
    attach(&two, "3M")?.ok()?;
    two.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_wrong_configuration_is_named_with_line_and_key_and_keeps_nobody_from_detaching() -> Result<()>
{
    let host = TapHost::new("wrong")?;
    let file = ConfigFile::new(&host, "[hold]\ntotal = \"4M\"\n\ntotals = 1\n")?;
    let before = host.state()?;
    let line = format!("{}, line 4", file.path);
    host.vsnoop(["--config", &file.path, "attach", PORT])?
        .failed(2, &[&line, "totals", "`total`"])?;
    host.vsnoop(["--config", "/nonexistent.toml", "attach", PORT])?
        .failed(2, &["/nonexistent.toml", "cannot be read"])?;
    ensure!(host.state()? == before, "something changed");
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["--config", &file.path, "status"])?.ok()?;
    host.vsnoop(["--config", &file.path, "detach", PORT])?.ok()?;
    vsnoop(["--config", &file.path, "off", "--all"])?.ok().map(drop)
}

fn doctor_says_what_the_configuration_leaves_for_holds() -> Result<()> {
    let host = TapHost::new("left")?;
    let file = ConfigFile::new(&host, "[hold]\ntotal = \"3M\"\n")?;
    host.vsnoop(["--config", &file.path, "attach", PORT, "--hold", "1M"])?.ok()?;
    let json = host.vsnoop(["--config", &file.path, "doctor", PORT, "--json"])?.json()?;
    let hold = &json["hold"];
    ensure!(hold["total_bytes"] == 3 << 20 && hold["taken_bytes"] == 1 << 20, "{json}");
    ensure!(hold["total_from"] == format!("hold.total in {}", file.path), "{json}");
    ensure!(hold["bandwidth_bits"].as_u64() > Some(0), "{json}");
    host.vsnoop(["detach", PORT])?.ok()?;
    file.write("[hold]\ntotals = 1\n")?;
    let doctor = host.vsnoop(["--config", &file.path, "doctor", PORT])?;
    doctor.failed(3, &["not ready", &file.path, "line 2", "totals"])
}

fn doctor_recommends_a_hold_for_a_vm_that_waits_for_its_cpu() -> Result<()> {
    let host = TapHost::new("waits")?;
    // This process holds the tap; a thread of this name is taken for its vCPU.
    let _rivals: Vec<_> = (0..4).map(|_| Busy::thread("rival")).collect::<Result<_>>()?;
    let before = host.vsnoop(["doctor", PORT, "--measure", "0.1", "--json"])?.json()?;
    ensure!(before["ports"][0]["hold"].is_null(), "{before}");
    let _vcpu = Busy::thread("CPU 0/KVM")?;
    let arguments = ["doctor", PORT, "--measure", "1"];
    let mut json = Value::Null;
    // On a machine with much other work the thread may get no CPU in a second, and end no wait.
    wait_until("a hold is recommended", || {
        json = host.vsnoop(arguments.iter().chain(&["--json"]))?.json()?;
        Ok(!json["ports"][0]["hold"].is_null())
    })?;
    let hold = &json["ports"][0]["hold"];
    ensure!(hold["delay_from"] == "vcpu_wait", "{json}");
    ensure!(hold["size_bytes"].as_u64() >= Some(256 << 10), "{json}");
    ensure!(json["hold"]["needed_bytes"] == hold["size_bytes"], "{json}");
    let mut text = String::new();
    wait_until("a hold is recommended again", || {
        text = host.vsnoop(arguments)?.ok()?.unfolded();
        Ok(text.contains("delay seen"))
    })?;
    for word in [
        "longest wait for a CPU",
        "bandwidth",
        "round trip",
        "for all holds of this host",
        "without --hold a port gets",
    ] {
        ensure!(text.contains(word), "{word:?} is not in: {text}");
    }
    Ok(())
}

fn what_is_held_is_shown_with_its_age_and_reaches_the_vm() -> Result<()> {
    let (network, mut pair) = holding("held")?;
    let shown = network.vsnoop(&["flows", topology::PORT, "--json"])?;
    let flow = &shown["ports"][0]["flows"][0];
    ensure!(flow["mode"] == "holding", "{shown}");
    let hold = &flow["hold"];
    ensure!(hold["kept_bytes"] == MUCH && flow["outstanding_bytes"] == MUCH, "{shown}");
    let held = hold["held_bytes"].as_u64().context("no held_bytes")?;
    ensure!(held > 0 && held < MUCH as u64, "{shown}");
    ensure!(hold["oldest_ns"].as_u64().is_some_and(|ns| ns > 0), "{shown}");

    let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
    let port = &stats["ports"][0];
    ensure!(port["held_segments"].as_u64() > Some(0) && port["kept_bytes"] != 0, "{stats}");
    ensure!(port["round_trip_ns"]["count"] == 1, "of one handshake: {stats}");
    let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
    for hold in [&port["hold"], &status["ports"][0]["hold"]] {
        ensure!(hold["size_bytes"] == 4 << 20, "{hold}");
        let used = hold["used_bytes"].as_u64().context("no used_bytes")?;
        ensure!((MUCH as u64..=4 << 20).contains(&used), "{hold}");
        ensure!(hold["flows"] == 1 && hold["held_flows"] == 1, "{hold}");
        ensure!(hold["held_bytes"].as_u64() > Some(0), "{hold}");
        ensure!(hold["engine"] == "alive", "{hold}");
    }
    ensure!(status["engine"]["running"] == true, "{status}");
    let doctor = network.vsnoop(&["doctor", topology::PORT, "--measure", "0.1", "--json"])?;
    let port = &doctor["ports"][0];
    let (held, pid) = (&port["held"], std::process::id());
    ensure!(port["pid"] == pid && held["size_bytes"] == 4 << 20, "{doctor}");
    ensure!(held["held_bytes"].as_u64() > Some(0) && held["held_flows"] == 1, "{doctor}");
    let doctor = network.table("doctor")?;
    for word in ["held now", "at most", "4 MiB", &pid.to_string()] {
        ensure!(doctor.contains(word), "{word:?} is not in: {doctor}");
    }
    for (command, words) in [
        ("flows", &["holding", "held", "again"][..]),
        ("stats", &["/4 MiB used by 1 connection", "engine: alive", "hold_full"]),
        ("status", &["hold", "/4 MiB"]),
    ] {
        let table = network.table(command)?;
        for word in words {
            ensure!(table.contains(word), "{word:?} is not in: {table}");
        }
        ensure!(!table.contains("no engine"), "{table}");
    }

    network.thaw();
    let mut received = vec![0; MUCH];
    pair.server.read_exact(&mut received).context("what was held")?;
    ensure!(received.iter().all(|byte| *byte == 7), "the VM received something else");
    wait_until("the memory is free again", || {
        let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
        Ok(stats["ports"][0]["hold"]["used_bytes"] == 0)
    })?;
    let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
    let hold = &stats["ports"][0]["hold"];
    ensure!(hold["handovers"].as_u64() > Some(0) && hold["held_bytes"] == 0, "{stats}");
    ensure!(hold["oldest_ns"].is_null(), "{stats}");
    network.detach()
}

fn an_engine_that_stands_still_is_said() -> Result<()> {
    let host = TapHost::new("still")?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    wait_for_engine(&host)?;
    // The helper would replace it.
    let helper = Stopped::process(running_helper()?)?;
    let status = host.vsnoop(["status", PORT, "--json"])?.json()?;
    let pid = status["engine"]["pid"].as_i64().context("no engine")?;
    let engine = Stopped::process(pid as i32)?;
    wait_until("the engine is missed", || Ok(engine_state(&host)? == "silent"))?;
    let table = host.vsnoop(["status", PORT])?.ok()?.unfolded();
    for word in [PORT, "no engine", "not heard of for", "the VM answers by itself"] {
        ensure!(table.contains(word), "{word:?} is not in: {table}");
    }
    let table = host.vsnoop(["stats", PORT])?.ok()?.unfolded();
    ensure!(table.contains("engine: not heard of for"), "{table}");
    drop((engine, helper));
    wait_for_engine(&host)?;
    let table = host.vsnoop(["status", PORT])?.ok()?.unfolded();
    ensure!(!table.contains("no engine"), "{table}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn the_log_says_what_the_kernel_side_has_reset() -> Result<()> {
    let host = TapHost::new("log2")?;
    let log = format!("/run/{}.log", host.netns.name());
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    let mut helper = foreground_helper(&log)?;
    let mut expected = Vec::new();
    for (count, words) in [(1, "1 connection reset"), (2, "2 connections reset")] {
        add_resets_without_engine(&host.pins()?.join("stats"), count)?;
        expected.push(words);
        wait_until("the log says so", || {
            let text = fs::read_to_string(&log)?;
            Ok(expected.iter().all(|words| text.contains(words)))
        })?;
    }
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(helper.wait()?.success(), "the helper failed");
    let text = fs::read_to_string(&log)?;
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("WARN")).collect();
    ensure!(warnings.len() == 2, "{text}");
    for warning in warnings {
        ensure!(warning.contains(PORT) && warning.contains("the engine"), "{text}");
    }
    Ok(())
}

fn a_port_that_is_only_observed_says_nothing_of_a_hold() -> Result<()> {
    let host = TapHost::new("plain")?;
    host.vsnoop(["attach", PORT, "--observe"])?.ok()?;
    let doctor = host.vsnoop(["doctor", PORT, "--measure", "0.1", "--json"])?.json()?;
    ensure!(doctor["ports"][0]["held"].is_null(), "{doctor}");
    for command in ["status", "stats"] {
        let json = host.vsnoop([command, PORT, "--json"])?.json()?;
        ensure!(json["ports"][0]["hold"].is_null(), "{json}");
        let table = host.vsnoop([command, PORT])?.ok()?.unfolded();
        ensure!(!table.contains("engine:") && !table.contains("/"), "{table}");
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// Adds `count` connections to the hooks' counter of resets without an engine.
fn add_resets_without_engine(stats: &Path, count: u64) -> Result<()> {
    let stats = MapHandle::from_pinned_path(stats)?;
    let key = 0u32.to_ne_bytes();
    let mut values = stats.lookup_percpu(&key, MapFlags::ANY)?.context("no counters")?;
    let mut record = port_stats::from_bytes(&values[0]).context("not the counters")?;
    record.reset_without_engine += count;
    values[0].copy_from_slice(record.as_bytes());
    Ok(stats.update_percpu(&key, &values, MapFlags::ANY)?)
}

/// A VM that is frozen while [`MUCH`] was acknowledged for it, part of which waits on this host.
pub fn holding(role: &str) -> Result<(AttachedNetwork, Pair)> {
    let network = network_with_hold(role)?;
    let mut pair = network.connect()?;
    freeze_with_much(&network, &mut pair)?;
    Ok((network, pair))
}

pub fn network_with_hold(role: &str) -> Result<AttachedNetwork> {
    let network = AttachedNetwork::new(role)?;
    network.detach()?;
    let host = &network.topology.host;
    let hold = ["attach", topology::PORT, "--no-passive", "--hold", "4M"];
    vsnoop_in(host.name(), hold)?.ok()?;
    wait_until("the engine works", || {
        let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
        Ok(status["ports"][0]["hold"]["engine"] == "alive")
    })?;
    Ok(network)
}

/// The first segments of a port may find no memory yet: it is added on demand.
pub fn until_acknowledged_early(network: &AttachedNetwork, pair: &mut Pair) -> Result<()> {
    wait_until("the host acknowledges early", || {
        pair.exchange(1000)?;
        Ok(network.early_acks()? > 0)
    })
}

pub fn freeze_with_much(network: &AttachedNetwork, pair: &mut Pair) -> Result<()> {
    until_acknowledged_early(network, pair)?;
    let frozen = Faults { freeze: Freeze::Now, ..Faults::default() };
    network.topology.set_guest_faults(Side::Vm, frozen);
    pair.client.write_all(&[7; MUCH])?;
    wait_until("the host has acknowledged", || Ok(network.outstanding_bytes()? == MUCH as u64))
}

fn engine_state(host: &TapHost) -> Result<Value> {
    let status = host.vsnoop(["status", PORT, "--json"])?.json()?;
    Ok(status["ports"][0]["hold"]["engine"].clone())
}

fn wait_for_engine(host: &TapHost) -> Result<()> {
    wait_until("the engine works", || Ok(engine_state(host)? == "alive"))
}

/// A thread that always wants the first CPU, as long as the value lives.
struct Busy(Arc<AtomicBool>);

impl Busy {
    /// It has its name and its CPU when this returns: a new thread sets them when it first runs,
    /// which on a busy machine may be after the test has looked for it.
    fn thread(name: &str) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        let (settled, is_settled) = mpsc::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut cpus = CpuSet::new();
            cpus.set(0).expect("there is a first CPU");
            sched_setaffinity(Pid::from_raw(0), &cpus).expect("a thread may choose its CPU");
            let _ = settled.send(());
            while !flag.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        let busy = Self(over);
        is_settled.recv().context("the thread has ended")?;
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A configuration of its own for a test.
pub struct ConfigFile {
    pub path: String,
}

impl ConfigFile {
    pub fn new(host: &TapHost, text: &str) -> Result<Self> {
        Self::for_netns(&host.netns, text)
    }

    pub fn for_netns(netns: &Netns, text: &str) -> Result<Self> {
        let file = Self { path: format!("/run/{}.toml", netns.name()) };
        file.write(text)?;
        Ok(file)
    }

    pub fn write(&self, text: &str) -> Result<()> {
        Ok(fs::write(&self.path, text)?)
    }
}

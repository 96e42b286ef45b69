//! Detach or pause of a port while bytes for its VM are held on this host: they are drained, or
//! their connections are reset at both ends, whichever process is killed
//! (accel/vsnoop-host/src/port_removal.rs).

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_bpf::types::{flow, flow_key, flow_mode};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::process::Stopped;
use vsnoop_testbed::topology;

use crate::detach::{port_of_network, take_lock};
use crate::helper::{AttachedNetwork, Pair, expect_reset};
use crate::hold::{MUCH, freeze_with_much, holding, network_with_hold};
use crate::sandbox::{
    PINS, foreground_helper, now_ns, program, running_helper, text, vsnoop, vsnoop_in,
    wait_for_no_pins, wait_until,
};

pub fn trials() -> Vec<Trial> {
    trials![
        detach_hands_over_what_is_held_before_it_returns,
        pause_drains_what_is_held_before_it_returns,
        pause_says_what_a_migration_would_not_deliver,
        detach_resets_both_ends_of_what_it_could_not_hand_over,
        off_resets_both_ends_of_what_is_held,
        a_detach_that_was_killed_before_it_told_the_ends_is_finished_by_the_next,
        a_detach_that_was_killed_with_bytes_held_is_finished_by_the_helper,
        a_killed_detach_leaves_a_record_that_acknowledges_nothing,
        a_tap_that_is_deleted_with_bytes_held_has_its_senders_reset,
        senders_that_a_killed_detach_had_not_told_are_told_when_the_tap_is_deleted,
    ]
}

fn detach_hands_over_what_is_held_before_it_returns() -> Result<()> {
    let (network, mut pair) = holding("hand")?;
    let child = begin(&network, "detach")?;
    network.thaw();
    receive_all(&mut pair)?;
    let json = end(child)?;
    let port = &json["ports"][0];
    ensure!(port["outstanding_bytes"] == 0 && port["reset_flows"] == 0, "{json}");
    pair.exchange(10_000)
}

fn pause_drains_what_is_held_before_it_returns() -> Result<()> {
    let (network, mut pair) = holding("drain3")?;
    let child = begin(&network, "pause")?;
    network.thaw();
    receive_all(&mut pair)?;
    let json = end(child)?;
    let port = &json["ports"][0];
    ensure!(port["outstanding_bytes"] == 0 && port["held_bytes"] == 0, "{json}");
    network.vsnoop(&["resume", topology::PORT, "--json"])?;
    pair.exchange(10_000)?;
    network.detach()
}

fn pause_says_what_a_migration_would_not_deliver() -> Result<()> {
    let (network, mut pair) = holding("behind")?;
    let host = network.topology.host.name();
    let pause = ["pause", topology::PORT, "--timeout", "0.1"];
    let words = ["391 KiB of 1 connection", "held on this host only", "migration"];
    vsnoop_in(host, pause)?.failed(1, &words)?;
    let ran = vsnoop_in(host, pause.into_iter().chain(["--json"]))?;
    ensure!(ran.code == 1, "{ran:?}");
    let json: Value = serde_json::from_str(&ran.out)?;
    let port = &json["ports"][0];
    let held = port["held_bytes"].as_u64().context("no held_bytes")?;
    ensure!(held > 0 && held < MUCH as u64 && port["held_flows"] == 1, "{json}");
    // Nothing is lost: it is paused, and continues when the VM does.
    network.thaw();
    receive_all(&mut pair)?;
    vsnoop_in(host, ["pause", topology::PORT])?.ok()?;
    network.vsnoop(&["resume", topology::PORT, "--json"])?;
    pair.exchange(10_000)?;
    network.detach()
}

fn detach_resets_both_ends_of_what_it_could_not_hand_over() -> Result<()> {
    let network = network_with_hold("both")?;
    let (mut pair, mut other) = (network.connect()?, network.connect_to(5002)?);
    other.exchange(1000)?;
    freeze_with_much(&network, &mut pair)?;
    let host = network.topology.host.name();
    let ran = vsnoop_in(host, ["detach", topology::PORT, "--timeout", "0.1", "--json"])?;
    for word in ["of 1 connection had not been handed to the VM", "reset at both ends"] {
        ensure!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
    }
    let json = ran.json()?;
    let port = &json["ports"][0];
    ensure!(port["result"] == "detached" && port["reset_flows"] == 1, "{json}");
    let lost = port["reset_bytes"].as_u64().context("no reset_bytes")?;
    ensure!(lost > 0 && lost < MUCH as u64, "{json}");
    ensure!(port["outstanding_bytes"] == 0, "{json}");
    expect_both_reset(&network, &mut pair)?;
    // A connection without held bytes continues.
    other.exchange(10_000)
}

fn off_resets_both_ends_of_what_is_held() -> Result<()> {
    let (network, mut pair) = holding("off5")?;
    let ran = vsnoop(["off", "--all", "--json"])?;
    ensure!(ran.err.contains("reset at both ends"), "{ran:?}");
    let json = ran.json()?;
    ensure!(json["reset_flows"] == 1 && json["failed"] == serde_json::json!([]), "{json}");
    ensure!(json["reset_bytes"].as_u64() > Some(0), "{json}");
    ensure!(!Path::new(PINS).exists(), "pins are left");
    expect_both_reset(&network, &mut pair)
}

fn a_detach_that_was_killed_before_it_told_the_ends_is_finished_by_the_next() -> Result<()> {
    let (network, mut pair) = holding("cut3")?;
    // The helper would reset them.
    let helper = Stopped::process(running_helper()?)?;
    let port = port_of_network(&network)?;
    let (key, record) = the_flow(&port)?;
    ensure!(port.mark_reset(&key, &record, now_ns()?)?, "it was not marked");
    let host = network.topology.host.name();
    let ran = vsnoop_in(host, ["detach", topology::PORT, "--json"])?.json();
    drop(helper);
    ran?;
    expect_both_reset(&network, &mut pair)
}

fn a_detach_that_was_killed_with_bytes_held_is_finished_by_the_helper() -> Result<()> {
    let (network, mut pair) = holding("cut4")?;
    let pins = port_of_network(&network)?.dir().to_owned();
    let lock = take_lock()?;
    fs::rename(pins, Path::new(PINS).join("leaving-0-0"))?;
    drop(lock);
    wait_for_no_pins()?;
    expect_both_reset(&network, &mut pair)
}

fn a_killed_detach_leaves_a_record_that_acknowledges_nothing() -> Result<()> {
    let (network, mut pair) = holding("mark")?;
    let port = port_of_network(&network)?;
    let (key, record) = the_flow(&port)?;
    ensure!(port.mark_reset(&key, &record, now_ns()?)?, "it was not marked");
    // No command runs: the helper, or the hooks, reset both ends.
    let host = network.topology.host.name();
    vsnoop_in(host, ["resume", topology::PORT])?.ok()?;
    expect_both_reset(&network, &mut pair)?;
    let mode = the_flow(&port)?.1.mode;
    ensure!(u32::from(mode) == flow_mode::FLOW_RESET, "mode {mode}");
    network.detach()
}

fn a_tap_that_is_deleted_with_bytes_held_has_its_senders_reset() -> Result<()> {
    let (network, mut pair) = holding("del")?;
    let log = format!("/run/{}.log", network.topology.host.name());
    let mut helper = foreground_helper(&log)?;
    network.topology.host.ip(&format!("link del {}", topology::PORT))?;
    expect_reset(&mut pair.client).context("the sender")?;
    wait_for_no_pins()?;
    // The counters went with the port: the log has what was reset, and why.
    ensure!(helper.wait()?.success(), "the helper failed");
    let log = fs::read_to_string(&log)?;
    for words in [topology::PORT, "its tap was deleted", "1 of 1 senders were sent a RST"] {
        ensure!(log.contains(words), "{words:?} is not in: {log}");
    }
    Ok(())
}

fn senders_that_a_killed_detach_had_not_told_are_told_when_the_tap_is_deleted() -> Result<()> {
    let (network, mut pair) = holding("del2")?;
    let helper = Stopped::process(running_helper()?)?;
    let port = port_of_network(&network)?;
    let (key, record) = the_flow(&port)?;
    ensure!(port.mark_reset(&key, &record, now_ns()?)?, "it was not marked");
    network.topology.host.ip(&format!("link del {}", topology::PORT))?;
    drop(helper);
    expect_reset(&mut pair.client).context("the sender")?;
    wait_for_no_pins()
}

/// Starts a command that waits for the VM, and returns when it waits.
fn begin(network: &AttachedNetwork, command: &str) -> Result<Child> {
    let mut child = Command::new(program());
    let child = child.args(["--netns", network.topology.host.name(), command, topology::PORT]);
    let child = child.args(["--timeout", "600", "--json"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_until("the port is paused", || {
        let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
        Ok(status["ports"][0]["state"] == "paused")
    })?;
    Ok(child)
}

fn end(child: Child) -> Result<Value> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn receive_all(pair: &mut Pair) -> Result<()> {
    let mut received = vec![0; MUCH];
    pair.server.read_exact(&mut received).context("what was held")?;
    ensure!(received.iter().all(|byte| *byte == 7), "the VM received something else");
    Ok(())
}

fn expect_both_reset(network: &AttachedNetwork, pair: &mut Pair) -> Result<()> {
    expect_reset(&mut pair.client).context("the sender")?;
    network.thaw();
    expect_reset_after_data(&mut pair.server).context("the VM")
}

/// The bytes in the ring still arrive, in order; then the reset.
fn expect_reset_after_data(end: &mut TcpStream) -> Result<()> {
    let (mut some, mut count) = ([0; 4096], 0);
    loop {
        match restarted(|| end.read(&mut some)) {
            Ok(0) => bail!("the end of the stream after {count} bytes"),
            Ok(bytes) => {
                ensure!(some[..bytes].iter().all(|byte| *byte == 7), "something else");
                count += bytes;
                ensure!(count < MUCH, "everything arrived");
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => bail!("instead of a reset: {error}"),
        }
    }
}

fn the_flow(port: &vsnoop_bpf::Port) -> Result<(flow_key, flow)> {
    let flows = port.flows()?;
    ensure!(flows.len() == 1, "{} flows", flows.len());
    Ok(flows[0])
}

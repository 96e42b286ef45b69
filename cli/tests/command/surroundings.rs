//! Changes of an attached tap by other tools: programs at its hooks, another bridge.

use std::fs;
use std::io::{Read, Write};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_bpf::types::{FLOW_F_CLOSED, flow, flow_key};
use vsnoop_bpf::{EmptyProgram, Hook, Port};
use vsnoop_testbed::process::Stopped;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::topology::{self, BRIDGE, Side};

use crate::helper::{AttachedNetwork, expect_reset};
use crate::sandbox::{
    PORT, TapHost, foreground_helper, foreign_program, is_running, now_ns, running, running_helper,
    vsnoop_in, wait_until, xdp_program,
};
use crate::skipped;

/// Key of a connection that does not exist.
pub const KEY: flow_key = flow_key {
    sender_addr: [1; 16],
    vm_addr: [2; 16],
    sender_port: 3,
    vm_port: 4,
    vlan_outer: 0,
    vlan_inner: 0,
    vm_mac: [5; 6],
    zero: 0,
};

pub fn trials() -> Vec<Trial> {
    let mut trials = trials![
        a_program_that_comes_later_pauses_the_port_until_it_goes,
        a_port_that_the_operator_paused_stays_paused_when_the_program_goes,
        pause_and_resume_of_a_suspended_port_count_when_the_program_goes,
        a_new_helper_ends_the_suspension_of_the_killed_one,
        the_log_names_port_program_and_way_out_once,
        a_suspended_port_acknowledges_nothing_early_and_honours_what_it_has,
        a_program_before_the_ingress_hook_pauses_the_port_and_no_connection_ends,
        a_program_after_the_ingress_hook_changes_nothing,
        an_xdp_program_pauses_the_port_until_it_goes_and_no_connection_ends,
        a_tap_that_is_renamed_is_shown_by_its_new_name,
        a_port_behind_another_qdisc_is_not_called_active,
        a_tap_that_joins_a_bridge_later_has_its_senders_reset_over_it,
    ];
    trials.extend(
        trials![
            a_tc_filter_that_comes_later_pauses_the_port_until_it_goes,
            a_tc_filter_at_the_ingress_is_not_taken_for_one_at_the_egress,
        ]
        .into_iter()
        .map(with_filter),
    );
    trials
}

fn a_program_that_comes_later_pauses_the_port_until_it_goes() -> Result<()> {
    let host = TapHost::new("come")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let before = status(&host)?;
    ensure!(before["paused_by"].is_null() && before["helper_pauses"] == 0, "{before}");
    ensure!(before["foreign_programs"] == serde_json::json!([]), "{before}");

    let program = host.netns.run(|| foreign_program(PORT))?;
    wait_for_state(&host, "paused")?;
    let held = status(&host)?;
    ensure!(held["paused_by"] == "helper" && held["helper_pauses"] == 1, "{held}");
    let found = held["foreign_programs"].as_array().context("no list")?;
    ensure!(found.len() == 1, "{held}");
    ensure!(found[0]["kind"] == "tcx program" && found[0]["name"] == "empty", "{held}");
    let id = found[0]["id"].as_u64().context("no id")?;
    for command in ["stats", "flows"] {
        let json = host.vsnoop([command, PORT, "--json"])?.json()?;
        let port = &json["ports"][0];
        ensure!(port["state"] == "paused" && port["paused_by"] == "helper", "{json}");
    }
    let doctor = host.vsnoop(["doctor", PORT, "--json"])?.json()?;
    ensure!(doctor["ports"][0]["attached"] == "paused", "{doctor}");
    let table = host.vsnoop(["stats", PORT])?.ok()?.unfolded();
    ensure!(table.contains("(paused, "), "{table}");
    let table = host.vsnoop(["status", PORT])?.ok()?.unfolded();
    let named = format!("tcx program empty (id {id})");
    for word in ["paused by the helper", &named, "bpftool net", "goes on by itself"] {
        ensure!(table.contains(word), "{word:?} is not in: {table}");
    }

    drop(program);
    wait_for_state(&host, "active")?;
    let after = status(&host)?;
    ensure!(after["paused_by"].is_null() && after["helper_pauses"] == 1, "{after}");
    ensure!(!host.vsnoop(["status", PORT])?.ok()?.out.contains("egress"));
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_port_that_the_operator_paused_stays_paused_when_the_program_goes() -> Result<()> {
    let host = TapHost::new("chose")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["pause", PORT])?.ok()?;
    let program = host.netns.run(|| foreign_program(PORT))?;
    wait_for_suspension(&host, true)?;
    ensure!(status(&host)?["paused_by"] == "operator", "{}", status(&host)?);
    drop(program);
    wait_for_suspension(&host, false)?;
    let after = status(&host)?;
    ensure!(after["state"] == "paused" && after["paused_by"] == "operator", "{after}");
    host.vsnoop(["resume", PORT])?.ok()?;
    ensure!(status(&host)?["state"] == "active", "{}", status(&host)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn pause_and_resume_of_a_suspended_port_count_when_the_program_goes() -> Result<()> {
    let host = TapHost::new("both")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let program = host.netns.run(|| foreign_program(PORT))?;
    wait_for_suspension(&host, true)?;
    let json = host.vsnoop(["resume", PORT, "--json"])?.json()?;
    ensure!(json["ports"][0]["result"] == "paused", "{json}");
    let text = host.vsnoop(["resume", PORT])?.ok()?.unfolded();
    ensure!(text.contains("stays paused") && text.contains(&format!("status {PORT}`")), "{text}");
    let resumed = status(&host)?;
    ensure!(resumed["state"] == "paused" && resumed["paused_by"] == "helper", "{resumed}");
    host.vsnoop(["pause", PORT])?.ok()?;
    drop(program);
    wait_for_suspension(&host, false)?;
    let after = status(&host)?;
    ensure!(after["state"] == "paused" && after["paused_by"] == "operator", "{after}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_new_helper_ends_the_suspension_of_the_killed_one() -> Result<()> {
    let host = TapHost::new("heir")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let program = host.netns.run(|| foreign_program(PORT))?;
    wait_for_suspension(&host, true)?;
    let port = port_of(&host)?;
    // It would start a helper, too.
    let engine = Stopped::process(running("engine")?)?;
    let pid = running_helper()?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    wait_until("the helper is dead", || Ok(!is_running(pid)))?;
    drop(program);
    ensure!(port.is_suspended()?, "the kernel side went on without a look");
    drop(engine);
    // `status`, which this calls, starts another helper.
    wait_for_state(&host, "active")?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn the_log_names_port_program_and_way_out_once() -> Result<()> {
    let host = TapHost::new("log")?;
    let log = format!("/run/{}.log", host.netns.name());
    host.vsnoop(["attach", PORT])?.ok()?;
    let mut helper = foreground_helper(&log)?;
    let foreign = host.netns.run(|| foreign_program(PORT))?;
    wait_for_suspension(&host, true)?;
    wait_for_a_look(&port_of(&host)?)?;
    drop(foreign);
    wait_for_suspension(&host, false)?;
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(helper.wait()?.success(), "the helper failed");
    let text = fs::read_to_string(&log)?;
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("WARN")).collect();
    ensure!(warnings.len() == 1, "{text}");
    for word in [PORT, "tcx program empty (id ", "tc filter del", "goes on by itself"] {
        ensure!(warnings[0].contains(word), "{word:?} is not in: {text}");
    }
    ensure!(text.contains("no longer suspended"), "{text}");
    Ok(())
}

fn a_suspended_port_acknowledges_nothing_early_and_honours_what_it_has() -> Result<()> {
    let network = AttachedNetwork::new("held")?;
    network.detach()?;
    let host = &network.topology.host;
    vsnoop_in(host.name(), ["attach", topology::PORT, "--no-passive"])?.ok()?;
    let mut pair = network.connect()?;
    network.until_new_ones_are_acknowledged_early()?;
    pair.exchange(10_000)?;
    let frozen = Faults { freeze: Freeze::Now, ..Faults::default() };
    network.topology.set_guest_faults(Side::Vm, frozen);
    pair.client.write_all(&[7; 1000])?;
    wait_until("the host has acknowledged", || Ok(network.outstanding_bytes()? == 1000))?;

    let program = host.run(|| foreign_program(topology::PORT))?;
    let shown = || network.vsnoop(&["status", topology::PORT, "--json"]);
    wait_until("the port is paused", || Ok(shown()?["ports"][0]["state"] == "paused"))?;
    pair.client.write_all(&[8; 1000])?;
    network.topology.set_guest_faults(Side::Vm, Faults::default());
    let mut received = [0; 2000];
    pair.server.read_exact(&mut received).context("the bytes that were on their way")?;
    ensure!(received[..1000] == [7; 1000] && received[1000..] == [8; 1000]);
    wait_until("the VM has caught up", || Ok(network.outstanding_bytes()? == 0))?;
    let early = network.early_acks()?;
    pair.exchange(10_000)?;
    ensure!(network.early_acks()? == early, "a paused port acknowledges early");

    drop(program);
    wait_until("the port is active", || Ok(shown()?["ports"][0]["state"] == "active"))?;
    wait_until("it goes on", || {
        pair.exchange(10_000)?;
        Ok(network.early_acks()? > early)
    })?;
    network.detach()
}

fn a_program_before_the_ingress_hook_pauses_the_port_and_no_connection_ends() -> Result<()> {
    // It hides the VM's ACKs from the hook, and passes them on.
    let hide = || Ok(EmptyProgram::attach_hiding(if_nametoindex(topology::PORT)?, Hook::FromVm)?);
    paused_by_a_program_before_the_hook("hide", "tcx program hide", hide)
}

fn an_xdp_program_pauses_the_port_until_it_goes_and_no_connection_ends() -> Result<()> {
    paused_by_a_program_before_the_hook("xdp", "XDP program pass", || xdp_program(topology::PORT))
}

/// `name`: of the program, after its kind.
fn paused_by_a_program_before_the_hook(
    role: &str,
    name: &str,
    attach: impl FnOnce() -> Result<EmptyProgram> + Send,
) -> Result<()> {
    let network = AttachedNetwork::new(role)?;
    let host = &network.topology.host;
    let mut pair = network.connect()?;
    pair.exchange(100_000)?;
    let program = host.run(attach)?;
    let shown = || network.vsnoop(&["status", topology::PORT, "--json"]);
    wait_until("the port is paused", || Ok(shown()?["ports"][0]["paused_by"] == "helper"))?;
    let found = shown()?["ports"][0]["foreign_programs"].take();
    ensure!(found.as_array().is_some_and(|found| found.len() == 1), "{found}");
    ensure!(found[0]["place"] == "ingress", "{found}");
    let kind_and_name = ["kind", "name"].map(|field| found[0][field].as_str().unwrap_or_default());
    ensure!(kind_and_name.join(" ") == name, "{found}");
    let table = network.table("status")?;
    ensure!(table.contains(&format!("before vsnoop's ({name}")), "{table}");
    let early = network.early_acks()?;
    pair.exchange(100_000)?;
    ensure!(network.early_acks()? == early, "a paused port acknowledges early");
    drop(program);
    wait_until("the port is active", || Ok(shown()?["ports"][0]["state"] == "active"))?;
    pair.exchange(100_000)?;
    wait_until("the VM has everything", || Ok(network.outstanding_bytes()? == 0))?;
    network.expect_no_reset()?;
    network.detach()
}

fn a_program_after_the_ingress_hook_changes_nothing() -> Result<()> {
    let network = AttachedNetwork::new("last")?;
    let host = &network.topology.host;
    let _program =
        host.run(|| Ok(EmptyProgram::attach(if_nametoindex(topology::PORT)?, Hook::FromVm)?))?;
    let index = host.run(|| Ok(if_nametoindex(topology::PORT)?))?;
    wait_for_a_look(&Port::open(host.inode()?, index)?)?;
    let shown = || network.vsnoop(&["status", topology::PORT, "--json"]);
    let port = shown()?["ports"][0].take();
    ensure!(
        port["state"] == "active" && port["foreign_programs"] == serde_json::json!([]),
        "{port}"
    );
    let mut pair = network.connect()?;
    pair.exchange(100_000)?;
    network.until_new_ones_are_acknowledged_early()?;
    network.expect_no_reset()?;
    network.detach()
}

fn a_tap_that_is_renamed_is_shown_by_its_new_name() -> Result<()> {
    const NEW: &str = "vscli-new0";
    let host = TapHost::new("name")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.netns.ip(&format!("link set {PORT} down"))?;
    host.netns.ip(&format!("link set {PORT} name {NEW} up"))?;
    for command in ["status", "stats", "flows"] {
        wait_until(&format!("{command} has the new name"), || {
            let json = host.vsnoop([command, "--json"])?.json()?;
            Ok(json["ports"][0]["port"] == NEW)
        })?;
    }
    let json = host.vsnoop(["pause", NEW, "--json"])?.json()?;
    ensure!(json["ports"][0]["port"] == NEW, "{json}");
    host.vsnoop(["detach", NEW])?.ok().map(drop)
}

fn a_port_behind_another_qdisc_is_not_called_active() -> Result<()> {
    let host = TapHost::new("fq")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.tc(&format!("qdisc replace dev {PORT} root pfifo_fast"))?;
    let blocked = status(&host)?;
    ensure!(blocked["state"] == "blocked" && blocked["qdisc"] == "pfifo_fast", "{blocked}");
    host.tc(&format!("qdisc replace dev {PORT} root noqueue"))?;
    ensure!(status(&host)?["state"] == "active", "{}", status(&host)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_tap_that_joins_a_bridge_later_has_its_senders_reset_over_it() -> Result<()> {
    let network = AttachedNetwork::new("join")?;
    network.detach()?;
    let host = &network.topology.host;
    host.ip(&format!("link set {} nomaster", topology::PORT))?;
    vsnoop_in(host.name(), ["attach", topology::PORT])?.ok()?;
    let index = |name: &'static str| host.run(move || Ok(if_nametoindex(name)?));
    let port = Port::open(host.inode()?, index(topology::PORT)?)?;
    ensure!(port.meta()?.bridge == 0, "it is on a bridge already");
    host.add_port(BRIDGE, topology::PORT)?;
    let bridge = index(BRIDGE)?;
    wait_until("the bridge is known", || Ok(port.meta()?.bridge == bridge))?;

    let mut pair = network.connect()?;
    network.freeze_with_bytes_outstanding(&mut pair)?;
    // As scripts do it: off the bridge first.
    host.ip(&format!("link set {} nomaster", topology::PORT))?;
    wait_for_a_look(&port)?;
    host.ip(&format!("link del {}", topology::PORT))?;
    expect_reset(&mut pair.client).context("the sender")
}

/// A filter of tc at the egress of the port; not every kernel has one.
pub fn add_filter(host: &TapHost) -> Result<()> {
    host.tc(&format!("qdisc add dev {PORT} clsact"))?;
    host.tc(&format!("filter add dev {PORT} egress u32 match u32 0 0"))
}

/// The test, unless the kernel has no such filter.
pub fn with_filter(test: Trial) -> Trial {
    match TapHost::new("probe").and_then(|host| add_filter(&host)) {
        Ok(()) => test,
        Err(_) => skipped(test, "this kernel has no u32 filter"),
    }
}

fn a_tc_filter_that_comes_later_pauses_the_port_until_it_goes() -> Result<()> {
    let host = TapHost::new("u32")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    add_filter(&host)?;
    wait_for_state(&host, "paused")?;
    let table = host.vsnoop(["status", PORT])?.ok()?.unfolded();
    ensure!(table.contains("(tc filter u32)"), "{table}");
    host.tc(&format!("filter del dev {PORT} egress"))?;
    wait_for_state(&host, "active")?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// It is at the qdisc that libvirt adds for `<outbound>`, before the port is attached and later.
fn a_tc_filter_at_the_ingress_is_not_taken_for_one_at_the_egress() -> Result<()> {
    let host = TapHost::new("police")?;
    let add = || {
        host.tc(&format!("qdisc add dev {PORT} ingress"))?;
        host.tc(&format!("filter add dev {PORT} parent ffff: protocol all u32 match u32 0 0"))
    };
    add()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    for _ in 0..2 {
        wait_for_a_look(&port_of(&host)?)?;
        let port = status(&host)?;
        let foreign = &port["foreign_programs"];
        ensure!(port["state"] == "active" && *foreign == serde_json::json!([]), "{port}");
        host.tc(&format!("qdisc del dev {PORT} ingress"))?;
        add()?;
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn status(host: &TapHost) -> Result<Value> {
    Ok(host.vsnoop(["status", PORT, "--json"])?.json()?["ports"][0].take())
}

fn wait_for_state(host: &TapHost, state: &str) -> Result<()> {
    wait_until(&format!("the port is {state}"), || Ok(status(host)?["state"] == state))
}

/// The helper's flag itself, whatever the operator's choice.
fn wait_for_suspension(host: &TapHost, suspended: bool) -> Result<()> {
    let port = port_of(host)?;
    wait_until(&format!("suspended is {suspended}"), || Ok(port.is_suspended()? == suspended))
}

/// The helper has looked at the port from beginning to end: it removes an ended connection in each
/// look, and the look that removes the second began after the first was put there.
pub fn wait_for_a_look(port: &Port) -> Result<()> {
    let ended = flow { flags: FLOW_F_CLOSED as u16, ..Default::default() };
    for _ in 0..2 {
        port.insert_flow(&KEY, &ended)?;
        wait_until("the helper has looked", || Ok(port.flow(&KEY)?.is_none()))?;
    }
    Ok(())
}

pub fn port_of(host: &TapHost) -> Result<Port> {
    let index = host.netns.run(|| Ok(if_nametoindex(PORT)?))?;
    Ok(Port::open(host.netns.inode()?, index)?)
}

/// Puts this many connections on record, from 10.0.0.0 upwards.
pub fn put_on_record(host: &TapHost, count: u32) -> Result<()> {
    let port = port_of(host)?;
    let seen = flow { last_ns: now_ns()?, ..Default::default() };
    for number in 0..count {
        let mut key = flow_key { vm_port: 80u16.to_be(), vm_mac: [2; 6], ..Default::default() };
        key.sender_addr[10..12].fill(0xff);
        key.sender_addr[12..].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
        key.vm_addr = key.sender_addr;
        port.insert_flow(&key, &seen)?;
    }
    Ok(())
}

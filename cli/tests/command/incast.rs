//! Incast control in the commands: uplinks are created with their first port, removed with their
//! last, and shown and changed meanwhile. Its effect on windows has tests of its own
//! (dev/tests/netns).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use libtest_mimic::Trial;
use nix::net::if_::if_nametoindex;
use serde_json::Value;
use vsnoop_bpf::types::{
    FLOW_F_SCALE_KNOWN, INCAST_SHAPED, flow, flow_key, incast_account, incast_waiting, port, uplink,
};
use vsnoop_bpf::{Record, UPLINK_ROOT};
use vsnoop_testbed::net::{Tap, TapOptions};
use vsnoop_testbed::process::Stopped;

use crate::hold::ConfigFile;
use crate::sandbox::{
    PORT, Ran, Snapshot, TapHost, list, now_ns, running_helper, tcx_programs, vsnoop, wait_until,
};
use crate::surroundings::{KEY, port_of, wait_for_a_look};

const BRIDGE: &str = "vscli-br";
const SECOND: &str = "vscli-tap1";
const UPLINK: &str = "vscli-up";
/// An interface in no bridge.
const OTHER: &str = "vscli-other";

pub fn trials() -> Vec<Trial> {
    [shown(), set(), refused(), lost(), configured()].into_iter().flatten().collect()
}

/// A bridge with two taps and an uplink, and another interface beside it.
struct Bridge {
    host: TapHost,
    _second: Tap,
}

/// State that an attach may leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Everything {
    port: Snapshot,
    pins: Vec<PathBuf>,
    /// Egress and ingress of the uplinks.
    programs: [(u32, u32); 2],
}

impl Bridge {
    fn new(role: &str) -> Result<Self> {
        let host = TapHost::new(role)?;
        let netns = &host.netns;
        let second = netns.tap(SECOND, &TapOptions::default())?;
        netns.up(SECOND)?;
        netns.bridge(BRIDGE)?;
        for (name, far) in [(UPLINK, "vscli-far"), (OTHER, "vscli-farther")] {
            netns.veth(name, netns, far)?;
            netns.up(name)?;
            netns.up(far)?;
        }
        for port in [PORT, SECOND, UPLINK] {
            netns.add_port(BRIDGE, port)?;
        }
        Ok(Self { host, _second: second })
    }

    fn vsnoop(&self, arguments: &[&str]) -> Result<Ran> {
        self.host.vsnoop(arguments)
    }

    fn attach(&self, port: &str, options: &[&str]) -> Result<Ran> {
        self.vsnoop(&[&["attach", port], options].concat())
    }

    fn detach(&self, port: &str) -> Result<()> {
        self.vsnoop(&["detach", port])?.ok().map(drop)
    }

    fn everything(&self) -> Result<Everything> {
        let programs = |name| self.host.netns.run(move || tcx_programs(name));
        let up = |name: &'static str| if self.has(name)? { programs(name) } else { Ok((0, 0)) };
        Ok(Everything {
            port: self.host.state()?,
            pins: list(Path::new(UPLINK_ROOT)),
            programs: [up(UPLINK)?, up(OTHER)?],
        })
    }

    fn has(&self, name: &'static str) -> Result<bool> {
        self.host.netns.run(move || Ok(if_nametoindex(name).is_ok()))
    }

    /// The uplinks of `vsnoop incast` in this namespace.
    fn uplinks(&self) -> Result<Vec<Value>> {
        let json = self.vsnoop(&["incast", "--json"])?.json()?;
        json["uplinks"].as_array().cloned().context("no list of uplinks")
    }

    fn uplink(&self) -> Result<Value> {
        let mut uplinks = self.uplinks()?;
        ensure!(uplinks.len() == 1, "not one uplink: {uplinks:?}");
        Ok(uplinks.remove(0))
    }

    /// Where the pins of UPLINK are.
    fn pins(&self) -> Result<PathBuf> {
        let index = self.host.netns.run(|| Ok(if_nametoindex(UPLINK)?))?;
        Ok(Path::new(UPLINK_ROOT).join(format!("{}-{index}", self.host.netns.inode()?)))
    }

    /// Takes the hook off the uplink with other tools than vsnoop.
    fn unhook(&self) -> Result<()> {
        let path = self.pins()?.join("link_count");
        let path = std::ffi::CString::new(path.to_str().context("a path that is no text")?)?;
        // SAFETY: a C string that outlives the call.
        let link = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
        ensure!(link >= 0, "the pinned link cannot be opened: {link}");
        // SAFETY: takes no pointers; the descriptor is ours, and closed once.
        let result = unsafe {
            let result = libbpf_sys::bpf_link_detach(link);
            libc::close(link);
            result
        };
        ensure!(result == 0, "the hook cannot be taken off: {result}");
        Ok(())
    }

    fn wait_for_rate(&self, bits: u64) -> Result<()> {
        wait_until(&format!("the rate is {bits}"), || {
            Ok(self.uplink()?["rate_bits_per_second"] == bits)
        })
    }
}

/// The list, and its changes with ports.
fn shown() -> Vec<Trial> {
    trials![
        an_uplink_comes_with_its_first_port_and_goes_with_its_last,
        the_table_of_uplinks_and_status_show_what_is_behind_which,
        uplinks_of_other_network_namespaces_are_listed_and_not_touched,
        an_uplink_goes_with_a_tap_that_is_deleted,
        the_panic_switch_takes_uplinks_off,
        what_a_port_had_of_its_uplink_goes_with_it,
        a_grant_queue_without_credit_costs_the_helper_little_and_is_served_when_it_can_be,
        a_port_that_is_observed_may_have_incast_control_alone,
    ]
}

fn an_uplink_comes_with_its_first_port_and_goes_with_its_last() -> Result<()> {
    let bridge = Bridge::new("first")?;
    let before = bridge.everything()?;
    let said = bridge.vsnoop(&["incast"])?.ok()?.unfolded();
    ensure!(said.contains("no uplink") && said.contains("attach PORT --incast"), "{said}");
    let said = bridge.attach(PORT, &["--incast", "10G"])?.ok()?.unfolded();
    ensure!(said.contains("incast control behind vscli-up (10 Gb/s, 64 KiB"), "{said}");
    ensure!(bridge.everything()?.programs == [(0, 1), (0, 0)], "{:?}", bridge.everything()?);
    let attached = bridge.everything()?.pins;

    let json = bridge.attach(SECOND, &["--incast", "--json"])?.json()?;
    let joined = &json["ports"][0]["incast"];
    ensure!(joined["uplink"] == UPLINK && joined["buffer_bytes"] == 64 << 10, "{json}");
    ensure!(joined["rate_bits_per_second"] == 10_000_000_000u64, "{json}");
    ensure!(bridge.everything()?.pins == attached, "the second port has other pins");
    let uplink = bridge.uplink()?;
    for (field, value) in [
        ("name", UPLINK.into()),
        ("interface", UPLINK.into()),
        ("state", "on".into()),
        ("rate_bits_per_second", 10_000_000_000u64.into()),
        ("buffer_bytes", (64 << 10).into()),
        ("total_bits_per_second", 0.into()),
        ("netns", bridge.host.netns.inode()?.into()),
        ("netns_name", bridge.host.netns.name().into()),
        ("ports", serde_json::json!([PORT, SECOND])),
        ("flows", 0.into()),
        ("waiting", 0.into()),
        ("granted_bytes", 0.into()),
    ] {
        ensure!(uplink[field] == value, "{field} is not {value}: {uplink}");
    }
    for field in ["available_bits_per_second", "quota_bits_per_second", "credit_bytes"] {
        ensure!(uplink[field].as_u64() > Some(0), "no {field}: {uplink}");
    }

    bridge.detach(PORT)?;
    ensure!(bridge.uplink()?["ports"] == serde_json::json!([SECOND]), "{}", bridge.uplink()?);
    bridge.detach(SECOND)?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

fn the_table_of_uplinks_and_status_show_what_is_behind_which() -> Result<()> {
    let bridge = Bridge::new("table")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.attach(SECOND, &["--incast", "25G", "--uplink", OTHER])?.ok()?;
    let table = bridge.vsnoop(&["incast"])?.ok()?.out;
    for words in [
        &["uplink", "rate", "buffer", "ports", "comes in", "left", "queued", "granted"][..],
        &[UPLINK, "1.0 Gb/s", "64 KiB", PORT],
        &[OTHER, "25 Gb/s", "64 KiB", SECOND],
    ] {
        // A wide table has more than one line of each.
        let lines: Vec<_> = table.lines().filter(|line| line.starts_with(words[0])).collect();
        for word in words {
            ensure!(lines.iter().any(|line| line.contains(word)), "no {word} in {lines:?}");
        }
    }
    let status = bridge.vsnoop(&["status"])?.ok()?.out;
    for (port, uplink) in [(PORT, UPLINK), (SECOND, OTHER)] {
        let line = status.lines().rfind(|line| line.starts_with(port)).context("no port")?;
        ensure!(line.ends_with(uplink), "{status}");
    }
    let json = bridge.vsnoop(&["status", PORT, "--json"])?.json()?;
    ensure!(json["ports"][0]["incast"]["name"] == UPLINK, "{json}");
    bridge.detach(PORT)?;
    let json = bridge.vsnoop(&["status", "--json"])?.json()?;
    ensure!(json["ports"][0]["incast"]["name"] == OTHER, "{json}");
    bridge.detach(SECOND)
}

fn uplinks_of_other_network_namespaces_are_listed_and_not_touched() -> Result<()> {
    let (one, two) = (Bridge::new("near")?, Bridge::new("away")?);
    for bridge in [&one, &two] {
        bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    }
    let all = vsnoop(["incast", "--json"])?.json()?;
    ensure!(all["uplinks"].as_array().map(Vec::len) == Some(2), "{all}");
    one.vsnoop(&["incast", "set", "--rate", "2G"])?.ok()?;
    ensure!(one.uplink()?["rate_bits_per_second"] == 2_000_000_000u64);
    ensure!(two.uplink()?["rate_bits_per_second"] == 1_000_000_000u64);
    vsnoop(["incast", "off"])?.failed(39, &["no uplink", "--netns"])?;
    one.detach(PORT)?;
    ensure!(two.uplink()?["state"] == "on", "{}", two.uplink()?);
    two.detach(PORT)
}

fn an_uplink_goes_with_a_tap_that_is_deleted() -> Result<()> {
    let bridge = Bridge::new("swept2")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.host.netns.ip(&format!("link del {PORT}"))?;
    wait_until("the uplink's pins are gone", || Ok(!Path::new(UPLINK_ROOT).exists()))?;
    let programs = bridge.host.netns.run(|| tcx_programs(UPLINK))?;
    ensure!(programs == (0, 0), "its hook was left");
    Ok(())
}

fn the_panic_switch_takes_uplinks_off() -> Result<()> {
    let bridge = Bridge::new("panic")?;
    let before = bridge.everything()?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.attach(SECOND, &["--incast", "2G", "--uplink", OTHER])?.ok()?;
    vsnoop(["off", "--all"])?.ok()?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

fn what_a_port_had_of_its_uplink_goes_with_it() -> Result<()> {
    let bridge = Bridge::new("credit")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.attach(SECOND, &["--incast"])?.ok()?;
    // The helper would remove a fabricated connection, whose last packet is as old as the
    // host, or grant it a window (helper/monitor.rs, helper/port_grants.rs), and so do the work
    // of detach.
    let helper = Stopped::process(running_helper()?)?;
    // One connection of each port, one of which is in the grant queue.
    let mut shaped = flow::default();
    shaped.incast.bits |= INCAST_SHAPED as u16;
    shaped.incast.waiting = 1;
    port_of(&bridge.host)?.insert_flow(&KEY, &shaped)?;
    let map = MapHandle::from_pinned_path(bridge.pins()?.join("uplink"))?;
    let record = map.lookup(&[0; 4], MapFlags::ANY)?.context("no record")?;
    let record = uplink::from_bytes(&record).context("another record")?;
    let all = incast_account { open: 2, queued: 1, ..record.all };
    let record = uplink { all, ..record };
    map.update(&[0; 4], record.as_bytes(), MapFlags::ANY)?;
    ensure!(bridge.uplink()?["waiting"] == 1, "{}", bridge.uplink()?);
    bridge.detach(PORT)?;
    let uplink = bridge.uplink()?;
    ensure!(uplink["flows"] == 1 && uplink["waiting"] == 0, "{uplink}");
    drop(helper);
    bridge.detach(SECOND)
}

fn a_grant_queue_without_credit_costs_the_helper_little_and_is_served_when_it_can_be() -> Result<()>
{
    let bridge = Bridge::new("crowd2")?;
    bridge.attach(PORT, &["--incast", "1G", "--max-flows", "16384"])?.ok()?;
    let crowd = Crowd::gather(&bridge)?;
    // On a busy machine the helper gets less of a CPU, with a queue and without one: of some pairs
    // of measurements one must be good.
    let mut costs = Vec::new();
    let mut is_cheap = false;
    while !is_cheap && costs.len() < PAIRS {
        crowd.count(0, 0)?;
        let without = Crowd::cost()?;
        crowd.count(CONNECTIONS, QUEUED)?;
        let with = Crowd::cost()?;
        is_cheap = with < 2 * without + Duration::from_millis(100);
        costs.push((without, with));
    }
    ensure!(is_cheap, "the helper took, without a queue and with one: {costs:?}");
    ensure!(crowd.waiting()? == u64::from(QUEUED), "a grant was made without credit");
    crowd.give_credit()?;
    wait_until("every connection had a grant", || Ok(crowd.waiting()? == 0))?;
    bridge.detach(PORT)
}

fn a_port_that_is_observed_may_have_incast_control_alone() -> Result<()> {
    let bridge = Bridge::new("alone")?;
    // Neither matters without early acknowledgement.
    let tbf = "root tbf rate 1mbit burst 10k latency 50ms";
    bridge.host.tc(&format!("qdisc add dev {PORT} {tbf}"))?;
    let before = bridge.everything()?;
    let said = bridge.attach(PORT, &["--observe", "--incast", "1G"])?.ok()?.unfolded();
    ensure!(said.contains("acknowledging nothing early, with incast control"), "{said}");
    let attached = bridge.everything()?;
    ensure!(attached.port.qdiscs == before.port.qdiscs, "{attached:?}");
    ensure!(attached.port.programs == (1, 1) && attached.programs[0] == (0, 1), "{attached:?}");
    let status = bridge.vsnoop(&["status", PORT, "--json"])?.json()?;
    let port = &status["ports"][0];
    ensure!(port["state"] == "observing" && port["incast"]["state"] == "on", "{status}");
    ensure!(port["hold"].is_null(), "{status}");
    for command in ["pause", "resume"] {
        bridge.vsnoop(&[command, PORT])?.failed(3, &["observed", " detach "])?;
    }
    bridge.detach(PORT)?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

/// At run time.
fn set() -> Vec<Trial> {
    trials![
        rate_and_buffer_are_changed_for_all_ports_while_attached,
        incast_control_is_turned_off_and_on_again,
        which_uplink_is_to_be_changed_must_be_clear,
        what_cannot_be_set_is_refused_and_changes_nothing,
    ]
}

fn rate_and_buffer_are_changed_for_all_ports_while_attached() -> Result<()> {
    let bridge = Bridge::new("set")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.attach(SECOND, &["--incast"])?.ok()?;
    let said = bridge.vsnoop(&["incast", "set", "--rate", "2.5G"])?.ok()?.unfolded();
    ensure!(said.contains("vscli-up: incast control at 2.5 Gb/s, 64 KiB"), "{said}");
    ensure!(said.contains("2 ports"), "{said}");
    let arguments = ["incast", "set", "--uplink", UPLINK, "--buffer", "128K", "--json"];
    let json = bridge.vsnoop(&arguments)?.json()?;
    let uplink = &json["uplinks"][0];
    ensure!(uplink["rate_bits_per_second"] == 2_500_000_000u64, "{json}");
    ensure!(uplink["buffer_bytes"] == 128 << 10 && uplink["state"] == "on", "{json}");
    // Options of a port must match the uplink's present settings.
    bridge.detach(SECOND)?;
    bridge.attach(SECOND, &["--incast", "2.5G", "--incast-buffer", "128K"])?.ok()?;
    bridge.detach(SECOND)?;
    bridge.detach(PORT)
}

fn incast_control_is_turned_off_and_on_again() -> Result<()> {
    let bridge = Bridge::new("off3")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    let before = bridge.everything()?;
    for _ in 0..2 {
        let said = bridge.vsnoop(&["incast", "off"])?.ok()?.unfolded();
        ensure!(said.contains("is off for 1 port") && said.contains("--rate RATE"), "{said}");
        let uplink = bridge.uplink()?;
        ensure!(uplink["state"] == "off" && uplink["rate_bits_per_second"] == 0, "{uplink}");
        ensure!(uplink["quota_bits_per_second"].is_null(), "{uplink}");
    }
    ensure!(bridge.everything()? == before, "something was detached");
    for command in ["incast", "status"] {
        let table = bridge.vsnoop(&[command])?.ok()?.unfolded();
        ensure!(table.contains("off"), "{table}");
    }
    // A new port changes nothing for the others.
    let said = bridge.attach(SECOND, &["--incast", "2G"])?.ok()?.unfolded();
    ensure!(said.contains("where it is off (`vsnoop --netns"), "{said}");
    ensure!(bridge.uplink()?["state"] == "off", "{}", bridge.uplink()?);
    // Nor does the helper treat it as gone.
    wait_for_a_look(&port_of(&bridge.host)?)?;
    bridge.vsnoop(&["incast", "set", "--buffer", "32K"])?.ok()?;
    ensure!(bridge.uplink()?["state"] == "off", "{}", bridge.uplink()?);
    bridge.vsnoop(&["incast", "set", "--rate", "3G"])?.ok()?;
    let uplink = bridge.uplink()?;
    ensure!(uplink["rate_bits_per_second"] == 3_000_000_000u64, "{uplink}");
    ensure!(uplink["buffer_bytes"] == 32 << 10 && uplink["state"] == "on", "{uplink}");
    bridge.detach(SECOND)?;
    bridge.detach(PORT)
}

fn which_uplink_is_to_be_changed_must_be_clear() -> Result<()> {
    let bridge = Bridge::new("which")?;
    let change = |arguments: &[&str]| bridge.vsnoop(&[&["incast"], arguments].concat());
    for action in [&["off"][..], &["set", "--rate", "1G"]] {
        change(action)?.failed(39, &["no uplink", "attach PORT --incast"])?;
    }
    change(&["off", "--uplink", OTHER])?.failed(39, &["no uplink", "attach PORT --incast"])?;
    change(&["off", "--uplink", "nowhere"])?.failed(31, &["nowhere does not exist", "ip link"])?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    change(&["off", "--uplink", "nowhere"])?.failed(31, &["nowhere does not exist", UPLINK])?;
    change(&["off", "--uplink", OTHER])?.failed(39, &[OTHER, "has no incast", UPLINK])?;
    bridge.attach(SECOND, &["--incast", "2G", "--uplink", OTHER])?.ok()?;
    for action in [&["off"][..], &["set", "--rate", "1G"]] {
        change(action)?.failed(2, &["several uplinks", UPLINK, OTHER, "--uplink"])?;
    }
    change(&["off", "--uplink", OTHER])?.ok()?;
    let states: Vec<_> = bridge.uplinks()?.iter().map(|u| u["state"].clone()).collect();
    ensure!(states == ["on", "off"], "{states:?}");
    bridge.detach(PORT)?;
    bridge.detach(SECOND)
}

fn what_cannot_be_set_is_refused_and_changes_nothing() -> Result<()> {
    let bridge = Bridge::new("wrong2")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    let before = bridge.uplink()?;
    for (arguments, words) in [
        (&[][..], &["nothing is to be set", "--rate"][..]),
        (&["--rate", "0"], &["--rate", "1M to 400G"]),
        (&["--rate", "-1G"], &["--rate", "1M to 400G"]),
        (&["--rate", "401G"], &["--rate", "1M to 400G"]),
        (&["--rate", "fast"], &["--rate", "25G"]),
        (&["--rate", "link"], &["link speed", UPLINK, "a veth has none", "--rate RATE"]),
        (&["--buffer", "15K"], &["--buffer", "16K to 256M"]),
        (&["--buffer", "257M"], &["--buffer", "16K to 256M"]),
    ] {
        let ran = bridge.vsnoop(&[&["incast", "set"], arguments].concat())?;
        ensure!(ran.code == 2, "{arguments:?}: exit code {}: {}", ran.code, ran.err);
        for word in words {
            ensure!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
    }
    let after = bridge.uplink()?;
    for field in ["rate_bits_per_second", "buffer_bytes", "state"] {
        ensure!(after[field] == before[field], "{field} changed: {after}");
    }
    bridge.detach(PORT)
}

/// Bad input to `attach`.
fn refused() -> Vec<Trial> {
    trials![
        wrong_rates_and_buffers_are_usage_errors,
        an_interface_that_cannot_be_the_uplink_is_refused_with_the_reason,
        an_uplink_that_the_bridge_does_not_tell_must_be_named,
        a_port_that_wants_another_rate_than_its_uplink_has_is_refused,
        a_port_that_cannot_be_attached_leaves_no_uplink_behind,
    ]
}

fn wrong_rates_and_buffers_are_usage_errors() -> Result<()> {
    let bridge = Bridge::new("rates")?;
    let before = bridge.everything()?;
    for (arguments, words) in [
        (&["--incast", "0"][..], &["--incast", "1M to 400G"][..]),
        (&["--incast", "-1"], &["--incast", "1M to 400G"]),
        (&["--incast=-1G"], &["--incast", "1M to 400G"]),
        (&["--incast", "999K"], &["--incast", "1M to 400G"]),
        (&["--incast", "401G"], &["--incast", "1M to 400G"]),
        (&["--incast", "1e30"], &["--incast", "1M to 400G"]),
        (&["--incast", "5X"], &["--incast", "25G"]),
        (&["--incast", PORT], &["--incast", "25G", "ports stand before"]),
        (&["--incast", "1G", "--incast-buffer", "15K"], &["--incast-buffer", "16K to 256M"]),
        (&["--incast", "1G", "--incast-buffer", "257M"], &["--incast-buffer", "16K to 256M"]),
        (&["--incast", "1G", "--incast-buffer", "0"], &["--incast-buffer", "16K to 256M"]),
        (&["--incast-buffer", "64K"], &["--incast", "required"]),
        (&["--uplink", UPLINK], &["--incast", "required"]),
        (&["--observe", "--hold", "1M"], &["--observe", "--hold"]),
        (&["--observe", "--no-passive"], &["--observe", "--no-passive"]),
        (&["--observe", "--ahead", "1M"], &["--observe", "--ahead"]),
        (&["--incast"], &["link speed", UPLINK, "a veth has none", "--incast RATE"]),
        (&["--incast", "link"], &["link speed", UPLINK, "--incast RATE"]),
    ] {
        let ran = bridge.attach(PORT, arguments)?;
        ensure!(ran.code == 2, "{arguments:?}: exit code {}: {}", ran.code, ran.err);
        for word in words {
            ensure!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
    }
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

fn an_interface_that_cannot_be_the_uplink_is_refused_with_the_reason() -> Result<()> {
    let bridge = Bridge::new("uplinks")?;
    let before = bridge.everything()?;
    bridge.attach(SECOND, &[])?.ok()?;
    let attach = |uplink| bridge.attach(PORT, &["--incast", "1G", "--uplink", uplink]);
    attach("nowhere")?.failed(31, &["nowhere", "does not exist", "ip link", "--uplink"])?;
    for (uplink, words) in [
        (PORT, ["is the port itself", "--uplink"]),
        (BRIDGE, ["is the bridge of port vscli-tap0", "--uplink"]),
        (SECOND, ["vscli-tap1 is an attached port", "--uplink"]),
    ] {
        attach(uplink)?.failed(2, &words)?;
    }
    bridge.detach(SECOND)?;
    {
        // This process holds the taps; a thread of this name is taken for a vCPU.
        let _vm = Vcpu::start()?;
        attach(SECOND)?.failed(2, &["vscli-tap1 is the tap of a VM", "--uplink"])?;
    }
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

fn an_uplink_that_the_bridge_does_not_tell_must_be_named() -> Result<()> {
    let bridge = Bridge::new("tell")?;
    let before = bridge.everything()?;
    let attach = || bridge.attach(PORT, &["--incast", "1G"]);
    let netns = &bridge.host.netns;
    netns.add_port(BRIDGE, OTHER)?;
    attach()?.failed(2, &[PORT, "several ports", UPLINK, OTHER, "--uplink"])?;
    for port in [UPLINK, OTHER] {
        netns.ip(&format!("link set {port} nomaster"))?;
    }
    attach()?.failed(2, &[PORT, "no port that leads to a network", "--uplink"])?;
    netns.ip(&format!("link set {PORT} nomaster"))?;
    attach()?.failed(2, &[PORT, "is in no bridge", "--uplink"])?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    bridge.attach(PORT, &["--incast", "1G", "--uplink", OTHER])?.ok()?;
    ensure!(bridge.uplink()?["name"] == OTHER, "{}", bridge.uplink()?);
    bridge.detach(PORT)
}

fn a_port_that_wants_another_rate_than_its_uplink_has_is_refused() -> Result<()> {
    let bridge = Bridge::new("clash2")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    let before = bridge.everything()?;
    for (options, words) in [
        (
            &["--incast", "2.5G"][..],
            ["has 1.0 Gb/s", "not the 2.5 Gb/s", "incast set --uplink vscli-up --rate 2500M"],
        ),
        (
            &["--incast", "1G", "--incast-buffer", "128K"],
            ["a queue of 64 KiB", "not the 128 KiB", "--uplink vscli-up --buffer 128K"],
        ),
    ] {
        bridge.attach(SECOND, options)?.failed(3, &words)?;
        ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    }
    let uplink = bridge.uplink()?;
    ensure!(uplink["ports"] == serde_json::json!([PORT]), "{uplink}");
    ensure!(uplink["rate_bits_per_second"] == 1_000_000_000u64, "{uplink}");
    // The same values in another notation do not differ.
    let same = ["--incast", "1000M", "--incast-buffer", "65536"];
    bridge.attach(SECOND, &same)?.ok()?;
    bridge.detach(SECOND)?;
    bridge.detach(PORT)
}

fn a_port_that_cannot_be_attached_leaves_no_uplink_behind() -> Result<()> {
    let bridge = Bridge::new("late")?;
    let before = bridge.everything()?;
    let busy = ["--incast", "1G", "--max-flows", "1048577"];
    bridge.attach(PORT, &busy)?.failed(3, &[PORT, "--max-flows"])?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

/// The uplink, or its hook, is removed while ports are behind it.
fn lost() -> Vec<Trial> {
    trials![
        an_uplink_that_is_deleted_is_told_of_and_ports_live_on,
        a_hook_that_was_taken_off_is_missed_and_put_on_again,
        doctor_says_how_uplinks_are,
        damaged_pins_of_an_uplink_are_named_and_removed,
    ]
}

fn an_uplink_that_is_deleted_is_told_of_and_ports_live_on() -> Result<()> {
    let bridge = Bridge::new("gone2")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.host.netns.ip(&format!("link del {UPLINK}"))?;
    bridge.wait_for_rate(0)?;
    let uplink = bridge.uplink()?;
    ensure!(uplink["state"] == "gone" && uplink["name"] == UPLINK, "{uplink}");
    ensure!(uplink["interface"].is_null(), "{uplink}");
    let words = ["vscli-up is gone", "windows are the VMs' own", "detach"];
    for command in [&["incast"][..], &["status"], &["doctor", "--measure", "0.1"]] {
        let said = bridge.vsnoop(command)?.ok()?.unfolded();
        for word in words {
            ensure!(said.contains(word), "{command:?}: {word:?} is not in: {said}");
        }
    }
    let stats = bridge.vsnoop(&["stats"])?.ok()?.unfolded();
    ensure!(stats.contains("vscli-up (gone: nothing is shaped)"), "{stats}");
    let status = bridge.vsnoop(&["status", PORT, "--json"])?.json()?;
    ensure!(status["ports"][0]["state"] == "active", "{status}");
    let set = bridge.vsnoop(&["incast", "set", "--rate", "1G"])?;
    set.failed(31, &["vscli-up is gone", "detach vscli-tap0"])?;
    // A new interface of that name is another uplink.
    bridge.host.netns.ip(&format!("link add {UPLINK} type veth peer name vscli-far"))?;
    bridge.host.netns.add_port(BRIDGE, UPLINK)?;
    bridge.attach(SECOND, &["--incast", "2G"])?.ok()?;
    bridge.vsnoop(&["incast", "set", "--uplink", UPLINK, "--rate", "3G"])?.ok()?;
    let states: Vec<_> = bridge
        .uplinks()?
        .iter()
        .map(|u| (u["state"].clone(), u["rate_bits_per_second"].clone()))
        .collect();
    ensure!(
        states == [("gone".into(), 0.into()), ("on".into(), 3_000_000_000u64.into())],
        "{states:?}"
    );
    bridge.detach(PORT)?;
    ensure!(bridge.uplink()?["state"] == "on", "{}", bridge.uplink()?);
    bridge.detach(SECOND)?;
    let left = bridge.everything()?;
    ensure!(left.pins.is_empty() && left.programs == [(0, 0), (0, 0)], "left: {left:?}");
    Ok(())
}

fn a_hook_that_was_taken_off_is_missed_and_put_on_again() -> Result<()> {
    let bridge = Bridge::new("hook")?;
    let before = bridge.everything()?;
    bridge.attach(PORT, &["--incast", "1G", "--incast-buffer", "32K"])?.ok()?;
    for way in [
        &["incast", "set", "--rate", "2G"][..],
        &["attach", SECOND, "--incast", "2G", "--incast-buffer", "32K"],
    ] {
        bridge.unhook()?;
        bridge.wait_for_rate(0)?;
        let uplink = bridge.uplink()?;
        ensure!(uplink["state"] == "unhooked" && uplink["interface"] == UPLINK, "{uplink}");
        for command in [&["incast"][..], &["status"], &["doctor", "--measure", "0.1"]] {
            let said = bridge.vsnoop(command)?.ok()?.unfolded();
            ensure!(said.contains("has lost its hook"), "{command:?}: {said}");
        }
        let set = bridge.vsnoop(&["incast", "set", "--buffer", "64K"])?;
        set.failed(2, &["vscli-up has lost its hook", "--rate"])?;
        bridge.vsnoop(way)?.ok()?;
        ensure!(bridge.everything()?.programs[0] == (0, 1), "{way:?}: no hook");
        // The record is the one that the first port uses.
        let uplink = bridge.uplink()?;
        ensure!(uplink["state"] == "on" && uplink["buffer_bytes"] == 32 << 10, "{uplink}");
        ensure!(uplink["ports"][0] == PORT, "{uplink}");
        ensure!(is_the_same_map(&bridge)?, "{way:?}: another record than the port's");
    }
    bridge.detach(PORT)?;
    bridge.detach(SECOND)?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

fn doctor_says_how_uplinks_are() -> Result<()> {
    let bridge = Bridge::new("doctor2")?;
    let check = || -> Result<Value> {
        let json = bridge.vsnoop(&["doctor", PORT, "--measure", "0.1", "--json"])?.json()?;
        let checks = json["host"].as_array().context("no checks")?;
        let found = checks.iter().find(|check| check["name"] == "incast control");
        Ok(found.cloned().unwrap_or_default())
    };
    ensure!(check()?.is_null(), "{}", check()?);
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    let well = check()?;
    ensure!(well["level"] == "ok", "{well}");
    ensure!(well["detail"] == "uplink vscli-up: 1.0 Gb/s, 1 port", "{well}");
    bridge.host.netns.ip(&format!("link set {UPLINK} down"))?;
    let down = check()?;
    ensure!(down["level"] == "warn", "{down}");
    ensure!(down["detail"].as_str().is_some_and(|text| text.contains("is down")), "{down}");
    bridge.detach(PORT)
}

fn damaged_pins_of_an_uplink_are_named_and_removed() -> Result<()> {
    let bridge = Bridge::new("torn2")?;
    let before = bridge.everything()?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    let pin = bridge.pins()?.join("uplink");
    fs::remove_file(&pin)?;
    // A map of another size: that of the port's counters, say.
    MapHandle::from_pinned_path(bridge.host.pins()?.join("meta"))?.pin(&pin)?;
    let said = vsnoop(["incast"])?.ok()?.unfolded();
    ensure!(said.contains("damaged: ") && said.contains("vsnoop off --all"), "{said}");
    vsnoop(["off", "--all"])?.ok()?;
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

/// Defaults of the host.
fn configured() -> Vec<Trial> {
    trials![
        the_configuration_says_what_attach_does_not,
        a_configuration_is_no_order_to_change_an_uplink_that_is_there,
        a_wrong_configuration_of_incast_control_is_named_with_line_and_key,
    ]
}

fn the_configuration_says_what_attach_does_not() -> Result<()> {
    let bridge = Bridge::new("config2")?;
    let text = "[incast]\nrate = \"5G\"\nbuffer = \"256K\"\nuplink = \"vscli-other\"\n";
    let file = ConfigFile::new(&bridge.host, text)?;
    let attach = |options: &[&str]| -> Result<(Value, u64, u64)> {
        let json = bridge.attach(PORT, &[&["--config", &file.path, "--json"], options].concat())?;
        let json = json.json()?;
        bridge.detach(PORT)?;
        let incast = &json["ports"][0]["incast"];
        let number = |field: &str| incast[field].as_u64().unwrap_or(0);
        Ok((
            incast["uplink"].clone(),
            number("rate_bits_per_second") / 1_000_000,
            number("buffer_bytes") >> 10,
        ))
    };
    ensure!(attach(&["--incast"])? == (OTHER.into(), 5000, 256));
    ensure!(attach(&["--incast", "1G"])? == (OTHER.into(), 1000, 256));
    let options = ["--incast", "--incast-buffer", "64K", "--uplink", UPLINK];
    ensure!(attach(&options)? == (UPLINK.into(), 5000, 64));
    // Defaults alone enable no incast control.
    ensure!(attach(&[])? == (Value::Null, 0, 0));
    // An option that names the link's speed wins, too.
    let link = ["--config", &file.path, "--incast", "link"];
    bridge.attach(PORT, &link)?.failed(2, &["link speed", OTHER])
}

fn a_configuration_is_no_order_to_change_an_uplink_that_is_there() -> Result<()> {
    let bridge = Bridge::new("config3")?;
    let file = ConfigFile::new(&bridge.host, "[incast]\nrate = \"5G\"\n")?;
    bridge.attach(PORT, &["--incast", "1G"])?.ok()?;
    bridge.attach(SECOND, &["--incast", "--config", &file.path])?.ok()?;
    ensure!(bridge.uplink()?["rate_bits_per_second"] == 1_000_000_000u64);
    bridge.detach(PORT)?;
    bridge.detach(SECOND)
}

fn a_wrong_configuration_of_incast_control_is_named_with_line_and_key() -> Result<()> {
    let bridge = Bridge::new("config4")?;
    let before = bridge.everything()?;
    let file = ConfigFile::new(&bridge.host, "")?;
    for (text, words) in [
        ("[incast]\nrate = \"fast\"\n", ["line 2", "incast.rate", "25G"]),
        ("[incast]\n\nrate = 0\n", ["line 3", "incast.rate = 0", "1M to 400G"]),
        ("[incast]\nbuffer = \"1K\"\n", ["line 2", "incast.buffer", "16K to 256M"]),
        ("[incast]\nuplink = 1\n", ["line 2", "incast.uplink = 1", "interface"]),
        ("[incast]\nspeed = 1\n", ["line 2", "speed", "unknown"]),
        ("[incast]\nuplink = \"nowhere\"\n", ["nowhere", "incast.uplink in", "--uplink"]),
    ] {
        file.write(text)?;
        let options = ["--config", &file.path, "--incast", "1G"];
        let code = if text.contains("nowhere") { 31 } else { 2 };
        bridge.attach(PORT, &options)?.failed(code, &[&file.path, words[0], words[1], words[2]])?;
    }
    ensure!(bridge.everything()? == before, "left: {:?}", bridge.everything()?);
    Ok(())
}

/// Connections that a VM may have, and those of them in the grant queue.
const CONNECTIONS: u16 = 16_000;
const QUEUED: u16 = 4_000;
/// How long the helper is watched.
const CROWDED: Duration = Duration::from_secs(2);
/// Number of measurements without a queue, and as many with one.
const PAIRS: usize = 3;

/// A full table of connections, many of which wait while there is no credit.
struct Crowd<'a> {
    bridge: &'a Bridge,
    uplink: MapHandle,
}

impl<'a> Crowd<'a> {
    fn gather(bridge: &'a Bridge) -> Result<Self> {
        let port = port_of(&bridge.host)?;
        let uplink = MapHandle::from_pinned_path(bridge.pins()?.join("uplink"))?;
        let crowd = Self { bridge, uplink };
        crowd.change(|record| record.all.outstanding = 1 << 40)?;
        let queue = MapHandle::from_pinned_path(bridge.host.pins()?.join("grant_queue"))?;
        for number in 1..=CONNECTIONS {
            let waits = number <= QUEUED;
            let mut flow = flow { last_ns: now_ns()?, mss: 1460, ..flow::default() };
            flow.flags = FLOW_F_SCALE_KNOWN as u16;
            flow.incast.bits |= INCAST_SHAPED as u16;
            flow.incast.waiting = if waits { incast_waiting::INCAST_QUEUED as u8 } else { 0 };
            let key = flow_key { sender_port: number.to_be(), ..KEY };
            port.insert_flow(&key, &flow)?;
            if waits {
                queue.update(&[], key.as_bytes(), MapFlags::ANY)?;
            }
        }
        Ok(crowd)
    }

    /// From now on `open` connections count, `queued` of them in the grant queue.
    fn count(&self, open: u16, queued: u16) -> Result<()> {
        let map = MapHandle::from_pinned_path(self.bridge.host.pins()?.join("port"))?;
        let record = map.lookup(&[0; 4], MapFlags::ANY)?.context("no record")?;
        let mut record = port::from_bytes(&record).context("another record")?;
        let own = &mut record.state.incast.own;
        (own.open, own.queued) = (open.into(), queued.into());
        map.update(&[0; 4], record.as_bytes(), MapFlags::ANY)?;
        self.change(|record| {
            (record.all.open, record.all.queued) = (open.into(), queued.into());
        })
    }

    /// CPU time of the helper during `CROWDED`.
    fn cost() -> Result<Duration> {
        let helper = running_helper()?;
        let before = cpu_time(helper)?;
        thread::sleep(CROWDED);
        Ok(cpu_time(helper)? - before)
    }

    fn change(&self, change: impl FnOnce(&mut uplink)) -> Result<()> {
        let record = self.uplink.lookup(&[0; 4], MapFlags::ANY)?.context("no record")?;
        let mut record = uplink::from_bytes(&record).context("another record")?;
        change(&mut record);
        Ok(self.uplink.update(&[0; 4], record.as_bytes(), MapFlags::ANY)?)
    }

    fn give_credit(&self) -> Result<()> {
        self.change(|record| record.all.outstanding = 0)
    }

    fn waiting(&self) -> Result<u64> {
        self.bridge.uplink()?["waiting"].as_u64().context("no count of those that wait")
    }
}

/// CPU time of a process.
fn cpu_time(pid: i32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("a process without a name")?.1;
    let ticks = |at: usize| -> Result<u64> {
        Ok(after_name.split_whitespace().nth(at).context("a short record")?.parse()?)
    };
    // utime and stime are fields 14 and 15 of proc(5); a tick is 10 ms.
    Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

/// Do the port's programs and `vsnoop incast` have the same record?
fn is_the_same_map(bridge: &Bridge) -> Result<bool> {
    let id =
        |path: PathBuf| -> Result<u32> { Ok(MapHandle::from_pinned_path(path)?.info()?.info.id) };
    Ok(id(bridge.pins()?.join("uplink"))? == id(bridge.host.pins()?.join("programs/uplink"))?)
}

/// A thread of this process with the name of a vCPU, as long as the value lives.
struct Vcpu(Option<mpsc::Sender<()>>, Option<thread::JoinHandle<()>>);

impl Vcpu {
    fn start() -> Result<Self> {
        let (end, until) = mpsc::channel();
        let (started, running) = mpsc::channel();
        let thread = thread::Builder::new().name("CPU 0/KVM".into()).spawn(move || {
            // A thread names itself when it starts to run.
            let _ = started.send(());
            // Until the other end is dropped.
            let _ = until.recv();
        })?;
        running.recv()?;
        Ok(Self(Some(end), Some(thread)))
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take().map(thread::JoinHandle::join);
    }
}

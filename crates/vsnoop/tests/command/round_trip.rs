//! Attach, status, pause, resume, detach: everything is as before.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::types::hold_slab;
use vsnoop_testbed::net::TapOptions;

use crate::sandbox::{PORT, Place, helper_pid, program, text, vsnoop, wait_until};

/// 200 idle ports must take at most 64 MiB; pins and links are not counted here.
const IDLE_BYTES: u64 = 200 << 10;

/// Largest mapping of a BPF map of a process, bytes.
fn largest_map(pid: i32) -> Result<usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let size = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(address(to)? - address(from)?)
    };
    let bpf = maps.lines().filter(|line| line.contains("bpf-map"));
    Ok(bpf.filter_map(size).max().unwrap_or(0))
}

pub fn trials() -> Vec<Trial> {
    trials![
        attach_and_detach_leave_everything_as_before,
        a_noqueue_that_somebody_chose_is_kept,
        a_qdisc_that_was_set_meanwhile_is_left_alone,
        a_port_that_is_down_and_one_of_several_queues_come_back_as_they_were,
        all_json_parses_and_names_the_port,
        settings_and_lists_reach_the_kernel_side,
        an_idle_port_takes_little_memory,
        pause_and_resume_are_shown,
        a_port_in_a_namespace_is_found_by_path_and_by_process,
        observe_changes_no_qdisc_and_leaves_nothing,
        observe_ends_at_an_interrupt_and_leaves_nothing,
        a_deleted_tap_is_gone_and_the_next_command_cleans_up,
        a_deleted_network_namespace_is_cleaned_up_after,
        a_watched_table_is_refreshed_until_the_interrupt,
    ]
}

fn attach_and_detach_leave_everything_as_before() -> Result<()> {
    let place = Place::new("round")?;
    let before = place.state()?;
    place.vsnoop(["attach", PORT])?.ok()?;
    let attached = place.state()?;
    ensure!(attached.qdiscs.contains("noqueue"), "{}", attached.qdiscs);
    ensure!(attached.programs == (1, 1), "{attached:?}");
    ensure!(place.pins()?.exists());
    place.vsnoop(["detach", PORT])?.ok()?;
    ensure!(place.state()? == before, "something was left: {:?}", place.state()?);
    Ok(())
}

fn a_noqueue_that_somebody_chose_is_kept() -> Result<()> {
    let place = Place::new("own")?;
    place.tc(&format!("qdisc add dev {PORT} root noqueue"))?;
    let before = place.state()?;
    place.vsnoop(["attach", PORT])?.ok()?;
    place.vsnoop(["detach", PORT])?.ok()?;
    ensure!(place.state()? == before, "changed: {:?}", place.state()?);
    Ok(())
}

fn a_qdisc_that_was_set_meanwhile_is_left_alone() -> Result<()> {
    let place = Place::new("later")?;
    place.vsnoop(["attach", PORT])?.ok()?;
    place.tc(&format!("qdisc replace dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let status = place.vsnoop(["status", PORT])?.ok()?;
    ensure!(status.unfolded().contains("its qdisc is tbf"), "{status:?}");
    let ran = place.vsnoop(["detach", PORT])?.ok()?;
    ensure!(ran.unfolded().contains("left as it is"), "{ran:?}");
    ensure!(place.state()?.qdiscs.contains("tbf"), "the qdisc was taken away");
    Ok(())
}

fn a_port_that_is_down_and_one_of_several_queues_come_back_as_they_were() -> Result<()> {
    let place = Place::new("shapes")?;
    let options = TapOptions { multi_queue: true, ..TapOptions::default() };
    let _queues = [place.netns.tap("vscli-mq", &options)?, place.netns.tap("vscli-mq", &options)?];
    place.netns.up("vscli-mq")?;
    let before = place.state()?;
    // Its default qdisc is made when it goes up again.
    place.netns.ip(&format!("link set {PORT} down"))?;
    place.vsnoop(["attach", PORT, "vscli-mq"])?.ok()?;
    let json = place.vsnoop(["status", "vscli-mq", "--json"])?.json()?;
    ensure!(json["ports"][0]["queues"] == 2, "{json}");
    place.vsnoop(["detach", PORT, "vscli-mq"])?.ok()?;
    place.netns.up(PORT)?;
    ensure!(place.state()? == before, "{:?} became {:?}", before, place.state()?);
    Ok(())
}

fn all_json_parses_and_names_the_port() -> Result<()> {
    let place = Place::new("json")?;
    let attach = place.vsnoop(["attach", PORT, "--json"])?.json()?;
    ensure!(attach["ports"][0]["result"] == "attached", "{attach}");
    for command in ["status", "stats", "flows", "doctor"] {
        let json = place.vsnoop([command, PORT, "--json"])?.json()?;
        ensure!(json["ports"][0]["port"] == PORT, "{command}: {json}");
    }
    let stats = place.vsnoop(["stats", PORT, "--json"])?.json()?;
    let port = &stats["ports"][0];
    ensure!(port["early_acks"] == 0 && port["early_bytes"] == 0, "{stats}");
    ensure!(port["masked_ns"]["buckets"].as_array().is_some_and(|b| b.len() == 40), "{stats}");
    let status = vsnoop(["status", "--json"])?.json()?;
    let port = &status["ports"][0];
    ensure!(port["netns_name"] == place.netns.name(), "{status}");
    ensure!(port["netns"] == place.netns.inode()?, "{status}");
    ensure!(port["state"] == "active", "{status}");
    ensure!(port["process"]["pid"] == std::process::id(), "{status}");
    ensure!(status["helper"]["running"] == true, "{status}");
    let detach = place.vsnoop(["detach", PORT, "--json"])?.json()?;
    ensure!(detach["ports"][0]["outstanding_bytes"] == 0, "{detach}");
    Ok(())
}

fn settings_and_lists_reach_the_kernel_side() -> Result<()> {
    let place = Place::new("lists")?;
    let lists = ["--allow-port", "80,443", "--deny-port", "22", "--deny", "2001:db8::/32"];
    let rest = ["--ahead", "64K", "--no-passive", "--max-flows", "100"];
    place.vsnoop(["attach", PORT].into_iter().chain(lists).chain(rest))?.ok()?;
    let json = place.vsnoop(["status", PORT, "--json"])?.json()?;
    let port = &json["ports"][0];
    ensure!(port["ahead_bytes"] == 65536 && port["passive"] == false, "{json}");
    ensure!(port["max_flows"] == 100 && port["lists"] == true, "{json}");
    place.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

fn an_idle_port_takes_little_memory() -> Result<()> {
    let place = Place::new("memory")?;
    place.vsnoop(["attach", PORT])?.ok()?;
    let port = crate::surroundings::port_of(&place)?;
    let bytes = port.kernel_bytes()?;
    ensure!(bytes < IDLE_BYTES, "{bytes} bytes");
    wait_until("it has no memory for what is held", || Ok(port.state()?.slabs == 0))?;
    // The kernel keeps a map that a process has mapped. Ports of other tests have slabs, too, for
    // a while.
    wait_until("the helper has no slab mapped", || {
        let helper = helper_pid()?.context("no helper")?;
        Ok(largest_map(helper)? < size_of::<hold_slab>())
    })?;
    place.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn pause_and_resume_are_shown() -> Result<()> {
    let place = Place::new("pause")?;
    let state = || -> Result<String> {
        let json = place.vsnoop(["status", PORT, "--json"])?.json()?;
        Ok(json["ports"][0]["state"].as_str().unwrap_or_default().to_owned())
    };
    place.vsnoop(["attach", PORT])?.ok()?;
    place.vsnoop(["pause", PORT])?.ok()?;
    ensure!(state()? == "paused");
    place.vsnoop(["resume", PORT])?.ok()?;
    ensure!(state()? == "active");
    place.vsnoop(["pause", PORT])?.ok()?;
    place.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

fn a_port_in_a_namespace_is_found_by_path_and_by_process() -> Result<()> {
    let place = Place::new("ways")?;
    let path = format!("/run/netns/{}", place.netns.name());
    vsnoop(["--netns", &path, "attach", PORT])?.ok()?;
    let mut inside = place.netns.command("sleep").arg("60").spawn()?;
    let detached = vsnoop(["--netns", &inside.id().to_string(), "detach", PORT]);
    inside.kill()?;
    inside.wait()?;
    detached?.ok()?;
    Ok(())
}

fn observe_changes_no_qdisc_and_leaves_nothing() -> Result<()> {
    let place = Place::new("look")?;
    place.tc(&format!("qdisc add dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let before = place.state()?;
    let json = place.vsnoop(["observe", PORT, "--for", "0.2", "--json"])?.json()?;
    ensure!(json["ports"][0]["ack_delay_ns"]["count"] == 0, "{json}");
    ensure!(place.state()? == before, "something was left");
    Ok(())
}

fn observe_ends_at_an_interrupt_and_leaves_nothing() -> Result<()> {
    let place = Place::new("stop")?;
    let before = place.state()?;
    let mut observe = Command::new(program());
    let observe = observe.args(["--netns", place.netns.name(), "observe", PORT]);
    let child = observe.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_until("the port is observed", || Ok(place.state()?.programs == (1, 1)))?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    ensure!(place.state()? == before, "something was left");
    Ok(())
}

fn a_deleted_tap_is_gone_and_the_next_command_cleans_up() -> Result<()> {
    let place = Place::new("gone")?;
    place.vsnoop(["attach", PORT])?.ok()?;
    let pins = place.pins()?;
    // The helper would have been faster.
    kill(Pid::from_raw(helper_pid()?.context("no helper")?), Signal::SIGKILL)?;
    let Place { netns, tap } = place;
    drop(tap);
    wait_until("the tap has vanished", || Ok(netns.ip(&format!("link show {PORT}")).is_err()))?;
    let other = Place::new("next")?;
    other.vsnoop(["detach", PORT])?.failed(39, &[PORT])?;
    ensure!(!pins.exists(), "{} is still there", pins.display());
    Ok(())
}

fn a_deleted_network_namespace_is_cleaned_up_after() -> Result<()> {
    let place = Place::new("away")?;
    place.vsnoop(["attach", PORT])?.ok()?;
    let pins = place.pins()?;
    drop(place);
    wait_until("the helper has cleaned up", || Ok(!pins.exists()))
}

fn a_watched_table_is_refreshed_until_the_interrupt() -> Result<()> {
    let place = Place::new("watch")?;
    place.vsnoop(["attach", PORT])?.ok()?;
    let log = format!("/run/{}.out", place.netns.name());
    let mut stats = Command::new(program());
    let stats =
        stats.args(["--netns", place.netns.name(), "stats", PORT, "--watch", "0.1", "--json"]);
    let child = stats.stdout(fs::File::create(&log)?).stderr(Stdio::piped()).spawn()?;
    wait_until("two lines were written", || Ok(fs::read_to_string(&log)?.lines().count() >= 2))?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    for line in fs::read_to_string(&log)?.lines() {
        let json: serde_json::Value = serde_json::from_str(line)?;
        ensure!(json["ports"][0]["port"] == PORT, "{json}");
    }
    place.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

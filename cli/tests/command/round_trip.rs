//! Attach, status, pause, resume, detach: everything is as before.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::types::hold_slab;
use vsnoop_testbed::net::TapOptions;

use crate::sandbox::{PORT, TapHost, program, running_helper, text, vsnoop, wait_until};

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
    let host = TapHost::new("round")?;
    let before = host.state()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let attached = host.state()?;
    ensure!(attached.qdiscs.contains("noqueue"), "{}", attached.qdiscs);
    ensure!(attached.programs == (1, 1), "{attached:?}");
    ensure!(host.pins()?.exists());
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    Ok(())
}

fn a_noqueue_that_somebody_chose_is_kept() -> Result<()> {
    let host = TapHost::new("own")?;
    host.tc(&format!("qdisc add dev {PORT} root noqueue"))?;
    let before = host.state()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(host.state()? == before, "changed: {:?}", host.state()?);
    Ok(())
}

fn a_qdisc_that_was_set_meanwhile_is_left_alone() -> Result<()> {
    let host = TapHost::new("later")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.tc(&format!("qdisc replace dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let status = host.vsnoop(["status", PORT])?.ok()?;
    ensure!(status.unfolded().contains("its qdisc is tbf"), "{status:?}");
    let ran = host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(ran.unfolded().contains("left as it is"), "{ran:?}");
    ensure!(host.state()?.qdiscs.contains("tbf"), "the qdisc was taken away");
    Ok(())
}

fn a_port_that_is_down_and_one_of_several_queues_come_back_as_they_were() -> Result<()> {
    let host = TapHost::new("shapes")?;
    let options = TapOptions { multi_queue: true, ..TapOptions::default() };
    let _queues = [host.netns.tap("vscli-mq", &options)?, host.netns.tap("vscli-mq", &options)?];
    host.netns.up("vscli-mq")?;
    let before = host.state()?;
    // Its default qdisc is made when it goes up again.
    host.netns.ip(&format!("link set {PORT} down"))?;
    host.vsnoop(["attach", PORT, "vscli-mq"])?.ok()?;
    let json = host.vsnoop(["status", "vscli-mq", "--json"])?.json()?;
    ensure!(json["ports"][0]["queues"] == 2, "{json}");
    host.vsnoop(["detach", PORT, "vscli-mq"])?.ok()?;
    host.netns.up(PORT)?;
    ensure!(host.state()? == before, "{:?} became {:?}", before, host.state()?);
    Ok(())
}

fn all_json_parses_and_names_the_port() -> Result<()> {
    let host = TapHost::new("json")?;
    let attach = host.vsnoop(["attach", PORT, "--json"])?.json()?;
    ensure!(attach["ports"][0]["result"] == "attached", "{attach}");
    for command in ["status", "stats", "flows", "doctor"] {
        let json = host.vsnoop([command, PORT, "--json"])?.json()?;
        ensure!(json["ports"][0]["port"] == PORT, "{command}: {json}");
    }
    let stats = host.vsnoop(["stats", PORT, "--json"])?.json()?;
    let port = &stats["ports"][0];
    ensure!(port["early_acks"] == 0 && port["early_bytes"] == 0, "{stats}");
    ensure!(port["masked_ns"]["buckets"].as_array().is_some_and(|b| b.len() == 40), "{stats}");
    let status = vsnoop(["status", "--json"])?.json()?;
    let port = &status["ports"][0];
    ensure!(port["netns_name"] == host.netns.name(), "{status}");
    ensure!(port["netns"] == host.netns.inode()?, "{status}");
    ensure!(port["state"] == "active", "{status}");
    ensure!(port["process"]["pid"] == std::process::id(), "{status}");
    ensure!(status["helper"]["running"] == true, "{status}");
    let detach = host.vsnoop(["detach", PORT, "--json"])?.json()?;
    ensure!(detach["ports"][0]["outstanding_bytes"] == 0, "{detach}");
    Ok(())
}

fn settings_and_lists_reach_the_kernel_side() -> Result<()> {
    let host = TapHost::new("lists")?;
    let lists = ["--allow-port", "80,443", "--deny-port", "22", "--deny", "2001:db8::/32"];
    let rest = ["--ahead", "64K", "--no-passive", "--max-flows", "100"];
    host.vsnoop(["attach", PORT].into_iter().chain(lists).chain(rest))?.ok()?;
    let json = host.vsnoop(["status", PORT, "--json"])?.json()?;
    let port = &json["ports"][0];
    ensure!(port["ahead_bytes"] == 65536 && port["passive"] == false, "{json}");
    ensure!(port["max_flows"] == 100 && port["lists"] == true, "{json}");
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

fn an_idle_port_takes_little_memory() -> Result<()> {
    let host = TapHost::new("memory")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let port = crate::surroundings::port_of(&host)?;
    let bytes = port.kernel_bytes()?;
    ensure!(bytes < IDLE_BYTES, "{bytes} bytes");
    wait_until("it has no memory for what is held", || Ok(port.state()?.slabs == 0))?;
    // The kernel keeps a map that a process has mapped.
    wait_until("the helper has no slab mapped", || {
        let helper = running_helper()?;
        Ok(largest_map(helper)? < size_of::<hold_slab>())
    })?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn pause_and_resume_are_shown() -> Result<()> {
    let host = TapHost::new("pause")?;
    let state = || -> Result<String> {
        let json = host.vsnoop(["status", PORT, "--json"])?.json()?;
        Ok(json["ports"][0]["state"].as_str().unwrap_or_default().to_owned())
    };
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["pause", PORT])?.ok()?;
    ensure!(state()? == "paused");
    host.vsnoop(["resume", PORT])?.ok()?;
    ensure!(state()? == "active");
    host.vsnoop(["pause", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

fn a_port_in_a_namespace_is_found_by_path_and_by_process() -> Result<()> {
    let host = TapHost::new("ways")?;
    let path = format!("/run/netns/{}", host.netns.name());
    vsnoop(["--netns", &path, "attach", PORT])?.ok()?;
    let mut inside = host.netns.command("sleep").arg("60").spawn()?;
    let detached = vsnoop(["--netns", &inside.id().to_string(), "detach", PORT]);
    inside.kill()?;
    inside.wait()?;
    detached?.ok()?;
    Ok(())
}

fn observe_changes_no_qdisc_and_leaves_nothing() -> Result<()> {
    let host = TapHost::new("look")?;
    host.tc(&format!("qdisc add dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let before = host.state()?;
    let json = host.vsnoop(["observe", PORT, "--for", "0.2", "--json"])?.json()?;
    ensure!(json["ports"][0]["ack_delay_ns"]["count"] == 0, "{json}");
    ensure!(host.state()? == before, "something was left");
    Ok(())
}

fn observe_ends_at_an_interrupt_and_leaves_nothing() -> Result<()> {
    let host = TapHost::new("stop")?;
    let before = host.state()?;
    let mut observe = Command::new(program());
    let observe = observe.args(["--netns", host.netns.name(), "observe", PORT]);
    let child = observe.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_until("the port is observed", || Ok(host.state()?.programs == (1, 1)))?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    ensure!(host.state()? == before, "something was left");
    Ok(())
}

fn a_deleted_tap_is_gone_and_the_next_command_cleans_up() -> Result<()> {
    let host = TapHost::new("gone")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let pins = host.pins()?;
    // The helper would have been faster.
    kill(Pid::from_raw(running_helper()?), Signal::SIGKILL)?;
    let TapHost { netns, tap } = host;
    drop(tap);
    wait_until("the tap has vanished", || Ok(netns.ip(&format!("link show {PORT}")).is_err()))?;
    let other = TapHost::new("next")?;
    other.vsnoop(["detach", PORT])?.failed(39, &[PORT])?;
    ensure!(!pins.exists(), "{} is still there", pins.display());
    Ok(())
}

fn a_deleted_network_namespace_is_cleaned_up_after() -> Result<()> {
    let host = TapHost::new("away")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let pins = host.pins()?;
    drop(host);
    wait_until("the helper has cleaned up", || Ok(!pins.exists()))
}

fn a_watched_table_is_refreshed_until_the_interrupt() -> Result<()> {
    let host = TapHost::new("watch")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let log = format!("/run/{}.out", host.netns.name());
    let mut stats = Command::new(program());
    let stats =
        stats.args(["--netns", host.netns.name(), "stats", PORT, "--watch", "0.1", "--json"]);
    let child = stats.stdout(fs::File::create(&log)?).stderr(Stdio::piped()).spawn()?;
    wait_until("two lines were written", || Ok(fs::read_to_string(&log)?.lines().count() >= 2))?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    for line in fs::read_to_string(&log)?.lines() {
        let json: serde_json::Value = serde_json::from_str(line)?;
        ensure!(json["ports"][0]["port"] == PORT, "{json}");
    }
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

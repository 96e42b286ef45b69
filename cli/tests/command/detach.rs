//! `detach` is complete when it returns, and a port in the middle of a detach counts as nothing
//! else (accel/vsnoop-host/src/port_removal.rs).

use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::fcntl::{Flock, FlockArg};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::types::flow_mode;
use vsnoop_bpf::{AttachSpec, Error, Listed, Port};
use vsnoop_testbed::topology;

use crate::helper::{AttachedNetwork, Pair, expect_reset};
use crate::sandbox::{
    PINS, PORT, TapHost, helper_pid, program, running_helper, text, vsnoop, wait_for_no_pins,
    wait_until,
};
use crate::surroundings::{port_of, wait_for_a_look};

const LOCK: &str = "/run/vsnoop/command.lock";

pub fn trials() -> Vec<Trial> {
    trials![
        no_hook_is_left_when_detach_returns_and_attach_may_follow_at_once,
        no_hook_of_damaged_pins_is_left_when_they_are_removed,
        a_port_that_is_being_detached_is_not_found_and_not_taken_for_a_deleted_one,
        the_helper_resets_nothing_in_the_middle_of_a_detach,
        a_detach_that_was_killed_with_the_hooks_on_is_finished_by_the_helper,
        a_detach_that_was_killed_is_finished_by_the_next_command_or_its_helper,
        a_tap_that_is_deleted_after_the_hooks_went_has_its_senders_reset,
        a_tap_that_is_deleted_while_detach_waits_ends_the_wait_and_resets_the_senders,
        off_resets_the_senders_of_a_deleted_tap,
        off_in_the_middle_of_a_detach_resets_nothing,
        what_a_command_is_in_the_middle_of_is_not_called_damaged,
        hooks_that_others_took_off_are_no_deleted_tap,
        an_observer_whose_hooks_were_taken_off_leaves_a_later_attachment_alone,
    ]
}

fn no_hook_is_left_when_detach_returns_and_attach_may_follow_at_once() -> Result<()> {
    let host = TapHost::new("rounds")?;
    let before = host.state()?;
    let index = host.netns.run(|| Ok(if_nametoindex(PORT)?))?;
    let spec = AttachSpec::new(index, PORT, host.netns.inode()?);
    for round in 0..30 {
        let port = host.netns.run(|| Ok(Port::attach(&spec)?))?;
        ensure!(host.programs()? == (1, 1), "round {round}");
        port.detach()?;
        ensure!(host.programs()? == (0, 0), "round {round}");
    }
    for round in 0..5 {
        host.vsnoop(["attach", PORT])?.ok()?;
        host.vsnoop(["detach", PORT])?.ok()?;
        ensure!(host.programs()? == (0, 0), "round {round}");
    }
    ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    Ok(())
}

fn no_hook_of_damaged_pins_is_left_when_they_are_removed() -> Result<()> {
    let host = TapHost::new("torn")?;
    let index = host.netns.run(|| Ok(if_nametoindex(PORT)?))?;
    let spec = AttachSpec::new(index, PORT, host.netns.inode()?);
    let missing = [["flows"; 5], ["link_from_vm"; 5], ["link_to_vm"; 5]].concat();
    for missing in missing {
        let port = host.netns.run(|| Ok(Port::attach(&spec)?))?;
        fs::remove_file(port.dir().join(missing))?;
        // It has the links open.
        drop(port);
        let found = Port::list()?;
        let [Listed::Damaged(damaged)] = &found[..] else { bail!("found {found:?}") };
        damaged.remove()?;
        let left = host.programs()?;
        // The kernel detaches the hook of a link without a pin some time later.
        let is_right = match missing {
            "link_from_vm" => left.0 == 0,
            "link_to_vm" => left.1 == 0,
            _ => left == (0, 0),
        };
        ensure!(is_right, "{missing} was missing: {left:?}");
        wait_until("no hook is left", || Ok(host.programs()? == (0, 0)))?;
    }
    Ok(())
}

fn a_port_that_is_being_detached_is_not_found_and_not_taken_for_a_deleted_one() -> Result<()> {
    let host = TapHost::new("leave")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let lock = take_lock()?;
    let (found, mut port) = (port_of(&host)?, port_of(&host)?);
    ensure!(port.leave()?, "somebody else was faster");
    ensure!(host.programs()? == (0, 0), "a hook is left");
    ensure!(matches!(found.hooks_are_off(), Err(Error::NotAttached(_))), "found");
    ensure!(!port_of(&host).is_ok_and(|port| port.links_alive()), "it is still found");
    let status = vsnoop(["status", "--json"])?.json()?;
    ensure!(status["ports"] == serde_json::json!([]), "{status}");
    ensure!(status["damaged"] == serde_json::json!([]), "{status}");
    host.vsnoop(["pause", PORT])?.failed(39, &[PORT])?;
    drop(lock);
    wait_until("the helper has finished", || Ok(!Path::new(port.dir()).exists()))
}

fn the_helper_resets_nothing_in_the_middle_of_a_detach() -> Result<()> {
    let other = TapHost::new("other")?;
    other.vsnoop(["attach", PORT])?.ok()?;
    let (network, mut pair) = outstanding("mid")?;
    let lock = take_lock()?;
    let mut port = port_of_network(&network)?;
    ensure!(port.leave()?, "somebody else was faster");
    wait_for_a_look(&port_of(&other)?)?;
    ensure!(port.dir().exists(), "the helper did not wait for the command");
    drop(lock);
    wait_until("the helper has finished", || Ok(!port.dir().exists()))?;
    let flows = port.flows()?;
    let reset = |mode: u8| u32::from(mode) == flow_mode::FLOW_RESET;
    ensure!(!flows.is_empty() && !flows.iter().any(|(_, flow)| reset(flow.mode)));
    network.thaw();
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("the bytes that were in the ring")?;
    pair.exchange(10_000)?;
    other.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_detach_that_was_killed_with_the_hooks_on_is_finished_by_the_helper() -> Result<()> {
    let host = TapHost::new("cut1")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let lock = take_lock()?;
    // As a process leaves it that was killed after setting it aside.
    fs::rename(host.pins()?, Path::new(PINS).join("leaving-0-0"))?;
    ensure!(host.programs()? == (1, 1), "the hooks went by themselves");
    drop(lock);
    wait_until("the hooks are off", || Ok(host.programs()? == (0, 0)))?;
    wait_for_no_pins()
}

fn a_detach_that_was_killed_is_finished_by_the_next_command_or_its_helper() -> Result<()> {
    let host = TapHost::new("cut2")?;
    // The first two start no helper.
    for command in [&["detach", "nowhere"][..], &["off", "--all"], &["status"]] {
        host.vsnoop(["attach", PORT])?.ok()?;
        let lock = take_lock()?;
        kill_helper()?;
        fs::rename(host.pins()?, Path::new(PINS).join("leaving-0-0"))?;
        drop(lock);
        let code = vsnoop(command.iter().copied())?.code;
        ensure!(code == if command[0] == "detach" { 31 } else { 0 }, "exit code {code}");
        if command == ["status"] {
            wait_until("the hooks are off", || Ok(host.programs()? == (0, 0)))?;
        }
        ensure!(host.programs()? == (0, 0), "{command:?} left a hook");
        wait_for_no_pins()?;
    }
    Ok(())
}

fn a_tap_that_is_deleted_after_the_hooks_went_has_its_senders_reset() -> Result<()> {
    let (network, mut pair) = outstanding("late")?;
    let lock = take_lock()?;
    let mut port = port_of_network(&network)?;
    ensure!(port.leave()?, "somebody else was faster");
    network.topology.host.ip(&format!("link del {}", topology::PORT))?;
    drop(lock);
    expect_reset(&mut pair.client).context("the sender")?;
    wait_for_no_pins()
}

fn a_tap_that_is_deleted_while_detach_waits_ends_the_wait_and_resets_the_senders() -> Result<()> {
    let (network, mut pair) = outstanding("drain2")?;
    let host = &network.topology.host;
    let detach = ["--netns", host.name(), "detach", topology::PORT, "--json"];
    let mut child = Command::new(program())
        .args(detach)
        .args(["--timeout", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    wait_until("the port is paused", || {
        let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
        Ok(status["ports"][0]["state"] == "paused")
    })?;
    host.ip(&format!("link del {}", topology::PORT))?;
    let ended = wait_until("detach has ended", || Ok(child.try_wait()?.is_some()));
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ended?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    // If this took long, it reported that it waits; it has no other warning.
    let mut others = said.lines().filter(|line| !line.contains("waiting up to 10 min"));
    ensure!(others.next().is_none(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(json["ports"][0]["result"] == "detached", "{json}");
    ensure!(json["ports"][0]["outstanding_bytes"] == 0, "{json}");
    expect_reset(&mut pair.client).context("the sender")
}

fn off_resets_the_senders_of_a_deleted_tap() -> Result<()> {
    let (network, mut pair) = outstanding("off3")?;
    kill_helper()?;
    network.topology.host.ip(&format!("link del {}", topology::PORT))?;
    vsnoop(["off", "--all"])?.ok()?;
    ensure!(!Path::new(PINS).exists(), "pins are left");
    expect_reset(&mut pair.client).context("the sender")
}

fn off_in_the_middle_of_a_detach_resets_nothing() -> Result<()> {
    let (network, mut pair) = outstanding("off4")?;
    let _lock = take_lock()?;
    let mut port = port_of_network(&network)?;
    ensure!(port.leave()?, "somebody else was faster");
    vsnoop(["off", "--all"])?.ok()?;
    ensure!(!port.dir().exists(), "pins are left");
    network.thaw();
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("the bytes that were in the ring")?;
    pair.exchange(10_000)
}

fn what_a_command_is_in_the_middle_of_is_not_called_damaged() -> Result<()> {
    let host = TapHost::new("middle")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let lock = take_lock()?;
    let unfinished = Path::new(PINS).join("1-1");
    fs::create_dir(&unfinished)?;
    let status = thread::spawn(|| vsnoop(["status", "--json"])?.json());
    wait_for_a_look(&port_of(&host)?)?;
    ensure!(!status.is_finished(), "it did not wait for the command");
    fs::remove_dir(&unfinished)?;
    drop(lock);
    let status = status.join().expect("no panic")?;
    ensure!(status["damaged"] == serde_json::json!([]), "{status}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn hooks_that_others_took_off_are_no_deleted_tap() -> Result<()> {
    let (network, mut pair) = outstanding("others")?;
    let pins = port_of_network(&network)?.dir().to_owned();
    // The helper may remove the pins as soon as one hook is off.
    let links = [link(&pins.join("link_to_vm"))?, link(&pins.join("link_from_vm"))?];
    links.iter().try_for_each(take_off)?;
    wait_until("the helper has noticed", || Ok(!pins.exists()))?;
    network.thaw();
    // Neither end was reset.
    let mut received = [0; 1000];
    pair.server.read_exact(&mut received).context("the bytes that were in the ring")?;
    pair.exchange(10_000)
}

fn an_observer_whose_hooks_were_taken_off_leaves_a_later_attachment_alone() -> Result<()> {
    let host = TapHost::new("stale")?;
    let mut observe = Command::new(program());
    let observe = observe.args(["--netns", host.netns.name(), "observe", PORT]);
    let child = observe.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // The hooks are on the tap before the port's pins have their place.
    wait_until("the port is observed", || {
        let status = host.vsnoop(["status", "--json"])?.json()?;
        Ok(status["ports"][0]["state"] == "observing")
    })?;
    wait_until("the helper runs", || Ok(helper_pid()?.is_some()))?;
    vsnoop(["off", "--all"])?.ok()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    ensure!(host.programs()? == (1, 1), "it took them off: {:?}", host.programs()?);
    let status = host.vsnoop(["status", PORT, "--json"])?.json()?;
    ensure!(status["ports"][0]["state"] == "active", "{status}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// Opens a pinned link, to detach it as `bpftool link detach` does.
fn link(pin: &Path) -> Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // SAFETY: a C string that outlives the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    ensure!(fd >= 0, "open {}: {fd}", pin.display());
    // SAFETY: a new descriptor, owned by this value alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn take_off(link: &OwnedFd) -> Result<()> {
    // SAFETY: takes no pointers.
    let result = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
    ensure!(result == 0, "detach a link: {result}");
    Ok(())
}

/// While it lives, all other commands wait, and the helper where it needs the lock.
pub fn take_lock() -> Result<Flock<fs::File>> {
    let file = fs::OpenOptions::new().write(true).open(LOCK).context(LOCK)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).context(LOCK)
}

fn kill_helper() -> Result<()> {
    let pid = running_helper()?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    wait_until("the helper is dead", || {
        Ok(fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty()))
    })
}

/// A thousand bytes that were acknowledged early while the VM is frozen.
fn outstanding(role: &str) -> Result<(AttachedNetwork, Pair)> {
    let network = AttachedNetwork::new(role)?;
    let mut pair = network.connect()?;
    network.freeze_with_bytes_outstanding(&mut pair)?;
    Ok((network, pair))
}

pub fn port_of_network(network: &AttachedNetwork) -> Result<Port> {
    let host = &network.topology.host;
    Ok(Port::open(host.inode()?, host.run(|| Ok(if_nametoindex(topology::PORT)?))?)?)
}

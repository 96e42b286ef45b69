//! Pinned state of another version, or half of it: named, never used, and removed by the panic
//! switch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::sandbox::{PINS, PORT, Ran, TapHost, pid_of, program, running, vsnoop, wait_until};

pub fn trials() -> Vec<Trial> {
    trials![
        state_of_another_abi_is_refused_and_removed_by_off,
        a_missing_pin_is_refused_and_removed_by_off,
        a_port_without_the_pin_of_a_link_is_taken_off,
        a_missing_doorbell_is_refused_and_removed_by_off,
        a_port_without_its_doorbell_is_taken_off_by_who_has_it_open,
        a_port_with_another_pin_in_the_place_of_a_link_is_taken_off,
        records_of_another_size_are_refused_and_removed_by_off,
        a_command_short_of_descriptors_calls_nothing_damaged,
        a_directory_that_is_no_port_is_shown_and_removed_by_off,
    ]
}

fn state_of_another_abi_is_refused_and_removed_by_off() -> Result<()> {
    damaged("abi", (1, 1), |pins| {
        let meta = MapHandle::from_pinned_path(pins.join("meta"))?;
        let key = 0u32.to_ne_bytes();
        let mut value = meta.lookup(&key, MapFlags::ANY)?.context("no record")?;
        value[..4].copy_from_slice(&9999u32.to_ne_bytes());
        Ok(meta.update(&key, &value, MapFlags::ANY)?)
    })
}

fn a_missing_pin_is_refused_and_removed_by_off() -> Result<()> {
    damaged("pin", (1, 1), |pins| Ok(fs::remove_file(pins.join("flows"))?))
}

fn a_port_without_the_pin_of_a_link_is_taken_off() -> Result<()> {
    without_pin("link", |pins| Ok(fs::remove_file(pins.join("link_from_vm"))?))
}

fn a_port_with_another_pin_in_the_place_of_a_link_is_taken_off() -> Result<()> {
    without_pin("nolink", |pins| {
        fs::remove_file(pins.join("link_to_vm"))?;
        let mut flows = MapHandle::from_pinned_path(pins.join("flows"))?;
        Ok(flows.pin(pins.join("link_to_vm"))?)
    })
}

fn a_port_without_its_doorbell_is_taken_off_by_who_has_it_open() -> Result<()> {
    without_pin("nobell", |pins| Ok(fs::remove_file(pins.join("doorbell"))?))
}

/// It is opened when it is used.
fn a_missing_doorbell_is_refused_and_removed_by_off() -> Result<()> {
    damaged("bell", (1, 1), |pins| Ok(fs::remove_file(pins.join("doorbell"))?))
}

/// The qdisc itself shows that vsnoop has replaced the default.
fn records_of_another_size_are_refused_and_removed_by_off() -> Result<()> {
    damaged("size", (1, 1), |pins| {
        // At once: a helper that finds none meanwhile takes the port off.
        let (path, new) = (pins.join("meta"), pins.join("meta_new"));
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let mut map = MapHandle::create(MapType::Array, Some("old_meta"), 4, 8, 1, &options)?;
        map.pin(&new)?;
        Ok(fs::rename(new, path)?)
    })
}

fn a_directory_that_is_no_port_is_shown_and_removed_by_off() -> Result<()> {
    let host = TapHost::new("dir")?;
    let before = host.state()?;
    let path = Path::new(PINS).join("leftover");
    fs::create_dir_all(&path)?;
    let status = vsnoop(["status"])?.ok()?;
    ensure!(
        status.unfolded().contains("leftover") && status.out.contains("off --all"),
        "{status:?}"
    );
    let json = vsnoop(["off", "--all", "--json"])?.json()?;
    ensure!(json["damaged_removed"][0] == "leftover", "{json}");
    ensure!(host.state()? == before, "something was left");
    Ok(())
}

/// Helper and engine still have the links open.
fn without_pin(role: &str, damage: impl FnOnce(PathBuf) -> Result<()>) -> Result<()> {
    let host = TapHost::new(role)?;
    let before = host.state()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    damage(host.pins()?)?;
    wait_until("the port is taken off", || Ok(host.state()? == before))?;
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

/// A process that has a port open takes it off as soon as it is damaged, however soon that is.
fn end_helper_and_engine() -> Result<()> {
    // A helper starts engines.
    for role in ["helper", "engine"] {
        let pid = running(role)?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        wait_until("it has ended", || Ok(pid_of(role)? != Some(pid)))?;
    }
    Ok(())
}

/// No process has the port open. `programs`: the hooks whose links are still pinned; the kernel
/// detaches the others some time later.
fn damaged(
    role: &str,
    programs: (u32, u32),
    damage: impl FnOnce(PathBuf) -> Result<()>,
) -> Result<()> {
    let host = TapHost::new(role)?;
    let before = host.state()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let pins = host.pins()?;
    end_helper_and_engine()?;
    damage(pins.clone())?;
    wait_until("only pinned hooks are left", || Ok(host.programs()? == programs))?;

    let damaged = host.state()?;
    let path = pins.display().to_string();
    for command in ["attach", "detach", "pause", "resume"] {
        host.vsnoop([command, PORT])?.failed(38, &[&path, "vsnoop off --all"])?;
    }
    ensure!(host.state()? == damaged, "damaged state was changed");
    let status = vsnoop(["status", "--json"])?.json()?;
    ensure!(status["damaged"][0]["path"] == path.as_str(), "{status}");

    vsnoop(["off", "--all"])?.ok()?;
    let after = host.state()?;
    ensure!(after == before, "something was left: {after:?}");
    host.vsnoop(["attach", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

/// From too few descriptors for any command to enough.
fn a_command_short_of_descriptors_calls_nothing_damaged() -> Result<()> {
    let host = TapHost::new("files")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let mut refused = 0;
    for most in 4..16 {
        let limited = format!("ulimit -n {most}; exec {} status --json", program());
        let ran = Ran::from_output(Command::new("sh").args(["-c", &limited]).output()?)?;
        ensure!(!ran.out.contains("off --all") && !ran.err.contains("damaged"), "{most}: {ran:?}");
        if ran.code == 0 {
            let status: Value = serde_json::from_str(&ran.out)?;
            ensure!(status["ports"][0]["port"] == PORT, "{most}: {status}");
        } else {
            refused += 1;
        }
    }
    ensure!(refused > 0, "there were enough descriptors all the time");
    host.vsnoop(["detach", PORT])?.ok()?;
    Ok(())
}

//! Another program removes pins, or unmounts their file system, while the host holds data: the VM
//! gets what is held, or both ends an error, and the port is as it was before it was attached.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use vsnoop_bpf::PIN_ROOT;
use vsnoop_testbed::net::TapOptions;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Topology;
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::wait_until;

use crate::attached::Attached;
use crate::background::Process::{self, Engine, Helper};
use crate::pair::Pair;
use crate::scene;
use crate::trial;

const OTHER_PORT: &str = "vst-other";
const BPFFS: &str = "/sys/fs/bpf";
/// Far longer than it takes to take a port off.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fits into the sockets' buffers.
const ANSWER_BYTES: u64 = 10_000;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("pins::held_bytes_are_handed_over_after_all_pins_were_removed", || handed_over(all)),
        trial("pins::held_bytes_are_handed_over_after_one_port_was_removed", || handed_over(port)),
        trial("pins::held_bytes_are_handed_over_after_the_links_were_removed", || {
            handed_over(links)
        }),
        trial("pins::held_bytes_are_handed_over_after_an_unmount", || handed_over(unmount)),
        trial("pins::a_vm_that_stands_still_is_reset_with_its_sender", || reset(None)),
        trial("pins::without_a_helper_the_engine_takes_the_port_off", || reset(Some(Helper))),
        trial("pins::without_an_engine_the_helper_takes_the_port_off", || reset(Some(Engine))),
        trial("pins::a_port_without_pins_can_be_attached_again", again),
        trial("pins::held_bytes_are_handed_over_while_another_port_has_the_slot", || {
            another_port(handed_over_then)
        }),
        trial("pins::a_vm_that_stands_still_is_reset_while_another_port_has_the_slot", || {
            another_port(reset_then)
        }),
    ]
}

/// Removes all that is pinned.
fn all() -> Result<()> {
    fs::remove_dir_all(PIN_ROOT).context("remove the pins")
}

/// Removes the directory of the only port, and leaves its programs.
fn port() -> Result<()> {
    fs::remove_dir_all(port_directory()?).context("remove a port's pins")
}

fn links() -> Result<()> {
    let directory = port_directory()?;
    for link in ["link_to_vm", "link_from_vm"] {
        fs::remove_file(directory.join(link)).with_context(|| format!("remove {link}"))?;
    }
    Ok(())
}

/// Does `umount -l`, and mounts another one for the tests that follow.
fn unmount() -> Result<()> {
    umount2(BPFFS, MntFlags::MNT_DETACH).context("unmount the BPF file system")?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&OsStr>)
        .context("mount another BPF file system")
}

fn port_directory() -> Result<PathBuf> {
    let mut found = fs::read_dir(PIN_ROOT).context("list the pins")?.flatten();
    let is_port = |path: &Path| path.join("link_to_vm").exists();
    let port = found.find(|entry| is_port(&entry.path())).context("no port is pinned")?;
    Ok(port.path())
}

fn handed_over(remove: fn() -> Result<()>) -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    remove()?;
    handed_over_then(&topology, attached, pair)
}

fn handed_over_then(topology: &Topology, mut attached: Attached, mut pair: Pair) -> Result<()> {
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(scene::BYTES).context("what was held")?;
    attached.until_taken_off()?;
    // The connection goes on without vsnoop, both ways.
    pair.client.send(scene::BYTES)?;
    pair.vm.receive(scene::BYTES)?;
    pair.vm.send(ANSWER_BYTES)?;
    pair.client.receive(ANSWER_BYTES)?;
    pair.client.finish()?;
    pair.vm.expect_end()
}

fn reset(killed: Option<Process>) -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    for process in [Engine, Helper] {
        wait_until("it has the hooks open", PATIENCE, || has_hooks_open(process))?;
    }
    all()?;
    if let Some(process) = killed {
        process.kill()?;
    }
    reset_then(&topology, attached, pair)
}

/// Without pins hooks stay only as long as a process has their links open.
fn has_hooks_open(process: Process) -> Result<bool> {
    let Some(pid) = process.pid()? else { return Ok(false) };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).context("list open files")?.flatten();
    let is_link = |file: PathBuf| file.as_os_str() == "anon_inode:bpf-link";
    Ok(open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(is_link))
}

fn reset_then(topology: &Topology, mut attached: Attached, mut pair: Pair) -> Result<()> {
    pair.client.expect_reset().context("the sender")?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("the VM")?;
    attached.until_taken_off()
}

fn again() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    port()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(scene::BYTES).context("what was held")?;
    attached.until_taken_off()?;
    drop(pair);
    // Refused while hooks are on the tap.
    wait_until("it can be attached", PATIENCE, || Ok(attached.attach().is_ok()))?;
    attached.until_it_holds(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    scene::ends_exact(&topology, attached, pair)
}

/// Before the port is taken off, another is attached and gets its slot in the programs.
fn another_port(then: fn(&Topology, Attached, Pair) -> Result<()>) -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let _tap = topology.host.tap(OTHER_PORT, &TapOptions::default())?;
    let pair = scene::held(&topology, &attached)?;
    let slot = slot()?;
    port()?;
    attached.run(&["attach", OTHER_PORT])?;
    ensure!(self::slot()? == slot, "the other port has a slot of its own");
    then(&topology, attached, pair)?;
    let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
    let state = vsnoop.stats(OTHER_PORT)?["ports"][0]["state"].clone();
    ensure!(state == "active", "the other port is {state}");
    vsnoop.detach(OTHER_PORT)
}

/// Reads the slot of the only port.
fn slot() -> Result<PathBuf> {
    fs::read_link(port_directory()?.join("slot")).context("read a port's slot")
}

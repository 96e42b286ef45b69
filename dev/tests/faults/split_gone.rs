//! The VM is killed, its tap is deleted, or its port is detached beside a splitter that stands
//! still, while a download is split: see `routes`.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::split::SplitPort;
use vsnoop_testbed::topology::{Family, PORT, Topology};

use crate::attached::Attached;
use crate::background::Process::{Helper, Splitter};
use crate::pair::Pair;
use crate::split::{Download, MORE, case, open};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    let deleted = |by_command| move || is_deleted(by_command);
    vec![
        trial("split_gone::a_killed_vm_resets_the_peer", is_killed),
        trial("split_gone::a_deleted_tap_resets_the_peer", deleted(false)),
        trial("split_gone::a_command_that_finds_a_deleted_tap_resets_the_peer", deleted(true)),
        trial("split_gone::a_tap_that_is_down_before_it_is_deleted_resets_the_peer", is_down_first),
        trial("split_gone::a_command_long_after_the_deletion_resets_the_peer", is_late),
        trial("split_gone::a_deleted_tap_without_a_splitter_resets_the_peer", has_no_splitter),
        trial("split_gone::a_splitter_that_stands_still_at_detach_leaves_both_reset", stands_still),
    ]
}

/// A port with a download that is split, of which much is held.
fn begin(topology: &Topology) -> Result<(Attached<'_>, SplitPort, Download)> {
    let attached = case().attach(topology)?;
    let split = open(&topology.host, PORT)?;
    let connect = || Pair::connect(topology, Family::V4);
    let download = Download::begin(&attached, &split, MORE, connect)?;
    download.until_held(&attached, &split)?;
    Ok((attached, split, download))
}

/// The tap stays, without a reader.
fn is_killed() -> Result<()> {
    let topology = case().build()?;
    let (mut attached, _, mut download) = begin(&topology)?;
    topology.host.ip(&format!("link set {PORT} carrier off"))?;
    download.pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("no_reader")? == 1, "not counted\n{}", attached.describe());
    topology.host.ip(&format!("link set {PORT} carrier on"))?;
    attached.detach()
}

/// The helper detaches the port, or a command that comes first.
fn is_deleted(by_command: bool) -> Result<()> {
    let topology = case().build()?;
    let (mut attached, _, mut download) = begin(&topology)?;
    topology.host.delete(PORT)?;
    if by_command {
        // The helper may have been faster after all; then there is nothing left to detach.
        let _ = attached.run(&["detach", PORT]);
    }
    attached.forget();
    download.pair.client.expect_reset()
}

/// Longer ago than RSTs are repeated for a tap that is there.
const LONG: Duration = Duration::from_secs(6);

/// Longer than a round trip.
const DOWN: Duration = Duration::from_millis(500);

/// No helper works when the tap is deleted. The splitter leaves the connection by itself.
fn is_late() -> Result<()> {
    let topology = case().build()?;
    let (mut attached, split, mut download) = begin(&topology)?;
    let helper = Helper.stop()?;
    topology.host.delete(PORT)?;
    attached.wait_until("it is left", || Ok(split.split_flows().is_empty()))?;
    thread::sleep(LONG);
    attached.run(&["detach", PORT])?;
    attached.forget();
    download.pair.client.expect_reset()?;
    drop(helper);
    Ok(())
}

/// Nor does a splitter: the command does not wait for it.
fn has_no_splitter() -> Result<()> {
    let topology = case().build()?;
    let (mut attached, _, mut download) = begin(&topology)?;
    let helper = Helper.stop()?;
    Splitter.kill()?;
    topology.host.delete(PORT)?;
    attached.run(&["detach", PORT])?;
    attached.forget();
    download.pair.client.expect_reset()?;
    drop(helper);
    Ok(())
}

/// The port is detached, and its tap stays.
fn stands_still() -> Result<()> {
    let topology = case().build()?;
    let (mut attached, _, mut download) = begin(&topology)?;
    let stopped = (Helper.stop()?, Splitter.stop()?);
    attached.run(&["detach", PORT])?;
    attached.forget();
    download.pair.client.expect_reset()?;
    download.expect_reset_of_vm()?;
    drop(stopped);
    Ok(())
}

/// The sockets go on sending for a while, and nothing of it leaves.
fn is_down_first() -> Result<()> {
    let topology = case().build()?;
    let (mut attached, _, mut download) = begin(&topology)?;
    topology.host.ip(&format!("link set {PORT} down"))?;
    thread::sleep(DOWN);
    topology.host.delete(PORT)?;
    attached.forget();
    download.pair.client.expect_reset()
}

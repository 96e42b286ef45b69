//! The VM moves away from its tap while its downloads are split: see `moves`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::split::SplitPort;
use vsnoop_testbed::capture::{Capture, CapturedSegment};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{
    CLIENT_DEVICE, Family, PORT, Side, Topology, UPLINK, VM_DEVICE, VM_MAC, address,
};
use vsnoop_testbed::wait::wait_until;

use crate::attached::Attached;
use crate::moves::{
    OTHER_MAC, OTHER_PORT, PATIENCE, announcement, learned, move_to_the_other_card, other_vm,
    send_frame, the_next_one_works,
};
use crate::pair::Pair;
use crate::split::{Download, MORE, MUCH, SOME, case, open};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("split_moves::a_bond_that_fails_over_is_reset_at_both_ends", fail_over),
        trial("split_moves::what_is_at_rest_goes_on_by_the_other_card", at_rest),
        trial(
            "split_moves::what_is_half_closed_and_at_rest_goes_on_by_the_other_card",
            half_closed,
        ),
        trial("split_moves::an_address_that_is_seen_elsewhere_for_a_moment_is_no_move", reflected),
        trial("split_moves::a_vm_at_another_host_is_reset_and_sent_nothing", migrated),
        trial("split_moves::a_vm_with_another_ethernet_address_goes_on", another_mac),
        trial("split_moves::a_vm_that_answers_beside_another_is_not_reset", contested),
    ];
    for (name, family) in [("ipv4", Family::V4), ("ipv6", Family::V6)] {
        trials.push(trial(
            &format!("split_moves::an_address_that_another_vm_takes_is_reset::{name}"),
            move || taken_over(family),
        ));
    }
    trials
}

/// Longer than a VM that is found elsewhere has time.
const WHILE: Duration = Duration::from_secs(12);
/// Segments on their way to the bridge when it learned of a move arrive within this time.
const LAST: Duration = Duration::from_millis(300);

/// A download that is split, and a network around it.
struct Scene<'a> {
    topology: &'a Topology,
    attached: Attached<'a>,
    split: SplitPort,
}

impl<'a> Scene<'a> {
    fn set_up(topology: &'a Topology) -> Result<Self> {
        let attached = case().attach(topology)?;
        let split = open(&topology.host, PORT)?;
        Ok(Self { topology, attached, split })
    }

    fn begin(&self, bytes: u64, family: Family) -> Result<Download> {
        let connect = || Pair::connect(self.topology, family);
        Download::begin(&self.attached, &self.split, bytes, connect)
    }

    /// A download of more than the client takes, which does not read.
    fn begin_held(&self) -> Result<Download> {
        let download = self.begin(MORE, Family::V4)?;
        download.until_held(&self.attached, &self.split)?;
        Ok(download)
    }

    /// The VM was told, and it is counted once.
    fn ends_in_a_reset(&self, download: Download) -> Result<()> {
        download.expect_reset_of_vm().with_context(|| self.attached.describe())?;
        self.is_counted()
    }

    fn is_counted(&self) -> Result<()> {
        self.attached.wait_until("it is counted", || Ok(self.attached.resets("moved")? == 1))
    }

    fn end(mut self) -> Result<()> {
        self.topology.guest().set_freeze(Freeze::Never);
        self.attached.wait_until("it is over", || Ok(self.split.split_flows().is_empty()))?;
        self.attached.detach()
    }
}

fn fail_over() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let mut download = scene.begin_held()?;
    move_to_the_other_card(&topology)?;
    wait_until("the bridge knows it", PATIENCE, || learned(&topology, VM_MAC, OTHER_PORT))?;
    thread::sleep(LAST);
    let over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let looking = scope.spawn(|| still_there(&topology, &over));
        let reset = download.pair.client.expect_reset();
        over.store(true, Ordering::Relaxed);
        reset.with_context(|| scene.attached.describe())?;
        looking.join().ok().context("the thread panicked")?
    })?;
    scene.ends_in_a_reset(download)?;
    the_next_one_works(&topology)?;
    scene.end()
}

/// Nothing teaches the bridge that the VM is behind its tap.
fn still_there(topology: &Topology, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        ensure!(learned(topology, VM_MAC, OTHER_PORT)?, "the bridge was told another place");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// All has arrived, and the connection is still split.
fn at_rest() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let Download { bytes, mut pair, sending } = scene.begin(MUCH, Family::V4)?;
    pair.client.receive(bytes - SOME)?;
    sending.join().ok().context("the sender panicked")??;
    let mut vm = pair.vm.twin()?;
    vm.has_sent(bytes);
    // The client may delay an ACK.
    thread::sleep(LAST);
    move_to_the_other_card(&topology)?;
    vm.send(SOME)?;
    pair.client.receive(SOME).with_context(|| scene.attached.describe())?;
    pair.client.send(SOME)?;
    vm.receive(SOME).with_context(|| scene.attached.describe())?;
    scene.attached.ensure_no_reset()?;
    scene.end()
}

/// The VM has closed, and the client sends something much later.
fn half_closed() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let Download { bytes, mut pair, sending } = scene.begin(MUCH, Family::V4)?;
    pair.client.receive(bytes - SOME)?;
    sending.join().ok().context("the sender panicked")??;
    pair.vm.finish()?;
    pair.client.expect_end()?;
    // The client may delay its ACK of the FIN.
    thread::sleep(LAST);
    move_to_the_other_card(&topology)?;
    thread::sleep(WHILE);
    pair.client.send(SOME).with_context(|| scene.attached.describe())?;
    pair.vm.receive(SOME).with_context(|| scene.attached.describe())?;
    scene.attached.ensure_no_reset()?;
    scene.end()
}

/// A switch sends a frame of the VM back, say. Then there is no progress for longer than a VM that
/// has moved has time.
fn reflected() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let download = scene.begin(MORE, Family::V4)?;
    show_elsewhere(&topology)?;
    thread::sleep(WHILE);
    download.end().with_context(|| scene.attached.describe())?;
    scene.attached.ensure_no_reset()?;
    scene.end()
}

/// A frame with the VM's address comes from the network.
fn show_elsewhere(topology: &Topology) -> Result<()> {
    let frame = [&[0xff; 6][..], &VM_MAC, &[0x88, 0xb5], &[0; 46]].concat();
    topology.client.run(|| send_frame(CLIENT_DEVICE, &frame))
}

/// It is where its peer is. No frame with its address may leave there.
fn migrated() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let mut download = scene.begin_held()?;
    topology.guest().set_freeze(Freeze::Now);
    show_elsewhere(&topology)?;
    thread::sleep(LAST);
    // It sends more there.
    show_elsewhere(&topology)?;
    wait_until("the bridge knows it", PATIENCE, || learned(&topology, VM_MAC, UPLINK))?;
    let capture = Capture::start(&topology.client)?;
    let port = download.pair.vm.socket.local_addr()?.port();
    download.pair.client.expect_reset().with_context(|| scene.attached.describe())?;
    let came = capture.take()?.into_iter().filter(|segment| !segment.outgoing);
    // vsnoop's frames have the bridge's address, and identification 0.
    let is_of_vm = |it: &CapturedSegment| it.source_port == port && it.identification != Some(0);
    let of_vm: Vec<_> = came.filter(is_of_vm).collect();
    ensure!(of_vm.is_empty(), "sent where the VM is: {of_vm:?}");
    ensure!(learned(&topology, VM_MAC, UPLINK)?, "the bridge was told another place");
    scene.is_counted()?;
    topology.guest().set_freeze(Freeze::Never);
    drop(download);
    scene.end()
}

/// The client is not heard any more, as if it talked to the other VM.
fn taken_over(family: Family) -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let download = scene.begin(MORE, family)?;
    // First: a client that still answers the VM is a sign that it goes on.
    topology.client.ip(&format!("link set {CLIENT_DEVICE} down"))?;
    let _other = other_vm(&topology, family)?;
    scene.ends_in_a_reset(download)?;
    scene.end()
}

/// The VM says so, as a bond does whose other card is active, and the client believes it.
fn another_mac() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let download = scene.begin(MORE, Family::V4)?;
    let vm = address(Side::Vm, Family::V4);
    topology.vm.set_mac(VM_DEVICE, OTHER_MAC)?;
    topology.client.add_neighbour(CLIENT_DEVICE, vm, OTHER_MAC)?;
    topology.vm.run(|| send_frame(VM_DEVICE, &announcement(vm)))?;
    thread::sleep(WHILE);
    download.end().with_context(|| scene.attached.describe())?;
    scene.attached.ensure_no_reset()?;
    scene.end()
}

/// The client goes on talking to the VM, though another one has its address, too.
fn contested() -> Result<()> {
    let topology = case().build()?;
    let scene = Scene::set_up(&topology)?;
    let download = scene.begin(MORE, Family::V4)?;
    let other = other_vm(&topology, Family::V4)?;
    other.ip(&format!("address add {}/24 dev vst-card", address(Side::Vm, Family::V4)))?;
    thread::sleep(WHILE);
    download.end().with_context(|| scene.attached.describe())?;
    scene.attached.ensure_no_reset()?;
    scene.end()
}

//! Limits of bandwidth as libvirt sets them up at the tap: HTB with a leaf and a filter by mark for
//! `<inbound>`, a policer at the ingress for `<outbound>`.
//!
//! Not every kernel has all of it. What is refused, and what is held, is the same with HTB alone.

use std::thread;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{Family, PORT};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::scene::{BLOCKED_BYTES, Scene, UPLOAD_BYTES, network};
use crate::tc_ingress::met;
use crate::trial;

/// So few frames in the ring that most of what is held comes when the limit is there.
const RING_FRAMES: usize = 2;
/// More than the limit of what the VM sends lets through at a time.
const DOWNLOAD_BYTES: u64 = 300_000;

/// A domain's interface has this limit. The commands are what libvirt 9.0 makes of it, which the
/// tests of `libvirt` compare.
pub const LIMITS: &str = "<bandwidth>\
    <inbound average='2500' peak='5000' burst='64'/>\
    <outbound average='50' burst='128'/>\
    </bandwidth>";
const INBOUND: [&str; 4] = [
    "qdisc add dev vst-port root handle 1: htb default 1",
    "class add dev vst-port parent 1: classid 1:1 htb rate 2500kbps ceil 5000kbps burst 64kb \
     quantum 213",
    "qdisc add dev vst-port parent 1:1 handle 2: sfq perturb 10",
    "filter add dev vst-port parent 1:0 protocol all prio 1 handle 1 fw flowid 1",
];
/// All goes through the default class in any case.
const HTB_ALONE: [&str; 2] = [INBOUND[0], INBOUND[1]];
const OUTBOUND: [&str; 2] = [
    "qdisc add dev vst-port ingress",
    "filter add dev vst-port parent ffff: protocol all u32 match u32 0 0 police rate 50kbps \
     burst 128kb mtu 64kb drop flowid :1",
];

/// All that libvirt adds for [`LIMITS`], in its order.
pub fn commands() -> Vec<&'static str> {
    [&INBOUND[..], &OUTBOUND[..]].concat()
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bandwidth::a_limit_that_was_there_first_is_refused_and_kept", || {
            there_first(&HTB_ALONE)
        }),
        trial("bandwidth::what_is_held_goes_through_a_limit_that_comes_later", || {
            comes_later(&HTB_ALONE)
        }),
    ]
}

pub fn trials_in_full() -> Vec<Trial> {
    vec![
        trial("bandwidth_in_full::inbound_that_was_there_first_is_refused_and_kept", || {
            there_first(&INBOUND)
        }),
        trial("bandwidth_in_full::what_is_held_goes_through_inbound_that_comes_later", || {
            comes_later(&INBOUND)
        }),
        trial("bandwidth_in_full::outbound_limits_what_the_vm_sends_and_harms_nothing", outbound),
    ]
}

pub fn probe(netns: &Netns) -> Result<()> {
    let _tap = netns.tap(PORT, &Default::default())?;
    limit(netns, &HTB_ALONE).context("this kernel has no HTB")
}

pub fn probe_in_full(netns: &Netns) -> Result<()> {
    let _tap = netns.tap(PORT, &Default::default())?;
    limit(netns, &commands()).context("this kernel has not all of libvirt's limits")
}

fn limit(host: &Netns, commands: &[&str]) -> Result<()> {
    // libvirt does the same; the kernel does not delete its default, but replaces it.
    let _ = host.tc(&format!("qdisc del dev {PORT} root"));
    commands.iter().try_for_each(|command| host.tc(command).map(drop))
}

/// Bytes that HTB has let through.
fn sent_bytes(host: &Netns) -> Result<u64> {
    let text = host.tc(&format!("-s -j qdisc show dev {PORT} root"))?;
    let qdiscs: Value = serde_json::from_str(&text).context("tc printed no JSON")?;
    ensure!(qdiscs[0]["kind"] == "htb", "no HTB at {PORT}: {text}");
    qdiscs[0]["bytes"].as_u64().context("tc counts no bytes")
}

fn there_first(commands: &[&str]) -> Result<()> {
    let topology = network(|_| ())?;
    limit(&topology.host, commands)?;
    let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
    let Err(refusal) = vsnoop.attach(PORT) else { bail!("attached to a tap with HTB") };
    let refusal = refusal.to_string();
    for words in [PORT, "qdisc htb 1:", "<bandwidth>"] {
        ensure!(refusal.contains(words), "{words:?} is not in: {refusal}");
    }
    sent_bytes(&topology.host).map(drop)
}

fn comes_later(commands: &[&str]) -> Result<()> {
    let topology = network(|options| options.ring_frames = RING_FRAMES)?;
    let host = &topology.host;
    let mut scene = Scene::new(&topology, Family::V4)?;
    scene.upload_to_the_host()?;
    limit(host, commands)?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(UPLOAD_BYTES).with_context(|| scene.attached.describe())?;
    let sent = sent_bytes(host)?;
    ensure!(sent > UPLOAD_BYTES / 2, "{sent} of {UPLOAD_BYTES} bytes went through HTB");
    // Bytes that come now go through it as well, acknowledged early or not.
    scene.pair.client.send(UPLOAD_BYTES)?;
    scene.pair.vm.receive(UPLOAD_BYTES).with_context(|| scene.attached.describe())?;
    let more = sent_bytes(host)? - sent;
    ensure!(more >= UPLOAD_BYTES, "{more} of {UPLOAD_BYTES} bytes went through HTB");
    scene.attached.until_nothing_is_outstanding()?;
    scene.attached.ensure_no_reset()?;
    scene.attached.run(&["detach", PORT])?;
    scene.attached.forget();
    ensure!(sent_bytes(host)? >= sent, "HTB was set up anew");
    Ok(())
}

/// The policer stands behind the hook: early ACKs pass it instead of the VM's own.
fn outbound() -> Result<()> {
    let topology = network(|_| ())?;
    let host = &topology.host;
    limit(host, &OUTBOUND)?;
    let mut scene = Scene::new(&topology, Family::V4)?;
    let before = (met(host)?.packets, scene.attached.counter("early_acks")?);
    for _ in 0..3 {
        scene.upload()?;
    }
    let packets = met(host)?.packets - before.0;
    let early = scene.attached.counter("early_acks")? - before.1;
    ensure!(packets >= early, "{early} early ACKs, and {packets} packets met the policer");
    // The VM sends more than passes, so that early ACKs may be dropped, too.
    let mut writer = scene.pair.vm.twin()?;
    let mut reader = scene.pair.client.twin()?;
    thread::scope(|scope| {
        let download = [
            scope.spawn(move || writer.send(DOWNLOAD_BYTES)),
            scope.spawn(move || reader.receive(DOWNLOAD_BYTES)),
        ];
        for _ in 0..UPLOAD_BYTES / BLOCKED_BYTES {
            scene.pair.client.send(BLOCKED_BYTES)?;
            scene.pair.vm.receive(BLOCKED_BYTES)?;
        }
        let ended = |end: thread::ScopedJoinHandle<'_, Result<()>>| {
            end.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        download.into_iter().try_for_each(ended)
    })
    .with_context(|| scene.attached.describe())?;
    let dropped = met(host)?.dropped;
    ensure!(dropped > 0, "nothing was dropped");
    scene.detach()?;
    ensure!(met(host)?.dropped >= dropped, "the policer was set up anew");
    Ok(())
}

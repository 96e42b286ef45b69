//! HTB at the tap, as libvirt sets it up for `<bandwidth>` with `<inbound>`.

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{Family, PORT};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::scene::{Scene, UPLOAD_BYTES, network};
use crate::trial;

/// So few frames in the ring that most of what is held comes when the limit is there.
const RING_FRAMES: usize = 2;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bandwidth::a_limit_that_was_there_first_is_refused_and_kept", there_first),
        trial("bandwidth::what_is_held_goes_through_a_limit_that_comes_later", comes_later),
    ]
}

pub fn probe(netns: &Netns) -> Result<()> {
    let _tap = netns.tap(PORT, &Default::default())?;
    limit(netns).context("this kernel has no HTB")
}

/// Without the leaf (sfq) and the filter by mark (fw) that libvirt adds, which not every kernel
/// has: all goes through the default class in any case.
fn limit(host: &Netns) -> Result<()> {
    // As libvirt does; the kernel's default cannot be deleted, and is replaced.
    let _ = host.tc(&format!("qdisc del dev {PORT} root"));
    host.tc(&format!("qdisc add dev {PORT} root handle 1: htb default 1"))?;
    let class = "classid 1:1 htb rate 20mbit ceil 20mbit burst 60kb quantum 2500";
    host.tc(&format!("class add dev {PORT} parent 1: {class}"))?;
    Ok(())
}

/// Bytes that HTB has let through.
fn sent_bytes(host: &Netns) -> Result<u64> {
    let text = host.tc(&format!("-s -j qdisc show dev {PORT} root"))?;
    let qdiscs: Value = serde_json::from_str(&text).context("tc printed no JSON")?;
    ensure!(qdiscs[0]["kind"] == "htb", "no HTB at {PORT}: {text}");
    qdiscs[0]["bytes"].as_u64().context("tc counts no bytes")
}

fn there_first() -> Result<()> {
    let topology = network(|_| ())?;
    limit(&topology.host)?;
    let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
    let Err(refusal) = vsnoop.attach(PORT) else { bail!("attached to a tap with HTB") };
    let refusal = refusal.to_string();
    for words in [PORT, "qdisc htb 1:", "<bandwidth>"] {
        ensure!(refusal.contains(words), "{words:?} is not in: {refusal}");
    }
    sent_bytes(&topology.host).map(drop)
}

fn comes_later() -> Result<()> {
    let topology = network(|options| options.ring_frames = RING_FRAMES)?;
    let host = &topology.host;
    let mut scene = Scene::new(&topology, Family::V4)?;
    scene.upload_to_the_host()?;
    limit(host)?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(UPLOAD_BYTES).with_context(|| scene.attached.describe())?;
    let sent = sent_bytes(host)?;
    ensure!(sent > UPLOAD_BYTES / 2, "{sent} of {UPLOAD_BYTES} bytes went through HTB");
    // What comes now goes through it as well, acknowledged early or not.
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

//! Filters of tc at the tap's ingress, behind the hook: they decide on what the VM sends, and on
//! early ACKs as if the VM had sent them.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{Family, PORT};

use crate::scene::{BLOCKED_BYTES, Scene, network};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial("tc_ingress::a_filter_meets_early_acks_and_one_that_goes_ends_no_connection", drops)]
}

pub fn probe(netns: &Netns) -> Result<()> {
    let _tap = netns.tap(PORT, &Default::default())?;
    filter(netns, "drop").context("this kernel has not all of clsact, matchall and gact")
}

/// Adds a filter that does this with every packet of the VM.
fn filter(host: &Netns, action: &str) -> Result<()> {
    host.tc(&format!("qdisc add dev {PORT} clsact"))?;
    host.tc(&format!("filter add dev {PORT} ingress matchall action {action}")).map(drop)
}

/// Packets of the VM, early ACKs among them, that met the action at the ingress.
pub struct Met {
    pub packets: u64,
    pub dropped: u64,
}

pub fn met(host: &Netns) -> Result<Met> {
    // `Sent 4242 bytes 42 pkt (dropped 7, overlimits 7 requeues 0)`
    let text = host.tc(&format!("-s filter show dev {PORT} ingress"))?;
    let counted = text.lines().find_map(|line| line.trim().strip_prefix("Sent "));
    let mut numbers = counted
        .into_iter()
        .flat_map(|line| line.split(|c: char| !c.is_ascii_digit()))
        .filter_map(|number| number.parse().ok())
        .skip(1);
    let mut next = || numbers.next().with_context(|| format!("no counters: {text}"));
    Ok(Met { packets: next()?, dropped: next()? })
}

fn drops() -> Result<()> {
    let topology = network(|_| ())?;
    let host = &topology.host;
    filter(host, "pass")?;
    let mut scene = Scene::new(&topology, Family::V4)?;
    let before = met(host)?.packets;
    let early = scene.attached.counter("early_acks")?;
    scene.upload()?;
    scene.download()?;
    let early = scene.attached.counter("early_acks")? - early;
    let passed = met(host)?.packets - before;
    ensure!(passed >= early, "{early} early ACKs, and {passed} packets met the filter");
    scene.stop_the_vm();
    host.tc(&format!("qdisc del dev {PORT} clsact"))?;
    filter(host, "drop")?;
    scene.send_what_is_dropped(|| Ok(met(host)?.packets))?;
    host.tc(&format!("qdisc del dev {PORT} clsact"))?;
    // By vsnoop, for the VM stands still yet, or by the VM if it is left to it.
    scene.is_acknowledged()?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(BLOCKED_BYTES)?;
    scene.upload()?;
    scene.detach()
}

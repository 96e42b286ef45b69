//! nftables: a table `bridge`, before the tap, and a table `netdev` at the tap's own egress.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{Family, PORT};

use crate::scene::{BLOCKED_BYTES, FAMILIES, Scene, UPLOAD_BYTES, network};
use crate::trial;

/// A segment with data is longer, one without is not.
const LONGEST_ACK_BYTES: usize = 300;
/// Frames that the tap's ring takes: few of what is sent.
const RING_FRAMES: usize = 2;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, family) in FAMILIES {
        trials.push(trial(
            format!("nftables::what_the_bridge_drops_is_not_acknowledged_{name}"),
            move || bridge_drops(family),
        ));
        trials.push(trial(
            format!("nftables::what_is_held_when_a_rule_comes_is_delivered_{name}"),
            move || rule_comes(family),
        ));
    }
    trials.push(trial("nftables::what_the_taps_egress_drops_stays_in_the_hold", egress_drops));
    trials
}

pub fn probe(netns: &Netns) -> Result<()> {
    installed("nft", "nftables")?;
    let _tap = netns.tap(PORT, &Default::default())?;
    for place in [BEFORE_THE_TAP, AT_THE_EGRESS] {
        Rule::add(netns, place).with_context(|| format!("no rule at {}", place.hook))?;
    }
    Ok(())
}

/// Where a rule stands.
#[derive(Clone, Copy)]
struct Place {
    family: &'static str,
    hook: &'static str,
    /// Condition of the rule, before the length.
    towards: &'static str,
}

const BEFORE_THE_TAP: Place =
    Place { family: "bridge", hook: "forward", towards: "oifname \"vst-port\"" };
const AT_THE_EGRESS: Place =
    Place { family: "netdev", hook: "egress device \"vst-port\"", towards: "" };

/// Drops all data for the VM, and counts them.
struct Rule<'a> {
    host: &'a Netns,
    table: String,
}

impl<'a> Rule<'a> {
    fn add(host: &'a Netns, place: Place) -> Result<Self> {
        let Place { family, hook, towards } = place;
        let table = format!("{family} vst");
        host.nft(&format!(
            "add table {table}; \
             add chain {table} drops {{ type filter hook {hook} priority 0; }}; \
             add counter {table} dropped; \
             add rule {table} drops {towards} meta length > {LONGEST_ACK_BYTES} \
             counter name dropped drop"
        ))?;
        Ok(Self { host, table })
    }

    fn dropped(&self) -> Result<u64> {
        let text = self.host.nft(&format!("list counter {} dropped", self.table))?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
        Ok(words.nth(1).with_context(|| text.clone())?.parse()?)
    }

    fn remove(self) -> Result<()> {
        self.host.nft(&format!("delete table {}", self.table)).map(drop)
    }
}

fn bridge_drops(family: Family) -> Result<()> {
    let topology = network(|_| ())?;
    let mut scene = Scene::new(&topology, family)?;
    scene.upload()?;
    scene.stop_the_vm();
    let rule = Rule::add(&topology.host, BEFORE_THE_TAP)?;
    let early = scene.attached.counter("early_bytes")?;
    scene.send_what_is_dropped(|| rule.dropped())?;
    ensure!(scene.attached.counter("early_bytes")? == early, "{}", scene.attached.describe());
    rule.remove()?;
    // By vsnoop, for the VM stands still yet, or by the VM if it is left to it.
    scene.is_acknowledged()?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(BLOCKED_BYTES)?;
    scene.upload()?;
    scene.download()?;
    scene.detach()
}

fn rule_comes(family: Family) -> Result<()> {
    let topology = network(|_| ())?;
    let mut scene = Scene::new(&topology, family)?;
    scene.upload_to_the_host()?;
    let rule = Rule::add(&topology.host, BEFORE_THE_TAP)?;
    scene.send_what_is_dropped(|| rule.dropped())?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(UPLOAD_BYTES).with_context(|| scene.attached.describe())?;
    rule.remove()?;
    scene.pair.vm.receive(BLOCKED_BYTES)?;
    scene.detach()
}

/// The chain stands before the hook, so it drops frames of the engine.
fn egress_drops() -> Result<()> {
    let topology = network(|options| options.ring_frames = RING_FRAMES)?;
    let mut scene = Scene::new(&topology, Family::V4)?;
    scene.upload_to_the_host()?;
    let rule = Rule::add(&topology.host, AT_THE_EGRESS)?;
    scene.let_the_vm_run();
    scene.attached.wait_until("frames of the engine were dropped", || Ok(rule.dropped()? > 10))?;
    let held = scene.attached.hold("used_bytes")?;
    ensure!(held > 0, "what was dropped is not held\n{}", scene.attached.describe());
    rule.remove()?;
    scene.pair.vm.receive(UPLOAD_BYTES).with_context(|| scene.attached.describe())?;
    scene.detach()
}

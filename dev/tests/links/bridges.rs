//! Ports that are bridges: the link's tap is their port, also after the bridge was deleted and made
//! again.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4, inner_v6};
use vsnoop_testbed::wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(120);
const TAP: &str = "vsl0";
const PUT_BACK: &str = "port vsl0: its tap was in no bridge, and is put back into bridge br0";
const NO_FRAMES: &str = "port vsl0 carries no frames";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bridges::a_tap_that_fell_out_of_its_bridge_is_put_back", fallen_out),
        trial("bridges::a_bridge_that_is_made_anew_has_the_tap_again", made_anew),
        trial("bridges::a_bridge_that_is_down_is_told", down),
        trial("bridges::a_tap_that_was_moved_to_another_bridge_stays_there", moved),
    ]
}

fn cross(network: &Network) -> Result<()> {
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 1 << 20, &moved)
            .with_context(|| format!("to {at}"))?;
    }
    Ok(())
}

fn is_in(host: &Host, bridge: &str) -> Result<bool> {
    Ok(host.netns.ip(&format!("-o link show {TAP}"))?.contains(&format!(" master {bridge} ")))
}

/// Waits without asking the link: a request would make it look at the tap.
fn until_in(host: &Host, bridge: &str) -> Result<()> {
    wait_until(&format!("{TAP} is in {bridge}"), PATIENCE, || is_in(host, bridge))
        .with_context(|| host.words())
}

fn until_port(host: &Host, up: bool, reason: Option<&str>) -> Result<()> {
    host.until(&format!("the port is up: {up}, because of {reason:?}"), |status| {
        let port = &status["ports"][0];
        let said = port["reason"].as_str();
        port["up"] == up
            && match reason {
                None => said.is_none(),
                Some(reason) => said.is_some_and(|said| said.contains(reason)),
            }
    })
}

fn said_once(host: &Host, what: &str) -> Result<()> {
    let times = host.words().matches(what).count();
    ensure!(times == 1, "{what:?} was logged {times} times: {}", host.words());
    Ok(())
}

fn fallen_out() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    a.netns.ip(&format!("link set {TAP} nomaster"))?;
    until_in(a, "br0")?;
    until_port(a, true, None)?;
    said_once(a, PUT_BACK)?;
    cross(&network)
}

fn made_anew() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    a.netns.delete("br0")?;
    until_port(a, false, Some("no bridge br0"))?;
    let text = a.command(&["status", a.name()])?;
    ensure!(text.contains(NO_FRAMES), "it is not said: {text}");
    // Another kind of interface of that name is not taken for it.
    a.netns.ip("link add br0 type veth peer name other")?;
    until_port(a, false, Some("br0 is no bridge any more but a veth"))?;
    a.netns.delete("br0")?;
    a.netns.ip("link add br0 type bridge")?;
    until_in(a, "br0")?;
    until_port(a, false, Some("bridge br0 is down"))?;
    a.netns.up("br0")?;
    a.netns.add_port("br0", "vm0")?;
    until_port(a, true, None)?;
    said_once(a, PUT_BACK)?;
    cross(&network)?;
    // The link does not notice that there was none.
    a.netns.delete("br0")?;
    a.netns.bridge("br0")?;
    a.netns.add_port("br0", "vm0")?;
    until_in(a, "br0")?;
    cross(&network)
}

fn down() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    a.netns.ip("link set br0 down")?;
    until_port(a, false, Some("`ip link set br0 up`"))?;
    a.netns.up("br0")?;
    until_port(a, true, None)?;
    said_once(a, NO_FRAMES)?;
    cross(&network)
}

fn moved() -> Result<()> {
    /// Each asks the link, which looks.
    const LOOKS: usize = 20;
    let network = Network::up(Plan::default())?;
    let a = &network.hosts[0];
    a.netns.bridge("br1")?;
    for port in [TAP, "vm0"] {
        a.netns.add_port("br1", port)?;
    }
    until_port(a, true, Some("into bridge br1"))?;
    for _ in 0..LOOKS {
        a.status()?;
    }
    ensure!(is_in(a, "br1")?, "it was taken away from br1: {}", a.words());
    said_once(a, "into bridge br1")?;
    cross(&network)?;
    let text = a.command(&["status", a.name()])?;
    let way_out = "`ip link set vsl0 master br0`";
    ensure!(text.contains("port vsl0: somebody") && text.contains(way_out), "{text}");
    a.netns.ip("link set br1 down")?;
    until_port(a, false, Some("`ip link set br1 up`"))?;
    for port in [TAP, "vm0"] {
        a.netns.add_port("br0", port)?;
    }
    until_port(a, true, None)?;
    cross(&network)
}

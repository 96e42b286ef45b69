//! Ports have the settings of their table: a canary part, lists, bounds, an uplink.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::helper::AttachedNetwork;
use crate::hold::{ConfigFile, until_acknowledged_early};
use crate::sandbox::{PREFIX, vsnoop, wait_until};
use crate::service::{Service, ports, until_port};

const TAPS: usize = 40;

pub fn trials() -> Vec<Trial> {
    trials![
        a_canary_is_the_same_after_a_restart_and_a_larger_one_keeps_it,
        a_port_has_the_settings_of_its_table,
    ]
}

/// Waits until all taps are attached. The names of those that are accelerated.
fn canary(netns: &Netns, is_so: impl Fn(&BTreeSet<String>) -> bool) -> Result<BTreeSet<String>> {
    let mut chosen = BTreeSet::new();
    wait_until("all taps are accelerated or observed", || {
        let ports = ports(netns)?;
        let in_state = |state| {
            let of_state = ports.iter().filter(move |port| port["state"] == state);
            of_state.filter_map(|port| port["port"].as_str().map(str::to_owned))
        };
        chosen = in_state("active").collect();
        Ok(chosen.len() + in_state("observing").count() == TAPS && is_so(&chosen))
    })
    .with_context(|| format!("{chosen:?}"))?;
    Ok(chosen)
}

fn a_canary_is_the_same_after_a_restart_and_a_larger_one_keeps_it() -> Result<()> {
    let netns = Net::new(PREFIX).host("canary")?;
    let part = |percent| format!("[[port]]\nhold = \"256K\"\ncanary = \"{percent}%\"\n");
    let config = ConfigFile::for_netns(&netns, &part(50))?;
    let mut taps = Vec::new();
    for i in 0..TAPS {
        let name = format!("vnet{i}");
        taps.push(netns.tap(&name, &TapOptions::default())?);
        netns.up(&name)?;
    }
    let service = Service::start(&netns, Some(&config))?;
    let half = canary(&netns, |_| true)?;
    ensure!(half.len() > TAPS / 5 && half.len() < TAPS * 4 / 5, "{half:?}");
    service.end(Signal::SIGTERM)?;
    vsnoop(["detach", "--all"])?.ok()?;
    config.write(&part(80))?;
    let service = Service::start(&netns, Some(&config))?;
    let most = canary(&netns, |_| true)?;
    ensure!(most.is_superset(&half) && most != half && most.len() < TAPS, "{half:?}, {most:?}");
    // By a reload as well as by a restart.
    config.write(&part(50))?;
    vsnoop(["reload"])?.ok()?;
    canary(&netns, |chosen| *chosen == half)?;
    drop(taps);
    wait_until("nothing is left", || Ok(ports(&netns)?.is_empty()))?;
    service.end(Signal::SIGTERM)
}

fn a_port_has_the_settings_of_its_table() -> Result<()> {
    const DENIED: u16 = 5002;
    let prefix = format!("{PREFIX}table-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let text = format!(
        "[[port]]\ninterface = \"{}\"\nhold = \"1M\"\nahead = \"64K\"\nmax_flows = 512\n\
         passive = false\ndeny_port = [{DENIED}]\ndeny = \"192.0.2.0/24\"\n\
         incast = \"2G\"\nuplink = \"{}\"\nincast_buffer = \"64K\"\n",
        topology::PORT,
        topology::UPLINK
    );
    let config = ConfigFile::for_netns(&topology.host, &text)?;
    let service = Service::start(&topology.host, Some(&config))?;
    let is_active = |port: &Value| port["state"] == "active";
    let port = until_port(&topology.host, "the tap is attached", is_active)?;
    for (key, value) in [
        ("/hold/size_bytes", 1 << 20),
        ("/ahead_bytes", 64 << 10),
        ("/max_flows", 512),
        ("/incast/rate_bits_per_second", 2_000_000_000),
        ("/incast/buffer_bytes", 64 << 10),
    ] {
        ensure!(port.pointer(key).and_then(Value::as_u64) == Some(value), "{key}: {port}");
    }
    ensure!(port["passive"] == false && port["lists"] == true, "{port}");
    ensure!(port["incast"]["name"] == topology::UPLINK, "{port}");

    let network = AttachedNetwork { topology };
    let stats = || -> Result<Value> {
        Ok(network.vsnoop(&["stats", topology::PORT, "--json"])?["ports"][0].take())
    };
    network.connect_to(DENIED)?.exchange(100_000)?;
    let denied = stats()?;
    ensure!(denied["bypassed"] == 1 && denied["early_acks"] == 0, "{denied}");
    until_acknowledged_early(&network, &mut network.connect()?)?;
    let allowed = stats()?;
    ensure!(allowed["bypassed"] == 1, "{allowed}");
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

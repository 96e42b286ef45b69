//! Some hosts on one network, each the router of a VM behind a tap; links divert what the VMs send
//! each other.
//!
//! ```text
//! [VM: eth0] <--relay--> [tap0] host [uplink] -- [bridge of the network]
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::relay::{Relay, RelayOptions};

use crate::hosts::{Host, PORT, ground, keygen, start_all};

/// The VM's tap at its host.
pub const TAP: &str = "tap0";
const VM_DEVICE: &str = "eth0";

/// Options of a network.
#[derive(Clone, Debug)]
pub struct Plan {
    pub hosts: usize,
    pub transport: &'static str,
    /// The VMs reach each other without a link, too.
    pub ordinary_way: bool,
    /// Lines of `[link]`, beside those that every link has.
    pub link: &'static str,
    /// Lines behind everything else.
    pub more: &'static str,
    /// `[[divert]]`s of a host; `None`: all VMs behind their hosts.
    pub diverts: fn(usize) -> Option<String>,
    /// `link.local` of a host; `None`: its VM's networks.
    pub local: fn(usize) -> Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            hosts: 2,
            transport: "udp",
            ordinary_way: false,
            link: "",
            more: "",
            diverts: |_| None,
            local: |_| None,
        }
    }
}

/// The network exists until this is dropped. Relays are declared first, to end before their
/// namespaces.
pub struct Routed {
    relays: Vec<Option<Relay>>,
    pub hosts: Vec<Host>,
    plan: Plan,
    directory: PathBuf,
    _middle: Netns,
    pub net: Net,
}

impl Routed {
    /// Builds it, and waits until every link has all its peers.
    pub fn up(plan: Plan) -> Result<Self> {
        let mut network = Self::build(plan)?;
        start_all(&mut network.hosts)?;
        Ok(network)
    }

    pub fn build(plan: Plan) -> Result<Self> {
        let (net, directory, _middle) = ground()?;
        let (relays, hosts) = (Vec::new(), Vec::new());
        let mut network = Self { relays, hosts, plan, directory, _middle, net };
        for number in 0..network.plan.hosts {
            let netns = network.net.host(&format!("h{number}"))?;
            let vm = network.net.host(&format!("v{number}"))?;
            network._middle.veth_port("net", &format!("to{number}"), &netns, "uplink")?;
            network.prepare(&netns, number)?;
            // Names of links are the host's, not the namespace's.
            let name = network.net.name(&number.to_string());
            let config = network.directory.join(format!("{number}.toml"));
            network.hosts.push(Host::new(number, name, netns, vec![vm], config)?);
            network.relays.push(None);
            network.make_tap(number)?;
        }
        network.configure()?;
        Ok(network)
    }

    fn prepare(&self, netns: &Netns, number: usize) -> Result<()> {
        // With no other way a host need not forward: the link sees to its own taps.
        netns.set_forwarding(self.plan.ordinary_way)?;
        netns.up_with("uplink", &[(wire_v4(number), 24), (wire_v6(number), 64)])?;
        for other in (0..self.plan.hosts).filter(|other| *other != number) {
            if self.plan.ordinary_way {
                netns.ip(&format!("route add {} via {}", net_v4(other), wire_v4(other)))?;
                netns.ip(&format!("route add {} via {}", net_v6(other), wire_v6(other)))?;
            }
        }
        Ok(())
    }

    /// Makes the tap of a host's VM, with the VM's device behind it.
    pub fn make_tap(&mut self, number: usize) -> Result<()> {
        let host = &self.hosts[number];
        self.relays[number] = Some(connect(&host.netns, TAP, &host.vms[0], number)?);
        Ok(())
    }

    /// Takes it away, and the VM's device.
    pub fn delete_tap(&mut self, number: usize) {
        self.relays[number] = None;
    }

    fn configure(&self) -> Result<()> {
        let file = |host: usize| self.directory.join(format!("{host}.key"));
        let keys =
            (0..self.plan.hosts).map(|host| keygen(&file(host))).collect::<Result<Vec<_>>>()?;
        for (number, host) in self.hosts.iter().enumerate() {
            let others = || (0..self.plan.hosts).filter(|other| *other != number);
            let peers: String = others()
                .map(|peer| {
                    format!(
                        "[[peer]]\nname = \"h{peer}\"\nkey = \"{}\"\naddress = \"{}:{PORT}\"\n\
                         transport = \"{}\"\n",
                        keys[peer],
                        wire_v4(peer),
                        self.plan.transport,
                    )
                })
                .collect();
            let diverts = (self.plan.diverts)(number).unwrap_or_else(|| {
                others().map(|peer| divert(peer, &[net_v4(peer), net_v6(peer)])).collect()
            });
            let local = (self.plan.local)(number)
                .unwrap_or_else(|| format!("[\"{}\", \"{}\"]", net_v4(number), net_v6(number)));
            let local = if local == "[]" { String::new() } else { format!("local = {local}\n") };
            let text = format!(
                "[link]\nname = \"{}\"\nnetwork = \"test\"\nlisten = \"0.0.0.0:{PORT}\"\nkey = \
                 \"{}\"\n{local}{}\n{peers}{diverts}{}",
                host.name(),
                file(number).display(),
                self.plan.link,
                self.plan.more,
            );
            host.configure(&text)?;
        }
        Ok(())
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            host.kill();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A VM with its device behind a tap of a host, in network `net`.
pub fn connect(host: &Netns, tap: &str, vm: &Netns, net: usize) -> Result<Relay> {
    let (taps, options) = (TapOptions::default(), RelayOptions::default());
    let relay = host.relay(tap, vm, VM_DEVICE, &taps, &options)?;
    host.up_with(tap, &[(router_v4(net), 24), (router_v6(net), 64)])?;
    vm.up_with(VM_DEVICE, &[(vm_v4(net), 24), (vm_v6(net), 64)])?;
    for router in [router_v4(net), router_v6(net)] {
        vm.ip(&format!("route add default via {router}"))?;
    }
    Ok(relay)
}

/// A `[[divert]]` of what the VM sends to these prefixes.
pub fn divert(peer: usize, prefixes: &[String]) -> String {
    format!("[[divert]]\ninterface = \"{TAP}\"\npeer = \"h{peer}\"\nprefix = {prefixes:?}\n")
}

/// The status of a host's diversion to a prefix.
pub fn diverted(host: &Host, prefix: &str) -> Result<Value> {
    let status = host.status()?;
    let diverts = status["diverts"].as_array().context("no diverts in the status")?;
    let found = diverts.iter().find(|divert| divert["prefix"] == prefix);
    found.cloned().with_context(|| format!("no {prefix} in {diverts:?}"))
}

/// Waits until all diversions of a host are in this state.
pub fn until_diverts(host: &Host, state: &str) -> Result<()> {
    host.until(&format!("diversions are {state}"), |status| {
        let diverts = status["diverts"].as_array();
        diverts.is_some_and(|diverts| diverts.iter().all(|divert| divert["state"] == state))
    })
}

fn v4(net: usize, host: usize) -> IpAddr {
    Ipv4Addr::new(10, 89, net as u8, host as u8).into()
}

fn v6(net: usize, host: usize) -> IpAddr {
    Ipv6Addr::new(0xfd89, net as u16, 0, 0, 0, 0, 0, host as u16).into()
}

pub fn vm_v4(number: usize) -> IpAddr {
    v4(number, 1)
}

pub fn vm_v6(number: usize) -> IpAddr {
    v6(number, 1)
}

/// Address of the host towards its VM.
pub fn router_v4(number: usize) -> IpAddr {
    v4(number, 100)
}

fn router_v6(number: usize) -> IpAddr {
    v6(number, 100)
}

fn wire_v4(number: usize) -> IpAddr {
    v4(200, 1 + number)
}

fn wire_v6(number: usize) -> IpAddr {
    v6(200, 1 + number)
}

/// Of a VM; that of a host's own one has the host's number.
pub fn net_v4(number: usize) -> String {
    format!("{}/24", v4(number, 0))
}

pub fn net_v6(number: usize) -> String {
    format!("{}/64", v6(number, 0))
}

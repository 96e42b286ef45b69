//! Namespaces of hosts and VMs, and the devices in them and between them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::addresses::{
    Outside, net_v4, net_v6, router_v4, router_v6, unknown_source, vm_v4, vm_v6,
};
use super::host::Host;
use super::plan::{BRIDGE, BRIDGED_UPLINK, Layout, Path, Plan, UPLINK};
use crate::net::{Net, Netns, Offloads, TapOptions};
use crate::relay::{Counters, Direction, Faults, Relay, RelayOptions};
use crate::topology::Family;
use crate::wait::wait_until;

/// For devices that are deleted.
const PATIENCE: Duration = Duration::from_secs(10);
const VM_DEVICE: &str = "eth0";
/// The bridge in the middle.
pub(super) const MIDDLE: &str = "net";
const BOTH_WAYS: [Direction; 2] = [Direction::LeftToRight, Direction::RightToLeft];

/// The network exists until this is dropped. Relays are declared first, to end before their
/// namespaces.
#[derive(Debug)]
pub struct Network {
    relay: Option<Relay>,
    pub hosts: Vec<Host>,
    pub(super) middle: Option<Netns>,
    /// Routers of hosts behind them.
    pub(super) routers: Vec<Arc<Netns>>,
    pub(super) plan: Plan,
    directory: PathBuf,
    pub net: Net,
}

impl Network {
    /// Builds it without links.
    pub fn build(plan: Plan) -> Result<Self> {
        let net = Net::new(plan.prefix);
        let directory = std::env::temp_dir().join(net.name("links"));
        let hosts = Vec::with_capacity(plan.hosts);
        let mut network =
            Self { relay: None, hosts, middle: None, routers: Vec::new(), plan, directory, net };
        for number in 0..network.plan.hosts {
            let netns = network.namespace(&format!("h{number}"))?;
            let vms = (0..network.plan.vms_per_host)
                .map(|vm| network.namespace(&format!("v{number}{vm}")))
                .collect::<Result<_>>()?;
            // Names of links are the host's, not the namespace's.
            let name = network.net.name(&number.to_string());
            let config = network.file(&format!("{number}.toml"));
            network.hosts.push(Host::new(number, name, netns, vms, config));
        }
        network.join_hosts()?;
        for number in 0..network.plan.hosts {
            network.prepare(number).with_context(|| format!("host {number}"))?;
            network.connect_vms(number).with_context(|| format!("host {number}"))?;
        }
        Ok(network)
    }

    /// A namespace like those of the hosts and VMs.
    pub fn namespace(&self, role: &str) -> Result<Arc<Netns>> {
        let net = &self.net;
        Ok(Arc::new(if self.plan.ipv6 { net.host(role) } else { net.silent_host(role) }?))
    }

    fn join_hosts(&mut self) -> Result<()> {
        match (self.plan.path, &self.hosts[..]) {
            (Path::Bridge, hosts) => {
                let middle = self.net.host("m")?;
                middle.bridge(MIDDLE)?;
                for host in hosts {
                    middle.veth_port(MIDDLE, &to_host(host.number()), &host.netns, UPLINK)?;
                }
                self.middle = Some(middle);
            }
            (Path::Veth, [a, b]) => {
                a.netns.veth(UPLINK, &b.netns, UPLINK)?;
                if self.plan.joins_bridges() {
                    a.netns.veth(BRIDGED_UPLINK, &b.netns, BRIDGED_UPLINK)?;
                }
            }
            (Path::Relay { realtime }, [a, b]) => {
                // Packets as a network sees them.
                let taps = TapOptions { offloads: Offloads::CHECKSUM, ..TapOptions::default() };
                let options = RelayOptions { realtime, ..RelayOptions::default() };
                self.relay = Some(a.netns.relay(UPLINK, &b.netns, UPLINK, &taps, &options)?);
            }
            (path, hosts) => bail!("{path:?} joins two hosts, not {}", hosts.len()),
        }
        Ok(())
    }

    /// A host's bridge, addresses and routes.
    fn prepare(&self, number: usize) -> Result<()> {
        let (plan, host) = (&self.plan, &self.hosts[number].netns);
        if plan.tap.is_some() {
            // With no other way a host need not forward: the link sees to its own taps.
            host.set_forwarding(plan.is_routed() && plan.ordinary_way)?;
        }
        if plan.layout != Layout::Routed {
            host.bridge(BRIDGE)?;
        }
        if plan.joins_bridges() {
            host.add_port(BRIDGE, plan.bridged_uplink())?;
            host.up_with(BRIDGE, &plan.with_lengths(&plan.router(number)))?;
        }
        let both = [Outside::V4, Outside::V6].map(|family| family.address(number));
        let one = [plan.outside.address(number)];
        let addresses: &[IpAddr] = if plan.is_routed() { &both } else { &one };
        host.up_with(plan.outer_device(), &plan.with_lengths(addresses))?;
        if plan.is_routed() && plan.ordinary_way {
            for other in (0..plan.hosts).filter(|other| *other != number) {
                let [v4, v6] = [Outside::V4, Outside::V6].map(|family| family.address(other));
                host.ip(&format!("route add {} via {v4}", net_v4(other)))?;
                host.ip(&format!("route add {} via {v6}", net_v6(other)))?;
            }
        }
        Ok(())
    }

    /// Makes the devices of a host's VMs.
    pub fn connect_vms(&mut self, number: usize) -> Result<()> {
        let plan = &self.plan;
        let host = &self.hosts[number];
        let mut relays = Vec::new();
        for (vm, netns) in host.vms.iter().enumerate() {
            let veth = format!("vm{vm}");
            let port = plan.tap.unwrap_or(&veth);
            let bridge = (plan.layout != Layout::Routed).then_some(BRIDGE);
            match plan.tap {
                Some(tap) => relays.push(relay(&host.netns, tap, netns)?),
                None => host.netns.veth(port, netns, VM_DEVICE)?,
            }
            if let Some(bridge) = bridge {
                host.netns.add_port(bridge, port)?;
            }
            netns.up_with(VM_DEVICE, &plan.with_lengths(&plan.vm(number, vm)))?;
            if plan.is_routed() {
                route(&host.netns, bridge.unwrap_or(port), netns, number)?;
            }
        }
        self.hosts[number].relays = relays;
        Ok(())
    }

    /// Deletes the taps of a host's VMs, and the VMs' devices.
    pub fn disconnect_vms(&mut self, number: usize) -> Result<()> {
        let host = &mut self.hosts[number];
        host.relays.clear();
        // A process that is being started may have a copy of a descriptor until its exec.
        let Some(tap) = self.plan.tap else { return Ok(()) };
        let link = format!("link show dev {tap}");
        wait_until("a tap is gone", PATIENCE, || Ok(host.netns.ip(&link).is_err()))
    }

    /// The address of a host's first VM.
    pub fn vm_address(&self, host: usize, family: Family) -> IpAddr {
        self.plan.vm(host, 0)[family as usize]
    }

    /// The address of a host in the network of its VMs.
    pub fn host_address(&self, host: usize, family: Family) -> IpAddr {
        self.plan.router(host)[family as usize]
    }

    /// The device that has the address of a host on the path.
    pub fn outer_device(&self) -> &'static str {
        self.plan.outer_device()
    }

    pub fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// Sets the relay's faults, both ways.
    pub fn set_faults(&self, faults: &Faults) {
        for direction in BOTH_WAYS {
            self.relay.iter().for_each(|relay| relay.set_faults(direction, faults.clone()));
        }
    }

    /// Counters of the relay, each way.
    pub fn counters(&self) -> Vec<Counters> {
        let relay = self.relay.iter();
        relay.flat_map(|relay| BOTH_WAYS.map(|direction| relay.counters(direction))).collect()
    }

    /// Packets that the relay has thrown away.
    pub fn lost(&self) -> u64 {
        self.counters().iter().map(|counters| counters.lost).sum()
    }

    /// Bytes that a host has sent into the path, from the Ethernet header on, bridged or not.
    pub fn outer_bytes(&self, host: usize) -> Result<u64> {
        let host = &self.hosts[host].netns;
        let second = self.plan.joins_bridges() && self.plan.path == Path::Veth;
        let bridged = if second { host.sent_bytes(BRIDGED_UPLINK)? } else { 0 };
        Ok(host.sent_bytes(UPLINK)? + bridged)
    }

    /// Connects a namespace to the hosts' network, by this device of the middle.
    pub(super) fn connect(&self, name: &str, netns: &Netns) -> Result<()> {
        self.middle()?.veth_port(MIDDLE, name, netns, UPLINK)
    }

    /// A host that is no peer on the hosts' network, which has this number of addresses.
    pub fn unknown_source(&self, addresses: u8) -> Result<Netns> {
        let netns = self.net.host("x")?;
        self.connect("tox", &netns)?;
        let addresses: Vec<_> = (0..addresses).map(|number| (unknown_source(number), 24)).collect();
        netns.up_with(UPLINK, &addresses)?;
        Ok(netns)
    }

    /// The line to a host takes this rate from now on, and has a queue of 64 MB.
    pub fn slow_down(&self, host: usize, rate: &str) -> Result<()> {
        let (line, limit) = (to_host(host), 64 << 20);
        let tbf = format!("root tbf rate {rate} burst 16kb limit {limit}");
        self.middle()?.tc(&format!("qdisc add dev {line} {tbf}")).map(drop)
    }

    /// Ends [`slow_down`](Self::slow_down).
    pub fn speed_up(&self, host: usize) -> Result<()> {
        self.middle()?.tc(&format!("qdisc del dev {} root", to_host(host))).map(drop)
    }

    /// Bytes that stand in the queue of [`slow_down`](Self::slow_down).
    pub fn standing_bytes(&self, host: usize) -> Result<u64> {
        let shown = self.middle()?.tc(&format!("-s -j qdisc show dev {}", to_host(host)))?;
        let queues: Value = serde_json::from_str(&shown).context("reading what tc shows")?;
        queues[0]["backlog"].as_u64().with_context(|| format!("no backlog in {shown}"))
    }

    /// Sets the MTU of the hosts' network, and of the hosts' interfaces to it.
    pub fn set_outer_mtu(&self, mtu_bytes: usize) -> Result<()> {
        let middle = self.middle()?;
        for host in &self.hosts {
            middle.set_mtu(&to_host(host.number()), mtu_bytes)?;
            host.netns.set_mtu(UPLINK, mtu_bytes)?;
        }
        middle.set_mtu(MIDDLE, mtu_bytes)
    }

    pub(super) fn middle(&self) -> Result<&Netns> {
        self.middle.as_ref().context("no bridge joins the hosts")
    }

    /// A file in the directory of the links' files, which is deleted with the network.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // All of them before the first is waited for.
        self.hosts.iter().for_each(Host::tell_to_end);
        self.hosts.iter_mut().for_each(Host::end);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The port of the bridge in the middle.
pub(super) fn to_host(number: usize) -> String {
    format!("to{number}")
}

/// The device of a VM behind a tap of its host.
fn relay(host: &Netns, tap: &str, vm: &Netns) -> Result<Relay> {
    host.relay(tap, vm, VM_DEVICE, &TapOptions::default(), &RelayOptions::default())
}

/// Makes a host the router of a VM in network `net`, by this device.
fn route(host: &Netns, device: &str, vm: &Netns, net: usize) -> Result<()> {
    host.up_with(device, &[(router_v4(net), 24), (router_v6(net), 64)])?;
    for router in [router_v4(net), router_v6(net)] {
        vm.ip(&format!("route add default via {router}"))?;
    }
    Ok(())
}

/// One more VM behind a tap of a host, which is its router in network `net`.
pub fn connect_routed(host: &Netns, tap: &str, vm: &Netns, net: usize) -> Result<Relay> {
    let relay = relay(host, tap, vm)?;
    vm.up_with(VM_DEVICE, &[(vm_v4(net), 24), (vm_v6(net), 64)])?;
    route(host, tap, vm, net)?;
    Ok(relay)
}

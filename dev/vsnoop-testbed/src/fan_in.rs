//! Many senders behind a switch, and one VM behind its last hop.
//!
//! ```text
//! sender namespaces    switch namespace     host namespace                        VM namespace
//! [vst-sender] <-veth+
//! [vst-sender] <-veth+> bridge [vst-down] <veth> [vst-uplink] bridge [vst-port] <relay> [vst-vm]
//! [vst-sender] <-veth+          last hop                              the tap of         ordinary
//!                                                                     vsnoop             Linux TCP
//! ```
//!
//! Super-packets of senders are cut before they come to the queue of the last hop, and nothing
//! behind it makes new ones. Neighbour entries are permanent, so that no ARP requests share the
//! wire with the measured traffic.
//!
//! A real machine may replace the VM's namespace and its relay, and machines may send as well: the
//! caller starts them on the network's taps ([`PORT`], and those of the switch).

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};

use super::net::{DeviceCounters, Net, Netns, Tap, TapOptions};
use super::relay::{Relay, RelayOptions};
use super::switch::{PortKind, Switch};

/// The tap of the VM in the host namespace: the one to attach to.
pub const PORT: &str = "vst-port";
/// The host's side of the last hop.
pub const UPLINK: &str = "vst-uplink";
const BRIDGE: &str = "vst-bridge";
const SENDER_DEVICE: &str = "vst-sender";
const VM_DEVICE: &str = "vst-vm";
pub const VM_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 2];
/// The ring of the attached tap: on a machine with a few cores a relay falls behind the link for
/// some milliseconds when hundreds of connections keep its caches cold, and packets are to be lost
/// at the last hop only.
const RING_FRAMES: usize = 10_000;
pub const MOST_SENDERS: usize = 250;
pub const PREFIX_LENGTH: u8 = 16;

/// The address of the VM.
pub const VM_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 119, 2, 1);

/// The address of a sender.
pub fn sender_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 119, 1, 1 + number as u8)
}

pub fn sender_mac(number: usize) -> [u8; 6] {
    [2, 0x76, 0x73, 0, 1, number as u8]
}

/// Options of a fan-in network.
#[derive(Clone, Copy, Debug, Default)]
pub struct FanInOptions {
    /// Namespaces that send.
    pub senders: usize,
    /// The VM is a machine, and not a namespace.
    pub machine: bool,
    /// Taps of the switch for machines that send; they have the addresses of the first senders, so
    /// that there are no others then.
    pub sending_machines: usize,
    /// The last hop.
    pub port: PortKind,
}

/// The network exists until this is dropped. The relay is declared first, to end before its
/// namespaces.
#[derive(Debug)]
pub struct FanIn {
    stand_in: Option<StandIn>,
    pub senders: Vec<Netns>,
    pub host: Netns,
    pub switch: Switch,
    port: DeviceCounters,
}

/// The receiver, in the place of the VM.
#[derive(Debug)]
struct StandIn {
    _device: Relay,
    netns: Netns,
}

impl FanIn {
    /// Senders and VM are namespaces. `prefix`: of the namespaces' names, see
    /// [`remove_stale`](super::net::remove_stale).
    pub fn build(prefix: &str, senders: usize) -> Result<Self> {
        Self::build_with(prefix, FanInOptions { senders, ..FanInOptions::default() })
    }

    pub fn build_with(prefix: &str, options: FanInOptions) -> Result<Self> {
        let FanInOptions { senders, machine, sending_machines, port } = options;
        ensure!(
            (1..=MOST_SENDERS).contains(&(senders + sending_machines)),
            "{senders} senders: 1 to {MOST_SENDERS} are possible"
        );
        ensure!(senders == 0 || sending_machines == 0, "two senders have the same address");
        let net = Net::new(prefix);
        let host = net.silent_host("host")?;
        host.bridge(BRIDGE)?;
        let mut switch = Switch::build(&net, &host, UPLINK, port)?;
        for _ in 0..sending_machines {
            switch.add_machine()?;
        }
        let outside =
            host.tap(PORT, &TapOptions { persistent: machine, ..TapOptions::default() })?;
        let stand_in = if machine { None } else { Some(StandIn::start(&net, outside)?) };
        host.set_txqueuelen(PORT, RING_FRAMES)?;
        for port in [UPLINK, PORT] {
            host.add_port(BRIDGE, port)?;
        }
        host.merge_on_receipt(UPLINK)?;
        let senders = (0..senders)
            .map(|number| {
                crate::interrupt::check()?;
                let sender = net.silent_host(&format!("s{number}"))?;
                switch.add_sender(number, &sender, SENDER_DEVICE)?;
                sender.set_mac(SENDER_DEVICE, sender_mac(number))?;
                let own = (sender_address(number).into(), PREFIX_LENGTH);
                sender.up_with(SENDER_DEVICE, &[own])?;
                sender.add_neighbour(SENDER_DEVICE, VM_ADDRESS.into(), VM_MAC)?;
                if let Some(StandIn { netns, .. }) = &stand_in {
                    let (address, mac) = (sender_address(number), sender_mac(number));
                    netns.add_neighbour(VM_DEVICE, address.into(), mac)?;
                }
                Ok(sender)
            })
            .collect::<Result<_>>()?;
        let port = host.device_counters(PORT)?;
        Ok(Self { stand_in, senders, host, switch, port })
    }

    /// The namespace that stands for the VM.
    pub fn vm(&self) -> Result<&Netns> {
        let stand_in = self.stand_in.as_ref().context("the VM is a machine, and no namespace")?;
        Ok(&stand_in.netns)
    }

    /// Packets for the VM that its tap had no room for.
    pub fn port_drops(&self) -> Result<u64> {
        self.port.dropped_on_the_way_out()
    }
}

impl StandIn {
    /// `outside` is the tap in the host.
    fn start(net: &Net, outside: Tap) -> Result<Self> {
        let netns = net.silent_host("vm")?;
        let inside = netns.tap(VM_DEVICE, &TapOptions::default())?;
        // A device takes a packet as soon as it comes: it does not wait for the CPU of the senders.
        let options = RelayOptions { realtime: true, ..RelayOptions::default() };
        let device = Relay::start(vec![outside], inside, &options)?;
        netns.set_mac(VM_DEVICE, VM_MAC)?;
        netns.up_with(VM_DEVICE, &[(VM_ADDRESS.into(), PREFIX_LENGTH)])?;
        Ok(Self { _device: device, netns })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_sender_has_an_address_and_a_mac_of_its_own() {
        let all = 0..MOST_SENDERS;
        let addresses: BTreeSet<_> = all.clone().map(sender_address).collect();
        let macs: BTreeSet<_> = all.map(sender_mac).collect();
        assert_eq!((addresses.len(), macs.len()), (MOST_SENDERS, MOST_SENDERS));
        assert!(!addresses.contains(&VM_ADDRESS) && !macs.contains(&VM_MAC));
    }
}

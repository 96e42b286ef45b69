//! A switch whose port to the host has a shallow buffer: the last hop, where incast loses packets.
//!
//! The switch is a bridge in a namespace of its own. Its port to the host has a token bucket (HTB)
//! as queue discipline, whose queue is limited in bytes: it drops packets that do not fit, as a
//! switch does. Packets have their length on Ethernet, with preamble, checksum and gap, so that a
//! full link carries 941 Mb/s of TCP payload at 1 Gb/s. All other ports forward at once.
//!
//! Senders may send super-packets, as they would leave them to a network card: else no machine with
//! a few cores sends faster than the last hop. An outer bucket (TBF), of a rate that limits nothing
//! and too small for two packets, cuts them into segments of the MTU before they come to the queue,
//! each of which is then queued or dropped by itself. The inner one is not of the same kind, for
//! TBF sets its timer anew for each packet that comes meanwhile, which costs a virtual machine more
//! than the packet.
//!
//! No queue discipline of a small kernel marks packets. A port that is to do so is a relay in user
//! space, between two taps, whose bottleneck is the last hop.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::net::{Net, Netns, TapOptions};
use super::relay::{Bottleneck, Direction, Faults, Relay, RelayOptions};

const BRIDGE: &str = "vst-switch";
/// The port to the host.
const PORT: &str = "vst-down";
/// Preamble, frame check sequence and gap, which no packet of the kernel has (IEEE 802.3).
const WIRE_BYTES: u64 = 24;
/// The bucket's burst, in microseconds at its rate. Timers of a virtual machine are late by some
/// 0.03 ms, and by more while softirqs run; a smaller bucket would lose the packets that came
/// meanwhile.
const BURST_US: u64 = 160;
/// The burst of the outer bucket, and the smallest one of the inner bucket: one packet.
const CUT_BYTES: u64 = 1600;

/// The port that everything goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastHop {
    pub rate_mbit: u64,
    pub buffer_bytes: u64,
    /// ECN-capable packets are marked when more than this is in the queue.
    pub mark_bytes: Option<u64>,
}

impl LastHop {
    /// The burst of the token bucket, in bytes.
    pub fn burst_bytes(&self) -> u64 {
        (self.rate_mbit * BURST_US / 8).max(CUT_BYTES)
    }
}

/// Counters of the queue of the last hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    pub packets: u64,
    pub bytes: u64,
    pub drops: u64,
    pub marks: u64,
}

/// Kind of the port to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// In the kernel: a veth with a queue discipline.
    #[default]
    Veth,
    /// In user space: a relay between two taps, which can mark.
    Relay,
}

/// The relay is declared first, to end before its namespace.
#[derive(Debug)]
pub struct Switch {
    relay: Option<RelayedPort>,
    netns: Netns,
    machine_ports: Vec<String>,
}

#[derive(Debug)]
struct RelayedPort {
    relay: Relay,
    /// Its counters when the present limits were set; `None` without limits.
    since: Option<PortCounts>,
}

impl Switch {
    /// A switch without senders, whose port to the host is joined to `uplink` there and unlimited.
    pub fn build(net: &Net, host: &Netns, uplink: &str, kind: PortKind) -> Result<Self> {
        let netns = net.silent_host("switch")?;
        netns.bridge(BRIDGE)?;
        let relay = match kind {
            PortKind::Veth => {
                netns.veth(PORT, host, uplink)?;
                None
            }
            PortKind::Relay => {
                // Real-time priority: packets leave when they are due, also on a busy machine.
                let options = RelayOptions { realtime: true, ..RelayOptions::default() };
                let relay = netns.relay(PORT, host, uplink, &TapOptions::default(), &options)?;
                Some(RelayedPort { relay, since: None })
            }
        };
        netns.add_port(BRIDGE, PORT)?;
        Ok(Self { relay, netns, machine_ports: Vec::new() })
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Joins `device` of a sender to the switch; it is down at first.
    pub fn add_sender(&self, number: usize, sender: &Netns, device: &str) -> Result<()> {
        self.netns.veth_port(BRIDGE, &format!("vst-s{number}"), sender, device)
    }

    /// Makes a tap on which a machine may be started, in the namespace of the switch.
    pub fn add_machine(&mut self) -> Result<()> {
        let port = format!("vst-m{}", self.machine_ports.len());
        self.netns.tap(&port, &TapOptions { persistent: true, ..TapOptions::default() })?;
        self.netns.add_port(BRIDGE, &port)?;
        self.machine_ports.push(port);
        Ok(())
    }

    /// The taps for machines.
    pub fn machine_ports(&self) -> &[String] {
        &self.machine_ports
    }

    /// Limits the port to the host, or changes its limits; `None` takes them away.
    pub fn set_last_hop(&mut self, last_hop: Option<LastHop>) -> Result<()> {
        match &mut self.relay {
            Some(port) => port.limit(last_hop),
            None => self.set_queue_disciplines(last_hop)?,
        }
        Ok(())
    }

    fn set_queue_disciplines(&self, last_hop: Option<LastHop>) -> Result<()> {
        // A bucket that is changed keeps its old queue and its counters.
        if self.counts().is_ok() {
            self.netns.tc(&format!("qdisc del dev {PORT} root"))?;
        }
        let Some(last_hop) = last_hop else { return Ok(()) };
        let LastHop { rate_mbit, buffer_bytes, mark_bytes } = last_hop;
        ensure!(mark_bytes.is_none(), "a port of the kernel's does not mark");
        let burst_bytes = last_hop.burst_bytes();
        let cut = format!("burst {CUT_BYTES} limit 10mb");
        let burst = format!("burst {burst_bytes} cburst {burst_bytes} overhead {WIRE_BYTES}");
        for words in [
            format!("qdisc add dev {PORT} root handle 1: tbf rate 1000gbit {cut}"),
            format!("qdisc add dev {PORT} parent 1:1 handle 2: htb default 1"),
            format!("class add dev {PORT} parent 2: classid 2:1 htb rate {rate_mbit}mbit {burst}"),
            format!("qdisc add dev {PORT} parent 2:1 handle 3: bfifo limit {buffer_bytes}"),
        ] {
            self.netns.tc(&words)?;
        }
        Ok(())
    }

    /// Counters since the present limits were set. An error when the port has none.
    pub fn counts(&self) -> Result<PortCounts> {
        match &self.relay {
            Some(port) => port.counts(),
            None => parse(&self.netns.tc(&format!("-s -j qdisc show dev {PORT}"))?),
        }
    }
}

impl RelayedPort {
    fn limit(&mut self, last_hop: Option<LastHop>) {
        let bottleneck = last_hop.map(|last_hop| Bottleneck {
            rate_mbit: last_hop.rate_mbit,
            limit_bytes: last_hop.buffer_bytes,
            mark_bytes: last_hop.mark_bytes,
            overhead_bytes: WIRE_BYTES,
        });
        self.since = last_hop.map(|_| self.totals());
        self.relay.set_faults(Direction::LeftToRight, Faults { bottleneck, ..Faults::default() });
    }

    fn counts(&self) -> Result<PortCounts> {
        let since = self.since.context("the port has no limits")?;
        let now = self.totals();
        Ok(PortCounts {
            packets: now.packets - since.packets,
            bytes: now.bytes - since.bytes,
            drops: now.drops - since.drops,
            marks: now.marks - since.marks,
        })
    }

    fn totals(&self) -> PortCounts {
        let counted = self.relay.counters(Direction::LeftToRight);
        PortCounts {
            packets: counted.queued,
            bytes: counted.queued_bytes,
            // Packets that the relay or its device dropped count as drops, too.
            drops: counted.dropped + counted.overflowed + counted.refused,
            marks: counted.marked,
        }
    }
}

fn parse(text: &str) -> Result<PortCounts> {
    let list: Vec<Value> = serde_json::from_str(text).context("tc did not print JSON")?;
    let queue = list.iter().find(|qdisc| qdisc["kind"] == "bfifo");
    let queue = queue.context("the last hop has no queue that is counted in bytes")?;
    let number = |key: &str| queue[key].as_u64().with_context(|| format!("tc counts no {key}"));
    let counts = PortCounts {
        packets: number("packets")?,
        bytes: number("bytes")?,
        drops: number("drops")?,
        marks: 0,
    };
    ensure!(counts.bytes >= counts.packets, "tc counts more packets than bytes");
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_the_queue_are_found_and_without_one_there_is_an_error() {
        let text = r#"[{"kind":"noqueue","bytes":0,"packets":0,"drops":0},
            {"kind":"tbf","handle":"1:","root":true,"bytes":3028,"packets":2,"drops":9,"backlog":0},
            {"kind":"bfifo","handle":"3:","parent":"2:1","bytes":3028,"packets":2,"drops":7}]"#;
        assert_eq!(
            parse(text).unwrap(),
            PortCounts { packets: 2, bytes: 3028, drops: 7, marks: 0 }
        );
        assert!(parse(r#"[{"kind":"noqueue","bytes":0,"packets":0,"drops":0}]"#).is_err());
        assert!(parse("").is_err());
    }
}

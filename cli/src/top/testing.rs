//! Samples for tests.

use std::net::SocketAddr;
use std::time::Instant;

use super::sample::{FlowId, FlowSample, PortId, PortSample, Sample};

pub fn sample(ports: Vec<PortSample>) -> Sample {
    Sample { at: Instant::now(), ports, damaged: 0, has_helper: true }
}

pub fn port(id: u64, name: &str) -> PortSample {
    PortSample {
        id: PortId(id),
        name: name.to_owned(),
        netns: None,
        state: "active",
        vm: None,
        early_bytes: 0,
        to_vm_bytes: 0,
        masked_ns: [0; 40],
        flows_created: 0,
        resets: 0,
        hold: None,
        flows: None,
    }
}

/// A flow from another port of the sender for each number.
pub fn flow(number: u16) -> FlowSample {
    FlowSample {
        id: FlowId {
            sender: SocketAddr::from(([10, 0, 0, 1], number)),
            vm: SocketAddr::from(([10, 0, 0, 2], 80)),
            vlans: [0, 0],
            vm_mac: [2; 6],
        },
        mode: "active",
        early_bytes: 0,
        outstanding_bytes: 0,
        held_bytes: None,
        resent_bytes: None,
        idle_ns: 0,
    }
}

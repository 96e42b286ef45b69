//! The metrics of a port.

use vsnoop_host::holds::PortHold;

use crate::counters::COUNTERS;
use crate::definition::{Definition, Value, counter, gauge, seconds, some_gauge, states};
use crate::port::{PortSample, STATES};
use crate::split::SplitState;

/// Counters first, as `stats` has them.
pub fn metrics() -> Vec<Definition<PortSample>> {
    let mut all: Vec<_> = COUNTERS
        .iter()
        .map(|found| {
            let read = found.read;
            counter(&found.metric(), &found.help(), move |port: &PortSample| read(&port.stats))
                .json(found.name)
        })
        .collect();
    all.extend(failures());
    all.extend(latencies());
    all.extend(now());
    all.extend(hold());
    all.extend(downloads());
    all
}

fn failures() -> [Definition<PortSample>; 6] {
    let by_reason = |port: &PortSample| {
        port.resets.by_reason().map(|reset| (reset.reason, reset.count)).to_vec()
    };
    [
        Definition::new(
            "resets",
            "connections that vsnoop has reset, by reason",
            Value::Counters("reason", Box::new(by_reason)),
        )
        .json("resets"),
        counter(
            "reset_bytes",
            "bytes that the VM had not acknowledged, of connections that were reset",
            |port: &PortSample| port.resets.bytes,
        )
        .json("resets.bytes"),
        counter(
            "resets_unsent",
            "connections that were reset, and whose sender could not be sent a RST",
            |port: &PortSample| port.resets.unsent,
        )
        .json("resets.unsent"),
        counter(
            "ring_full_segments",
            "segments that the ring of the tap refused",
            |port: &PortSample| port.ring_full,
        )
        .json("ring_full"),
        counter(
            "suspensions",
            "how often the helper has suspended the port for another program in its way",
            |port: &PortSample| port.suspensions,
        )
        .json("helper_pauses"),
        gauge(
            "bypassed_vm_ports",
            "ports of the VM whose new connections are left to the VM, because some failed",
            |port: &PortSample| port.bypassed_vm_ports as f64,
        )
        .json("bypassed_vm_ports"),
    ]
}

fn latencies() -> [Definition<PortSample>; 3] {
    [
        Definition::new(
            "masked_seconds",
            "how much sooner the host has acknowledged data than the VM did; the sum is estimated \
             from the buckets",
            Value::Histogram(Box::new(|port: &PortSample| port.stats.masked_ns)),
        )
        .json("masked_ns"),
        Definition::new(
            "ack_delay_seconds",
            "from the hand-over of a byte to the VM's own ACK of it; the sum is estimated",
            Value::Histogram(Box::new(|port: &PortSample| port.stats.ack_delay_ns)),
        )
        .json("ack_delay_ns"),
        Definition::new(
            "round_trip_seconds",
            "round trip to the other end, from handshakes; the sum is estimated",
            Value::Histogram(Box::new(|port: &PortSample| port.stats.round_trip_ns)),
        )
        .json("round_trip_ns"),
    ]
}

fn now() -> [Definition<PortSample>; 8] {
    let info = |port: &PortSample| {
        vec![
            ("bridge", port.bridge.clone()),
            ("process", port.process.clone()),
            ("attached_by", port.attached_by.to_owned()),
        ]
    };
    [
        Definition::new(
            "port",
            "of an attached port, the bridge that it is in, the process that holds it, and who \
             attached it (command or service)",
            Value::Info(Box::new(info)),
        ),
        states(
            "port_state",
            "1 for the present state: active, paused, observing, or blocked (active, but its qdisc \
             is not noqueue, so that all that is acknowledged early waits in the hold)",
            STATES,
            |port: &PortSample| port.state,
        )
        .json("state"),
        gauge(
            "port_suspended",
            "1 while the helper has suspended the port for another program in its way",
            |port: &PortSample| f64::from(u8::from(port.is_suspended)),
        ),
        gauge(
            "port_attached_timestamp_seconds",
            "when the port was attached, seconds since the epoch",
            |port: &PortSample| port.attached_at as f64,
        )
        .json("attached_at"),
        gauge("flows", "connections on record", |port: &PortSample| port.flows as f64)
            .json("flows"),
        gauge("flows_limit", "connections that may be on record", |port: &PortSample| {
            port.max_flows.into()
        })
        .json("max_flows"),
        gauge(
            "outstanding_flows",
            "connections with bytes that were acknowledged early and not yet by the VM",
            |port: &PortSample| port.outstanding_flows as f64,
        )
        .json("outstanding_flows"),
        gauge(
            "outstanding_bytes",
            "bytes that were acknowledged early and not yet by the VM",
            |port: &PortSample| port.outstanding_bytes as f64,
        )
        .json("outstanding_bytes"),
    ]
}

fn hold() -> [Definition<PortSample>; 8] {
    let gauge_of_hold = |name: &str, help: &str, field: &str, read: fn(&PortHold) -> f64| {
        let read = move |port: &PortSample| port.hold.as_ref().map(read);
        some_gauge(name, help, read).json(&format!("hold.{field}"))
    };
    [
        gauge_of_hold("hold_limit_bytes", "quota of the hold", "size_bytes", |hold| {
            hold.size_bytes as f64
        }),
        gauge_of_hold(
            "hold_used_bytes",
            "memory of the hold with copies in it",
            "used_bytes",
            |hold| hold.used_bytes as f64,
        ),
        gauge_of_hold("hold_memory_bytes", "memory of the hold's slabs", "memory_bytes", |hold| {
            hold.memory_bytes as f64
        }),
        gauge_of_hold("hold_flows", "connections with a hold record", "flows", |hold| {
            hold.flows as f64
        }),
        gauge_of_hold(
            "hold_held_flows",
            "connections with bytes that were acknowledged early and not handed to the VM yet",
            "held_flows",
            |hold| hold.held_flows as f64,
        ),
        gauge_of_hold(
            "hold_held_bytes",
            "bytes that were acknowledged early and not handed to the VM yet: only this host has \
             them",
            "held_bytes",
            |hold| hold.held_bytes as f64,
        ),
        gauge_of_hold(
            "hold_oldest_seconds",
            "for how long the oldest held byte has waited; 0 when nothing is held",
            "oldest_ns",
            |hold| hold.oldest_ns.map_or(0.0, seconds),
        ),
        some_gauge(
            "hold_engine_silent_seconds",
            "time since the engine's last sign of life at the port; missing before the first",
            |port: &PortSample| port.hold.as_ref()?.engine_silent_ns.map(seconds),
        )
        .json("hold.engine_silent_ns"),
    ]
}

/// Metrics of split connections; 0 without downloads.
fn downloads() -> [Definition<PortSample>; 11] {
    let total = |name: &str, help: &str, field: &str, read: fn(&SplitState) -> u64| {
        let read = move |port: &PortSample| port.split.as_ref().map_or(0, read);
        counter(name, help, read).json(&format!("split.{field}"))
    };
    let now = |name: &str, help: &str, field: &str, read: fn(&SplitState) -> u64| {
        let read = move |port: &PortSample| Some(read(port.split.as_ref()?) as f64);
        some_gauge(name, help, read).json(&format!("split.{field}"))
    };
    let refused = |port: &PortSample| {
        let refused = port.split.unwrap_or_default().refused.by_reason();
        refused.map(|(reason, _, count)| (reason, count)).to_vec()
    };
    [
        now("split_connections", "connections that are split now", "connections", |split| {
            split.connections
        }),
        now(
            "split_held_to_peer_bytes",
            "bytes of split connections that the host has acknowledged to the VM, and peers have \
             not yet",
            "held_to_peer_bytes",
            |split| split.held_to_peer_bytes,
        ),
        now(
            "split_held_to_vm_bytes",
            "bytes of split connections that the host has acknowledged to peers, and the VM has \
             not yet",
            "held_to_vm_bytes",
            |split| split.held_to_vm_bytes,
        ),
        total("split_begun_connections", "connections that were split", "split", |split| {
            split.split
        }),
        total(
            "split_joined_connections",
            "split connections that were joined again: nothing was on its way",
            "joined",
            |split| split.joined,
        ),
        total(
            "split_ended_connections",
            "split connections that both ends have closed",
            "ended",
            |split| split.ended,
        ),
        total("split_reset_connections", "split connections that were reset", "reset", |split| {
            split.reset
        }),
        total(
            "split_to_peer_bytes",
            "bytes of split connections that peers have acknowledged",
            "to_peer_bytes",
            |split| split.to_peer_bytes,
        ),
        total(
            "split_to_vm_bytes",
            "bytes of split connections that the VM has acknowledged",
            "to_vm_bytes",
            |split| split.to_vm_bytes,
        ),
        total(
            "split_retransmitted_bytes",
            "bytes of split connections that were sent to peers again",
            "retransmitted_bytes",
            |split| split.retransmitted_bytes,
        ),
        Definition::new(
            "split_refused",
            "how often a connection was not split that could gain, by reason; it is tried again \
             while its VM is late",
            Value::Counters("reason", Box::new(refused)),
        )
        .json("split.refused"),
    ]
}

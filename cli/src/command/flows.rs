//! `vsnoop flows`: the connections on record.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::types::{self, flow, flow_key, split_flow};
use vsnoop_host::flow_key::socket;
use vsnoop_host::flow_mode;
use vsnoop_host::holds::{FlowHold, Holds};
use vsnoop_host::incast::window::{FlowWindow, window_of};
use vsnoop_host::ports::Attached;
use vsnoop_host::split::TapId;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns;
use vsnoop_host::units;

use crate::chosen::read_each;
use crate::cli::{self, Cli};
use crate::identity::PortIdentity;
use crate::output::table::NOTHING;
use crate::output::{table, watch};
use crate::sockets::{SPLIT, Sockets, SplitFlow, split_key};

#[derive(Serialize)]
struct FlowsDocument {
    ports: Vec<PortFlows>,
}

#[derive(Serialize)]
struct PortFlows {
    #[serde(flatten)]
    identity: PortIdentity,
    /// For the table; in JSON it is part of each flow.
    #[serde(skip)]
    has_hold: bool,
    #[serde(skip)]
    has_uplink: bool,
    flows: Vec<Flow>,
}

/// One connection, seen from the sender towards the VM.
#[derive(Debug, Serialize)]
struct Flow {
    sender: SocketAddr,
    vm: SocketAddr,
    /// VLAN ids; null when untagged.
    vlan_outer: Option<u16>,
    vlan_inner: Option<u16>,
    mode: &'static str,
    /// "vm accepted", "vm opened" or "mid-flow".
    setup: &'static str,
    flags: Vec<&'static str>,
    next_seq: u32,
    vm_seq: u32,
    high_seq: u32,
    /// Bytes acknowledged early and not by the VM.
    outstanding_bytes: u64,
    /// From NEXT_SEQ to the right edge of the VM's window.
    room_bytes: u64,
    mss: u16,
    window_scale: Option<u8>,
    early_acks: u32,
    early_bytes: u64,
    suppressed: u32,
    rewritten: u32,
    reacked: u32,
    /// Number of times that the flow left the mode ACTIVE.
    offline: u32,
    /// Outstanding bytes when the flow was reset.
    retired_bytes: u32,
    idle_ns: u64,
    /// Null without a hold.
    hold: Option<FlowHold>,
    /// Null if it is not shaped.
    incast: Option<FlowWindow>,
    /// Null if it is not split.
    split: Option<SplitFlow>,
}

pub fn run(cli: &Cli, arguments: &cli::Flows) -> Result<u8> {
    watch::run_every(arguments.watched.refresh.watch, cli.json, || {
        let names = netns::names();
        let (now_ns, sockets) = (monotonic_ns()?, Sockets::read());
        let read = |attached: &Attached| {
            let holds = Holds::open(&attached.port)?;
            let describe = |(key, flow): &(flow_key, flow)| Flow {
                hold: holds.flow(key, flow),
                ..describe_flow(key, flow, now_ns)
            };
            let records = attached.port.flows()?;
            let mut splits = Splits::read_splits(attached, &sockets)?;
            let mut flows: Vec<_> = records
                .iter()
                .map(|record| splits.mark_split(&record.0, describe(record), now_ns))
                .collect();
            flows.extend(splits.without_record(now_ns));
            if let Some(number) = arguments.port {
                flows.retain(|flow| flow.sender.port() == number || flow.vm.port() == number);
            }
            flows.sort_by_key(|flow| (flow.idle_ns, flow.sender));
            let has_hold = attached.port.policy()?.hold_chunks > 0;
            let has_uplink = attached.meta.uplink != 0;
            let identity = PortIdentity::from_attached(attached, &names);
            Ok(PortFlows { identity, has_hold, has_uplink, flows })
        };
        let ports = read_each(&arguments.watched.ports, cli.netns.as_deref(), read)?;
        let document = FlowsDocument { ports };
        if cli.json { Ok(serde_json::to_string(&document)?) } else { Ok(render_text(&document)) }
    })?;
    Ok(0)
}

/// The connections of a port that are split: each is shown once.
struct Splits<'a> {
    tap: TapId,
    sockets: &'a Sockets,
    flows: HashMap<flow_key, split_flow>,
}

impl<'a> Splits<'a> {
    fn read_splits(attached: &Attached, sockets: &'a Sockets) -> Result<Self> {
        let tap = TapId { netns: attached.meta.netns, ifindex: attached.meta.ifindex };
        let flows = vsnoop_bpf::split::flows(&attached.port)?.into_iter().collect();
        Ok(Self { tap, sockets, flows })
    }

    /// Completes the flow of a connection's record if the connection is split: the hooks that keep
    /// the record do not see its segments.
    fn mark_split(&mut self, key: &flow_key, flow: Flow, now_ns: u64) -> Flow {
        let key = split_key(key);
        let Some(split) = self.flows.remove(&key) else { return flow };
        Flow {
            mode: SPLIT,
            idle_ns: now_ns.saturating_sub(split.last_ns),
            split: Some(self.sockets.find_flow(self.tap, &key)),
            ..flow
        }
    }

    /// Those whose records have expired.
    fn without_record(mut self, now_ns: u64) -> Vec<Flow> {
        let keys: Vec<_> = self.flows.keys().copied().collect();
        let empty = |key: &flow_key| describe_flow(key, &flow::default(), now_ns);
        keys.iter().map(|key| self.mark_split(key, empty(key), now_ns)).collect()
    }
}

fn describe_flow(key: &flow_key, flow: &flow, now_ns: u64) -> Flow {
    let flags = u32::from(flow.flags);
    // NEXT_SEQ may be behind for a moment (accel/flow/vm_lease.h).
    let next = flow.next_seq.max(flow.vm_seq);
    Flow {
        sender: socket(key.sender_addr, key.sender_port),
        vm: socket(key.vm_addr, key.vm_port),
        vlan_outer: vlan_id(key.vlan_outer),
        vlan_inner: vlan_id(key.vlan_inner),
        mode: flow_mode::name(flow),
        setup: if flags & types::FLOW_F_MID_FLOW != 0 {
            "mid-flow"
        } else if flags & types::FLOW_F_VM_OPENED != 0 {
            "vm opened"
        } else {
            "vm accepted"
        },
        flags: flag_names(flags).chain(far_names(flow.far.into())).collect(),
        next_seq: next.v,
        vm_seq: flow.vm_seq.v,
        high_seq: flow.high_seq.v,
        outstanding_bytes: next.diff(flow.vm_seq) as u64,
        room_bytes: flow.right_edge.diff(next).max(0) as u64,
        mss: flow.mss,
        window_scale: (flags & types::FLOW_F_SCALE_KNOWN != 0).then_some(flow.scale),
        early_acks: flow.early_acks,
        early_bytes: flow.early_bytes,
        suppressed: flow.suppressed,
        rewritten: flow.rewritten,
        reacked: flow.reacked,
        offline: flow.offline.into(),
        retired_bytes: flow.retired,
        idle_ns: now_ns.saturating_sub(flow.last_ns),
        hold: None,
        incast: window_of(flow),
        split: None,
    }
}

fn vlan_id(tag: u16) -> Option<u16> {
    (u32::from(tag) & types::VLAN_PRESENT != 0).then_some(tag & 0x0fff)
}

fn flag_names(flags: u32) -> impl Iterator<Item = &'static str> {
    static NAMES: [(u32, &str); 8] = [
        (types::FLOW_F_TIMESTAMPS, "timestamps"),
        (types::FLOW_F_SACK, "sack"),
        (types::FLOW_F_FIN_SENDER, "fin-sender"),
        (types::FLOW_F_FIN_VM, "fin-vm"),
        (types::FLOW_F_ECE, "ece"),
        (types::FLOW_F_DENIED, "denied"),
        (types::FLOW_F_FOREIGN, "foreign-option"),
        (types::FLOW_F_CLOSED, "closed"),
    ];
    names_of_bits(&NAMES, flags)
}

/// Names of the bits that tell of the far end.
fn far_names(far: u32) -> impl Iterator<Item = &'static str> {
    static NAMES: [(u32, &str); 6] = [
        (types::FAR_NEIGHBOUR, "neighbour"),
        (types::FAR_PATH, "forwarded-path"),
        (types::FAR_LATE, "forwarded-late"),
        (types::FAR_TOO_BIG, "forwarded-mtu"),
        (types::FAR_LOSSY, "forwarded-loss"),
        (types::FAR_LEFT, "left"),
    ];
    names_of_bits(&NAMES, far)
}

fn names_of_bits(
    all: &'static [(u32, &'static str)],
    bits: u32,
) -> impl Iterator<Item = &'static str> {
    all.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, name)| *name)
}

fn render_text(document: &FlowsDocument) -> String {
    if document.ports.is_empty() {
        return NOTHING.to_owned();
    }
    let blocks = document.ports.iter().map(|port| {
        let name = &port.identity.port;
        if port.flows.is_empty() {
            return format!("{name}: no connection on record");
        }
        let all = units::plural(port.flows.len() as u64, "connection");
        let (split, passing): (Vec<_>, Vec<_>) =
            port.flows.iter().partition(|flow| flow.split.is_some());
        if passing.is_empty() {
            return format!("{name}: {all}\n{}", split_text(&split));
        }
        let mut headings = vec!["sender", "vm", "mode", ">early", ">on its way"];
        if port.has_hold {
            headings.extend([">held", ">for", ">again"]);
        }
        if port.has_uplink {
            headings.extend([">granted", ">window", ">RTT"]);
        }
        headings.push(">idle");
        let mut rows = table::new(&headings);
        for flow in &passing {
            let mut row = vec![
                flow.sender.to_string(),
                flow.vm.to_string(),
                flow.mode.to_owned(),
                units::bytes(flow.early_bytes),
                units::bytes(flow.outstanding_bytes),
            ];
            if port.has_hold {
                row.extend(hold_columns(flow.hold.as_ref()));
            }
            if port.has_uplink {
                row.extend(window_columns(flow.incast.as_ref()));
            }
            row.push(units::duration(flow.idle_ns));
            rows.add_row(row);
        }
        let text = format!("{name}: {all}\n{}", table::render_table(&rows));
        if split.is_empty() { text } else { format!("{text}\n{}", split_text(&split)) }
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// Split connections: bytes on their way to both ends, and how the host sends to the peer.
fn split_text(flows: &[&Flow]) -> String {
    let mut rows = table::new(&[
        "split: peer",
        "vm",
        ">to peer",
        ">to vm",
        ">RTT",
        ">cwnd",
        ">again",
        ">rate",
        "by",
    ]);
    for (flow, split) in flows.iter().filter_map(|flow| Some((flow, flow.split.as_ref()?))) {
        let held = |bytes: Option<u64>| bytes.map_or("-".into(), units::bytes);
        let mut row = vec![
            flow.sender.to_string(),
            flow.vm.to_string(),
            held(split.held_to_peer_bytes),
            held(split.held_to_vm_bytes),
        ];
        row.extend(match &split.to_peer {
            None => ["-"; 5].map(str::to_owned),
            Some(sending) => [
                units::duration(sending.round_trip_ns),
                units::count(sending.congestion_window.into()),
                units::bytes(sending.retransmitted_bytes),
                units::bit_rate(sending.delivery_bits_per_second),
                sending.congestion_control.clone(),
            ],
        });
        rows.add_row(row);
    }
    table::render_table(&rows)
}

/// Outstanding credit, window, and round trip.
fn window_columns(window: Option<&FlowWindow>) -> [String; 3] {
    match window {
        Some(window) => [
            if window.waiting { "queued".into() } else { units::bytes(window.granted_bytes) },
            units::bytes(window.window_bytes.into()),
            window.rtt_ns.map_or("-".into(), |ns| units::duration(ns.into())),
        ],
        None => ["-".into(), "-".into(), "-".into()],
    }
}

/// Held bytes, their age, and retransmitted bytes.
fn hold_columns(hold: Option<&FlowHold>) -> [String; 3] {
    match hold {
        Some(hold) => [
            units::bytes(hold.held_bytes),
            hold.oldest_ns.map_or("-".into(), units::duration),
            units::bytes(hold.resent_bytes),
        ],
        None => ["-".into(), "-".into(), "-".into()],
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_bpf::types::{flow_mode, seq};

    use super::*;
    use crate::longest;
    use crate::sockets::Sending;

    #[test]
    fn outstanding_bytes_survive_the_wrap_and_are_never_negative() {
        let key = flow_key::default();
        let mut flow = flow {
            next_seq: seq::new(100),
            vm_seq: seq::new(u32::MAX - 99),
            right_edge: seq::new(50),
            ..Default::default()
        };
        let shown = describe_flow(&key, &flow, 0);
        assert_eq!((shown.outstanding_bytes, shown.room_bytes), (200, 0));
        flow.vm_seq = seq::new(150);
        assert_eq!(describe_flow(&key, &flow, 0).outstanding_bytes, 0);
    }

    #[test]
    fn the_table_of_flows_stays_narrow() {
        let key = flow_key { sender_addr: [0xfd; 16], vm_addr: [0xfd; 16], ..Default::default() };
        let key = flow_key { sender_port: u16::MAX, vm_port: u16::MAX, ..key };
        let seen = flow {
            mode: flow_mode::FLOW_UNEXPECTED_SEQ as u8,
            early_bytes: u64::MAX,
            next_seq: seq::new(123_456_789),
            ..Default::default()
        };
        let hold = FlowHold {
            held_bytes: 12_345_678,
            kept_bytes: u64::MAX,
            oldest_ns: Some(12_345_678),
            handovers: u32::MAX,
            resends: u32::MAX,
            resent_bytes: 123_456,
        };
        let window = FlowWindow {
            window_bytes: u32::MAX,
            granted_bytes: u64::MAX,
            shown_bytes: u64::MAX,
            rtt_ns: Some(u32::MAX),
            measured_bits_per_second: u64::MAX,
            d_percent: 100,
            phase: "slow start",
            waiting: false,
        };
        let sending = Sending {
            congestion_control: "fifteen_letters".into(),
            round_trip_ns: 123_456_789,
            round_trip_deviation_ns: u64::MAX,
            retransmission_timeout_ns: u64::MAX,
            congestion_window: 123_456,
            mss: u32::MAX,
            in_flight: u32::MAX,
            retransmissions: u32::MAX,
            retransmitted_bytes: 123_456_789,
            delivery_bits_per_second: 123_456_789_012,
            window_bytes: u32::MAX,
        };
        let split = SplitFlow {
            held_to_peer_bytes: Some(12_345_678),
            held_to_vm_bytes: Some(12_345_678),
            to_peer: Some(sending.clone()),
            to_vm: Some(sending),
        };
        let flow = Flow {
            hold: Some(hold),
            incast: Some(window),
            ..describe_flow(&key, &seen, 123_456_789)
        };
        let split =
            Flow { mode: SPLIT, split: Some(split), ..describe_flow(&key, &seen, 123_456_789) };
        let identity = longest::identity();
        let ports = vec![PortFlows {
            identity,
            has_hold: true,
            has_uplink: true,
            flows: vec![flow, split],
        }];
        let text = render_text(&FlowsDocument { ports });
        longest::assert_narrow(&text);
        for word in [
            "held",
            "11.8 MiB",
            "12.3 ms",
            "121 KiB",
            "unexpected-seq",
            "]:65535",
            "fifteen",
            "118 MiB",
        ] {
            assert!(text.contains(word), "{word:?} is not in:\n{text}");
        }
    }

    #[test]
    fn an_untagged_flow_has_no_vlan() {
        assert_eq!(vlan_id(0), None);
        assert_eq!(vlan_id(0x1000 | 7), Some(7));
    }
}

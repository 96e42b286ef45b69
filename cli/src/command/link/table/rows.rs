//! The tables of a link, and their rows.

use std::collections::BTreeMap;

use vsnoop_host::units;
use vsnoop_linkd::config::Compress;
use vsnoop_linkd::control::{
    DivertStatus, EnteredStatus, EntryStatus, Learned, LinkCpu, LinkPortStatus, PeerStatus,
    RuleStatus, Status,
};

use super::words::{count_addresses, peer_state, ratio_text, sum_drops, time_text, transport_text};
use crate::output::table;

/// Most addresses of one link in the text; JSON has all.
const ADDRESSES: usize = 1000;

fn render_section(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Option<String> {
    let mut table = table::new(headings);
    let mut is_empty = true;
    for row in rows {
        table.add_row(row);
        is_empty = false;
    }
    (!is_empty).then(|| table::render_table(&table))
}

pub fn port_section(status: &Status) -> Option<String> {
    let headings = [
        "port",
        "where",
        "state",
        ">frames in",
        ">bytes in",
        ">frames out",
        ">bytes out",
        ">dropped",
    ];
    render_section(&headings, status.ports.iter().map(port_row))
}

pub fn peer_section(status: &Status) -> Option<String> {
    let headings = [
        "peer",
        "state",
        "transport",
        "address",
        ">rtt",
        ">sent",
        ">received",
        ">ratio",
        ">lost out",
        ">lost in",
    ];
    render_section(&headings, status.peers.iter().map(peer_row))
}

pub fn peers_details(status: &Status) -> Option<String> {
    let headings = [
        "peer",
        ">path MTU",
        ">jitter",
        ">wire out",
        ">wire in",
        ">ratio in",
        ">queue",
        ">dropped",
        ">rejected",
        ">reconnects",
        ">rekeys",
        ">roams",
        ">compress",
        ">expand",
        ">seal",
        ">open",
    ];
    render_section(&headings, status.peers.iter().map(peer_details_row))
}

pub fn compression_section(status: &Status) -> Option<String> {
    // The last entry is for traffic without a rule; alone it means that nothing is compressed.
    if !status.compression.iter().any(|status| status.rule.is_some()) {
        return None;
    }
    let headings =
        ["compression of", "method", ">flows", ">before", ">after", ">ratio", ">as it is", ">CPU"];
    render_section(&headings, status.compression.iter().map(rule_row))
}

pub fn divert_section(status: &Status) -> Option<String> {
    let headings =
        ["diverted from", "to", "peer", "state", ">packets", ">bytes", ">missed", ">forged"];
    render_section(&headings, status.diverts.iter().map(divert_row))
}

pub fn entry_section(status: &Status) -> Option<String> {
    let entry = status.entry.as_ref()?;
    let headings = ["diverted by", "comes in at", ">packets", ">bytes", ">refused"];
    render_section(&headings, entry.peers.iter().map(|peer| entered_row(entry, peer)))
}

pub fn learned_lines(status: &Status) -> Vec<String> {
    let Some(learned) = &status.addresses else { return Vec::new() };
    let headings = ["address", "VLAN", "at", ">heard of"];
    let rows = learned.iter().take(ADDRESSES).map(address_row);
    let more = learned.len().saturating_sub(ADDRESSES) as u64;
    let note =
        (more > 0).then(|| format!("and {} more (--json lists them)", count_addresses(more)));
    render_section(&headings, rows).into_iter().chain(note).collect()
}

fn port_row(port: &LinkPortStatus) -> Vec<String> {
    vec![
        port.name.clone(),
        match &port.bridge {
            Some(bridge) => format!("in {bridge}"),
            None => port.kind.clone(),
        },
        match (port.up, &port.reason) {
            (true, None) => "up",
            // It carries frames, but not as configured.
            (true, Some(_)) => "up, see below",
            (false, _) => "down",
        }
        .into(),
        units::count(port.received.frames),
        units::bytes(port.received.bytes),
        units::count(port.sent.frames),
        units::bytes(port.sent.bytes),
        units::count(sum_drops(&port.dropped)),
    ]
}

fn peer_row(peer: &PeerStatus) -> Vec<String> {
    vec![
        peer.name.clone(),
        peer_state(peer).into(),
        transport_text(peer),
        peer.address.clone().unwrap_or_else(|| "-".into()),
        time_text(peer.rtt_ns),
        units::bytes(peer.sent.bytes),
        units::bytes(peer.received.bytes),
        ratio_text(&peer.sent),
        units::count(peer.lost_out),
        units::count(peer.lost_in),
    ]
}

fn peer_details_row(peer: &PeerStatus) -> Vec<String> {
    vec![
        peer.name.clone(),
        peer.path_mtu_bytes.map_or("-".into(), |bytes| bytes.to_string()),
        time_text(peer.jitter_ns),
        units::bytes(peer.sent.wire_bytes),
        units::bytes(peer.received.wire_bytes),
        ratio_text(&peer.received),
        units::bytes(peer.queue_bytes),
        units::count(sum_drops(&peer.dropped)),
        units::count(peer.rejected),
        units::count(peer.reconnects),
        units::count(peer.rekeys),
        units::count(peer.roams),
        units::duration(peer.cpu.compress_ns),
        units::duration(peer.cpu.decompress_ns),
        units::duration(peer.cpu.seal_ns),
        units::duration(peer.cpu.open_ns),
    ]
}

fn rule_row(status: &RuleStatus) -> Vec<String> {
    let (name, method) = match &status.rule {
        Some(rule) => (rule.selector.to_string(), describe_method(rule, &status.methods)),
        None => ("other traffic".into(), "off".into()),
    };
    vec![
        name,
        method,
        units::count(status.flows),
        units::bytes(status.sent.bytes),
        units::bytes(status.sent.compressed_bytes),
        ratio_text(&status.sent),
        units::count(status.raw_frames),
        units::duration(status.compress_ns),
    ]
}

fn divert_row(divert: &DivertStatus) -> Vec<String> {
    vec![
        divert.interface.clone(),
        divert.prefix.clone(),
        divert.peer.clone(),
        divert.state.to_string(),
        units::count(divert.packets),
        units::bytes(divert.bytes),
        units::count(divert.missed),
        units::count(divert.forged),
    ]
}

fn entered_row(entry: &EntryStatus, peer: &EnteredStatus) -> Vec<String> {
    vec![
        peer.peer.clone(),
        entry.tap.clone(),
        units::count(peer.frames),
        units::bytes(peer.bytes),
        units::count(sum_drops(&peer.refused)),
    ]
}

fn describe_method(rule: &Compress, now: &BTreeMap<String, u64>) -> String {
    let mut text = rule.method.to_string();
    if !now.is_empty() {
        let methods: Vec<_> = now
            .iter()
            .map(|(method, flows)| format!("{flows} {}", method.replace('_', " ")))
            .collect();
        text = format!("{text}: {}", methods.join(", "));
    }
    if let Some(bytes) = rule.dictionary_bytes {
        text = format!("{text}, dictionary {}", units::bytes(bytes.into()));
    }
    text
}

fn address_row(learned: &Learned) -> Vec<String> {
    vec![
        learned.mac.to_string(),
        learned.vlan.map_or("-".into(), |vlan| vlan.to_string()),
        match (&learned.port, &learned.peer) {
            (Some(port), _) => format!("port {port}"),
            (None, Some(peer)) => format!("peer {peer}"),
            (None, None) => "-".into(),
        },
        format!(
            "{} ago{}",
            units::duration(learned.age_ns),
            if learned.contested { ", used elsewhere too" } else { "" }
        ),
    ]
}

pub fn describe_cpu(cpu: &LinkCpu) -> String {
    format!(
        "CPU time: {} for what goes to peers, {} for what comes from them, {} in all",
        units::duration(cpu.egress_ns),
        units::duration(cpu.ingress_ns),
        units::duration(cpu.process_ns)
    )
}

pub fn describe_dropped(reasons: &BTreeMap<String, u64>) -> Option<String> {
    let reason = |(reason, count): (&String, &u64)| {
        format!("{} ({})", units::count(*count), reason.replace('_', " "))
    };
    let all: Vec<_> = reasons.iter().map(reason).collect();
    (!all.is_empty()).then(|| format!("dropped by the link: {}", all.join(", ")))
}

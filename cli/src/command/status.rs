//! `vsnoop status`: the attached ports and their state.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::{CongestionControl, ServiceMark};
use vsnoop_host::error::{self, with_causes};
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::far_end::Forwarded;
use vsnoop_host::holds::{EngineState, Holds, PortHold};
use vsnoop_host::incast::{UplinkControl, UplinkState};
use vsnoop_host::ports::{self, Attached, Inventory, PausedBy};
use vsnoop_host::sweep;
use vsnoop_host::system::foreign::{self, Foreign};
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::process::Process;
use vsnoop_host::system::{holder, netdev, netns, process, qdisc};
use vsnoop_host::units;
use vsnoop_metrics::split::SplitState;

use crate::background::{self, Role};
use crate::cli::{self, Cli};
use crate::counters::Resets;
use crate::identity::PortIdentity;
use crate::log::{self, note};
use crate::output::fold::fold_text;
use crate::output::table::NOTHING;
use crate::output::{hint, hold, table, watch};
use crate::service::ServiceStatus;

#[derive(Serialize)]
struct StatusDocument {
    ports: Vec<PortStatus>,
    damaged: Vec<DamagedStatus>,
    helper: ProcessOfTheHost,
    engine: ProcessOfTheHost,
    splitter: ProcessOfTheHost,
    keeper: ProcessOfTheHost,
    service: ServiceStatus,
}

#[derive(Serialize)]
struct PortStatus {
    #[serde(flatten)]
    identity: PortIdentity,
    /// Seconds since the epoch.
    attached_at: u64,
    /// "service" or "command".
    attached_by: &'static str,
    /// The service's table that the tap meets; null of a port of a command.
    table: Option<String>,
    /// Connections on record, and their limit.
    flows: u64,
    max_flows: u32,
    /// Connections with bytes acknowledged early and not by the VM.
    outstanding_flows: u64,
    outstanding_bytes: u64,
    early_acks: u64,
    early_bytes: u64,
    /// Number of times that the helper has suspended it because of `foreign_programs`.
    helper_pauses: u64,
    /// Other programs in its way; null when they cannot be read.
    foreign_programs: Option<Vec<Foreign>>,
    /// Segments whose hand-over could not be exact, so that they were not acknowledged.
    not_exact: u64,
    /// Connections that vsnoop reset, or the VM after an action of the host.
    resets: Resets,
    /// VM ports whose new connections are left to the VM, because some failed.
    bypassed_vm_ports: Vec<BypassedVmPort>,
    /// Connections on record that the VM forwards.
    forwarded: Forwarded,
    /// The root qdisc now; null when it cannot be read.
    qdisc: Option<String>,
    /// The default qdisc that noqueue has replaced; null if none was.
    qdisc_replaced: Option<String>,
    /// How far a sender may send beyond the VM's own window, bytes; null: as far as the hold
    /// allows.
    ahead_bytes: Option<u32>,
    passive: bool,
    /// Its connections are split.
    downloads: bool,
    /// Congestion control of the sockets that face peers; null: the host's default.
    congestion_control: Option<String>,
    /// Its split connections; null without downloads.
    split: Option<SplitState>,
    lists: bool,
    ring_frames: u32,
    queues: u32,
    /// Null without one.
    hold: Option<PortHold>,
    /// The uplink; null without incast control.
    incast: Option<UplinkState>,
    process: Option<ProcessStatus>,
}

#[derive(Serialize)]
struct ProcessStatus {
    pid: i32,
    name: String,
    /// The VM's name in its arguments; null without one.
    vm: Option<String>,
}

impl ProcessStatus {
    fn from_process(process: Process) -> Self {
        let vm = process::vm_name(process.pid);
        Self { pid: process.pid, name: process.name, vm }
    }

    fn as_text(&self) -> String {
        format!("{} {}", self.pid, self.vm.as_ref().unwrap_or(&self.name))
    }
}

#[derive(Serialize)]
struct DamagedStatus {
    path: String,
    reason: String,
}

/// Helper, engine, splitter or keeper.
#[derive(Default, Serialize)]
struct ProcessOfTheHost {
    running: bool,
    pid: Option<i32>,
    log_lines_lost: u64,
}

impl ProcessOfTheHost {
    fn from_role(role: Role) -> Self {
        let pid = background::running_pid(role);
        let lost = pid.map_or(0, |pid| note::read_noted(role, pid));
        Self { running: pid.is_some(), pid, log_lines_lost: lost }
    }
}

pub fn run(cli: &Cli, arguments: &cli::Status) -> Result<u8> {
    if arguments.service {
        return run_of_service(cli);
    }
    let cli::Watched { ports, refresh } = &arguments.watched;
    if let Err(error) = sweep::finish_if_idle() {
        eprintln!("vsnoop: what a killed command has left stays: {}", with_causes(&error));
    }
    watch::run_every(refresh.watch, cli.json, || {
        let document = read(ports::chosen(ports, cli.netns.as_deref())?)?;
        if cli.json { Ok(serde_json::to_string(&document)?) } else { Ok(render_text(&document)) }
    })?;
    Ok(0)
}

/// Fails unless the service answers.
fn run_of_service(cli: &Cli) -> Result<u8> {
    let service = ServiceStatus::of_host();
    service.require_running()?;
    if cli.json {
        watch::print_text(&serde_json::to_string(&service)?)?;
    } else {
        watch::print_text(&fold_text(&service.describe_lines().join("\n")))?;
    }
    Ok(0)
}

fn read(inventory: Inventory) -> Result<StatusDocument> {
    let names = netns::names();
    let paths = netns::paths();
    let mut holders = holder::of_all_taps();
    let ports = inventory
        .ports
        .iter()
        .filter_map(|attached| {
            let holder = holders.remove(&(attached.name.clone(), attached.meta.netns));
            let holder = holder.map(|holder| holder.process);
            let status = port_status(
                attached,
                PortIdentity::from_attached(attached, &names),
                &paths,
                holder,
            );
            // A port that was detached meanwhile is omitted, and not damaged.
            (status.is_ok() || attached.port.is_there()).then_some(status)
        })
        .collect::<Result<_>>()?;
    let damaged = inventory
        .damaged
        .into_iter()
        .map(|damaged| DamagedStatus {
            path: damaged.path.display().to_string(),
            reason: damaged.reason.to_string(),
        })
        .collect();
    Ok(StatusDocument {
        ports,
        damaged,
        helper: ProcessOfTheHost::from_role(Role::Helper),
        engine: ProcessOfTheHost::from_role(Role::Engine),
        splitter: ProcessOfTheHost::from_role(Role::Splitter),
        keeper: ProcessOfTheHost::from_role(Role::Keeper),
        service: ServiceStatus::of_host(),
    })
}

fn port_status(
    attached: &Attached,
    identity: PortIdentity,
    paths: &HashMap<u64, PathBuf>,
    holder: Option<Process>,
) -> Result<PortStatus> {
    let (port, meta) = (&attached.port, &attached.meta);
    let (outstanding_flows, outstanding_bytes) = port.outstanding()?;
    let stats = port.stats()?;
    let policy = port.policy()?;
    let flows = port.flows()?;
    let mark = ServiceMark::from_meta(meta);
    let around = paths.get(&meta.netns).and_then(|path| Around::read_around(attached, path));
    let identity = around.as_ref().map_or(identity.clone(), |around| around.with_names(identity));
    let (qdisc, foreign_programs) = around.map(|around| (around.qdisc, around.foreign)).unzip();
    Ok(PortStatus {
        identity,
        attached_at: meta.attached_at,
        attached_by: if mark.is_some() { "service" } else { "command" },
        table: mark.map(|mark| mark.table),
        flows: flows.len() as u64,
        max_flows: port.max_flows(),
        outstanding_flows,
        outstanding_bytes,
        early_acks: stats.early_acks,
        early_bytes: stats.early_bytes,
        helper_pauses: port.times_suspended()?,
        foreign_programs,
        not_exact: stats.not_exact,
        resets: Resets::count_resets(meta, &stats),
        bypassed_vm_ports: BypassedVmPort::list_bypassed(port)?,
        forwarded: Forwarded::find_forwarded(&flows),
        qdisc,
        qdisc_replaced: port.qdisc_replaced()?,
        ahead_bytes: Some(policy.ahead).filter(|ahead| *ahead != u32::MAX),
        passive: policy.passive != 0,
        downloads: policy.downloads != 0,
        congestion_control: CongestionControl::from_policy(&policy).name(),
        split: SplitState::read_state(port)?.filter(|_| policy.downloads != 0),
        lists: meta.lists != 0,
        ring_frames: meta.tx_queue_len,
        queues: meta.tx_queues,
        hold: Holds::open(port)?.port(port, &flows)?,
        incast: UplinkState::of_port(attached)?,
        process: holder.map(ProcessStatus::from_process),
    })
}

/// Changes that other programs may have made on the tap since it was attached.
struct Around {
    name: String,
    qdisc: String,
    foreign: Vec<Foreign>,
}

impl Around {
    /// `None` if the tap, or its namespace, cannot be found.
    fn read_around(attached: &Attached, path: &Path) -> Option<Self> {
        let netns = Netns::open(path.to_str()?).ok()?;
        let found: error::Result<_> = netns.run(|| {
            let Some(device) = netdev::find_index(attached.meta.ifindex)? else { return Ok(None) };
            let qdisc = qdisc::root(&device)?.kind().to_owned();
            let foreign = foreign::around(&device, &attached.port)?;
            Ok(Some(Self { name: device.name, qdisc, foreign }))
        });
        found.ok().flatten()
    }

    /// Marks an active port as blocked if its qdisc is not noqueue.
    fn with_names(&self, identity: PortIdentity) -> PortIdentity {
        let is_blocked = identity.state == "active" && self.qdisc != qdisc::NOQUEUE;
        PortIdentity {
            port: self.name.clone(),
            state: if is_blocked { "blocked" } else { identity.state },
            ..identity
        }
    }
}

/// The obstacle to acceleration, other than the operator's own pause.
fn find_hindrance(port: &PortStatus) -> Option<String> {
    let (name, paused_by) = (&port.identity.port, port.identity.paused_by);
    if !["active", "blocked", "paused"].contains(&port.identity.state) {
        return None;
    }
    if let Some(found) = port.foreign_programs.as_deref().filter(|found| !found.is_empty()) {
        let (what, way_out) = (foreign::complaint(found), foreign::way_out(found, name));
        return Some(match paused_by {
            Some(PausedBy::Helper) => format!(
                "{name}: paused by the helper: it has {what}; {way_out}, and it goes on by itself"
            ),
            Some(_) => {
                format!("{name}: `vsnoop resume` has no effect while it has {what}; {way_out}")
            }
            None => format!("{name}: it has {what}; {way_out}"),
        });
    }
    match paused_by {
        Some(PausedBy::Helper) => {
            return Some(format!("{name}: paused by the helper until its next look"));
        }
        Some(PausedBy::Migration) => {
            return Some(format!(
                "{name}: paused by the service while its VM is migrated or saved; it goes on by \
                 itself if the VM stays"
            ));
        }
        Some(_) => return None,
        None => {}
    }
    if let Some(kind) = port.qdisc.as_deref().filter(|kind| *kind != qdisc::NOQUEUE) {
        return Some(format!(
            "{name}: all that is acknowledged early waits in the hold, for its qdisc is {kind} \
             instead of noqueue; if that is no limit set on purpose, `tc qdisc replace dev {name} \
             root noqueue`"
        ));
    }
    (port.not_exact > port.early_acks).then(|| {
        format!(
            "{name}: most segments are not acknowledged early: they are super-packets, which the \
             VM's device does not take (virtio-net without guest_tso4 and guest_tso6)"
        )
    })
}

/// A message if no engine serves the port, so that nothing is held.
fn missing_engine(port: &PortStatus) -> Option<String> {
    let hold = port.hold.as_ref().filter(|hold| hold.engine != EngineState::Alive)?;
    if !["active", "blocked", "paused"].contains(&port.identity.state) {
        return None;
    }
    let waiting = if hold.held_bytes == 0 {
        String::new()
    } else {
        format!(
            "; {} of {} wait for one, and the connections are reset when none comes",
            units::bytes(hold.held_bytes),
            units::plural(hold.held_flows, "connection")
        )
    };
    Some(format!(
        "{}: no engine (it was {}): the VM answers by itself, and nothing is held{waiting}",
        port.identity.port,
        hold.engine_text()
    ))
}

/// The interface and state of incast control.
fn uplink_text(uplink: &UplinkState) -> String {
    match uplink.state {
        UplinkControl::On => uplink.name.clone(),
        UplinkControl::Off => format!("{} (off)", uplink.name),
        UplinkControl::Gone => format!("{} (gone)", uplink.name),
        UplinkControl::Unhooked => format!("{} (no hook)", uplink.name),
    }
}

fn port_rows(ports: &[PortStatus]) -> String {
    let has_holds = ports.iter().any(|port| port.hold.is_some());
    let any_forwards = ports.iter().any(|port| port.forwarded.connections > 0);
    let is_any_of_service = ports.iter().any(|port| port.table.is_some());
    let mut headings =
        vec!["port", "netns", "state", "vm", ">flows", ">early", ">on its way", ">resets"];
    headings.extend(any_forwards.then_some(">forwarded"));
    headings.extend(is_any_of_service.then_some("[[port]]"));
    headings.extend(has_holds.then_some(">hold"));
    let has_downloads = ports.iter().any(|port| port.downloads);
    headings.extend(has_downloads.then_some(">split"));
    let has_uplinks = ports.iter().any(|port| port.incast.is_some());
    headings.extend(has_uplinks.then_some("uplink"));
    let mut rows = table::new(&headings);
    for port in ports {
        let vm = port.process.as_ref();
        let mut row = vec![
            port.identity.port.clone(),
            port.identity.netns_label().to_owned(),
            port.identity.state.to_owned(),
            vm.map_or("-".into(), ProcessStatus::as_text),
            units::count(port.flows),
            units::bytes(port.early_bytes),
            units::bytes(port.outstanding_bytes),
            units::count(port.resets.total()),
        ];
        row.extend(any_forwards.then(|| units::count(port.forwarded.connections)));
        if is_any_of_service {
            row.push(port.table.clone().unwrap_or_else(|| "-".into()));
        }
        let hold = port
            .hold
            .as_ref()
            .map_or("-".into(), |hold| units::bytes_part(hold.used_bytes, hold.size_bytes));
        row.extend(has_holds.then_some(hold));
        let split = port.split.as_ref().map_or("-".into(), split_text);
        row.extend(has_downloads.then_some(split));
        let uplink = port.incast.as_ref().map_or("-".into(), uplink_text);
        row.extend(has_uplinks.then_some(uplink));
        rows.add_row(row);
    }
    table::render_table(&rows)
}

/// The processes that downloads need.
fn downloads_text(splitter: &ProcessOfTheHost, keeper: &ProcessOfTheHost) -> String {
    match (splitter.pid, keeper.pid) {
        (None, _) => "no splitter is running: downloads are as without vsnoop".into(),
        (Some(splitter), None) => format!(
            "downloads: splitter {splitter}; no keeper is running: a splitter that is killed loses \
             its connections"
        ),
        (Some(splitter), Some(keeper)) => {
            format!("downloads: splitter {splitter}, keeper {keeper}")
        }
    }
}

/// Connections that are split now, and what is on its way of them.
fn split_text(split: &SplitState) -> String {
    match split.connections {
        0 => "0".into(),
        connections => {
            format!("{}, {}", units::count(connections), units::bytes(split.held_bytes()))
        }
    }
}

fn render_text(document: &StatusDocument) -> String {
    let mut parts = Vec::new();
    if document.ports.is_empty() {
        parts.push(NOTHING.to_owned());
    } else {
        parts.push(port_rows(&document.ports));
        let there = |port: &PortStatus, text: String| {
            hint::in_netns(&text, port.identity.netns_name.as_deref())
        };
        let ports = document.ports.iter();
        parts.extend(ports.clone().filter_map(|port| Some(there(port, find_hindrance(port)?))));
        parts.extend(ports.clone().filter_map(missing_engine));
        parts.extend(ports.flat_map(|port| {
            port.bypassed_vm_ports
                .iter()
                .map(|left| format!("{}: {}", port.identity.port, left.describe_failure()))
        }));
        let uplinks = document.ports.iter().filter_map(|port| port.incast.as_ref());
        let mut troubles: Vec<_> = uplinks.filter_map(UplinkState::trouble).collect();
        // Once per uplink.
        troubles.dedup();
        parts.extend(troubles);
        let holds: Vec<_> = document.ports.iter().filter_map(|port| port.hold.as_ref()).collect();
        parts.extend(hold::sum_text(&holds));
        if document.ports.iter().any(|port| port.downloads) {
            parts.push(downloads_text(&document.splitter, &document.keeper));
        }
        if !document.helper.running {
            parts.push("the helper is not running: idle connections do not expire".into());
        }
    }
    parts.extend(log::loss_text("the helper", document.helper.log_lines_lost));
    parts.extend(log::loss_text("the engine", document.engine.log_lines_lost));
    parts.extend(document.service.describe_lines());
    for damaged in &document.damaged {
        parts.push(format!(
            "damaged: {} ({}); `vsnoop off --all` removes it",
            damaged.path, damaged.reason
        ));
    }
    fold_text(&parts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longest;

    fn port(state: &'static str) -> PortStatus {
        PortStatus {
            identity: PortIdentity { state, ..longest::identity() },
            attached_at: u64::MAX,
            attached_by: "service",
            table: Some("longest-name-of-a-port-table---".into()),
            flows: u64::MAX,
            max_flows: u32::MAX,
            outstanding_flows: u64::MAX,
            outstanding_bytes: u64::MAX,
            early_acks: 0,
            early_bytes: u64::MAX,
            helper_pauses: u64::MAX,
            foreign_programs: Some(Vec::new()),
            not_exact: u64::MAX,
            resets: Resets { refused: u64::MAX, ..Resets::default() },
            bypassed_vm_ports: vec![BypassedVmPort {
                vm_port: u16::MAX,
                failures: 0,
                remaining_ns: u64::MAX,
            }],
            forwarded: Forwarded { connections: u64::MAX, ..Forwarded::default() },
            qdisc: Some("pfifo_fast".into()),
            qdisc_replaced: Some("pfifo_fast".into()),
            ahead_bytes: Some(u32::MAX),
            passive: true,
            downloads: true,
            congestion_control: Some("fifteen_letters".into()),
            split: Some(SplitState {
                connections: 1024,
                held_to_peer_bytes: u64::MAX / 2,
                held_to_vm_bytes: u64::MAX / 2,
                ..SplitState::default()
            }),
            lists: true,
            ring_frames: u32::MAX,
            queues: u32::MAX,
            hold: Some(longest::hold()),
            incast: Some(longest::uplink(UplinkControl::Unhooked)),
            process: Some(ProcessStatus {
                pid: i32::MAX,
                name: "qemu-system-x86_64".into(),
                vm: Some(longest::NAME.into()),
            }),
        }
    }

    #[test]
    fn the_table_of_ports_stays_narrow() {
        let damaged = DamagedStatus {
            path: format!("/sys/fs/bpf/vsnoop/{}-{}", u64::MAX, u32::MAX),
            reason: "the layout of its maps is of another version".into(),
        };
        let document = StatusDocument {
            ports: vec![port("active"), port("blocked"), port("paused")],
            damaged: vec![damaged],
            helper: ProcessOfTheHost { log_lines_lost: u64::MAX, ..ProcessOfTheHost::default() },
            engine: ProcessOfTheHost { log_lines_lost: 1, ..ProcessOfTheHost::default() },
            splitter: ProcessOfTheHost::default(),
            keeper: ProcessOfTheHost::default(),
            service: ServiceStatus::default(),
        };
        let text = render_text(&document);
        longest::assert_narrow(&text);
        let lost = "1 line of the log of the engine was lost";
        for word in
            ["2147483647", "(no hook)", "no splitter", "forwarded", "noqueue`", "damaged: ", lost]
        {
            assert!(text.contains(word), "{word:?} is not in:\n{text}");
        }
    }
}

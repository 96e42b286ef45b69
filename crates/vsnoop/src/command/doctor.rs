//! `vsnoop doctor`: is this host ready, which VMs would gain and how much.

use anyhow::Result;
use serde::Serialize;

use crate::cli::{self, Cli};
use crate::doctor::{Check, Level, TapReport, host, taps};
use crate::error::{Unfit, unfit};
use crate::output::watch::print;
use crate::output::{table, units};
use crate::system::netns::Netns;

#[derive(Serialize)]
struct Document {
    ready: bool,
    host: Vec<Check>,
    ports: Vec<TapReport>,
}

/// The exit code is that of the first check that failed, or of the first named port that is unfit.
pub fn run(cli: &Cli, arguments: &cli::Doctor) -> Result<u8> {
    let place = Netns::chosen(cli.netns.as_deref())?;
    let host = host::checks()?;
    let ports = taps::examine(&arguments.ports, &place, arguments.measure)?;
    let document =
        Document { ready: host.iter().all(|check| check.level != Level::Fail), host, ports };
    if cli.json {
        print(&serde_json::to_string(&document)?)?;
    } else {
        print(&text(&document, &place))?;
    }
    let failed = document.host.iter().find(|check| check.level == Level::Fail);
    if let Some(check) = failed {
        return Err(unfit(check.unfit, format!("this host is not ready: {}", check.detail)));
    }
    let unfit_port = document.ports.iter().find(|port| port.refused.is_some());
    Ok(match unfit_port {
        Some(_) if !arguments.ports.is_empty() => Unfit::Qdisc as u8,
        _ => 0,
    })
}

fn text(document: &Document, place: &Netns) -> String {
    let mut checks = table::new(&["host", "", ""]);
    for check in &document.host {
        checks.add_row([check.name.to_owned(), check.level.text().into(), check.detail.clone()]);
    }
    let mut parts = vec![table::text(&checks)];
    if document.ports.is_empty() {
        parts.push(format!(
            "no tap in the network namespace {}; taps of pods are in theirs: --netns",
            place.label()
        ));
        return parts.join("\n\n");
    }
    let mut devices =
        table::new(&["port", "qdisc", ">ring", ">queues", "offloads", "process", "attached"]);
    let mut vms = table::new(&["port", ">vCPUs", ">run", ">wait", "quota", "verdict"]);
    for port in &document.ports {
        let process = match (&port.process, port.pid) {
            (Some(name), Some(pid)) => format!("{pid} {name}"),
            _ => "-".into(),
        };
        devices.add_row([
            port.port.clone(),
            port.qdisc.clone(),
            units::count(port.ring_frames.into()),
            units::count(port.queues.into()),
            port.offloads_text().into(),
            process,
            port.attached.unwrap_or("-").to_owned(),
        ]);
        let share = |share: Option<f64>| share.map_or("-".into(), units::percent);
        vms.add_row([
            port.port.clone(),
            units::count(port.vcpus.len() as u64),
            share(port.ran_share),
            share(port.waited_share),
            port.quota_text(),
            port.verdict.clone(),
        ]);
    }
    parts.push(table::text(&devices));
    parts.push(table::text(&vms));
    let takes_none =
        |port: &&TapReport| port.process.is_some() && port.segmentation_offload == Some(false);
    parts.extend(document.ports.iter().filter(takes_none).map(|port| {
        format!(
            "note: port {}: the VM's device takes no super-packets; those that reach the host are \
             not acknowledged early (virtio-net: guest_tso4, guest_tso6)",
            port.port
        )
    }));
    parts.extend(
        document
            .ports
            .iter()
            .filter_map(|port| port.refused.clone())
            .map(|why| format!("refused: {why}")),
    );
    parts.join("\n\n")
}

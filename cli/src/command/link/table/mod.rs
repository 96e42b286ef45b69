//! `vsnoop link status` as text: a paragraph and tables for each link, then problems and remedies.

mod problems;
mod rows;
#[cfg(test)]
mod tests;
mod words;

use std::time::{SystemTime, UNIX_EPOCH};

use vsnoop_host::units;
use vsnoop_linkd::control::{MembershipStatus, Status};

use self::words::{count_addresses, period_since};
use super::document::LinkStatusDocument;
use crate::log;
use crate::output::fold::fold_text;

/// Shown if there is none.
const NOTHING: &str = "no link is up; `vsnoop link up FILE` starts one";

pub fn render_status(document: &LinkStatusDocument, details: bool) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut parts: Vec<_> =
        document.links.iter().map(|status| render_link(status, now, details)).collect();
    parts.extend(document.silent.iter().map(|silent| silent.problem.clone()));
    if parts.is_empty() { NOTHING.into() } else { fold_text(&parts.join("\n\n")) }
}

fn render_link(status: &Status, now: u64, details: bool) -> String {
    let mut parts = vec![format!(
        "link {}, network {}: up for {}, process {}, listens at {}, MTU {}, {} learned, {:.2} CPUs busy",
        status.name,
        status.network,
        period_since(now, status.since),
        status.pid,
        status.listen,
        status.mtu_bytes,
        count_addresses(status.learned),
        status.cpu.cores,
    )];
    parts.extend(membership_line(&status.membership, now));
    parts.extend(rows::port_section(status));
    parts.extend(rows::peer_section(status));
    if details {
        parts.extend(rows::peers_details(status));
    }
    parts.extend(rows::compression_section(status));
    parts.extend(rows::divert_section(status));
    parts.extend(rows::entry_section(status));
    parts.extend(rows::learned_lines(status));
    if details {
        parts.push(rows::describe_cpu(&status.cpu));
    }
    parts.extend(rows::describe_dropped(&status.dropped));
    parts.extend(log::loss_text("the link", status.log_lines_lost));
    parts.extend(status.peers.iter().filter_map(problems::unencrypted_problem));
    let ports = !status.ports.is_empty();
    parts.extend(status.peers.iter().filter_map(|peer| problems::peer_problem(peer, ports, now)));
    parts.extend(status.peers.iter().filter_map(|peer| problems::gso_problem(peer, now)));
    parts.extend(problems::member_problems(&status.membership));
    parts.extend(status.ports.iter().filter_map(problems::port_problem));
    parts.extend(status.diverts.iter().filter_map(problems::divert_problem));
    parts.extend(
        status.problems.iter().map(|problem| format!("{}: {}", problem.what, problem.remedy)),
    );
    parts.join("\n")
}

fn membership_line(membership: &MembershipStatus, now: u64) -> Option<String> {
    let name = membership.name.as_deref()?;
    let endpoint = membership.endpoint.as_deref().unwrap_or("any node");
    let period = period_since(now, membership.since);
    let state = match (membership.connected, &membership.reason) {
        (true, _) => format!("connected to {endpoint} for {period}"),
        (false, Some(reason)) => format!("AWAY for {period} ({reason}); what is known goes on"),
        (false, None) => "being connected".into(),
    };
    let hosts = units::count(membership.hosts);
    Some(format!("etcd: {state}; {hosts} hosts besides {name}, revision {}", membership.revision))
}

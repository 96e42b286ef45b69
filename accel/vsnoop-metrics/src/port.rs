//! A port as a scrape reads it.

use vsnoop_bpf::ServiceMark;
use vsnoop_bpf::types::port_stats;
use vsnoop_hold::outstanding::outstanding;
use vsnoop_host::error::Result;
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::holds::{Holds, PortHold};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::qdisc;

use crate::counters::Resets;
use crate::split::SplitState;
use crate::surroundings::Place;

/// Longest text of a label: names come from other programs.
const LABEL_CHARS: usize = 128;

/// State of an active port whose qdisc is another one than noqueue.
const BLOCKED: &str = "blocked";

/// The states of a port.
pub const STATES: &[&str] = &["active", "paused", "observing", BLOCKED];

/// The labels of each series of a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortLabels {
    pub port: String,
    /// Name of its network namespace, or its inode; empty for that of the service.
    pub netns: String,
    /// The VM's name in the arguments of the process that holds the tap; may be empty.
    pub vm: String,
    /// The service's table `[[port]]`; empty for a port of a command.
    pub table: String,
}

impl PortLabels {
    pub fn list(&self) -> [(&'static str, &str); 4] {
        let Self { port, netns, vm, table } = self;
        [("port", port), ("netns", netns), ("vm", vm), ("table", table)]
    }

    /// Names the port in the labels of all its series.
    pub fn name(&self) -> (&str, &str) {
        (&self.netns, &self.port)
    }
}

/// The values of one port.
pub struct PortSample {
    pub labels: PortLabels,
    /// Name of the bridge that the tap is in; may be empty.
    pub bridge: String,
    pub process: String,
    pub attached_by: &'static str,
    /// Seconds since the epoch.
    pub attached_at: u64,
    /// One of [`STATES`].
    pub state: &'static str,
    /// The helper has suspended it.
    pub is_suspended: bool,
    pub suspensions: u64,
    pub stats: port_stats,
    pub resets: Resets,
    pub ring_full: u64,
    /// VM ports whose new connections are left to the VM.
    pub bypassed_vm_ports: usize,
    pub flows: usize,
    pub max_flows: u32,
    pub outstanding_flows: u64,
    pub outstanding_bytes: u64,
    /// `None` without a hold.
    pub hold: Option<PortHold>,
    /// `None` without downloads.
    pub split: Option<SplitState>,
}

impl PortSample {
    pub fn read(attached: &Attached, place: &Place) -> Result<Self> {
        let port = &attached.port;
        let (stats, flows) = (port.stats()?, port.flows()?);
        let (outstanding_flows, outstanding_bytes) = outstanding(&flows);
        let mark = ServiceMark::from_meta(&attached.meta);
        Ok(Self {
            attached_by: if mark.is_some() { "service" } else { "command" },
            labels: PortLabels {
                port: place.name.clone().unwrap_or_else(|| attached.name.clone()),
                netns: place.netns.clone(),
                vm: label(place.vm.as_deref()),
                table: label(mark.as_ref().map(|mark| mark.table.as_str())),
            },
            bridge: label(place.bridge.as_deref()),
            process: label(place.process.as_deref()),
            attached_at: attached.meta.attached_at,
            state: state(attached.condition(), place.qdisc.as_deref()),
            is_suspended: attached.suspended,
            suspensions: port.times_suspended()?,
            resets: Resets::count_resets(&attached.meta, &stats),
            ring_full: port.state()?.ring_full,
            bypassed_vm_ports: BypassedVmPort::list_bypassed(port)?.len(),
            flows: flows.len(),
            max_flows: port.max_flows(),
            outstanding_flows,
            outstanding_bytes,
            hold: Holds::open(port)?.port(port, &flows)?,
            split: SplitState::read_state(port)?,
            stats,
        })
    }
}

/// `qdisc`: null if it is not known.
fn state(condition: &'static str, qdisc: Option<&str>) -> &'static str {
    let is_blocked = condition == "active" && qdisc.is_some_and(|kind| kind != qdisc::NOQUEUE);
    if is_blocked { BLOCKED } else { condition }
}

fn label(text: Option<&str>) -> String {
    text.unwrap_or_default().chars().take(LABEL_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_active_port_is_blocked_by_another_qdisc() {
        assert_eq!(state("active", Some("noqueue")), "active");
        assert_eq!(state("active", None), "active");
        assert_eq!(state("active", Some("tbf")), "blocked");
        assert_eq!(state("observing", Some("fq_codel")), "observing");
    }

    #[test]
    fn a_label_is_bounded() {
        assert_eq!(label(Some(&"x".repeat(5000))).len(), LABEL_CHARS);
        assert_eq!(label(None), "");
    }
}

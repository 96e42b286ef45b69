//! Rows of the tables: what changed between two samples, and how things are at the second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::list::Row;
use super::sample::{FlowId, FlowSample, FlowsSample, HoldSample, PortId, PortSample, Sample};
use crate::output::histogram::percentile;

#[derive(Clone, Debug)]
pub struct PortRow {
    pub id: PortId,
    pub name: String,
    pub netns: Option<String>,
    pub state: &'static str,
    pub vm: Option<String>,
    /// `None` in the first sample of a port.
    pub change: Option<Change>,
    pub hold: Option<HoldSample>,
    pub flows: Option<u64>,
    pub resets: u64,
}

/// Growth of a port's counters in an interval.
#[derive(Clone, Debug)]
pub struct Change {
    pub seconds: f64,
    pub early_bytes: u64,
    pub to_vm_bytes: u64,
    pub flows_created: u64,
    /// Histogram of the time from early ACKs to the VM's own.
    pub masked_ns: Vec<u64>,
}

impl Change {
    fn from_samples(before: &PortSample, now: &PortSample, elapsed: Duration) -> Self {
        let masked = now.masked_ns.iter().zip(&before.masked_ns);
        Self {
            seconds: elapsed.as_secs_f64(),
            early_bytes: now.early_bytes.saturating_sub(before.early_bytes),
            to_vm_bytes: now.to_vm_bytes.saturating_sub(before.to_vm_bytes),
            flows_created: now.flows_created.saturating_sub(before.flows_created),
            masked_ns: masked.map(|(now, before)| now.saturating_sub(*before)).collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.early_bytes += other.early_bytes;
        self.to_vm_bytes += other.to_vm_bytes;
        self.flows_created += other.flows_created;
        for (sum, more) in self.masked_ns.iter_mut().zip(&other.masked_ns) {
            *sum += more;
        }
    }

    /// Bytes per second that were acknowledged early.
    pub fn early_rate(&self) -> f64 {
        rate_per_s(self.early_bytes, self.seconds)
    }

    /// New connections per second.
    pub fn new_rate(&self) -> f64 {
        rate_per_s(self.flows_created, self.seconds)
    }

    /// The part of all bytes to the VM that was acknowledged early, 0 to 1; `None` without any.
    pub fn share(&self) -> Option<f64> {
        (self.to_vm_bytes > 0)
            .then(|| (self.early_bytes as f64 / self.to_vm_bytes as f64).clamp(0.0, 1.0))
    }

    /// Median of the time, ns, by which the host acknowledged sooner than the VM.
    pub fn masked_ns(&self) -> Option<u64> {
        percentile(&self.masked_ns, 0.5)
    }
}

fn rate_per_s(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-3)
}

impl Row for PortRow {
    type Id = PortId;

    fn id(&self) -> PortId {
        self.id
    }

    fn contains(&self, text: &str) -> bool {
        let names = [Some(self.name.as_str()), self.netns.as_deref(), self.vm.as_deref()];
        let mut names = names.into_iter().flatten().chain([self.state]);
        names.any(|name| name.to_lowercase().contains(text))
    }
}

/// The ports of a sample, with what changed since the one before.
pub fn of_ports(before: Option<&Sample>, now: &Sample) -> Vec<PortRow> {
    let earlier = before.map(|sample| {
        let ports = sample.ports.iter().map(|port| (port.id, port)).collect::<HashMap<_, _>>();
        (now.at.saturating_duration_since(sample.at), ports)
    });
    let row = |port: &PortSample| PortRow {
        id: port.id,
        name: port.name.clone(),
        netns: port.netns.clone(),
        state: port.state,
        vm: port.vm.clone(),
        change: earlier.as_ref().and_then(|(elapsed, ports)| {
            Some(Change::from_samples(ports.get(&port.id)?, port, *elapsed))
        }),
        hold: port.hold,
        flows: port.flows,
        resets: port.resets,
    };
    now.ports.iter().map(row).collect()
}

/// All ports together.
#[derive(Clone, Debug, Default)]
pub struct Total {
    pub ports: usize,
    pub active: usize,
    pub change: Option<Change>,
    pub used_bytes: u64,
    pub size_bytes: u64,
    pub flows: u64,
    pub resets: u64,
    /// Names of ports whose hold no engine serves.
    pub without_engine: Vec<String>,
}

impl Total {
    pub fn sum_rows(rows: &[PortRow]) -> Self {
        let mut total = Self { ports: rows.len(), ..Self::default() };
        for row in rows {
            total.active += usize::from(row.state == "active");
            total.flows += row.flows.unwrap_or(0);
            total.resets += row.resets;
            match (&mut total.change, &row.change) {
                (Some(sum), Some(change)) => sum.add(change),
                (sum @ None, Some(change)) => *sum = Some(change.clone()),
                (_, None) => {}
            }
            let Some(hold) = row.hold else { continue };
            total.used_bytes += hold.used_bytes;
            total.size_bytes += hold.size_bytes;
            if !hold.engine_is_alive && row.state == "active" {
                total.without_engine.push(row.name.clone());
            }
        }
        total
    }
}

#[derive(Clone, Copy, Debug)]
pub struct FlowRow {
    pub flow: FlowSample,
    /// Bytes per second that were acknowledged early; `None` in the first sample of a flow.
    pub early_rate: Option<f64>,
}

impl Row for FlowRow {
    type Id = FlowId;

    fn id(&self) -> FlowId {
        self.flow.id
    }

    fn contains(&self, text: &str) -> bool {
        self.flow.mode.contains(text)
            || self.flow.id.sender.to_string().contains(text)
            || self.flow.id.vm.to_string().contains(text)
    }
}

/// Bytes acknowledged early of each flow at some moment.
#[derive(Debug)]
pub struct EarlyBytes {
    at: Instant,
    flows: HashMap<FlowId, u64>,
}

impl EarlyBytes {
    pub fn sum_flows(at: Instant, flows: &[FlowSample]) -> Self {
        Self { at, flows: flows.iter().map(|flow| (flow.id, flow.early_bytes)).collect() }
    }
}

/// The flows of a sample, with their rates since the one before.
pub fn of_flows(before: Option<&EarlyBytes>, now: &FlowsSample) -> Vec<FlowRow> {
    let row = |flow: &FlowSample| FlowRow {
        flow: *flow,
        early_rate: before.and_then(|before| {
            let elapsed = now.at.saturating_duration_since(before.at);
            let earlier = *before.flows.get(&flow.id)?;
            Some(rate_per_s(flow.early_bytes.saturating_sub(earlier), elapsed.as_secs_f64()))
        }),
    };
    now.flows.iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::testing::{flow, port, sample};

    #[test]
    fn rates_share_and_median_are_those_of_the_interval() {
        let mut before = sample(vec![port(1, "tap0"), port(2, "tap1")]);
        before.ports[0].early_bytes = 1_000_000;
        before.ports[0].masked_ns[10] = 1_000_000;
        let mut now = before.clone();
        now.at += Duration::from_secs(2);
        now.ports[0].early_bytes += 3000;
        now.ports[0].to_vm_bytes += 4000;
        now.ports[0].masked_ns[20] = 8;
        now.ports[0].flows_created += 10;
        now.ports.push(port(3, "tap2"));
        let rows = of_ports(Some(&before), &now);
        let change = rows[0].change.as_ref().unwrap();
        assert_eq!((change.early_rate(), change.new_rate()), (1500.0, 5.0));
        assert_eq!(change.share(), Some(0.75));
        let median = change.masked_ns().unwrap();
        assert!((1 << 20..1 << 21).contains(&median), "{median}");
        let idle = rows[1].change.as_ref().unwrap();
        assert_eq!((idle.early_rate(), idle.share(), idle.masked_ns()), (0.0, None, None));
        assert!(rows[2].change.is_none(), "it has just come");
    }

    #[test]
    fn another_attachment_of_the_same_tap_does_not_count_backwards() {
        let mut before = sample(vec![port(1, "tap0")]);
        before.ports[0].early_bytes = 1000;
        let now = sample(vec![port(2, "tap0")]);
        assert!(of_ports(Some(&before), &now)[0].change.is_none());
    }

    #[test]
    fn the_total_names_ports_without_an_engine() {
        let hold = HoldSample { used_bytes: 5, size_bytes: 10, engine_is_alive: true };
        let mut now = sample(vec![port(1, "tap0"), port(2, "tap1")]);
        now.ports[0].hold = Some(hold);
        now.ports[1].hold = Some(HoldSample { engine_is_alive: false, ..hold });
        now.ports[1].resets = 3;
        let total = Total::sum_rows(&of_ports(Some(&now), &now));
        assert_eq!((total.ports, total.active, total.resets), (2, 2, 3));
        assert_eq!((total.used_bytes, total.size_bytes), (10, 20));
        assert_eq!(total.without_engine, ["tap1"]);
    }

    #[test]
    fn a_flow_has_a_rate_from_its_second_sample_on() {
        let at = Instant::now();
        let mut first = flow(1);
        first.early_bytes = 100;
        let before = EarlyBytes::sum_flows(at, &[first]);
        first.early_bytes = 300;
        let now = FlowsSample {
            port: PortId(1),
            at: at + Duration::from_secs(2),
            flows: Some(vec![first, flow(2)]),
        };
        let rows = of_flows(Some(&before), &now);
        assert_eq!((rows[0].early_rate, rows[1].early_rate), (Some(100.0), None));
    }
}

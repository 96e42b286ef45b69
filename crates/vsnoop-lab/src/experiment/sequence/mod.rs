//! The runner `sequence`: how far a transfer has come at each moment, from a capture of the client,
//! in the form of Fig. 2 of the vSnoop report.

mod plots;

use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_guest::transfer;
use vsnoop_testbed::capture::{Capture, CapturedSegment};
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::Stage;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::lab::Lab;
use super::rounds::Trial;
use super::ways::{Ways, settle};
use crate::results::statistics::{
    ACKED, DELIVERED, ascending, percentile, ratio_of_medians, values,
};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Figure, Group, Results, Sample, Trace, size_text};

pub const RUNNER: Runner =
    Runner { name: "sequence", run, tables, figures, goals: None, plots: plots::draw, difference };

const OFF: &str = "off";
const VSNOOP: &str = "vsnoop";
const HOST: &str = "host";
/// So that the neighbours are resolved.
const FIRST_BYTES: u64 = 10_000;

fn run(task: Task) -> Result<()> {
    let configurations = task.plan.configurations()?;
    on_stages(task, guest::Options::default(), &mut Transfers { configurations, ends: None })
}

struct Transfers {
    configurations: Vec<Configuration>,
    ends: Option<(Ways, Capture)>,
}

impl Measure for Transfers {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        let ways = Ways::open(&mut lab.session, stage, &self.configurations, transfer::PORT)?;
        self.ends = Some((ways, Capture::start(stage.client())?));
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        for &configuration in &self.configurations {
            for machine in 0..ground.stage.vm_count() {
                self.upload(ground, configuration, machine, FIRST_BYTES)
                    .context("the first transfer of a cell")?;
            }
        }
        settle(ground.stage)
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let (_, capture) = self.ends.as_ref().context("nothing has booted")?;
        // Those from before this transfer.
        capture.take()?;
        let sample = self.upload(ground, trial.configuration, ground.machine, trial.size_bytes)?;
        settle(ground.stage)?;
        let trace = trace(&capture.take()?).context("the transfer was not seen")?;
        Ok(vec![Sample { trace: Some(trace), ..sample }])
    }

    fn leave(&mut self) {
        self.ends = None;
    }
}

impl Transfers {
    fn upload(
        &self,
        ground: &Ground,
        configuration: Configuration,
        machine: usize,
        size_bytes: u64,
    ) -> Result<Sample> {
        let (ways, _) = self.ends.as_ref().context("nothing has booted")?;
        let control = ground.cell.congestion_control.unwrap_or_default();
        let way = ways.way(ground.stage, configuration, machine)?;
        way.upload(ground.stage.client(), size_bytes, control.name()).map(Sample::from)
    }
}

/// What the client has sent, and what was acknowledged, since its SYN.
fn trace(segments: &[CapturedSegment]) -> Option<Trace> {
    let syn = segments.iter().find(|one| one.syn && one.ack.is_none())?;
    let port = syn.source_port;
    // Wrapping, as sequence numbers do.
    let offset = |number: u32| f64::from(number.wrapping_sub(syn.seq.wrapping_add(1)) as i32);
    let ms = |at: Duration| at.saturating_sub(syn.at).as_secs_f64() * 1e3;
    let mut trace = Trace::default();
    for one in segments {
        if one.source_port == port && one.payload_bytes > 0 {
            let end = offset(one.seq) + f64::from(one.payload_bytes);
            trace.sent.push((ms(one.at), end));
        }
        if one.destination_port == port && !one.syn {
            trace.acked.extend(one.ack.map(|ack| (ms(one.at), offset(ack))));
        }
    }
    Some(trace)
}

fn tables(results: &Results, style: Style) -> String {
    let header = [
        "cell",
        "size",
        "configuration",
        "n",
        "acked\nms p50",
        "delivered\nms p50",
        "off takes times\n(acked, 95 %)",
    ];
    let mut rows = Vec::new();
    for group in results.groups() {
        for name in results.configurations() {
            let (acked, delivered) = (
                values(results, &name, &group, &ACKED),
                values(results, &name, &group, &DELIVERED),
            );
            let off = values(results, OFF, &group, &ACKED);
            let slower = ratio_of_medians(&off, &acked).filter(|_| name != OFF);
            let p50 = |values: &[f64]| or_dash(milliseconds)(percentile(values, 50.0));
            rows.push(vec![
                group.cell.to_string(),
                size_text(group.size_bytes),
                name,
                acked.len().to_string(),
                p50(&acked),
                p50(&delivered),
                slower.map_or("-".into(), |ratio| ratio.text()),
            ]);
        }
    }
    grid(style, &header, 3, rows)
}

fn figures(results: &Results) -> Vec<Figure> {
    let of = |group: &Group| {
        let acked = |name: &str| values(results, name, group, &ACKED);
        let ratio = ratio_of_medians(&acked(OFF), &acked(VSNOOP))?;
        Some(Figure {
            name: format!("sequence_acked_p50_off_over_vsnoop_{}", group.cell.suffix()),
            value: ratio.value,
            unit: "times".into(),
            better: "higher".into(),
        })
    };
    results.groups().iter().filter_map(of).collect()
}

fn difference(results: &Results) -> Option<String> {
    let group = results.groups().into_iter().next()?;
    let median = |name: &str| percentile(&values(results, name, &group, &ACKED), 50.0);
    let (off, host) = (median(OFF)?, median(HOST)?);
    let with = median(VSNOOP).map_or(String::new(), |vsnoop| {
        format!(
            "; with vsnoop the sender has its acknowledgements after {} ms{}",
            milliseconds(vsnoop),
            sooner_than_host(results, &group, vsnoop, host).unwrap_or_default()
        )
    });
    Some(format!(
        "{} to the host take {} ms and to a VM {} ms, {:.1} times as long{with}.",
        size_text(group.size_bytes),
        milliseconds(host),
        milliseconds(off),
        off / host
    ))
}

/// Why vsnoop is sooner than the host itself, if it is, and the captures show it.
fn sooner_than_host(results: &Results, group: &Group, vsnoop: f64, host: f64) -> Option<String> {
    let [early, later] = [VSNOOP, HOST].map(|name| {
        let waits = results.of(name, group).filter_map(|one| wait_ms(one.trace.as_ref()?));
        percentile(&ascending(waits), 50.0)
    });
    let (early, later) = (early?, later?);
    (vsnoop < host && early < later).then(|| {
        format!(
            ", sooner than from the host itself: what is sent is acknowledged after {} ms (median), \
             while it passes to the VM, and by the host's TCP after {} ms",
            milliseconds(early),
            milliseconds(later)
        )
    })
}

/// The median of the times from what was sent to the first acknowledgement of all of it.
fn wait_ms(trace: &Trace) -> Option<f64> {
    let wait = |&(sent_ms, end): &(f64, f64)| {
        let acked = trace.acked.iter().filter(|(ms, acked)| *acked >= end && *ms >= sent_ms);
        acked.map(|(ms, _)| ms - sent_ms).reduce(f64::min)
    };
    percentile(&ascending(trace.sent.iter().filter_map(wait)), 50.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};

    #[test]
    fn vsnoop_is_sooner_than_the_host_where_it_acknowledges_sooner() {
        let with = |name: &str, total_ms: f64, wait_ms: f64| Sample {
            trace: Some(Trace {
                sent: vec![(1.0, 100.0), (2.0, 200.0)],
                acked: vec![(1.0 + wait_ms, 100.0), (2.0 + wait_ms, 200.0)],
            }),
            ..sample(name, total_ms)
        };
        let of = |host_wait_ms| {
            let samples =
                [with(OFF, 90.0, 9.0), with(HOST, 8.0, host_wait_ms), with(VSNOOP, 6.0, 0.25)];
            difference(&results(samples.into())).unwrap()
        };
        let why = "acknowledged after 0.25 ms (median), while it passes to the VM, and by the host's \
                   TCP after 0.50 ms.";
        assert!(of(0.5).contains(why), "{}", of(0.5));
        assert!(!of(0.25).contains("sooner than from"), "the captures do not show it");
    }

    #[test]
    fn a_trace_counts_from_the_syn_also_when_numbers_wrap() {
        let at = |ms, source_port, seq: u32, ack, payload_bytes, syn| CapturedSegment {
            at: Duration::from_millis(ms),
            source_port,
            destination_port: if source_port == 7 { 80 } else { 7 },
            seq,
            ack,
            payload_bytes,
            syn,
            ..CapturedSegment::default()
        };
        let first = u32::MAX - 99;
        let segments = [
            at(5, 7, first.wrapping_sub(1), None, 0, true),
            at(6, 80, 0, Some(first), 0, true),
            at(7, 7, first, Some(1), 1000, false),
            at(9, 80, 1, Some(first.wrapping_add(1000)), 0, false),
        ];
        let trace = trace(&segments).unwrap();
        assert_eq!(trace.sent, [(2.0, 1000.0)]);
        assert_eq!(trace.acked, [(4.0, 1000.0)]);
    }
}

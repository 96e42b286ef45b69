//! The runner `delays`: where the time goes between the wire and a VM, on receive and on transmit,
//! in the form of Fig. 1(b) and (c) of the vSnoop report.

mod matching;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use vsnoop_guest::transfer;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::Stage;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::lab::Lab;
use super::rounds::Trial;
use super::ways::{Ways, settle};
use crate::results::cdf::{Cdf, Curve};
use crate::results::drawing::Drawing;
use crate::results::statistics::{named, percentile};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Figure, Group, Label, Results, Sample};

pub const RUNNER: Runner =
    Runner { name: "delays", run, tables, figures, goals: None, plots, difference };

const RECEIVE: &str = "rx";
const TRANSMIT: &str = "tx";
/// In the host: between the uplink and the VM's tap.
const HOST: &str = "host_ms";
/// Between the tap and the VM.
const VM: &str = "vm_ms";
const PLOTS: [(&str, &str); 2] = [(RECEIVE, "Receive"), (TRANSMIT, "Transmit")];

fn run(task: Task) -> Result<()> {
    let configurations = task.plan.configurations()?;
    let attaches = configurations.iter().any(|one| one.attach_options().is_some());
    ensure!(!attaches, "a VM whose data the host acknowledges does not show when it consumes them");
    on_stages(task, guest::Options::default(), &mut Transfers { configurations, ends: None })
}

struct Transfers {
    configurations: Vec<Configuration>,
    ends: Option<(Ways, Capture)>,
}

impl Measure for Transfers {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        let ways = Ways::open(&mut lab.session, stage, &self.configurations, transfer::PORT)?;
        self.ends = Some((ways, Capture::start(stage.host())?));
        Ok(())
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let (ways, capture) = self.ends.as_ref().context("nothing has booted")?;
        // Those from before this transfer.
        capture.take()?;
        let control = ground.cell.congestion_control.unwrap_or_default();
        ways.way(ground.stage, trial.configuration, ground.machine)?.upload(
            ground.stage.client(),
            trial.size_bytes,
            control.name(),
        )?;
        settle(ground.stage)?;
        let passed = matching::match_up(&capture.take()?).context("the transfer was not seen")?;
        let sample = |what: &str, [host_ms, vm_ms]: [f64; 2]| Sample {
            what: Label::from(what).ok(),
            values: [(HOST.into(), host_ms), (VM.into(), vm_ms)].into(),
            ..Sample::default()
        };
        let received = passed.received.iter().map(|times| sample(RECEIVE, *times));
        let sent = passed.sent.iter().map(|times| sample(TRANSMIT, *times));
        Ok(received.chain(sent).collect())
    }

    fn leave(&mut self) {
        self.ends = None;
    }
}

/// `Receive, in the host`.
fn rows(results: &Results) -> Vec<(Group, String, Vec<f64>)> {
    let mut rows = Vec::new();
    for group in results.groups() {
        let Some((_, word)) = group.what.and_then(|what| PLOTS.iter().find(|one| one.0 == &*what))
        else {
            continue;
        };
        for (name, place) in [(HOST, "in the host"), (VM, place_of(word))] {
            for configuration in results.configurations() {
                let values = named(results, &configuration, &group, name);
                rows.push((group, format!("{word}, {place}"), values));
            }
        }
    }
    rows
}

fn place_of(word: &str) -> &'static str {
    if word == "Receive" { "until the VM consumes it" } else { "from the VM to its tap" }
}

fn tables(results: &Results, style: Style) -> String {
    let header = ["cell", "where", "n", "p10\nms", "p50\nms", "p90\nms", "p99\nms"];
    let row = |(group, place, values): (Group, String, Vec<f64>)| {
        let at = |percent| or_dash(milliseconds)(percentile(&values, percent));
        let mut row = vec![group.cell.to_string(), place, values.len().to_string()];
        row.extend([10.0, 50.0, 90.0, 99.0].map(at));
        row
    };
    grid(style, &header, 2, rows(results).into_iter().map(row).collect())
}

fn figures(results: &Results) -> Vec<Figure> {
    let of = |group: Group| {
        let at = |name: &str| {
            let value = percentile(&named(results, "off", &group, name), 93.0)?;
            let what = group.what?;
            Some(Figure {
                name: format!("delay_p93_{what}_{name}_{}", group.cell.suffix()),
                value,
                unit: "ms".into(),
                better: "lower".into(),
            })
        };
        [at(HOST), at(VM)]
    };
    results.groups().into_iter().flat_map(of).flatten().collect()
}

fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let all = rows(results);
    let mut names = Vec::new();
    for (what, word) in PLOTS {
        let curves: Vec<_> = all
            .iter()
            .filter(|(group, ..)| group.what.is_some_and(|label| &*label == what))
            .map(|(group, place, values)| Curve {
                name: format!("{place}, {} VMs", group.cell.vms),
                values: values.clone(),
            })
            .collect();
        if curves.is_empty() {
            continue;
        }
        let title = format!("{word}: time in the host, and between tap and VM");
        Cdf { title, x_label: "time [ms]", curves }.draw(dir, what)?;
        names.push(what.to_owned());
    }
    Ok(names)
}

/// A VM that has its turn consumes a packet sooner, one that waits for it later, ms.
const IN_TURN_MS: f64 = 5.0;
const WAITED_MS: f64 = 20.0;

/// How much of the time to a VM is the host's, and why the curve has no steps of a slice as the
/// report's.
fn difference(results: &Results) -> Option<String> {
    let groups = results.groups();
    let times = |what: &str, name: &str| {
        let is = |group: &&Group| group.what.is_some_and(|label| &*label == what);
        Some(named(results, "off", groups.iter().find(is)?, name))
    };
    let of = |what: &str, name: &str, percent: f64| percentile(&times(what, name)?, percent);
    let all = times(RECEIVE, VM)?;
    let percent = |is_it: fn(f64) -> bool| {
        100.0 * all.iter().filter(|ms| is_it(**ms)).count() as f64 / all.len() as f64
    };
    Some(format!(
        "the host takes less than {} ms for 93 % of what is received; the VM consumes half of it \
         after more than {} ms, and a tenth after more than {} ms. On transmit, where QEMU reads the \
         VM's ring on another core, 90 % are at the tap within {} ms. The report's curve of receive \
         rises in steps of 30 ms; here {:.0} % of the packets are consumed within {IN_TURN_MS} ms, so \
         that their VM had its turn, and {:.0} % wait for more than {WAITED_MS} ms: a sender of TCP \
         sends most packets when the VM's ACKs come, which is in its turn.",
        milliseconds(of(RECEIVE, HOST, 93.0)?),
        milliseconds(of(RECEIVE, VM, 50.0)?),
        milliseconds(of(RECEIVE, VM, 90.0)?),
        milliseconds(of(TRANSMIT, VM, 90.0)?),
        percent(|ms| ms <= IN_TURN_MS),
        percent(|ms| ms > WAITED_MS),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};

    #[test]
    fn the_difference_says_how_many_packets_come_in_the_vms_turn() {
        let of = |what: &str, vm_ms: f64| Sample {
            what: Label::from(what).ok(),
            values: [(HOST.into(), 0.1), (VM.into(), vm_ms)].into(),
            ..sample("off", 1.0)
        };
        let received = [1.0, 2.0, 4.0, 70.0].map(|vm_ms| of(RECEIVE, vm_ms));
        let all = received.into_iter().chain([of(TRANSMIT, 0.2)]).collect();
        let text = difference(&results(all)).unwrap();
        let part = "75 % of the packets are consumed within 5 ms, so that their VM had its turn, and \
                    25 % wait for more than 20 ms";
        assert!(text.contains(part), "{text}");
    }
}

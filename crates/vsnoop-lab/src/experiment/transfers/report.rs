//! Medians of throughput in each scenario and their relation to vsnoop, as in Fig. 5 and 6 of the
//! vSnoop report.

use std::path::Path;

use anyhow::Result;
use vsnoop_testbed::vm::Share;

use crate::experiment::declared::Declaration;
use crate::experiment::spent::{self, RAN};
use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::incast::CongestionControl;
use crate::results::plot;
use crate::results::report::PaperValue;
use crate::results::statistics::{ACKED, DELIVERED, Metric, Ratio, TOTAL, percentile};
use crate::results::statistics::{by_turn, ratio_of_medians};
use crate::results::table::{Style, grid};
use crate::results::{Figure, Group, Results, size_text};

/// Several connections.
pub const AT_ONCE: &str = "at once";
/// One connection, with the host's packet work on the VMs' core.
pub const HOST_BESIDE: &str = "host on their core";
/// One connection, whose sender is another of the VMs.
pub const SENDER: &str = "sender in a VM";

pub const OFF: &str = "off";
pub const TUNED: &str = "tuned";
pub const VSNOOP: &str = "tuned-vsnoop";
const NAMES: [&str; 3] = [OFF, TUNED, VSNOOP];
const VIEWS: [(Metric, &str); 2] = [
    (ACKED, "acknowledged, as the sender sees it"),
    (DELIVERED, "delivered, until the receiver's answer"),
];

pub fn tables(results: &Results, style: Style) -> String {
    let header = [
        "scenario",
        "size",
        "n",
        "off\nMB/s",
        "tuned\nMB/s",
        "tuned-vsnoop\nMB/s",
        "vsnoop over off\n(95 %)",
        "vsnoop over tuned\n(95 %)",
        "the VM ran/waited %\noff, vsnoop",
    ];
    let view = |(metric, name): &(Metric, &str)| {
        let heading = match style {
            Style::Terminal => (*name).to_owned(),
            Style::Markdown => format!("### {name}"),
        };
        // What the VM does in between bounds what is delivered.
        let delivered = metric.name == DELIVERED.name;
        let header = if delivered { &header[..] } else { &header[..header.len() - 1] };
        let row = |group: &Group| {
            let mut row = row(results, group, metric);
            row.extend(delivered.then(|| busy_text(results, group)));
            row
        };
        let rows = results.groups().iter().map(row).collect();
        format!("{heading}\n\n{}", grid(style, header, 2, rows))
    };
    VIEWS.iter().map(view).collect::<Vec<_>>().join("\n\n")
}

fn row(results: &Results, group: &Group, metric: &Metric) -> Vec<String> {
    let n = by_turn(results, VSNOOP, group, metric).len();
    let mut row = vec![scenario(group), size_text(group.size_bytes), n.to_string()];
    row.extend(NAMES.map(|name| {
        let ours =
            throughput(results, name, group, metric).map_or("-".into(), |mb| format!("{mb:.3}"));
        // The paper's are those of its sender.
        let paper = paper(results, name, group).filter(|_| metric.name == ACKED.name);
        match paper {
            Some(value) => format!("{ours} [{}]", value.value),
            None => ours,
        }
    }));
    row.extend(
        [OFF, TUNED].map(|other| {
            gain(results, other, group, metric).map_or("-".into(), |ratio| ratio.text())
        }),
    );
    row
}

/// Percent of the time until the receiver's answer in which its VM ran, and waited for its CPU.
pub fn busy(results: &Results, name: &str, group: &Group) -> Option<[f64; 2]> {
    let total = percentile(&by_turn(results, name, group, &TOTAL), 50.0)?;
    let times = [spent::median(results, name, group, RAN)?, spent::waited(results, name, group)?];
    Some(times.map(|ms| 100.0 * ms / total))
}

fn busy_text(results: &Results, group: &Group) -> String {
    let of = |name: &str| {
        let [ran, waited] = busy(results, name, group)?;
        Some(format!("{ran:.0}/{waited:.0}"))
    };
    [OFF, VSNOOP].map(|name| of(name).unwrap_or("-".into())).join(", ")
}

/// The paper's median, where it gives one.
pub fn paper(results: &Results, name: &str, group: &Group) -> Option<&'static PaperValue> {
    let declaration = Declaration::find(&results.experiment)?;
    let values = &declaration.paper.as_ref()?.values;
    let is_it = |value: &&PaperValue| {
        value.name == name && value.x == Some(group.size_bytes as f64) && group.what.is_none()
    };
    values.iter().find(is_it)
}

/// The median, in MB/s: bytes per millisecond are kilobytes per second. Of a burst it is that of
/// one of its connections.
fn throughput(results: &Results, name: &str, group: &Group, metric: &Metric) -> Option<f64> {
    let ms = percentile(&by_turn(results, name, group, metric), 50.0)?;
    Some(group.size_bytes as f64 / ms / 1000.0)
}

/// How many times faster vsnoop is than another configuration.
pub fn gain(results: &Results, other: &str, group: &Group, metric: &Metric) -> Option<Ratio> {
    let of = |name: &str| by_turn(results, name, group, metric);
    ratio_of_medians(&of(other), &of(VSNOOP))
}

/// The cell and what was measured in it, where they differ from those of the report: slices, a near
/// client with cubic, no loss. Those of the report have the letter of its Fig. 6.
fn scenario(group: &Group) -> String {
    let cell = group.cell;
    let machines = if cell.vms == 1 { "1 VM".into() } else { format!("{} VMs", cell.vms) };
    let mut parts = vec![machines, format!("{} %", (cell.load * 100.0).round())];
    let usual = parts.len();
    parts.extend(cell.share.filter(|share| *share != Share::Slices).map(|share| share.to_string()));
    if cell.path_rtt_ms > 0.0 {
        parts.push(format!("{} ms", cell.path_rtt_ms));
    }
    if cell.path_loss_percent > 0.0 {
        parts.push(format!("{} % loss", cell.path_loss_percent));
    }
    let control = cell.congestion_control.unwrap_or_default();
    if control != CongestionControl::default() {
        parts.push(control.name().into());
    }
    let letter = if parts.len() == usual { letter(group) } else { "" };
    parts.extend(group.what.map(|what| what.to_string()));
    format!("{letter}{}", parts.join(", "))
}

fn letter(group: &Group) -> &'static str {
    let load_percent = (group.cell.load * 100.0).round() as u32;
    match (group.cell.vms, load_percent, group.what.as_deref()) {
        (1, 60, None) => "(a) ",
        (2, 60, None) => "(b) ",
        (5, 60, None) => "(c) ",
        (3, 40, None) => "(d) ",
        (3, 60, None) => "(i) ",
        (3, 80, None) => "(f) ",
        (3, 60, Some(what)) if what.ends_with(AT_ONCE) => "(g) ",
        (3, 60, Some(HOST_BESIDE)) => "(e) ",
        (3, 60, Some(SENDER)) => "(h) ",
        _ => "",
    }
}

/// Names end with the size in bytes and the cell.
pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for group in results.groups() {
        let mut suffix = format!("{}_{}", group.size_bytes, group.cell.suffix());
        if let Some(what) = group.what {
            suffix += &format!("_{}", what.replace(' ', "_").replace('\'', ""));
        }
        for (metric, _) in &VIEWS {
            let view = metric.name.trim_end_matches("_ms");
            for name in NAMES {
                let Some(value) = throughput(results, name, &group, metric) else { continue };
                let short = name.replace('-', "_");
                figures.push(Figure {
                    name: format!("{view}_mb_per_s_{short}_{suffix}"),
                    value,
                    unit: "MB/s".into(),
                    better: "higher".into(),
                });
            }
        }
    }
    figures
}

/// CDFs where there is one size, else bars of each scenario.
pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    if results.sizes().len() == 1 {
        return plot::draw_all(results, dir);
    }
    let groups = results.groups();
    let mut scenarios: Vec<_> = groups.iter().map(scenario).collect();
    scenarios.dedup();
    // Those of a cell may stand between each other.
    let mut seen = Vec::new();
    scenarios.retain(|name| {
        !seen.contains(name) && {
            seen.push(name.clone());
            true
        }
    });
    let mut names = Vec::new();
    for wanted in scenarios {
        let groups: Vec<_> = groups.iter().filter(|group| scenario(group) == wanted).collect();
        for (metric, _) in &VIEWS {
            let view = metric.name.trim_end_matches("_ms");
            let title = format!("{wanted}: MB/s relative to tuned-vsnoop, {view}");
            let suffix: String =
                wanted.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
            let name = format!("{view}-{suffix}");
            let bars = bars_of(results, &groups, metric);
            Bars { title, unit: "", groups: &COLOURED, bars }.draw(dir, &name)?;
            names.push(name);
        }
    }
    Ok(names)
}

const COLOURED: [bars::Group; 3] = [
    bars::Group { name: OFF, colour: COLOURS[0] },
    bars::Group { name: TUNED, colour: COLOURS[1] },
    bars::Group { name: VSNOOP, colour: COLOURS[2] },
];

fn bars_of(results: &Results, groups: &[&Group], metric: &Metric) -> Vec<Bar> {
    let bar = |group: &Group, number: usize| {
        let of = |name: &str| throughput(results, name, group, metric);
        Some(Bar {
            name: format!("{}, {}", size_text(group.size_bytes), NAMES[number]),
            value: of(NAMES[number])? / of(VSNOOP)?,
            group: number,
        })
    };
    groups
        .iter()
        .flat_map(|group| (0..NAMES.len()).filter_map(|number| bar(group, number)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};
    use crate::results::{Cell, Label, Sample};

    #[test]
    fn scenarios_have_the_letters_of_the_figure_and_the_paper_stands_beside_its_size() {
        let mut samples = Vec::new();
        for (name, ms) in [(OFF, 500.0), (TUNED, 200.0), (VSNOOP, 20.0)] {
            let mut one = sample(name, ms);
            one.size_bytes = 100_000;
            let mut ten = one.clone();
            ten.what = Label::from("10 at once").ok();
            samples.extend([one, ten]);
        }
        let mut results = results(samples);
        results.experiment = "transfer-cdf".into();
        let text = tables(&results, Style::Markdown);
        assert!(text.contains("(i) 3 VMs, 60 %") && text.contains("(g) "), "{text}");
        assert!(text.contains("0.200 [0.192]") && text.contains("5.000 [6.003]"), "{text}");
        let drawn = tables(&results, Style::Terminal);
        assert!(drawn.lines().all(|line| line.chars().count() <= 100), "{drawn}");
    }

    #[test]
    fn what_the_vm_did_stands_beside_what_was_delivered() {
        let mut samples = Vec::new();
        for name in NAMES {
            let mut one = sample(name, 9.0);
            one.size_bytes = 100_000;
            // In 51 ms.
            one.values = [(RAN.into(), 20.4), (spent::QUEUED.into(), 25.5)].into();
            samples.push(one);
        }
        samples[0].values.clear();
        let mut results = results(samples);
        results.experiment = "transfer-cdf".into();
        let text = tables(&results, Style::Markdown);
        assert_eq!(text.matches("ran/waited").count(), 1, "{text}");
        assert_eq!(text.matches("-, 40/50 |").count(), 1, "{text}");
    }

    #[test]
    fn a_scenario_names_what_is_not_as_in_the_report_and_has_no_letter_then() {
        let scenario_of = |change: fn(&mut Cell)| {
            let mut one = sample(OFF, 1.0);
            one.cell.share = Some(Share::Slices);
            change(&mut one.cell);
            scenario(&one.group())
        };
        assert_eq!(scenario_of(|_| ()), "(i) 3 VMs, 60 %");
        let quota = scenario_of(|cell| cell.share = Some(Share::Quota { percent: 20 }));
        assert_eq!(quota, "3 VMs, 60 %, quota:20");
        let far = scenario_of(|cell| (cell.path_rtt_ms, cell.path_loss_percent) = (20.0, 0.5));
        assert_eq!(far, "3 VMs, 60 %, 20 ms, 0.5 % loss");
        let bbr = scenario_of(|cell| cell.congestion_control = Some(CongestionControl::Bbr));
        assert_eq!(bbr, "3 VMs, 60 %, bbr");
    }

    #[test]
    fn a_burst_of_ten_is_one_measurement() {
        let mut samples = Vec::new();
        for turn in 0..7 {
            for (name, ms) in [(OFF, 100.0), (VSNOOP, 50.0)] {
                let one = sample(name, ms + turn as f64);
                let what = Label::from("10 at once").ok();
                samples.extend(vec![Sample { turn: Some(turn), what, ..one }; 10]);
            }
        }
        let results = results(samples);
        let group = results.groups()[0];
        assert_eq!(row(&results, &group, &ACKED)[2], "7");
        let ratio = gain(&results, OFF, &group, &ACKED);
        let of_bursts = |ms: f64| -> Vec<f64> { (0..7).map(|turn| ms + turn as f64).collect() };
        assert_eq!(ratio, ratio_of_medians(&of_bursts(100.0), &of_bursts(50.0)));
    }
}

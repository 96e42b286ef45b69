//! A table for each part and setting: a line for each number of senders, size and configuration.

use super::figures::{Outcome, outcome};
use crate::results::incast::{Incast, Part};
use crate::results::table::{Style, grid};
use crate::results::{Group, Results, size_text};

/// A column of a table: a value of each line's rounds.
struct Column {
    name: &'static str,
    text: fn(&Outcome) -> String,
}

const COMMON: [Column; 7] = [
    Column { name: "n", text: |outcome| outcome.rounds.to_string() },
    Column { name: "goodput Mb/s", text: |outcome| format!("{:.0}", outcome.goodput_mbps) },
    Column { name: "timeout %", text: |outcome| format!("{:.1}", outcome.timeout_pct) },
    Column { name: "timeouts/round", text: |outcome| format!("{:.1}", outcome.timeouts) },
    Column { name: "retrans./round", text: |outcome| format!("{:.1}", outcome.retransmissions) },
    Column { name: "drops/round", text: |outcome| format!("{:.1}", outcome.last_hop_drops) },
    Column {
        name: "CPUs busy %",
        text: |outcome| outcome.cpus_busy_pct.map_or("-".into(), |busy| format!("{busy:.0}")),
    },
];
const PROBES: Column =
    Column { name: "probes/round", text: |outcome| format!("{:.1}", outcome.window_probes) };
const MARKS: Column =
    Column { name: "marks/round", text: |outcome| format!("{:.1}", outcome.last_hop_marks) };
const SHAPED: Column = Column {
    name: "shaped",
    text: |outcome| outcome.shaped.map_or("-".into(), |shaped| format!("{shaped:.1}")),
};
const HUNG: Column = Column { name: "hung", text: |outcome| outcome.hung.to_string() };

const ENDS: [&Column; 2] = [&PROBES, &HUNG];
const GUESTS_ENDS: [&Column; 4] = [&MARKS, &PROBES, &SHAPED, &HUNG];

fn columns(part: Part) -> Vec<&'static Column> {
    let ends = if part.has_guests() { &GUESTS_ENDS[..] } else { &ENDS };
    COMMON.iter().chain(ends.iter().copied()).collect()
}

const LONG_HEADER: [&str; 9] = [
    "configuration",
    "senders",
    "n",
    "goodput Mb/s",
    "slowest flow",
    "fastest flow",
    "Jain's index",
    "timeouts",
    "drops/round",
];

pub fn render(results: &Results, style: Style) -> String {
    let groups = results.groups();
    let mut headings: Vec<String> = Vec::new();
    for heading in groups.iter().filter_map(|group| Some(heading(group.cell.incast.as_ref()?))) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let tables = headings.into_iter().map(|wanted| {
        let groups: Vec<_> = groups
            .iter()
            .filter(|group| group.cell.incast.is_some_and(|incast| heading(&incast) == wanted))
            .collect();
        let table = match groups.iter().find_map(|group| part(group)) {
            Some(Part::Long) | None => {
                let rows = groups.iter().flat_map(|group| rows(results, group, long_row));
                grid(style, &LONG_HEADER, 1, rows.collect())
            }
            Some(part) => {
                let columns = columns(part);
                let header: Vec<_> = ["size", "configuration", "senders"]
                    .into_iter()
                    .chain(columns.iter().map(|column| column.name))
                    .collect();
                let row = |_: &Results, group: &Group, name: String, outcome: Outcome| {
                    let texts = columns.iter().map(|column| (column.text)(&outcome));
                    let first = [size_text(group.size_bytes), name, senders(group)];
                    first.into_iter().chain(texts).collect()
                };
                let rows = groups.iter().flat_map(|group| rows(results, group, row));
                grid(style, &header, 2, rows.collect())
            }
        };
        match style {
            Style::Terminal => format!("{wanted}\n\n{table}"),
            Style::Markdown => format!("### {wanted}\n\n{table}"),
        }
    });
    let mut text = tables.collect::<Vec<_>>().join("\n\n");
    let tap_drops: u64 = results.samples.iter().map(|sample| sample.tap_drops).sum();
    if tap_drops > 0 {
        text += &format!("\n\n{tap_drops} packets were lost at the VM's tap, not at the last hop.");
    }
    text
}

fn heading(incast: &Incast) -> String {
    format!("{}: {}", incast.part.name(), incast.setting())
}

fn part(group: &Group) -> Option<Part> {
    group.cell.incast.map(|incast| incast.part)
}

fn rows(
    results: &Results,
    group: &Group,
    row: impl Fn(&Results, &Group, String, Outcome) -> Vec<String>,
) -> Vec<Vec<String>> {
    let names = results.configurations().into_iter();
    names
        .filter_map(|name| {
            let outcome = outcome(results.of(&name, group))?;
            Some(row(results, group, name, outcome))
        })
        .collect()
}

fn long_row(results: &Results, group: &Group, name: String, outcome: Outcome) -> Vec<String> {
    let flows: Vec<f64> = results
        .of(&name, group)
        .filter_map(|sample| sample.round.as_ref())
        .flat_map(|round| round.flows_mbps.iter().copied())
        .collect();
    let least = flows.iter().copied().fold(f64::INFINITY, f64::min);
    let most = flows.iter().copied().fold(0.0, f64::max);
    vec![
        name,
        senders(group),
        outcome.rounds.to_string(),
        format!("{:.0}", outcome.goodput_mbps),
        format!("{least:.1}"),
        format!("{most:.1}"),
        outcome.jain_index.map_or("-".into(), |index| format!("{index:.3}")),
        format!("{:.1}", outcome.timeouts),
        format!("{:.1}", outcome.last_hop_drops),
    ]
}

fn senders(group: &Group) -> String {
    group.cell.incast.map_or("-".into(), |incast| incast.senders.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::figures::testing::{hung, in_part, round};
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn every_configuration_of_a_setting_has_a_line_and_other_settings_other_tables() {
        let mut reno = round("off", 40, 60.0, 1);
        if let Some(incast) = &mut reno.cell.incast {
            incast.congestion_control = crate::results::incast::CongestionControl::Reno;
        }
        let samples = vec![round("off", 40, 50.0, 2), round("incast", 40, 900.0, 0), reno];
        let text = render(&results(samples), Style::Markdown);
        assert_eq!(text.matches("### ").count(), 2, "{text}");
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        let line = |name: &str| {
            let mut found = lines.iter().filter(|fields| fields.get(2) == Some(&name));
            found.next().unwrap_or_else(|| panic!("no line of {name} in {text}"))
        };
        assert_eq!(line("off")[3..8], ["40", "1", "50", "100.0", "2.0"]);
        assert_eq!(line("incast")[3..8], ["40", "1", "900", "0.0", "0.0"]);
    }

    #[test]
    fn tables_of_guests_say_what_was_marked_and_shaped() {
        let mut sample = in_part(Part::Dctcp, round("incast", 8, 90.0, 0));
        if let Some(round) = &mut sample.round {
            (round.last_hop_marks, round.shaped) = (120, Some(7));
        }
        sample.values.insert(crate::experiment::cpus::BUSY.into(), 87.4);
        let text = render(&results(vec![sample]), Style::Markdown);
        let fields = |line: &str| -> Vec<String> {
            line.split('|').map(|field| field.trim().to_owned()).collect()
        };
        let lines: Vec<_> = text.lines().map(fields).collect();
        let header = lines.iter().find(|line| line.contains(&"shaped".into())).unwrap();
        let line = lines.iter().find(|line| line.contains(&"incast".into())).unwrap();
        let value = |name: &str| {
            let column = header.iter().position(|field| field == name).unwrap();
            line[column].clone()
        };
        assert_eq!((value("marks/round"), value("shaped")), ("120.0".into(), "7.0".into()));
        assert_eq!(value("CPUs busy %"), "87");
    }

    #[test]
    fn what_was_lost_elsewhere_is_said() {
        let mut sample = hung("off", 1);
        assert!(!render(&results(vec![sample.clone()]), Style::Terminal).contains("tap"));
        sample.tap_drops = 3;
        let text = render(&results(vec![sample]), Style::Terminal);
        assert!(text.contains("3 packets were lost at the VM's tap"), "{text}");
    }
}

//! report.md, what the terminal shows, and the plots.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use vsnoop_lab::results::drawing::Drawing;
use vsnoop_lab::results::lines::{Line, Lines};
use vsnoop_lab::results::table::{NOT_MEASURED, Style, grid, milliseconds, ratio};

use crate::cell::{Cell, Kind, Outcome};
use crate::figures::{VALIDATION, gains, pairs, percentile};
use crate::record::{Done, Results};
use crate::scenario::Scenario;

/// Rows of one table: all that differs beside configuration and senders.
fn head(cell: &Cell) -> String {
    let mut head = format!(
        "{}: {} Gb/s, {} KB each, buffer {} KB, {} us",
        cell.series,
        cell.gbps,
        cell.answer_bytes / 1000,
        cell.buffer_bytes / 1000,
        cell.rtt_us
    );
    let usual = Cell::default();
    if cell.kind != Kind::Queries {
        head = head.replacen(':', &format!(": {},", cell.kind.name()), 1);
    }
    let mut add = |differs: bool, text: String| {
        if differs {
            head += &text;
        }
    };
    add(cell.jitter_us != usual.jitter_us, format!(", jitter {} us", cell.jitter_us));
    add(cell.alpha != usual.alpha, format!(", shared, alpha {}", cell.alpha));
    add(cell.rto_min_ms != usual.rto_min_ms, format!(", RTO from {} ms", cell.rto_min_ms));
    add(cell.vms != usual.vms, format!(", {} VMs", cell.vms));
    add(cell.background != usual.background, format!(", {} in the background", cell.background));
    let buffer = cell.receive_buffer_bytes;
    add(buffer != usual.receive_buffer_bytes, format!(", receive buffer {} MB", buffer >> 20));
    let stops = format!(", VMs stand {} of {} ms", cell.stop_ms, cell.period_ms);
    add(cell.stop_ms > 0, stops);
    add(!cell.waits.is_empty(), format!(", waits as recorded, {}", cell.waits));
    add(cell.vm_gbps > 0.0, format!(", VM takes in {} Gb/s", cell.vm_gbps));
    head
}

fn groups(cells: &[Done]) -> BTreeMap<String, Vec<&Done>> {
    let mut groups = BTreeMap::<String, Vec<&Done>>::new();
    for done in cells {
        groups.entry(head(&done.cell)).or_default().push(done);
    }
    for group in groups.values_mut() {
        group.sort_by_key(|done| (done.cell.senders, done.cell.configuration));
    }
    groups
}

/// Titles of a table's columns.
fn header(kind: Kind) -> [&'static str; 9] {
    match kind {
        Kind::Queries => [
            "configuration",
            "senders",
            "goodput\nMb/s",
            "of the\nline",
            "rounds\nlate",
            "timeouts",
            "drops",
            "p50\nms",
            "p99\nms",
        ],
        Kind::Flows => [
            "configuration",
            "flows",
            "goodput\nMb/s",
            "of the\nline",
            "Jain's\nindex",
            "timeouts",
            "drops",
            "slowest, of\nits share",
            "last has its\nshare after ms",
        ],
        Kind::Uploads | Kind::Downloads => [
            "configuration",
            "VMs",
            "goodput\nMb/s",
            "times sooner\np10/p50/p90",
            "timeouts",
            "holds at most\nMB",
            "early ACKs,\nengine's runs/s",
            "p50\nms",
            "p99\nms",
        ],
    }
}

fn row(cells: &[Done], done: &Done) -> Vec<String> {
    match done.cell.kind {
        Kind::Queries => row_of_queries(done),
        Kind::Flows => row_of_flows(done),
        Kind::Uploads | Kind::Downloads => row_of_transfers(cells, done),
    }
}

fn row_of_flows(Done { cell, outcome, .. }: &Done) -> Vec<String> {
    let number = |name: &str, digits: usize| {
        let value = outcome.as_ref().and_then(|outcome| outcome.other(name));
        value.map_or(NOT_MEASURED.into(), |value| format!("{value:.digits$}"))
    };
    let value =
        |text: &dyn Fn(&Outcome) -> String| outcome.as_ref().map_or(NOT_MEASURED.into(), text);
    vec![
        cell.configuration.name().into(),
        cell.senders.to_string(),
        value(&|o| format!("{:.0}", o.goodput_mbps)),
        value(&|o| format!("{:.2}", o.goodput_mbps / cell.line_mbps())),
        number("jain", 3),
        value(&|o| o.timeouts.to_string()),
        value(&|o| o.drops.to_string()),
        number("least_share", 2),
        number("converged_ms", 1),
    ]
}

fn row_of_transfers(cells: &[Done], Done { cell, outcome, .. }: &Done) -> Vec<String> {
    let ended = outcome.as_ref().filter(|outcome| outcome.ended > 0);
    let value = |text: &dyn Fn(&Outcome) -> Option<String>| {
        ended.and_then(text).unwrap_or(NOT_MEASURED.into())
    };
    let gain = || {
        let gains = gains(cells, cell)?;
        let at = |part| format!("{:.2}", percentile(&gains, part));
        Some([at(0.1), at(0.5), at(0.9)].join("/"))
    };
    let gain = if cell.configuration.is_early() { gain() } else { None };
    vec![
        cell.configuration.name().into(),
        cell.vms.to_string(),
        value(&|o| Some(format!("{:.1}", o.goodput_mbps))),
        gain.unwrap_or_default(),
        value(&|o| Some(o.timeouts.to_string())),
        value(&|o| Some(format!("{:.1}", o.other("hold_host_most_bytes")? / 1e6))),
        value(&|o| {
            let (acks, runs) = (o.per_second("early_acks")?, o.per_second("engine_runs")?);
            Some(format!("{acks:.0}, {runs:.0}"))
        }),
        value(&|o| Some(milliseconds(o.completion_p50_ms))),
        value(&|o| Some(milliseconds(o.completion_p99_ms))),
    ]
}

fn row_of_queries(Done { cell, outcome, .. }: &Done) -> Vec<String> {
    let value = |text: &dyn Fn(&Outcome) -> String| {
        outcome.as_ref().map_or(NOT_MEASURED.into(), |outcome| match outcome.ended {
            0 => NOT_MEASURED.into(),
            _ => text(outcome),
        })
    };
    let hung = outcome.as_ref().map_or(NOT_MEASURED.into(), |o| match o.rounds - o.ended {
        0 => format!("{}/{}", o.late_rounds, o.rounds),
        hung => format!("{hung} hung"),
    });
    vec![
        cell.configuration.name().into(),
        cell.senders.to_string(),
        value(&|o| format!("{:.0}", o.goodput_mbps)),
        value(&|o| format!("{:.2}", o.goodput_mbps / cell.line_mbps())),
        hung,
        value(&|o| o.timeouts.to_string()),
        value(&|o| o.drops.to_string()),
        value(&|o| milliseconds(o.completion_p50_ms)),
        value(&|o| milliseconds(o.completion_p99_ms)),
    ]
}

fn validation(style: Style, scenario: &Scenario, results: &Results) -> String {
    let header = [
        "Mb/s",
        "kind",
        "senders",
        "KB each",
        "configuration",
        "lab\nMb/s or ms",
        "simulated\nMb/s or ms",
        "ratio",
        "lab late\n%",
        "simulated\nlate %",
        "differs by",
    ];
    let pairs = pairs(&results.cells, &scenario.lab);
    let rows = pairs.iter().map(|pair| {
        let late = 100.0 * pair.simulated.late_rounds as f64 / pair.simulated.rounds as f64;
        let (lab, simulated) = pair.values();
        vec![
            format!("{:.0}", pair.lab.gbps * 1e3),
            pair.lab.kind.name().into(),
            pair.lab.senders.to_string(),
            (pair.lab.answer_bytes / 1000).to_string(),
            pair.lab.configuration.name().into(),
            format!("{lab:.0}"),
            format!("{simulated:.0}"),
            ratio(pair.ratio()),
            format!("{:.0}", pair.lab.late_percent),
            format!("{late:.0}"),
            pair.lab.differs.clone(),
        ]
    });
    grid(style, &header, 0, rows.collect())
}

fn figures(style: Style, results: &Results) -> String {
    let rows = results.figures.iter();
    let rows = rows.map(|f| vec![f.name.clone(), ratio(f.value), f.unit.clone()]);
    grid(style, &["figure", "value", "unit"], 1, rows.collect())
}

fn text(style: Style, scenario: &Scenario, results: &Results) -> Result<String> {
    let mut text = String::new();
    let title = |name: &str| match style {
        Style::Markdown => format!("\n### {name}\n\n"),
        Style::Terminal => format!("\n{name}\n"),
    };
    for (name, group) in groups(&results.cells) {
        let header = header(group[0].cell.kind);
        let rows = group.into_iter().map(|done| row(&results.cells, done)).collect();
        writeln!(text, "{}{}", title(&name), grid(style, &header, 1, rows))?;
    }
    if results.cells.iter().any(|done| done.cell.series == VALIDATION) {
        let table = validation(style, scenario, results);
        writeln!(text, "{}{table}", title("Beside the lab"))?;
    }
    writeln!(text, "{}{}", title("Figures"), figures(style, results))?;
    Ok(text)
}

/// Goodput over senders, for each group with several numbers of senders.
fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (title, group) in groups(&results.cells) {
        if group[0].cell.kind != Kind::Queries {
            continue;
        }
        let mut lines = BTreeMap::<&str, Vec<(f64, f64)>>::new();
        for done in &group {
            let Some(outcome) = &done.outcome else { continue };
            let point = (done.cell.senders as f64, outcome.goodput_mbps / done.cell.line_mbps());
            lines.entry(done.cell.configuration.name()).or_default().push(point);
        }
        if lines.values().all(|points| points.len() < 2) {
            continue;
        }
        let lines = lines.into_iter().map(|(name, points)| Line { name: name.into(), points });
        let name = format!("goodput-{}", names.len() + 1);
        let plot = Lines {
            title,
            x_label: "senders".into(),
            y_label: "goodput, part of the line".into(),
            y_max: None,
            is_logarithmic: false,
            has_points: true,
            lines: lines.collect(),
            paper: Vec::new(),
        };
        plot.draw(dir, &name)?;
        names.push(name);
    }
    Ok(names)
}

/// Writes report.md and the plots into `dir`. Returns what the terminal shows.
pub fn write(scenario: &Scenario, results: &Results, dir: &Path) -> Result<String> {
    let names = plots(results, dir)?;
    let mut page = format!("# {}\n\nStarted {}, by `make sim`. ", scenario.title, results.started);
    page +=
        "A forecast: ns-3 has the network and the TCPs, vsnoop its own programs and engine.\n\n";
    for (key, value) in &results.environment {
        writeln!(page, "- {key}: {value}")?;
    }
    page += &text(Style::Markdown, scenario, results)?;
    for name in names {
        writeln!(page, "\n![{name}]({name}.svg)")?;
    }
    let path = dir.join("report.md");
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    text(Style::Terminal, scenario, results)
}

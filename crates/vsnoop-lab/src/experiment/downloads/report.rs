//! Tables of downloads by kind of connection, the handshake's part apart, figures, and maps.

use std::path::Path;

use anyhow::Result;
use vsnoop_testbed::vm::Share;

use crate::experiment::nginx::compared::{
    COLUMNS, Comparison, OFF, OTHERS, PROXY, VSNOOP, place, sooner,
};
use crate::experiment::nginx::maps::{Label, maps};
use crate::experiment::nginx::times::FIRST_BYTE;
use crate::experiment::nginx::{GET, GET_OPEN};
use crate::results::drawing::Drawing;
use crate::results::incast::CongestionControl;
use crate::results::statistics::{CONNECT, DELIVERED, Metric, Ratio, TOTAL, percentile, values};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Cell, Figure, Group, Results, size_name, size_text};

/// The cell whose figures have short names: 20 ms, 20 % of a core, cubic.
const NAMED_RTT_MS: f64 = 20.0;
const NAMED_SHARE: Share = Share::Quota { percent: 20 };

/// Kinds of connections, with their titles and what they are called in names.
const KINDS: [(&str, &str, &str); 2] = [
    (GET, "A connection for each download", "get"),
    (GET_OPEN, "Open connections, idle for 0.3 to 1 s before", "get_open"),
];

pub fn tables(results: &Results, style: Style) -> String {
    let mut parts = Vec::new();
    for (kind, title, _) in KINDS {
        let groups = groups(results, kind);
        let rows: Vec<_> = groups.iter().map(|group| row(results, group)).collect();
        if !rows.is_empty() {
            parts.push(headed(style, title, &table(style, rows)));
        }
    }
    let rows: Vec<_> = groups(results, GET).iter().map(|group| parts_row(results, group)).collect();
    if !rows.is_empty() {
        let title = "A connection for each download: the handshake apart";
        parts.push(headed(style, title, &parts_table(style, rows)));
    }
    parts.extend(comparisons(results));
    parts.join("\n\n")
}

fn headed(style: Style, title: &str, table: &str) -> String {
    match style {
        Style::Terminal => format!("{title}\n{table}"),
        Style::Markdown => format!("### {title}\n\n{table}"),
    }
}

/// Downloads of one kind, by cell and size.
fn groups(results: &Results, kind: &str) -> Vec<Group> {
    let is_it = |group: &Group| group.what.is_some_and(|what| &*what == kind);
    results.groups().into_iter().filter(is_it).collect()
}

fn table(style: Style, rows: Vec<Vec<String>>) -> String {
    grid(style, &[&["size"], &COLUMNS[..]].concat(), 4, rows)
}

fn row(results: &Results, group: &Group) -> Vec<String> {
    let mut row = place_of(group);
    row.extend([OFF, VSNOOP].map(|name| median(results, name, group, &TOTAL)));
    row.extend(OTHERS.map(|other| text(sooner(results, other, group, &TOTAL))));
    row
}

fn parts_table(style: Style, rows: Vec<Vec<String>>) -> String {
    let header = [
        "size",
        "path\nms",
        "share",
        "control",
        "SYN-ACK ms\noff/vsnoop/\nproxy",
        "from then on\noff/vsnoop/\nproxy",
        "of these until\nthe first byte\noff/vsnoop/\nproxy",
        "from then on\nproxy/\nvsnoop",
    ];
    grid(style, &header, 4, rows)
}

/// From the SYN-ACK until the first byte of the response.
const FIRST: Metric =
    Metric { name: FIRST_BYTE, of: |sample| sample.values.get(FIRST_BYTE).copied() };

/// Medians until the SYN-ACK, from then on, and of these until the first byte.
fn parts_row(results: &Results, group: &Group) -> Vec<String> {
    let medians = |metric: &Metric| {
        [OFF, VSNOOP, PROXY].map(|name| median(results, name, group, metric)).join("/")
    };
    let mut row = place_of(group);
    row.extend([&CONNECT, &DELIVERED, &FIRST].map(medians));
    row.push(text(sooner(results, PROXY, group, &DELIVERED)));
    row
}

fn place_of(group: &Group) -> Vec<String> {
    std::iter::once(size_text(group.size_bytes)).chain(place(&group.cell)).collect()
}

fn median(results: &Results, name: &str, group: &Group, metric: &Metric) -> String {
    or_dash(milliseconds)(percentile(&values(results, name, group, metric), 50.0))
}

fn text(ratio: Option<Ratio>) -> String {
    ratio.map_or("-".into(), |ratio| ratio.text())
}

/// Downloads of this kind beside another configuration.
fn beside(results: &Results, kind: &str, other: &str, metric: &Metric) -> Comparison {
    Comparison::of(results, other, groups(results, kind).iter(), metric)
}

fn comparisons(results: &Results) -> Vec<String> {
    let sentence = |(title, kind, metric): (&str, &str, &Metric)| {
        let text = |other: &&str| beside(results, kind, other, metric).text(other);
        let parts: Vec<_> = OTHERS.iter().filter_map(text).collect();
        (!parts.is_empty()).then(|| format!("{title}: {}.", parts.join("; ")))
    };
    let all = [
        ("A connection for each download", GET, &TOTAL),
        ("The same from the SYN-ACK on", GET, &DELIVERED),
        ("Open connections", GET_OPEN, &TOTAL),
    ];
    all.into_iter().filter_map(sentence).collect()
}

/// Names end with the size in bytes and the cell, those of one cell with the size alone.
pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = later_figures(results);
    for (kind, _, name) in KINDS {
        for group in groups(results, kind) {
            let (size, suffix) = (group.size_bytes, group.cell.suffix());
            for other in OTHERS {
                let Some(ratio) = sooner(results, other, &group, &TOTAL) else { continue };
                let figure = |name: String| Figure {
                    name,
                    value: ratio.value,
                    unit: "times".into(),
                    better: "higher".into(),
                };
                let name = format!("{name}_p50_{other}_over_vsnoop_{size}");
                figures.push(figure(format!("{name}_{suffix}")));
                if is_named(&group.cell) {
                    figures.push(figure(name));
                }
            }
        }
    }
    figures
}

fn is_named(cell: &Cell) -> bool {
    cell.path_rtt_ms == NAMED_RTT_MS
        && cell.share == Some(NAMED_SHARE)
        && cell.congestion_control.unwrap_or_default() == CongestionControl::Cubic
}

/// In how many cells and sizes vsnoop is later beyond the noise.
fn later_figures(results: &Results) -> Vec<Figure> {
    let of_both = |other: &str| {
        let groups = results.groups();
        Comparison::of(results, other, groups.iter(), &TOTAL)
    };
    let proxy = |kind: &str, metric: &Metric| beside(results, kind, PROXY, metric);
    let all = [
        (proxy(GET_OPEN, &TOTAL), "downloads_cells_later_than_proxy"),
        (of_both(OFF), "downloads_cells_later_than_off"),
        (proxy(GET, &TOTAL), "downloads_own_cells_later_than_proxy"),
        (proxy(GET, &DELIVERED), "downloads_own_cells_later_than_proxy_from_syn_ack"),
    ];
    all.into_iter().filter_map(|(comparison, name)| comparison.later_figure(name)).collect()
}

pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (kind, _, name) in KINDS {
        for other in [OFF, PROXY] {
            let label = |group: &Group| label(group, name, other);
            let ratio = |group: &Group| sooner(results, other, group, &TOTAL);
            for map in maps(&groups(results, kind), label, ratio) {
                if map.fields.iter().flatten().all(Option::is_none) {
                    continue;
                }
                map.draw(dir, &map.name)?;
                names.push(map.name);
            }
        }
    }
    Ok(names)
}

/// A map for each kind, size and congestion control.
fn label(group: &Group, kind: &str, other: &str) -> Label {
    let control = group.cell.congestion_control.unwrap_or_default().name();
    let (kind, size) = (kind.replace('_', "-"), group.size_bytes);
    let connection = if kind.ends_with("open") { "open connection" } else { "own connection" };
    Label {
        name: format!("map-{kind}-{}-{control}-{other}", size_name(size)),
        title: format!(
            "GET {}, {connection}, {control}: times sooner than {other}",
            size_text(size)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::declared::Declaration;
    use crate::experiment::goals;
    use crate::results::testing::{results, sample};
    use crate::results::{Label as What, Sample};

    /// Times until the SYN-ACK, and from then on.
    fn download(configuration: &str, kind: &str, (connect, rest): (f64, f64)) -> Sample {
        let mut sample = sample(configuration, 1.0);
        sample.size_bytes = 1_000_000;
        sample.what = What::from(kind).ok();
        (sample.connect_ms, sample.delivered_ms) = (Some(connect), Some(rest));
        sample.cell.path_rtt_ms = NAMED_RTT_MS;
        sample.cell.share = Some(NAMED_SHARE);
        sample.cell.congestion_control = Some(CongestionControl::Cubic);
        sample
    }

    fn value(results: &Results, name: &str) -> Option<f64> {
        figures(results).iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    #[test]
    fn the_proxys_handshake_stands_apart_and_later_cells_are_counted() {
        let mut samples = Vec::new();
        for _ in 0..6 {
            for (name, own, open) in [
                (OFF, (60.0, 540.0), (0.0, 900.0)),
                (VSNOOP, (60.0, 140.0), (0.0, 300.0)),
                // Sooner by its handshake only.
                (PROXY, (20.0, 150.0), (0.0, 200.0)),
            ] {
                samples.extend([download(name, GET, own), download(name, GET_OPEN, open)]);
            }
        }
        let results = results(samples);
        assert_eq!(value(&results, "get_p50_off_over_vsnoop_1000000"), Some(3.0));
        assert_eq!(value(&results, "get_open_p50_off_over_vsnoop_1000000"), Some(3.0));
        assert_eq!(value(&results, "downloads_cells_later_than_off"), Some(0.0));
        assert_eq!(value(&results, "downloads_cells_later_than_proxy"), Some(1.0));
        assert_eq!(value(&results, "downloads_own_cells_later_than_proxy"), Some(1.0));
        let from_syn_ack = "downloads_own_cells_later_than_proxy_from_syn_ack";
        assert_eq!(value(&results, from_syn_ack), Some(0.0));
        let text = tables(&results, Style::Markdown);
        assert!(text.contains(" 60.0/60.0/20.0 ") && text.contains(" 540/140/150 "), "{text}");
        let open = "Open connections: of 1 requests vsnoop is sooner than off in 1 beyond the noise, \
                    later in 0; of 1 requests vsnoop is sooner than proxy in 0 beyond the noise, later \
                    in 1.";
        assert!(text.ends_with(open), "{text}");
    }

    #[test]
    fn tables_fit_a_terminal_and_few_samples_are_not_counted() {
        let mut samples = Vec::new();
        for turn in 0..8 {
            for name in [OFF, VSNOOP, PROXY, "priority"] {
                for kind in [GET, GET_OPEN] {
                    let rest = 12_000.0 + 900.0 * f64::from(turn);
                    let mut one = download(name, kind, (1234.0, rest));
                    one.cell.share = Some(Share::Fair { hogs: 3 });
                    samples.push(Sample { turn: Some(turn as usize), ..one });
                }
            }
        }
        let few = results(samples.iter().take(16).cloned().collect());
        assert_eq!(value(&few, "downloads_cells_later_than_off"), None);
        let results = results(samples);
        let text = tables(&results, Style::Terminal);
        let tables = text.lines().filter(|line| !line.ends_with('.'));
        assert!(tables.clone().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains(" noise "), "{text}");
        assert_eq!(value(&results, "get_p50_off_over_vsnoop_1000000"), None, "another cell");
    }

    #[test]
    fn maps_are_drawn_for_each_kind_and_what_was_measured() {
        let mut samples = Vec::new();
        for kind in [GET, GET_OPEN] {
            for (name, ms) in [(OFF, 300.0), (VSNOOP, 100.0)] {
                samples.extend(vec![download(name, kind, (0.0, ms)); 6]);
            }
        }
        let dir = std::env::temp_dir().join(format!("downloads-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let names = plots(&results(samples), &dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names.unwrap(), ["map-get-1mb-cubic-off", "map-get-open-1mb-cubic-off"]);
    }

    #[test]
    fn all_goals_are_about_figures_of_a_whole_run() {
        let mut samples = Vec::new();
        for size_bytes in [100_000, 1_000_000, 4_000_000] {
            for kind in [GET, GET_OPEN] {
                for (name, ms) in [(OFF, 900.0), (VSNOOP, 100.0), (PROXY, 200.0)] {
                    let one = download(name, kind, (0.0, ms));
                    samples.extend(vec![Sample { size_bytes, ..one }; 6]);
                }
            }
        }
        let mut results = results(samples);
        results.figures = figures(&results);
        let goals = &Declaration::find("downloads").unwrap().goals;
        let text = goals::judge(goals).unwrap()(&results).unwrap();
        assert_eq!(text.matches("| reached |").count(), goals.len(), "{text}");
    }
}

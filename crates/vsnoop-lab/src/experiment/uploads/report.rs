//! Tables, figures, and a map of the gain: round trip of the path by quota.

use std::path::Path;

use anyhow::Result;
use vsnoop_guest::web;

use crate::experiment::nginx::compared::{
    self, COLUMNS, Comparison, OFF, OTHERS, PROXY, VSNOOP, place,
};
use crate::experiment::nginx::exchange::request_text;
use crate::experiment::nginx::maps::{self, Label, distinct};
use crate::experiment::spent::{self, QUEUED, RAN, THROTTLED};
use crate::results::drawing::Drawing;
use crate::results::map::{Field, Map};
use crate::results::statistics::{Ratio, TOTAL, ascending, percentile, values};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Figure, Group, Results, size_name};

/// How many times sooner vsnoop is than another configuration.
fn sooner(results: &Results, other: &str, group: &Group) -> Option<Ratio> {
    compared::sooner(results, other, group, &TOTAL)
}

pub fn tables(results: &Results, style: Style) -> String {
    let spent = ["off: ran/\nthrottled/\nqueued %", "vsnoop: ran/\nthrottled/\nqueued %"];
    let header = [&["request"], &COLUMNS[..], &spent].concat();
    let rows = results.groups().iter().map(|group| row(results, group)).collect();
    let mut text = grid(style, &header, 4, rows);
    for map in maps(results) {
        let title = match style {
            Style::Terminal => map.title.clone(),
            Style::Markdown => format!("### {}", map.title),
        };
        let mut header = vec!["share \\ path"];
        header.extend(map.columns.iter().map(String::as_str));
        let row = |(name, fields): (&String, &Vec<Option<Field>>)| {
            let fields = fields.iter().map(|field| {
                field.as_ref().map_or("-".into(), |field| field.text.replace('\n', " "))
            });
            std::iter::once(name.clone()).chain(fields).collect()
        };
        let rows = map.rows.iter().zip(&map.fields).map(row).collect();
        text += &format!("\n\n{title}\n\n{}", grid(style, &header, 1, rows));
    }
    for sentence in [where_it_gains(results), beside_others(results)].into_iter().flatten() {
        text += &format!("\n\n{sentence}");
    }
    text
}

/// Whether vsnoop is sooner or later than what else there is.
fn beside_others(results: &Results) -> Option<String> {
    let of = |other: &&str| beside(results, other).text(other);
    let parts: Vec<_> = OTHERS.iter().filter(|name| **name != OFF).filter_map(of).collect();
    (!parts.is_empty()).then(|| format!("Beside the others: {}.", parts.join("; ")))
}

fn beside(results: &Results, other: &str) -> Comparison {
    Comparison::of(results, other, results.groups().iter(), &TOTAL)
}

/// Where the gain is, and what the VM does where there is none.
fn where_it_gains(results: &Results) -> Option<String> {
    let groups = results.groups();
    let compared = |group: &Group| sooner(results, OFF, group).filter(Ratio::has_interval);
    let all: Vec<_> = groups.iter().filter_map(|group| Some((group, compared(group)?))).collect();
    let (gained, rest): (Vec<_>, Vec<_>) = all.iter().partition(|(_, ratio)| ratio.low > 1.0);
    let lost = rest.iter().filter(|(_, ratio)| ratio.high < 1.0).count();
    if all.is_empty() {
        return None;
    }
    let busy = |group: &Group| {
        let [ran, throttled, queued] = shares(results, OFF, group)?;
        Some(ran + throttled + queued)
    };
    let busy = ascending(rest.iter().filter_map(|(group, _)| busy(group)));
    let bound = percentile(&busy, 50.0).map_or(String::new(), |percent| {
        format!(
            "; without vsnoop the VM ran or waited for its CPU {percent:.0} % of the time of the \
             others (median), which no early ACK shortens"
        )
    });
    Some(format!(
        "Of {} requests by path, quota, control and size, {} are confirmed sooner beyond the noise, \
         {lost} later{bound}.",
        all.len(),
        gained.len()
    ))
}

/// Percent of the time until the server's response, in which the VM ran, had used up its quota,
/// and waited while others ran.
fn shares(results: &Results, configuration: &str, group: &Group) -> Option<[f64; 3]> {
    let total = percentile(&values(results, configuration, group, &TOTAL), 50.0)?;
    let share = |name| Some(100.0 * spent::median(results, configuration, group, name)? / total);
    // A machine without a quota is not throttled.
    Some([share(RAN)?, share(THROTTLED).unwrap_or(0.0), share(QUEUED)?])
}

fn row(results: &Results, group: &Group) -> Vec<String> {
    let at = |values: &[f64]| or_dash(milliseconds)(percentile(values, 50.0));
    let confirmed = |name: &str| at(&values(results, name, group, &TOTAL));
    let [path, share, control] = place(&group.cell);
    let mut row = vec![request_text(group.size_bytes), path, share, control];
    row.extend([OFF, VSNOOP].map(confirmed));
    row.extend(
        OTHERS.map(|other| sooner(results, other, group).map_or("-".into(), |ratio| ratio.text())),
    );
    row.extend([OFF, VSNOOP].map(|name| {
        let shares = shares(results, name, group);
        shares.map_or("-".into(), |parts| parts.map(|one| format!("{one:.0}")).join("/"))
    }));
    row
}

/// Names end with the size in bytes and the cell.
pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for group in results.groups() {
        let suffix = group.cell.suffix();
        let size = group.size_bytes;
        let method = if size == web::PAGE_BYTES { "get" } else { "put" };
        for other in OTHERS {
            let Some(ratio) = sooner(results, other, &group) else { continue };
            figures.push(Figure {
                name: format!("{method}_p50_{other}_over_vsnoop_{size}_{suffix}"),
                value: ratio.value,
                unit: "times".into(),
                better: "higher".into(),
            });
        }
    }
    let later = beside(results, PROXY).later_figure("uploads_cells_later_than_proxy");
    figures.extend(later);
    figures
}

pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for map in maps(results) {
        map.draw(dir, &map.name)?;
        names.push(map.name.clone());
    }
    Ok(names)
}

/// A map for each size, congestion control and load.
fn maps(results: &Results) -> Vec<Map> {
    let groups = results.groups();
    let with_load = distinct(groups.iter().map(|group| group.cell.load)).len() > 1;
    let with_vms = distinct(groups.iter().map(|group| group.cell.vms)).len() > 1;
    let label = |group: &Group| {
        let (size, load, vms) = (group.size_bytes, group.cell.load, group.cell.vms);
        let control = group.cell.congestion_control.map_or("", |control| control.name());
        let mut name = format!("map-{}-{control}", size_name(size));
        let mut title =
            format!("{}, {control}: how many times sooner vsnoop is", request_text(size));
        if with_load {
            name += &format!("-load{}", (load * 100.0).round());
            title += &format!(", load {load}");
        }
        if with_vms {
            name += &format!("-{vms}vms");
            title += &format!(", VMs: {vms}");
        }
        Label { name, title }
    };
    maps::maps(&groups, label, |group| sooner(results, OFF, group))
}

#[cfg(test)]
mod tests {
    use vsnoop_testbed::vm::Share;

    use super::*;
    use crate::results::Sample;
    use crate::results::incast::CongestionControl;
    use crate::results::testing::{results, sample};

    fn upload(configuration: &str, rtt: f64, percent: u32, confirmed_ms: f64) -> Sample {
        let mut sample = sample(configuration, confirmed_ms / 2.0);
        sample.size_bytes = 1_000_000;
        sample.delivered_ms = Some(confirmed_ms - 1.0);
        sample.cell.path_rtt_ms = rtt;
        sample.cell.share = Some(Share::Quota { percent });
        sample
    }

    #[test]
    fn a_map_has_a_field_for_each_path_and_quota_and_none_where_nothing_was_measured() {
        let mut samples = Vec::new();
        for _ in 0..6 {
            samples.push(upload(OFF, 20.0, 50, 300.0));
            samples.push(upload(VSNOOP, 20.0, 50, 100.0));
            samples.push(upload(OFF, 0.0, 10, 100.0));
            samples.push(upload(VSNOOP, 0.0, 10, 100.0));
        }
        let results = results(samples);
        let maps = maps(&results);
        assert_eq!(maps.len(), 1);
        let map = &maps[0];
        assert_eq!(map.columns, ["0 ms", "20 ms"]);
        assert_eq!(map.rows, ["10 % of a core", "50 % of a core"]);
        assert_eq!(map.fields[1][1].as_ref().map(|field| field.value), Some(3.0));
        assert!(map.fields[0][0].as_ref().is_some_and(|field| field.is_noise));
        assert!(map.fields[0][1].is_none());
        let text = tables(&results, Style::Terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let figures = figures(&results);
        assert!(figures.iter().any(|one| one.name.starts_with("put_p50_off_over_vsnoop_1000000")));
    }

    #[test]
    fn what_the_vm_did_stands_beside_the_times_and_explains_what_gains_nothing() {
        let mut samples = Vec::new();
        let spent = [(RAN.to_owned(), 20.0), (THROTTLED.into(), 60.0), (QUEUED.into(), 1.0)];
        for (rtt, vsnoop_ms) in [(0.0, 100.0), (20.0, 50.0)] {
            for _ in 0..6 {
                samples.push(upload(OFF, rtt, 20, 100.0));
                samples.push(upload(VSNOOP, rtt, 20, vsnoop_ms));
                samples.push(upload(PROXY, rtt, 20, 100.0));
            }
        }
        samples.iter_mut().for_each(|sample| sample.values = spent.clone().into());
        let text = tables(&results(samples), Style::Markdown);
        let far = text.lines().find(|line| line.contains(" 2.00 (2.00")).unwrap_or_default();
        assert!(far.contains(" 20/60/1 |") && far.contains(" 40/120/2 |"), "{text}");
        assert!(text.contains("Of 2 requests"), "{text}");
        assert!(text.contains("1 are confirmed sooner beyond the noise, 0 later"), "{text}");
        assert!(text.contains("waited for its CPU 81 % of the time of the others"), "{text}");
        let proxy = "of 2 requests vsnoop is sooner than proxy in 1 beyond the noise, later in 0.";
        assert!(text.ends_with(proxy), "{text}");
    }

    #[test]
    fn there_is_one_map_for_each_size_and_control_however_many_paths_there_are() {
        let mut samples = Vec::new();
        for size_bytes in [1_000_000, 10_000] {
            for rtt in [0.0, 20.0] {
                for control in [CongestionControl::Cubic, CongestionControl::Bbr] {
                    let mut sample = upload(OFF, rtt, 50, 300.0);
                    sample.size_bytes = size_bytes;
                    sample.cell.congestion_control = Some(control);
                    samples.push(sample);
                }
            }
        }
        let names = |samples: &[Sample]| {
            let maps = maps(&results(samples.to_vec()));
            maps.into_iter().map(|map| map.name).collect::<Vec<_>>()
        };
        let expected = ["map-10kb-cubic", "map-10kb-bbr", "map-1mb-cubic", "map-1mb-bbr"];
        assert_eq!(names(&samples), expected);
        let mut loaded = samples.clone();
        loaded.iter_mut().for_each(|sample| sample.cell.load = 0.3);
        loaded.extend(samples);
        let names = names(&loaded);
        assert_eq!(names.len(), 8, "{names:?}");
        assert!(names.contains(&"map-1mb-bbr-load30".to_owned()), "{names:?}");
    }
}

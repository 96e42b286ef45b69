//! `link-compress`: several contents over a link of 100 Mb/s, compressed and not.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::rated_path::RatedPath;
use super::rig::Task;
use super::series::{Series, names, progress_of, rounds};
use super::stream::{Load, Until};
use super::values::{self, figure, has_content};
use super::{content, differences, plots, tables};
use crate::experiment::declared::{Own, OwnRunner};
use crate::experiment::definition::{Experiment, Options, chosen};
use crate::results::link::Content;
use crate::results::record::Record;
use crate::results::{Figure, Results};

/// The carrier whose dictionary finds what was sent before.
const DICTIONARY: &str = "vsnoop-tls-dictionary";

/// Of experiments/link-compress.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    path: RatedPath,
    carriers: Vec<String>,
    contents: Vec<Content>,
    /// Of each content.
    bytes: usize,
    rounds: usize,
    /// Carriers that take the tests of the packet compression service.
    test_carriers: Vec<String>,
    tests: Vec<Test>,
    quick: Quick,
}

/// A test runs for a time, or until so much is sent.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    content: Content,
    seconds: Option<u64>,
    bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    bytes: usize,
    rounds: usize,
}

static DECLARED: LazyLock<Own<Plan>> =
    LazyLock::new(|| Own::read(include_str!("../../../experiments/link-compress.toml")));

static RUNNER: OwnRunner = OwnRunner {
    name: "link-compress",
    run,
    tables: tables::contents,
    figures,
    goals: None,
    plots: plots::contents,
    difference: differences::compress,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let Own { plan, .. } = &*DECLARED;
    let carriers = chosen(&names(&plan.carriers), &options.configurations)?;
    let mut series = Series::begin(record, options, Some(&plan.path.faults(0.0)), &carriers)?;
    let bytes = if options.quick { plan.quick.bytes } else { plan.bytes };
    println!("making {} contents", plan.contents.len());
    let mut data = BTreeMap::new();
    for &wanted in &plan.contents {
        data.insert(wanted, content::make(wanted, bytes)?);
    }
    let ratios: BTreeMap<_, _> = data
        .iter()
        .map(|(content, data)| Ok((content.name(), content::zstd_ratios(data)?)))
        .collect::<Result<_>>()?;
    series.record.results.environment.insert("zstd_ratios_levels_1_and_3".into(), json!(ratios));
    let runs: Vec<_> =
        carriers.into_iter().filter(|name| series.rig.link(name).is_some()).collect();
    let rounds = rounds(options, plan.rounds, plan.quick.rounds);
    let mut measurements: Vec<((&str, Content), usize)> = Vec::new();
    for name in runs.iter().copied().filter(|name| *name != DICTIONARY) {
        measurements.extend(plan.contents.iter().map(|content| ((name, *content), rounds)));
    }
    // The dictionary finds only content that was sent before: the first measurement sends it.
    let mut first: Vec<((&str, Content), usize)> = Vec::new();
    if runs.contains(&DICTIONARY) {
        first.push(((DICTIONARY, Content::Text), 1));
        measurements.push(((DICTIONARY, Content::TextAgain), rounds));
    }
    let mut paper: Vec<((&str, Content), usize)> = Vec::new();
    if !options.quick {
        for name in names(&plan.test_carriers).into_iter().filter(|name| runs.contains(name)) {
            paper.extend(plan.tests.iter().map(|test| ((name, test.content), 1)));
        }
    }
    let mut progress = progress_of(&[&first, &measurements, &paper]);
    for measurements in [first, measurements, paper] {
        series.interleave(&mut progress, &measurements, |(name, content)| {
            (name, task(plan, content, &data))
        })?;
    }
    Ok(())
}

/// Sends this content once.
fn task<'a>(plan: &Plan, content: Content, data: &'a BTreeMap<Content, Vec<u8>>) -> Task<'a> {
    let test = plan.tests.iter().find(|test| test.content == content);
    let source = match content {
        Content::TextAgain => Content::Text,
        other => test.map_or(other, |_| Content::Digits),
    };
    let data = &data[&source];
    let until = match test {
        Some(Test { seconds: Some(seconds), .. }) => Until::Time(Duration::from_secs(*seconds)),
        Some(Test { bytes: Some(bytes), .. }) => Until::Bytes(*bytes),
        _ => Until::Bytes(data.len() as u64),
    };
    Task {
        cell: plan.path.cell(content, 0.0),
        load: Load { data, until, verify: true },
        idle_echoes: 0,
        loaded_echoes: false,
    }
}

fn figures(results: &Results) -> Vec<Figure> {
    let of = |carrier: &str, content: Content| values::of(results, carrier, has_content(content));
    let mbps = |carrier: &str, content| of(carrier, content).map(|values| values.median_mbps());
    let mut figures = Vec::new();
    let mut add = |name: String, value: Option<f64>, unit: &str, better: &str| {
        figures.extend(value.map(|value| figure(&name, value, unit, better)));
    };
    for &content in &DECLARED.plan.contents {
        let name = content.name();
        let tls = mbps("vsnoop-tls-auto", content);
        add(format!("compress_mbps_{name}"), tls, "Mb/s", "higher");
        let udp = mbps("vsnoop-udp-auto", content);
        add(format!("compress_mbps_{name}_udp"), udp, "Mb/s", "higher");
        let peers = ["openvpn-lz4", "vtun-zlib", "ssh-compressed"];
        let best = peers.into_iter().filter_map(|peer| mbps(peer, content)).max_by(f64::total_cmp);
        add(format!("best_peer_mbps_{name}"), best, "Mb/s", "higher");
    }
    let again = mbps(DICTIONARY, Content::TextAgain);
    add("compress_mbps_text_again".into(), again, "Mb/s", "higher");
    for content in [Content::Xz, Content::Random] {
        for (suffix, on, off) in
            [("", "vsnoop-tls-auto", "vsnoop-tls"), ("_udp", "vsnoop-udp-auto", "vsnoop-udp")]
        {
            let ratio = mbps(on, content).zip(mbps(off, content)).map(|(on, off)| on / off);
            let name = format!("compress_{}_over_off{suffix}", content.name());
            add(name, ratio, "times", "higher");
        }
    }
    for test in DECLARED.plan.tests.iter().map(|test| test.content) {
        let name = test.name();
        add(format!("{name}_mbps_off"), mbps("vsnoop-tls", test), "Mb/s", "higher");
        add(format!("{name}_mbps_auto"), mbps("vsnoop-tls-auto", test), "Mb/s", "higher");
        let saved = of("vsnoop-tls-auto", test).map(|values| values.saved_bytes() / 1e6);
        add(format!("{name}_saved_mb"), saved, "MB", "higher");
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::values::testing::sample;
    use super::*;
    use crate::experiment::goals::found;
    use crate::results::Sample;
    use crate::results::testing::results;

    fn of(carrier: &str, content: Content, mbps: f64) -> Sample {
        let mut sample = sample(carrier, mbps);
        if let Some(link) = &mut sample.cell.link {
            link.content = content;
        }
        sample
    }

    #[test]
    fn figures_name_content_and_transport() {
        let mut results = results(vec![
            of("vsnoop-tls-auto", Content::Text, 410.0),
            of("vsnoop-udp-auto", Content::Text, 330.0),
            of("vtun-zlib", Content::Text, 290.0),
            of("ssh-compressed", Content::Text, 305.0),
            of(DICTIONARY, Content::Text, 300.0),
            of(DICTIONARY, Content::TextAgain, 1500.0),
            of("vsnoop-tls-auto", Content::Random, 94.0),
            of("vsnoop-tls", Content::Random, 95.0),
        ]);
        results.figures = figures(&results);
        assert_eq!(found(&results, "compress_mbps_text"), Some(410.0));
        assert_eq!(found(&results, "compress_mbps_text_udp"), Some(330.0));
        assert_eq!(found(&results, "compress_mbps_text_again"), Some(1500.0));
        assert_eq!(found(&results, "best_peer_mbps_text"), Some(305.0));
        assert_eq!(found(&results, "compress_random_over_off"), Some(94.0 / 95.0));
        assert_eq!(found(&results, "compress_xz_over_off"), None);
    }
}

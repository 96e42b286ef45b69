//! `link-compress`: several contents over a link of 100 Mb/s, compressed and not.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use vsnoop_testbed::relay::{Bottleneck, Faults};

use super::rig::{Task, cell};
use super::series::{Series, progress_of, rounds};
use super::stream::{Load, Until};
use super::values::{self, figure, has_content};
use super::{content, papers, plots, tables};
use crate::experiment::definition::{Experiment, Options, Takes, chosen};
use crate::experiment::goals::{self, Bound, Goal};
use crate::results::link::{Content, LinkCell};
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::{Figure, Results};

const CARRIERS: [&str; 9] = [
    "bare",
    "vsnoop-udp",
    "vsnoop-tls",
    "vsnoop-udp-auto",
    "vsnoop-tls-auto",
    DICTIONARY,
    "openvpn-lz4",
    "vtun-zlib",
    "ssh-compressed",
];
const DICTIONARY: &str = "vsnoop-tls-dictionary";

const CONTENTS: [Content; 6] =
    [Content::Digits, Content::Text, Content::Json, Content::Usrlib, Content::Xz, Content::Random];

/// The tests of the packet compression service, and the carriers that take them with and without
/// compression.
const PAPER_TESTS: [Content; 3] = [Content::Iperf10s, Content::Iperf30s, Content::Iperf200mb];
const PAPER_CARRIERS: [&str; 2] = ["vsnoop-tls", "vsnoop-tls-auto"];

const RATE_MBIT: u64 = 100;
const ONE_WAY: Duration = Duration::from_micros(500);
const QUEUE_BYTES: u64 = 375_000;
const BYTES: usize = 50_000_000;
const QUICK_BYTES: usize = 10_000_000;
const ROUNDS: usize = 2;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "link-compress",
    about: "50 MB each of digits, text, logs, libraries, xz, random over 100 Mb/s, compressed and not",
    words: Words {
        title: "Compression on a link of 100 Mb/s",
        what_to_see: "Goodput of each content, delivered and verified, and what the path was spared. \
            `iperf` are the three tests of the packet compression service (its Fig. 3 and Table 1): \
            `vsnoop-tls` is without compression, `vsnoop-tls-auto` with it. `text-again` is text that \
            the same link has carried before.",
        method: METHOD,
        command: "make lab RUN=link-compress",
        tables: tables::contents,
        figures,
        goals: Some(&|results| goals::render(&GOALS, results)),
        papers: &[papers::COMPRESS],
        plots: plots::contents,
    },
    takes: Takes { full_min: 6, quick_min: 1 },
    run,
};

const METHOD: &str = "The hosts, the link and the carriers are those of link-wan, with a delay of 0.5 ms \
each way and no loss. A measurement sends 50 MB of a content over a connection of its own (cubic, verified \
with `ss -ti`); the receiver compares every byte, and the time is from the first write to the last byte. \
Digits are `0123456789` over and over, as iperf sends them; text and JSON logs are made up from a seed, the \
same everywhere; libraries are those of this machine in the order of their names; xz is what `xz -0` makes \
of other log lines. Ratios of zstd at levels 1 and 3 over the whole stand under *Environment*: the bound \
for a link is about that many times 95.6 Mb/s. The saving is what the sending host put on the path, \
headers and all, against the bytes that arrived. `text-again` comes after the same text over the same \
link; the iperf tests run for 10 s, for 30 s, and over 200 MB.";

const GOALS: [Goal; 12] = [
    Goal { figure: Cow::Borrowed("compress_mbps_digits"), bound: Bound::AtLeast(2300.0) },
    Goal { figure: Cow::Borrowed("compress_mbps_text"), bound: Bound::AtLeast(400.0) },
    Goal { figure: Cow::Borrowed("compress_mbps_json"), bound: Bound::AtLeast(350.0) },
    Goal { figure: Cow::Borrowed("compress_mbps_usrlib"), bound: Bound::AtLeast(215.0) },
    Goal { figure: Cow::Borrowed("compress_mbps_text_udp"), bound: Bound::AtLeast(320.0) },
    Goal { figure: Cow::Borrowed("compress_random_over_off"), bound: Bound::AtLeast(0.98) },
    Goal { figure: Cow::Borrowed("compress_xz_over_off"), bound: Bound::AtLeast(0.98) },
    Goal { figure: Cow::Borrowed("compress_random_over_off_udp"), bound: Bound::AtLeast(0.98) },
    Goal { figure: Cow::Borrowed("compress_xz_over_off_udp"), bound: Bound::AtLeast(0.98) },
    Goal { figure: Cow::Borrowed("compress_mbps_text_again"), bound: Bound::AtLeast(1400.0) },
    Goal {
        figure: Cow::Borrowed("compress_mbps_text"),
        bound: Bound::Times(1.0, Cow::Borrowed("best_peer_mbps_text")),
    },
    Goal {
        figure: Cow::Borrowed("compress_mbps_json"),
        bound: Bound::Times(1.0, Cow::Borrowed("best_peer_mbps_json")),
    },
];

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let carriers = chosen(&CARRIERS, &options.configurations)?;
    let faults = Faults {
        delay: ONE_WAY,
        bottleneck: Some(Bottleneck::new(RATE_MBIT, QUEUE_BYTES)),
        ..Faults::default()
    };
    let mut series = Series::begin(record, options, Some(&faults), &carriers)?;
    let bytes = if options.quick { QUICK_BYTES } else { BYTES };
    println!("making {} contents", CONTENTS.len());
    let mut data = BTreeMap::new();
    for wanted in CONTENTS {
        data.insert(wanted, content::make(wanted, bytes)?);
    }
    let ratios: BTreeMap<_, _> = data
        .iter()
        .map(|(content, data)| Ok((content.name(), content::zstd_ratios(data)?)))
        .collect::<Result<_>>()?;
    series.record.results.environment.insert("zstd_ratios_levels_1_and_3".into(), json!(ratios));
    let runs: Vec<_> =
        carriers.into_iter().filter(|name| series.rig.link(name).is_some()).collect();
    let mut measurements: Vec<((&str, Content), usize)> = Vec::new();
    for name in runs.iter().copied().filter(|name| *name != DICTIONARY) {
        measurements.extend(CONTENTS.map(|content| ((name, content), rounds(options, ROUNDS))));
    }
    // The dictionary finds only content that was sent before: the first measurement sends it.
    let mut first: Vec<((&str, Content), usize)> = Vec::new();
    if runs.contains(&DICTIONARY) {
        first.push(((DICTIONARY, Content::Text), 1));
        measurements.push(((DICTIONARY, Content::TextAgain), rounds(options, ROUNDS)));
    }
    let mut paper: Vec<((&str, Content), usize)> = Vec::new();
    if !options.quick {
        let takers = PAPER_CARRIERS.iter().copied().filter(|name| runs.contains(name));
        paper.extend(takers.flat_map(|name| PAPER_TESTS.map(|test| ((name, test), 1))));
    }
    let mut progress = progress_of(&[&first, &measurements, &paper]);
    for measurements in [first, measurements, paper] {
        series.interleave(&mut progress, &measurements, |(name, content)| {
            (name, task(content, &data))
        })?;
    }
    Ok(())
}

/// Sends this content once.
fn task(content: Content, data: &BTreeMap<Content, Vec<u8>>) -> Task<'_> {
    let source = match content {
        Content::TextAgain => Content::Text,
        Content::Iperf10s | Content::Iperf30s | Content::Iperf200mb => Content::Digits,
        other => other,
    };
    let data = &data[&source];
    let until = match content {
        Content::Iperf10s => Until::Time(Duration::from_secs(10)),
        Content::Iperf30s => Until::Time(Duration::from_secs(30)),
        Content::Iperf200mb => Until::Bytes(200_000_000),
        _ => Until::Bytes(data.len() as u64),
    };
    let about = LinkCell { rate_mbit: Some(RATE_MBIT), offloads: true, content };
    Task {
        cell: cell(about, 2.0 * ONE_WAY.as_secs_f64() * 1e3, 0.0),
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
    for content in CONTENTS {
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
    for test in PAPER_TESTS {
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

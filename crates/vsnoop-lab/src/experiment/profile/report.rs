//! Table I with ours beside it: functions by routine of the report, in nanoseconds and cycles.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::perf;
use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::statistics::{ascending, named, percentile};
use crate::results::table::{Style, grid};
use crate::results::{Figure, Group, Results, Sample, Values, ms};

/// Names of values: each routine has its time per packet, its share of the host's core, and how
/// many samples they are from.
pub const NS: &str = "_ns";
pub const PERCENT: &str = "_cpu_percent";
pub const SAMPLES: &str = "_samples";
/// Until all bytes had arrived.
pub const TOOK: &str = "took_ms";
/// Packets to VMs, which may be super-packets, and in segments of an MTU.
pub const PACKETS: &str = "packets_to_vm";
pub const SEGMENTS: &str = "segments_to_vm";

/// The processor's clock, in the environment.
pub const MHZ: &str = "cpu_mhz";
const VSNOOP: &str = "vsnoop";
const OFF: &str = "off";

/// Routines of the report, and those that it does not have: parsing is a part of its hooks, and it
/// makes no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routine {
    Parse,
    Ingress,
    Lookup,
    BuildAck,
    Hold,
    Egress,
}

/// The packets that a routine is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    ToVm,
    FromVm,
    Both,
}

/// The functions of the BPF programs on the path of packets, by routine, as bpf/ has them.
const FUNCTIONS: [(Routine, &[&str]); 5] = [
    (Routine::Parse, &["parse_packet", "parse_options", "parse_option"]),
    (
        Routine::Ingress,
        &[
            "to_vm",
            "decide_locked",
            "decide_kept",
            "decide_engine",
            "decide_sender_ack",
            "flow_for_sender",
            "note_sender",
            "pass_passive",
            "wait_for_hold",
            "freshen",
            "send_sender_ack",
            "rewrite_seq",
            "drop_fin",
            "pass_with_grant",
            "grant_next",
            "try_grant",
            "show_grant",
            "serve_flow",
            "send_ack_and_grant",
            "write_grant",
            "incast_syn",
            "enqueue_flow",
        ],
    ),
    (Routine::BuildAck, &["make_reply"]),
    (
        Routine::Hold,
        &[
            "hold_copy",
            "hold_take",
            "hold_free",
            "hold_reclaim",
            "try_hold",
            "seek_chunk",
            "try_chunk",
            "add_chunk",
            "free_run",
            "copy_chunk",
            "sums_up",
            "checksum_chunk",
            "note_failure",
        ],
    ),
    (
        Routine::Egress,
        &[
            "from_vm",
            "decide_from_vm",
            "flow_for_vm",
            "flow_is_replaced",
            "decide_too_big",
            "read_report",
            "report_of_vm",
            "syn_of_vm",
            "rewrite_ack",
            "rewrite_window",
            "hand_sack_on",
            "reset_both",
            "piggyback_grant",
            "incast_answer",
            "incast_flow_ends",
        ],
    ),
];

impl Routine {
    pub const ALL: [Self; 6] =
        [Self::Parse, Self::Ingress, Self::Lookup, Self::BuildAck, Self::Hold, Self::Egress];

    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Ingress => "ingress",
            Self::Lookup => "lookup",
            Self::BuildAck => "build_ack",
            Self::Hold => "hold",
            Self::Egress => "egress",
        }
    }

    pub fn packets(self) -> Packets {
        match self {
            Self::Parse => Packets::Both,
            Self::Egress => Packets::FromVm,
            Self::Ingress | Self::Lookup | Self::BuildAck | Self::Hold => Packets::ToVm,
        }
    }

    /// What is in it.
    fn text(self) -> &'static str {
        match self {
            Self::Parse => "parse: headers, both ways",
            Self::Ingress => "ingress: to_vm and what it calls",
            Self::Lookup => "lookup: the kernel's hash table",
            Self::BuildAck => "build ACK: make_reply",
            Self::Hold => "hold: copies of the data",
            Self::Egress => "egress: from_vm and what it calls",
        }
    }

    /// Cycles of the report's Table I: one stream, 100 streams.
    fn paper(self) -> Option<[f64; 2]> {
        match self {
            Self::Ingress => Some([509.0, 516.0]),
            Self::Lookup => Some([74.0, 91.0]),
            Self::BuildAck => Some([52.0, 52.0]),
            Self::Parse | Self::Hold => None,
            Self::Egress => Some([104.0, 104.0]),
        }
    }
}

/// Where a function of the kernel belongs; `None` where it is not of vsnoop.
pub fn routine(symbol: &str) -> Option<Routine> {
    // Nothing else in these processes asks a hash table of BPF.
    if symbol.contains("htab_map") || symbol.contains("htab_elem") {
        return Some(Routine::Lookup);
    }
    let name = perf::of_bpf(symbol)?;
    // Programs have the names that they are attached by.
    let name = name.strip_prefix("vsnoop_").unwrap_or(name);
    let is_of = |(_, functions): &&(Routine, &[&str])| functions.contains(&name);
    FUNCTIONS.iter().find(is_of).map(|(routine, _)| *routine)
}

/// Whether perf has a sample of any routine: a recording without one has failed.
pub fn is_recorded(values: &Values) -> bool {
    let samples = |routine: Routine| values.get(&format!("{}{SAMPLES}", routine.name()));
    Routine::ALL.into_iter().filter_map(samples).any(|samples| *samples > 0.0)
}

/// The mean over the rounds, of which single ones have few samples, without recordings that failed.
fn mean(results: &Results, group: &Group, name: &str) -> Option<f64> {
    let recorded = results.of(VSNOOP, group).filter(|sample| is_recorded(&sample.values));
    let values: Vec<_> = recorded.filter_map(|sample| sample.values.get(name).copied()).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// How long the streams took, ascending. Files of earlier versions have it as the CPU time of a
/// routine and its share.
fn took_ms(results: &Results, configuration: &str, group: &Group) -> Vec<f64> {
    let of = |sample: &Sample| {
        let value = |name: &str| sample.values.get(name).copied();
        let by_share = |routine: Routine| {
            let of = |suffix: &str| value(&format!("{}{suffix}", routine.name()));
            let ran_ms = of(SAMPLES)? * ms(perf::PERIOD);
            of(PERCENT).filter(|percent| *percent > 0.0).map(|percent| ran_ms / percent * 100.0)
        };
        value(TOOK).or_else(|| Routine::ALL.into_iter().find_map(by_share))
    };
    ascending(results.of(configuration, group).filter_map(of))
}

fn cycles(results: &Results, ns: f64) -> Option<f64> {
    Some(results.environment.get(MHZ).and_then(Value::as_f64)? * ns / 1000.0)
}

pub fn tables(results: &Results, style: Style) -> String {
    let header = [
        "routine",
        "streams",
        "ns each\npacket",
        "cycles",
        "CPU %",
        "samples",
        "cycles in\nthe report",
        "packets",
        "of MTU\neach",
    ];
    let mut rows = Vec::new();
    for group in results.groups() {
        for routine in Routine::ALL {
            rows.extend(row(results, &group, routine));
        }
    }
    let routines = grid(style, &header, 2, rows);
    let failed = results.samples.iter().filter(|one| one.configuration == VSNOOP);
    let failed = failed.filter(|one| !is_recorded(&one.values)).count();
    let failed = match failed {
        0 => String::new(),
        _ => {
            format!("\n\nRecordings without a sample of any routine, which do not count: {failed}.")
        }
    };
    format!("{routines}{failed}\n\n{}", throughput(results, style))
}

/// How long the streams took.
fn throughput(results: &Results, style: Style) -> String {
    let header = ["streams", "configuration", "n", "took s\np50", "MB/s\np50"];
    let mut rows = Vec::new();
    for group in results.groups() {
        for name in results.configurations() {
            let took_ms = took_ms(results, &name, &group);
            let Some(p50) = percentile(&took_ms, 50.0) else { continue };
            rows.push(vec![
                streams(&group),
                name,
                took_ms.len().to_string(),
                format!("{:.1}", p50 / 1e3),
                format!("{:.1}", group.size_bytes as f64 / p50 / 1e3),
            ]);
        }
    }
    grid(style, &header, 2, rows)
}

fn row(results: &Results, group: &Group, routine: Routine) -> Option<Vec<String>> {
    let of = |suffix: &str| mean(results, group, &format!("{}{suffix}", routine.name()));
    let whole = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
    let (ns, packets) = (of(NS)?, mean(results, group, PACKETS)?);
    let paper = routine.paper().map(|[one, many]| if is_single(group) { one } else { many });
    let each = mean(results, group, SEGMENTS).map(|segments| segments / packets);
    Some(vec![
        routine.text().to_owned(),
        streams(group),
        whole(Some(ns)),
        whole(cycles(results, ns)),
        of(PERCENT).map_or("-".into(), |percent| format!("{percent:.2}")),
        whole(samples(results, group, routine)),
        whole(paper),
        whole(Some(packets)),
        each.map_or("-".into(), |each| format!("{each:.1}")),
    ])
}

/// perf's samples of a routine, in all rounds.
fn samples(results: &Results, group: &Group, routine: Routine) -> Option<f64> {
    let counts = named(results, VSNOOP, group, &format!("{}{SAMPLES}", routine.name()));
    (!counts.is_empty()).then(|| counts.iter().sum())
}

fn streams(group: &Group) -> String {
    let what = group.what.map_or(String::new(), |what| what.to_string());
    what.split(' ').next().unwrap_or_default().to_owned()
}

fn is_single(group: &Group) -> bool {
    streams(group) == "1"
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for group in results.groups() {
        for routine in Routine::ALL {
            let name = routine.name();
            let Some(value) = mean(results, &group, &format!("{name}{NS}")) else { continue };
            figures.push(Figure {
                name: format!("{name}_ns_{}_streams", streams(&group)),
                value,
                unit: "ns".into(),
                better: "lower".into(),
            });
        }
    }
    figures
}

const GROUPS: [bars::Group; 2] = [
    bars::Group { name: "here", colour: COLOURS[1] },
    bars::Group { name: "in the report", colour: COLOURS[6] },
];

pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut bars = Vec::new();
    for group in results.groups() {
        for routine in Routine::ALL {
            let ns = mean(results, &group, &format!("{}{NS}", routine.name()));
            let Some(value) = ns.and_then(|ns| cycles(results, ns)) else { continue };
            let what = group.what.unwrap_or_default();
            let name = format!("{}, {what}", routine.name());
            bars.push(Bar { name: name.clone(), value, group: 0 });
            let paper =
                routine.paper().map(|[one, many]| if is_single(&group) { one } else { many });
            bars.extend(paper.map(|value| Bar { name, value, group: 1 }));
        }
    }
    let title = "Cycles of each packet, by routine".to_owned();
    Bars { title, unit: "cycles", groups: &GROUPS, bars }.draw(dir, "cycles")?;
    Ok(vec!["cycles".into()])
}

/// The sum of all routines against that of the report, for each segment of an MTU, and how long the
/// streams took.
pub fn difference(results: &Results) -> Option<String> {
    let paper: f64 = Routine::ALL.into_iter().filter_map(Routine::paper).map(|[one, _]| one).sum();
    let of = |group: &Group| {
        let samples =
            |routine: Routine| mean(results, group, &format!("{}{SAMPLES}", routine.name()));
        let samples: f64 = Routine::ALL.into_iter().filter_map(samples).sum();
        let segments = mean(results, group, SEGMENTS)?;
        let each = segments / mean(results, group, PACKETS)?;
        let ns = samples * perf::PERIOD.as_nanos() as f64 / segments;
        Some(format!(
            "{} take {:.0} cycles each MTU segment of data, the VM's ACKs included ({each:.1} \
             segments each super-packet){}",
            group.what?,
            cycles(results, ns)?,
            rates(results, group),
        ))
    };
    let parts: Vec<_> = results.groups().iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "all routines of {}; the report, whose packets are single segments and are not copied, \
             has {paper:.0} cycles each.",
            parts.join("; of ")
        )
    })
}

/// `, and send 19.7 MB/s, with off 21.0 MB/s`.
fn rates(results: &Results, group: &Group) -> String {
    let of = |name| {
        let took_ms = percentile(&took_ms(results, name, group), 50.0)?;
        Some(format!("{:.1} MB/s", group.size_bytes as f64 / took_ms / 1e3))
    };
    let vsnoop = of(VSNOOP).map_or(String::new(), |rate| format!(", and send {rate}"));
    vsnoop + &of(OFF).map_or(String::new(), |rate| format!(", with off {rate}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Label;
    use crate::results::testing::{results, sample};
    use vsnoop_testbed::workspace;

    #[test]
    fn functions_belong_to_routines_and_the_report_stands_beside_them() {
        let of = |name: &str| routine(&format!("bpf_prog_0123456789abcdef_{name}"));
        assert_eq!(of("to_vm"), Some(Routine::Ingress));
        assert_eq!(of("vsnoop_from_vm"), Some(Routine::Egress));
        assert_eq!(
            (of("parse_option"), of("add_chunk")),
            (Some(Routine::Parse), Some(Routine::Hold))
        );
        assert_eq!(of("a_program_of_another"), None);
        assert_eq!(of("from_vm"), Some(Routine::Egress));
        assert_eq!(of("make_reply"), Some(Routine::BuildAck));
        assert_eq!(routine("__htab_map_lookup_elem"), Some(Routine::Lookup));
        assert_eq!(routine("tcp_sendmsg"), None);
        let results = measured(&[(VSNOOP, &RECORDED)]);
        let text = tables(&results, Style::Terminal);
        assert!(text.contains("600") && text.contains("516") && text.contains("20.0"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let text = difference(&results).unwrap();
        // 9 samples, 0.1 ms each, for 200 segments.
        let part = "9000 cycles each MTU segment of data, the VM's ACKs included (20.0 segments";
        assert!(text.contains(part), "{text}");
    }

    const RECORDED: [(&str, f64); 4] =
        [("ingress_ns", 300.0), ("ingress_samples", 9.0), (PACKETS, 10.0), (SEGMENTS, 200.0)];

    /// 10 KB by 100 streams.
    fn measured(samples: &[(&str, &[(&str, f64)])]) -> Results {
        let samples = samples.iter().map(|(name, values)| {
            let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value));
            let what = Label::from("100 streams").ok();
            Sample { what, values: values.collect(), ..sample(name, 1.0) }
        });
        let mut results = results(samples.collect());
        results.environment.insert(MHZ.into(), 2000.0.into());
        results
    }

    #[test]
    fn a_recording_that_failed_does_not_count() {
        let failed = [("ingress_ns", 0.0), ("ingress_samples", 0.0), (PACKETS, 10.0)];
        let results = measured(&[(VSNOOP, &RECORDED), (VSNOOP, &failed)]);
        assert_eq!(mean(&results, &results.groups()[0], "ingress_ns"), Some(300.0));
        let text = tables(&results, Style::Markdown);
        assert!(text.contains("which do not count: 1."), "{text}");
    }

    #[test]
    fn how_long_streams_took_is_known_from_files_of_earlier_versions_too() {
        // 9 samples are 0.9 ms, a hundredth of the time.
        let earlier = [RECORDED.as_slice(), &[("ingress_cpu_percent", 1.0)]].concat();
        let off = [(TOOK, 100.0)];
        let results = measured(&[(VSNOOP, &earlier), (OFF, &off)]);
        let took = |name| took_ms(&results, name, &results.groups()[0]);
        assert!((took(VSNOOP)[0] - 90.0).abs() < 1e-9, "{:?}", took(VSNOOP));
        assert_eq!(took(OFF), [100.0]);
        let text = difference(&results).unwrap();
        assert!(text.contains("and send 0.1 MB/s, with off 0.1 MB/s"), "{text}");
    }

    /// Functions that are not inlined have a name of their own in a profile.
    #[test]
    fn every_function_of_the_programs_belongs_to_a_routine() {
        let dir = workspace::root().unwrap().join("bpf");
        let mut functions = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            // These programs are on ports with downloads only, which the experiment has not.
            if path.ends_with("split.bpf.c") || path.ends_with("split_unread.h") {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let begin =
                |line: &&str| line.contains("__noinline ") || line.starts_with("static long ");
            let names = text.lines().filter(begin).filter_map(|line| {
                line.split('(').next()?.split([' ', '*']).next_back().map(str::to_owned)
            });
            functions.extend(names);
        }
        assert!(functions.len() > 30, "{functions:?}");
        for name in &functions {
            let symbol = format!("bpf_prog_0123456789abcdef_{name}");
            assert!(routine(&symbol).is_some(), "{name} belongs to no routine");
        }
        for name in FUNCTIONS.iter().flat_map(|(_, names)| *names) {
            let is_program = ["to_vm", "from_vm"].contains(name);
            assert!(is_program || functions.iter().any(|one| one == name), "{name} is no function");
        }
    }
}

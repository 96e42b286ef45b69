//! The outcome of a group's rounds, and the figures of the experiment.
//!
//! Figures are of cubic senders with the kernel's least RTO, every sender with the same size, and a
//! buffer of 128 kB; those of a part with guests end with its name, those of `off` with `_off`.

use crate::experiment::cpus::BUSY;
use crate::results::incast::{
    BUFFER_BYTES, CongestionControl, Incast, Part, RATE_MBIT, RTO_MIN_MS,
};
use crate::results::statistics::{GOODPUT, Ratio, ratio_of_means, values};
use crate::results::{Ending, Figure, Group, Results, Sample};

/// The suffix of the names of their figures.
const CONFIGURATIONS: [(&str, &str); 2] = [("incast", ""), ("off", "_off")];

/// Rounds of one configuration in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub rounds: usize,
    pub hung: usize,
    /// Mean of the rounds that ended.
    pub goodput_mbps: f64,
    /// The share of rounds with at least one timeout; a round that hung counts as such.
    pub timeout_pct: f64,
    /// Timeouts per round.
    pub timeouts: f64,
    pub retransmissions: f64,
    pub last_hop_drops: f64,
    pub last_hop_marks: f64,
    pub window_probes: f64,
    /// Connections, if incast control was attached.
    pub shaped: Option<f64>,
    /// In all.
    pub tap_drops: u64,
    /// Mean of Jain's index, for endless flows.
    pub jain_index: Option<f64>,
    /// Mean of the rounds in which it was measured.
    pub cpus_busy_pct: Option<f64>,
}

/// `None` when there were no rounds.
pub fn outcome<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Outcome> {
    let samples: Vec<_> = samples.collect();
    let rounds: Vec<_> = samples.iter().filter_map(|sample| sample.round.as_ref()).collect();
    let hung = samples.iter().filter(|sample| sample.ending == Ending::Hung).count();
    let all = (!samples.is_empty()).then_some(samples.len())? as f64;
    let mean = |of: fn(&crate::results::incast::Round) -> f64| {
        rounds.iter().map(|round| of(round)).sum::<f64>() / rounds.len().max(1) as f64
    };
    let jain: Vec<_> = rounds.iter().filter_map(|round| round.jain_index()).collect();
    let shaped: Vec<_> = rounds.iter().filter_map(|round| round.shaped).collect();
    let late = rounds.iter().filter(|round| round.timeouts > 0).count() + hung;
    let retransmissions = samples.iter().map(|sample| f64::from(sample.retransmissions));
    let busy: Vec<_> = samples.iter().filter_map(|sample| sample.values.get(BUSY)).collect();
    Some(Outcome {
        rounds: samples.len(),
        hung,
        goodput_mbps: mean(|round| round.goodput_mbps),
        timeout_pct: late as f64 / all * 100.0,
        timeouts: mean(|round| round.timeouts as f64),
        retransmissions: retransmissions.sum::<f64>() / all,
        last_hop_drops: mean(|round| round.last_hop_drops as f64),
        last_hop_marks: mean(|round| round.last_hop_marks as f64),
        shaped: (!shaped.is_empty())
            .then(|| shaped.iter().sum::<usize>() as f64 / shaped.len() as f64),
        window_probes: mean(|round| round.window_probes as f64),
        tap_drops: samples.iter().map(|sample| sample.tap_drops).sum(),
        jain_index: (!jain.is_empty()).then(|| jain.iter().sum::<f64>() / jain.len() as f64),
        cpus_busy_pct: (!busy.is_empty())
            .then(|| busy.iter().copied().sum::<f64>() / busy.len() as f64),
    })
}

/// What the other parts and settings change.
pub const BASE: Incast = Incast {
    part: Part::FixedSize,
    senders: 1,
    rate_mbit: RATE_MBIT,
    buffer_bytes: BUFFER_BYTES,
    mark_bytes: None,
    congestion_control: CongestionControl::Cubic,
    rto_min_ms: RTO_MIN_MS,
    total_bytes: None,
};

/// The outcome with this number of senders, each of which sends `size_bytes`, at whatever rate of
/// the last hop; `None` if it was not measured.
pub fn found(
    results: &Results,
    configuration: &str,
    senders: usize,
    size_bytes: u64,
) -> Option<Outcome> {
    let wanted = |rate_mbit| Incast { senders, rate_mbit, ..BASE };
    outcome_of(results, configuration, |incast, size| {
        size == size_bytes && *incast == wanted(incast.rate_mbit)
    })
}

/// The outcome of the first group that is wanted.
fn outcome_of(
    results: &Results,
    configuration: &str,
    wanted: impl Fn(&Incast, u64) -> bool,
) -> Option<Outcome> {
    let group = results
        .groups()
        .into_iter()
        .find(|group| group.cell.incast.is_some_and(|incast| wanted(&incast, group.size_bytes)))?;
    outcome(results.of(configuration, &group))
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut push = |name: &str, value: Option<f64>, unit: &str, better: &str| {
        figures.extend(value.map(|value| Figure {
            name: name.into(),
            value,
            unit: unit.into(),
            better: better.into(),
        }));
    };
    for (configuration, suffix) in CONFIGURATIONS {
        let found = |senders| found(results, configuration, senders, 64_000);
        for senders in [64, 200] {
            let value = found(senders).map(|outcome| outcome.timeout_pct);
            push(&format!("timeout_rounds_pct_{senders}x64kB{suffix}"), value, "%", "lower");
        }
        for senders in [40, 200] {
            let value = found(senders).map(|outcome| outcome.goodput_mbps);
            push(&format!("goodput_mbps_{senders}x64kB{suffix}"), value, "Mb/s", "higher");
        }
        let value = worst_jain_index(results, configuration);
        push(&format!("jain_index_long_flows{suffix}"), value, "", "higher");
        let hung = results.samples.iter().filter(|sample| {
            sample.configuration == configuration && sample.ending == Ending::Hung
        });
        push(&format!("hung_rounds{suffix}"), Some(hung.count() as f64), "rounds", "lower");
    }
    let value = worst_ratio(results).map(|(ratio, _)| ratio.value);
    push("worst_ratio_to_plain_tcp_without_collapse", value, "times", "higher");
    for (part, senders) in [(Part::Vm, [40, 64]), (Part::Dctcp, [32, 64])] {
        for (senders, (configuration, suffix)) in
            senders.into_iter().flat_map(|senders| CONFIGURATIONS.map(|one| (senders, one)))
        {
            let of = format!("{senders}x64kB_{}{suffix}", part.name());
            let found = outcome_of(results, configuration, |incast, size| {
                (incast.part, incast.senders, size) == (part, senders, 64_000)
            });
            let (timeouts, goodput) =
                found.map(|outcome| (outcome.timeout_pct, outcome.goodput_mbps)).unzip();
            push(&format!("timeout_rounds_pct_{of}"), timeouts, "%", "lower");
            push(&format!("goodput_mbps_{of}"), goodput, "Mb/s", "higher");
        }
    }
    figures
}

/// The least of all numbers of flows.
fn worst_jain_index(results: &Results, configuration: &str) -> Option<f64> {
    let groups = results.groups();
    let indices =
        groups.iter().filter_map(|group| outcome(results.of(configuration, group))?.jain_index);
    indices.reduce(f64::min)
}

/// The least ratio of goodput with control to goodput without, and the group that has it. Only
/// groups without guests in which no round of plain TCP had a timeout count.
pub fn worst_ratio(results: &Results) -> Option<(Ratio, Group)> {
    let groups = results.groups();
    let has_guests = |group: &Group| group.cell.incast.is_some_and(|i| i.part.has_guests());
    let ratios = groups.into_iter().filter(|group| !has_guests(group)).filter_map(|group| {
        outcome(results.of("off", &group)).filter(|off| off.timeout_pct == 0.0)?;
        let goodput = |name: &str| values(results, name, &group, &GOODPUT);
        Some((ratio_of_means(&goodput("incast"), &goodput("off"))?, group))
    });
    ratios.min_by(|a, b| a.0.value.total_cmp(&b.0.value))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::results::Cell;
    use crate::results::incast::Round;
    use crate::results::testing::sample;

    /// A round of as many senders, 64 KB each, with this goodput.
    pub fn round(configuration: &str, senders: usize, goodput_mbps: f64, timeouts: u64) -> Sample {
        let cell = Cell { vms: 1, incast: Some(Incast { senders, ..BASE }), ..Cell::default() };
        let round = Round { goodput_mbps, timeouts, ..Round::default() };
        let sample = sample(configuration, 1.0);
        Sample { size_bytes: 64_000, cell, round: Some(round), ..sample }
    }

    /// The same sample of a part with guests.
    pub fn in_part(part: Part, mut sample: Sample) -> Sample {
        if let Some(incast) = &mut sample.cell.incast {
            (incast.part, incast.rate_mbit) = (part, 100);
        }
        sample
    }

    pub fn hung(configuration: &str, senders: usize) -> Sample {
        let ending = Ending::Hung;
        Sample { round: None, ending, ..round(configuration, senders, 0.0, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{hung, in_part, round};
    use super::*;
    use crate::results::testing::results;

    fn value(samples: Vec<Sample>, name: &str) -> Option<f64> {
        let figures = figures(&results(samples));
        figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    #[test]
    fn a_round_with_any_number_of_timeouts_counts_once_and_one_that_hangs_counts_too() {
        let samples = vec![
            round("incast", 64, 900.0, 0),
            round("incast", 64, 900.0, 5),
            round("incast", 64, 900.0, 0),
            hung("incast", 64),
            round("off", 64, 50.0, 1),
        ];
        assert_eq!(value(samples.clone(), "timeout_rounds_pct_64x64kB"), Some(50.0));
        assert_eq!(value(samples.clone(), "timeout_rounds_pct_64x64kB_off"), Some(100.0));
        assert_eq!(value(samples.clone(), "hung_rounds"), Some(1.0));
        assert_eq!(value(samples, "timeout_rounds_pct_200x64kB"), None);
    }

    #[test]
    fn goodput_is_the_mean_of_rounds_that_ended() {
        let samples =
            vec![round("incast", 40, 800.0, 0), round("incast", 40, 900.0, 0), hung("incast", 40)];
        assert_eq!(value(samples, "goodput_mbps_40x64kB"), Some(850.0));
    }

    #[test]
    fn plain_tcp_is_the_measure_only_where_it_does_not_collapse() {
        let samples = vec![
            round("off", 1, 900.0, 0),
            round("incast", 1, 810.0, 0),
            round("off", 4, 500.0, 0),
            round("incast", 4, 900.0, 0),
            round("off", 40, 900.0, 1),
            round("incast", 40, 90.0, 0),
        ];
        assert_eq!(value(samples, "worst_ratio_to_plain_tcp_without_collapse"), Some(0.9));
        assert_eq!(value(Vec::new(), "worst_ratio_to_plain_tcp_without_collapse"), None);
    }

    #[test]
    fn parts_with_guests_have_figures_of_their_own() {
        let samples = vec![
            in_part(Part::Vm, round("off", 40, 90.0, 0)),
            in_part(Part::Vm, round("incast", 40, 45.0, 0)),
            in_part(Part::Dctcp, round("incast", 64, 50.0, 1)),
        ];
        assert_eq!(value(samples.clone(), "goodput_mbps_40x64kB_vm_off"), Some(90.0));
        assert_eq!(value(samples.clone(), "timeout_rounds_pct_64x64kB_dctcp"), Some(100.0));
        assert_eq!(value(samples.clone(), "goodput_mbps_64x64kB_vm"), None);
        assert_eq!(value(samples.clone(), "goodput_mbps_40x64kB"), None);
        assert_eq!(value(samples, "worst_ratio_to_plain_tcp_without_collapse"), None);
    }

    #[test]
    fn fairness_is_that_of_the_least_fair_number_of_flows() {
        let long = |senders, flows: &[f64]| {
            let mut sample = round("incast", senders, 900.0, 0);
            if let Some(round) = &mut sample.round {
                round.flows_mbps = flows.to_vec();
            }
            sample
        };
        let samples = vec![long(2, &[1.0, 1.0]), long(4, &[1.0, 0.0]), long(4, &[1.0, 1.0])];
        assert_eq!(value(samples, "jain_index_long_flows"), Some(0.75));
    }
}

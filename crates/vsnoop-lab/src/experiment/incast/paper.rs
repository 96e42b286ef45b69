//! A figure of the paper, and how it differs from what was measured.

use serde::Deserialize;

use super::configuration::Configuration;
use super::figures::{BASE, Outcome, outcome};
use crate::results::incast::{Incast, Part, senders_text};
use crate::results::report::{Paper, PaperValue};
use crate::results::{Group, Results, size_text};

/// The paper's figures end at 46 to 48.
const MOST_SENDERS: usize = 48;

/// A figure of the paper, with the rounds that repeat it: those of one part, with the buffer, the
/// congestion control and the least RTO of [`BASE`], and with at most [`MOST_SENDERS`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// The name of the plot.
    pub plot: String,
    pub view: ViewName,
    part: Part,
    /// Of each sender; all, if none is named.
    #[serde(default)]
    sizes: Vec<u64>,
    pub configurations: Vec<String>,
    difference: Difference,
    pub paper: Paper,
}

/// What is drawn against the number of senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewName {
    Goodput,
    Timeouts,
}

/// What the sentence on the difference is about.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Difference {
    /// The window with the most goodput, for each number of senders.
    BestCap,
    /// Goodput of few and of many senders.
    Goodput,
    /// The most rounds with a timeout.
    Timeouts,
    /// Goodput at the paper's points.
    LeastWindow,
}

/// Rounds of one point.
struct Measured {
    configuration: String,
    senders: usize,
    rate_mbit: u64,
    size_bytes: u64,
    outcome: Outcome,
}

impl PaperFigure {
    /// Whether a point is of the part that repeats the figure.
    pub fn is_of(&self, incast: &Incast) -> bool {
        incast.part == self.part
    }

    /// Whether rounds of a group repeat the figure.
    pub fn has(&self, incast: &Incast, size_bytes: u64) -> bool {
        let same = Incast {
            part: self.part,
            senders: incast.senders,
            rate_mbit: incast.rate_mbit,
            total_bytes: incast.total_bytes,
            ..BASE
        };
        let in_figure = *incast == same && incast.senders <= MOST_SENDERS;
        in_figure && (self.sizes.is_empty() || self.sizes.contains(&size_bytes))
    }

    /// One sentence, of the samples.
    pub fn difference(&self, results: &Results) -> Option<String> {
        let measured = self.measured(results);
        let rate = measured.first()?.rate_mbit;
        let clauses = match self.difference {
            Difference::BestCap => vec![best_cap(&measured)],
            Difference::Goodput => [goodput(&measured), self.at_values(&measured)].concat(),
            Difference::Timeouts => timeouts(&measured),
            Difference::LeastWindow => self.at_values(&measured),
        };
        let clauses = clauses.join("; ");
        (!clauses.is_empty())
            .then(|| format!("with a last hop of {rate} Mb/s (the paper's has 1000) {clauses}."))
    }

    fn measured(&self, results: &Results) -> Vec<Measured> {
        let groups: Vec<_> = results.groups();
        let one = |group: &Group, configuration: &String| {
            let incast = group.cell.incast.filter(|incast| self.has(incast, group.size_bytes))?;
            Some(Measured {
                configuration: configuration.clone(),
                senders: incast.senders,
                rate_mbit: incast.rate_mbit,
                size_bytes: incast.total_bytes.unwrap_or(group.size_bytes),
                outcome: outcome(results.of(configuration, group))?,
            })
        };
        let of = |group| self.configurations.iter().filter_map(move |name| one(group, name));
        groups.iter().flat_map(of).collect()
    }

    /// What was measured where the paper gives a value.
    fn at_values(&self, measured: &[Measured]) -> Vec<String> {
        let mut clauses = Vec::new();
        for PaperValue { name, x, value, unit } in &*self.paper.values {
            let at = |one: &&Measured| {
                *x == Some(one.senders as f64)
                    && (!name.contains("each") || name.contains(&size_text(one.size_bytes)))
                    && name.starts_with("TCP") == (one.configuration == "off")
            };
            let found: Vec<_> = measured.iter().filter(at).collect();
            let words = found
                .iter()
                .map(|one| format!("{} {:.0}", one.configuration, one.outcome.goodput_mbps));
            let words = words.collect::<Vec<_>>().join(", ");
            if let (Some(x), false) = (x, words.is_empty()) {
                let senders = senders_text(*x as usize);
                clauses.push(format!(
                    "at {senders} the paper has {value} {unit} ({name}), here {words}"
                ));
            }
        }
        clauses
    }
}

fn best_cap(measured: &[Measured]) -> String {
    let mut senders: Vec<_> = measured.iter().map(|one| one.senders).collect();
    senders.sort_unstable();
    senders.dedup();
    let best = senders.iter().filter_map(|senders| {
        let of = measured.iter().filter(|one| one.senders == *senders);
        let capped = of.filter(|one| one.configuration != Configuration::Off.name());
        let best =
            capped.max_by(|a, b| a.outcome.goodput_mbps.total_cmp(&b.outcome.goodput_mbps))?;
        let goodput = best.outcome.goodput_mbps;
        Some(format!("{} with {senders} ({goodput:.0} Mb/s)", best.configuration))
    });
    let best = best.collect::<Vec<_>>().join(", ");
    format!("the window with the most goodput is {best}")
}

/// Of each size and configuration the least and the most senders.
fn goodput(measured: &[Measured]) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for one in measured {
        let name = format!("{}, {}", one.configuration, size_text(one.size_bytes));
        if parts.iter().any(|part: &String| part.starts_with(&name)) {
            continue;
        }
        let same = || {
            let alike = |other: &&Measured| {
                other.configuration == one.configuration && other.size_bytes == one.size_bytes
            };
            measured.iter().filter(alike)
        };
        let few = same().min_by_key(|one| one.senders).unwrap_or(one);
        let many = same().max_by_key(|one| one.senders).unwrap_or(one);
        parts.push(format!(
            "{name}, {:.0} with {} and {:.0} with {}",
            few.outcome.goodput_mbps,
            senders_text(few.senders),
            many.outcome.goodput_mbps,
            many.senders
        ));
    }
    if let Some(first) = parts.first_mut() {
        first.insert_str(0, "goodput in Mb/s: ");
    }
    parts
}

fn timeouts(measured: &[Measured]) -> Vec<String> {
    let mut names: Vec<_> = measured.iter().map(|one| &one.configuration).collect();
    names.sort_by_key(|name| (name.as_str() != Configuration::Off.name(), name.as_str()));
    names.dedup();
    let worst = names.into_iter().filter_map(|name| {
        let of = measured.iter().filter(|one| one.configuration == *name);
        let worst = of.max_by(|a, b| a.outcome.timeout_pct.total_cmp(&b.outcome.timeout_pct))?;
        let percent = worst.outcome.timeout_pct;
        if percent == 0.0 {
            return Some(format!("no round of {name} has a timeout"));
        }
        Some(format!(
            "at most {percent:.0} % of the rounds of {name} have a timeout ({}, {} each)",
            senders_text(worst.senders),
            size_text(worst.size_bytes)
        ))
    });
    worst.collect()
}

#[cfg(test)]
mod tests {
    use super::super::declaration;
    use super::super::figures::testing::{in_part, round};
    use super::*;
    use crate::results::Sample;
    use crate::results::testing::results;

    fn figure(plot: &str) -> &'static PaperFigure {
        declaration::read().figures.iter().find(|figure| figure.plot == plot).unwrap()
    }

    #[test]
    fn figures_say_what_was_measured_where_the_paper_has_a_value() {
        let samples = results(vec![round("off", 40, 90.0, 1), round("incast", 40, 800.0, 0)]);
        let of = |plot| figure(plot).difference(&samples).unwrap();
        let text = of("figure-8");
        assert!(text.contains("at 40 senders the paper has 741 Mb/s"), "{text}");
        assert!(text.contains("here incast 800.") && !text.contains("879"), "{text}");
        assert!(of("figure-9").contains("100 % of the rounds of off"), "{}", of("figure-9"));
        assert!(of("figure-10-goodput").contains("at 40 senders the paper has 564 Mb/s"));
        assert_eq!(figure("figure-11").difference(&samples), None);
    }

    #[test]
    fn each_configuration_has_one_clause_of_the_senders_that_the_paper_has() {
        let mut samples = Vec::new();
        for senders in [1, 16, 40] {
            samples.push(round("off", senders, 90.0, 1));
            samples.push(round("incast", senders, 90.0, 1));
        }
        samples.push(Sample { size_bytes: 128_000, ..round("incast", 40, 90.0, 0) });
        // Beyond the figures.
        samples.extend([round("off", 200, 90.0, 1), round("incast", 200, 90.0, 1)]);
        let samples = results(samples);
        for plot in ["figure-9", "figure-10-timeouts"] {
            let text = figure(plot).difference(&samples).unwrap();
            assert_eq!(text.matches("of the rounds of incast ").count(), 1, "{text}");
            assert!(!text.contains("200") && !text.contains("(1 senders"), "{text}");
        }
        let text = figure("figure-8").difference(&samples).unwrap();
        assert!(text.contains("with 1 sender and"), "{text}");
    }

    #[test]
    fn a_figure_is_of_one_part_and_of_any_rate() {
        let sample = in_part(Part::Capped, round("fixed-2mss", 16, 400.0, 0));
        let text = figure("figure-4").difference(&results(vec![sample.clone()])).unwrap();
        assert!(text.contains("fixed-2mss with 16 (400 Mb/s)"), "{text}");
        assert_eq!(figure("figure-4-background").difference(&results(vec![sample])), None);
    }

    #[test]
    fn every_figure_names_configurations_that_there_are() {
        for figure in &declaration::read().figures {
            for name in &figure.configurations {
                assert!(Configuration::from_name(name).is_ok(), "{}: {name}", figure.plot);
            }
        }
    }
}

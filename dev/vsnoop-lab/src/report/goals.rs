//! Goals of figures, beside what was measured.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

use crate::results::Results;

/// A bound for a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    pub figure: String,
    pub bound: Bound,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// At least this multiple of another figure.
    Times(f64, String),
    /// At most this multiple of another figure.
    MostTimes(f64, String),
}

fn found(results: &Results, name: &str) -> Option<f64> {
    results.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
}

impl Goal {
    /// Text, measured value, and whether the goal is reached; `None` if a value was not measured.
    fn judge(&self, results: &Results) -> Option<(String, f64, bool)> {
        let value = found(results, &self.figure)?;
        let of_other = |times: &f64, other: &str| {
            let bound = times * found(results, other)?;
            Some((bound, format!("{times} times `{other}` ({bound:.2})")))
        };
        let (bound, text) = match &self.bound {
            Bound::AtLeast(bound) | Bound::AtMost(bound) => (*bound, bound.to_string()),
            Bound::Times(times, other) | Bound::MostTimes(times, other) => of_other(times, other)?,
        };
        let is_least = matches!(self.bound, Bound::AtLeast(_) | Bound::Times(..));
        let (words, reached) =
            if is_least { ("at least", value >= bound) } else { ("at most", value <= bound) };
        Some((format!("`{}` {words} {text}", self.figure), value, reached))
    }
}

/// In Markdown.
pub fn render(goals: &[Goal], results: &Results) -> Result<String> {
    let mut text = String::from("| goal | measured | |\n|---|---:|---|\n");
    let judged: Vec<_> = goals.iter().filter_map(|goal| goal.judge(results)).collect();
    if judged.is_empty() {
        return Ok("What the goals are about was not measured in this run.".into());
    }
    for (goal, measured, reached) in judged {
        let verdict = if reached { "reached" } else { "missed" };
        writeln!(text, "| {goal} | {measured:.3} | {verdict} |")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Figure;
    use crate::results::testing::results;

    #[test]
    fn a_goal_is_reached_at_its_bound_and_without_figures_not_judged() {
        let mut results = results(vec![]);
        let figure = |name: &str, value| Figure {
            name: name.into(),
            value,
            unit: "Gb/s".into(),
            better: "higher".into(),
        };
        results.figures = vec![figure("ours", 6.0), figure("peer", 2.4)];
        let reached =
            |bound| Goal { figure: "ours".into(), bound }.judge(&results).map(|goal| goal.2);
        assert_eq!(reached(Bound::AtLeast(6.0)), Some(true));
        assert_eq!(reached(Bound::AtLeast(6.1)), Some(false));
        assert_eq!(reached(Bound::AtMost(5.9)), Some(false));
        assert_eq!(reached(Bound::Times(2.5, "peer".into())), Some(true));
        assert_eq!(reached(Bound::Times(2.6, "peer".into())), Some(false));
        assert_eq!(reached(Bound::MostTimes(2.0, "peer".into())), Some(false));
        assert_eq!(reached(Bound::Times(2.5, "nobody".into())), None);
    }
}

//! The goals, beside the measured values.

use anyhow::Result;
use serde_json::Value;

use super::calibration::BOUND;
use super::figures::{figures, found, worst_ratio};
use crate::results::Results;
use crate::results::incast::RATE_MBIT;

/// Figures and their goals, those of goodput at [`RATE_MBIT`].
const GOALS: [(&str, f64); 5] = [
    ("timeout_rounds_pct_64x64kB", 0.0),
    ("timeout_rounds_pct_200x64kB", 1.0),
    ("goodput_mbps_40x64kB", 850.0),
    ("worst_ratio_to_plain_tcp_without_collapse", 0.97),
    ("jain_index_long_flows", 0.95),
];

pub fn render(results: &Results) -> Result<String> {
    let mut text = String::from("| goal | measured | |\n|---|---|---|\n");
    let figures = figures(results);
    let rates = results.cells().into_iter().filter_map(|cell| cell.incast);
    let rates = rates.filter(|one| !one.part.has_guests()).map(|one| one.rate_mbit);
    let rate_mbit = rates.max().unwrap_or(RATE_MBIT);
    for (name, goal) in GOALS {
        let Some(figure) = figures.iter().find(|figure| figure.name == name) else { continue };
        // The last hop may have been slower.
        let goal = match figure.unit.as_str() {
            "Mb/s" => goal * rate_mbit as f64 / RATE_MBIT as f64,
            _ => goal,
        };
        let lower = figure.better == "lower";
        let reached = if lower { figure.value <= goal } else { figure.value >= goal };
        let (word, verdict) = (
            if lower { "at most" } else { "at least" },
            if reached { "reached" } else { "missed" },
        );
        text += &format!("| `{name}` {word} {goal} | {:.2} | {verdict} |\n", figure.value);
    }
    if let Some((ratio, group)) = worst_ratio(results) {
        let interval = match ratio.has_interval() {
            true => format!(" ({:.3}-{:.3} in 95 of 100 repetitions)", ratio.low, ratio.high),
            false => ", of too few rounds for an interval".into(),
        };
        text += &format!(
            "\nThe least goodput relative to plain TCP, where that had no timeout: {:.3}{interval}, \
             {}, {} each.\n",
            ratio.value,
            group.cell,
            crate::results::size_text(group.size_bytes)
        );
    }
    let busy = |senders| {
        let percent = found(results, "incast", senders, 64_000)?.cpus_busy_pct?;
        Some(format!("{percent:.0} % with {senders} senders"))
    };
    let busy: Vec<_> = [16, 40, 64, 200].into_iter().filter_map(busy).collect();
    if !busy.is_empty() {
        text += &format!(
            "\nWith incast control and 64 KB each the CPUs, which the senders, the switch, the host and \
             the VM share, were busy for {} of the rounds' time: where that is nearly all, they are \
             the bound, and not the last hop.\n",
            busy.join(", ")
        );
    }
    let bound = results.environment.get(BOUND).and_then(Value::as_str).unwrap_or("not measured");
    text += &format!(
        "\nThe last hop has {rate_mbit} Mb/s (goals of goodput are for it); {bound}.\n\n\
         The paper has 47 servers with Windows Server 2008 R2 (New Reno with SACK, an RTO of 300 ms \
         at least), one Gigabit switch with a buffer of 4 MB that its ports share. Here are a buffer \
         of 128 KB for the one port, cubic senders of Linux, an RTO of 200 ms at least.\n"
    );
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::figures::testing::round;
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn a_goal_is_reached_at_its_number_and_only_what_was_measured_is_judged() {
        let of = |goodput: f64| render(&results(vec![round("incast", 40, goodput, 0)])).unwrap();
        let line = |text: &str| text.lines().nth(2).unwrap_or_default().to_owned();
        assert!(line(&of(850.0)).ends_with("| reached |"), "{}", of(850.0));
        assert!(line(&of(849.0)).ends_with("| missed |"), "{}", of(849.0));
        assert!(!of(850.0).contains("jain_index"), "no long flow was measured");
    }

    #[test]
    fn how_busy_the_cpus_were_stands_below_the_goals_if_it_was_measured() {
        let mut sample = round("incast", 40, 669.0, 0);
        assert!(!render(&results(vec![sample.clone()])).unwrap().contains("CPUs"));
        sample.values.insert(crate::experiment::cpus::BUSY.into(), 98.6);
        let text = render(&results(vec![sample])).unwrap();
        assert!(text.contains("busy for 99 % with 40 senders of the rounds"), "{text}");
    }

    #[test]
    fn a_slower_last_hop_has_a_smaller_goal() {
        let mut sample = round("incast", 40, 500.0, 0);
        if let Some(incast) = &mut sample.cell.incast {
            incast.rate_mbit = 500;
        }
        let text = render(&results(vec![sample])).unwrap();
        assert!(text.contains("at least 425 | 500.00 | reached |"), "{text}");
    }
}

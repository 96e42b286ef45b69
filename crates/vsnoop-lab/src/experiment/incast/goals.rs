//! The goals, beside the measured values.

use anyhow::Result;
use serde_json::Value;

use super::calibration::BOUND;
use super::figures::{figures, found, worst_ratio};
use crate::results::Results;
use crate::results::incast::{RATE_MBIT, senders_text};

/// Of the CPUs' time, when they are the bound.
const NEARLY_ALL_PERCENT: f64 = 95.0;

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
    let bound = results.environment.get(BOUND).and_then(Value::as_str).unwrap_or("not measured");
    text += &format!(
        "\nThe last hop has {rate_mbit} Mb/s (goals of goodput are for it); by one flow before the \
         rounds, {bound}.{}\n\n\
         The paper has 47 servers with Windows Server 2008 R2 (New Reno with SACK, an RTO of 300 ms \
         at least), one Gigabit switch with a buffer of 4 MB that its ports share. Here are a buffer \
         of 128 KB for the one port, cubic senders of Linux, an RTO of 200 ms at least.\n",
        busy_text(results)
    );
    Ok(text.trim_end().to_owned())
}

/// How busy the CPUs were during the rounds, and what that makes the bound.
fn busy_text(results: &Results) -> String {
    let busy = |configuration, senders| {
        found(results, configuration, senders, 64_000).and_then(|outcome| outcome.cpus_busy_pct)
    };
    let percents: Vec<_> = [1, 16, 40, 64, 200]
        .into_iter()
        .filter_map(|senders| Some((senders, busy("incast", senders)?)))
        .collect();
    let Some(most) = percents.iter().map(|(_, percent)| *percent).reduce(f64::max) else {
        return String::new();
    };
    let least = percents.iter().map(|(_, percent)| *percent).fold(most, f64::min);
    let verdict = match busy("off", 1) {
        Some(one) if one.min(least) >= NEARLY_ALL_PERCENT => {
            "even one sender with nothing attached finds no idle CPU, so that the machine was busy \
             with other work, and this does not say what the bound is"
        }
        _ if most >= NEARLY_ALL_PERCENT => {
            "where that is nearly all, they are the bound, and not the last hop"
        }
        _ => "they are not the bound",
    };
    let percents = percents
        .iter()
        .map(|(senders, percent)| format!("{percent:.0} % with {}", senders_text(*senders)));
    format!(
        " With incast control and 64 KB each the CPUs, which the senders, the switch, the host and the \
         VM share, were busy for {} of the rounds' time: {verdict}.",
        percents.collect::<Vec<_>>().join(", ")
    )
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
    fn how_busy_the_cpus_were_chooses_one_bound_if_it_was_measured() {
        let of = |points: &[(&str, usize, f64)]| {
            let samples = points.iter().map(|&(name, senders, busy)| {
                let mut sample = round(name, senders, 669.0, 0);
                sample.values.insert(crate::experiment::cpus::BUSY.into(), busy);
                sample
            });
            render(&results(samples.collect())).unwrap()
        };
        assert!(!render(&results(vec![round("incast", 40, 669.0, 0)])).unwrap().contains("CPUs"));
        let text = of(&[("off", 1, 40.0), ("incast", 1, 52.0), ("incast", 40, 98.6)]);
        assert!(text.contains("busy for 52 % with 1 sender, 99 % with 40 senders of"), "{text}");
        assert!(text.contains("they are the bound, and not the last hop."), "{text}");
        assert!(of(&[("incast", 40, 60.0)]).contains("they are not the bound."));
        let text = of(&[("off", 1, 99.0), ("incast", 1, 100.0), ("incast", 40, 100.0)]);
        assert!(text.contains("busy with other work") && !text.contains("they are"), "{text}");
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

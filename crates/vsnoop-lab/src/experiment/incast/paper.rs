//! The paper's figures and the goals, beside the measured values.

use anyhow::Result;

use super::figures::{Outcome, figures, found, worst_ratio};
use crate::results::Results;

/// The paper's figures for its TCP and for ICTCP with a least window of 2 MSS. `senders` and the
/// size select our measurement to compare with.
struct Reported {
    what: &'static str,
    senders: usize,
    size_bytes: u64,
    tcp: &'static str,
    ictcp: &'static str,
    value: fn(&Outcome) -> String,
}

const REPORTED: [Reported; 3] = [
    Reported {
        what: "goodput, 40 senders, 64 kB each",
        senders: 40,
        size_bytes: 64_000,
        tcp: "collapsed",
        ictcp: "741 Mb/s (1 MSS: 564)",
        value: goodput,
    },
    Reported {
        what: "goodput, 4 senders, 256 kB each",
        senders: 4,
        size_bytes: 256_000,
        tcp: "879 Mb/s",
        ictcp: "607 Mb/s",
        value: goodput,
    },
    Reported {
        what: "rounds with a timeout, 48 senders (paper: 46), 64 kB each",
        senders: 48,
        size_bytes: 64_000,
        tcp: "all, once collapsed",
        ictcp: "at most 6 % (1 MSS: 0)",
        value: timeout,
    },
];

/// Figures and their goals.
const GOALS: [(&str, f64); 5] = [
    ("timeout_rounds_pct_64x64kB", 0.0),
    ("timeout_rounds_pct_200x64kB", 1.0),
    ("goodput_mbps_40x64kB", 850.0),
    ("worst_ratio_to_plain_tcp_without_collapse", 0.97),
    ("jain_index_long_flows", 0.95),
];

fn goodput(outcome: &Outcome) -> String {
    format!("{:.0} Mb/s", outcome.goodput_mbps)
}

fn timeout(outcome: &Outcome) -> String {
    format!("{:.1} %", outcome.timeout_pct)
}

pub fn render(results: &Results) -> Result<String> {
    let mut text = String::from("| goal | measured | |\n|---|---|---|\n");
    let figures = figures(results);
    for (name, goal) in GOALS {
        let Some(figure) = figures.iter().find(|figure| figure.name == name) else { continue };
        let lower = figure.better == "lower";
        let reached = if lower { figure.value <= goal } else { figure.value >= goal };
        let (word, verdict) = (
            if lower { "at most" } else { "at least" },
            if reached { "reached" } else { "missed" },
        );
        text += &format!("| `{name}` {word} {goal} | {:.2} | {verdict} |\n", figure.value);
    }
    if let Some((ratio, group)) = worst_ratio(results) {
        text += &format!(
            "\nThe least goodput relative to plain TCP, where that had no timeout: {ratio:.3}, {}, \
             {} each.\n",
            group.cell,
            crate::results::size_text(group.size_bytes)
        );
    }
    text += "\n### The paper's figures\n\nIts testbed: 47 servers with Windows Server 2008 R2 (New Reno \
             with SACK, an RTO of 300 ms), one Gigabit switch with a buffer of 4 MB that its ports \
             share. Ours is a buffer of 128 kB for the one port, cubic senders of Linux, an RTO of \
             200 ms at least.\n\n\
             | | TCP, paper | `off` | ICTCP, paper (2 MSS) | `incast` |\n|---|---|---|---|---|\n";
    for line in &REPORTED {
        let ours = |name: &str| {
            let outcome = found(results, name, line.senders, line.size_bytes);
            outcome.map_or("-".into(), |outcome| (line.value)(&outcome))
        };
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            line.what,
            line.tcp,
            ours("off"),
            line.ictcp,
            ours("incast")
        );
    }
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
        assert!(of(850.0).contains("| 741 Mb/s (1 MSS: 564) | 850 Mb/s |"), "{}", of(850.0));
    }
}

//! One bulk flow with nothing to gain: the namespace behind the tap has a core to
//! itself, as an idle VM would, and the flow saturates the cores. Rounds detached,
//! attached, and attached with `--no-passive` alternate; a
//! figure is the median over the ratios of neighbours, so that a drifting machine cancels out.

use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::bulk::bulk;
use vsnoop_testbed::topology::{Family, PORT, Topology};
use vsnoop_testbed::{interrupt, vsnoop::Vsnoop};

use crate::figures::{figure, median, median_ratio, say};
use crate::stage::{self, SHAPES, VM_CORE};

/// The rate of one flow varies by a seventh between rounds, also if they are longer.
const ROUNDS: usize = 36;
const ROUND: Duration = Duration::from_millis(1200);

/// How the port is while a flow is measured: not attached, or with these options.
const STATES: [(&str, Option<&[&str]>); 3] =
    [("detached", None), ("attached", Some(&[])), ("no_passive", Some(&["--no-passive"]))];

pub fn measure() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, from_client) in SHAPES {
        let topology = stage::build(from_client)?;
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        let mut rates = [const { Vec::new() }; STATES.len()];
        for round in 0..ROUNDS {
            interrupt::check()?;
            // Each round begins with another state.
            for turn in 0..STATES.len() {
                let state = (round + turn) % STATES.len();
                rates[state].push(rate(&topology, &vsnoop, STATES[state].1)?);
            }
            let line: Vec<String> = STATES
                .iter()
                .zip(&rates)
                .map(|((state, _), rates)| format!("{state} {:.2} Gb/s", rates[round]))
                .collect();
            say(&format!("{name} round {} of {ROUNDS}: {}", round + 1, line.join(", ")));
        }
        let (detached, attached) = rates.split_first().expect("there are several states");
        for ((state, _), rates) in STATES[1..].iter().zip(attached) {
            let figure_name = format!("throughput_{name}_{state}_over_detached");
            figures.push(figure(&figure_name, median_ratio(rates, detached), "ratio", "higher"));
        }
        figures.push(figure(
            &format!("throughput_{name}_detached_gbps"),
            median(detached.clone()),
            "Gb/s",
            "higher",
        ));
    }
    Ok(figures)
}

fn rate(topology: &Topology, vsnoop: &Vsnoop, options: Option<&[&str]>) -> Result<f64> {
    if let Some(options) = options {
        vsnoop.attach_with(PORT, options)?;
    }
    let flow = bulk(topology, Family::V4, ROUND, Some(VM_CORE));
    if options.is_some() {
        vsnoop.detach(PORT)?;
    }
    Ok(flow.context("one bulk flow")?.gigabits_per_second())
}

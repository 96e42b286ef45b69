//! One bulk flow that a prompt VM sends: it is to be left alone, and to lose nothing. The stand-in
//! has a core to itself. Rounds detached and attached with downloads alternate; a figure is the
//! median over the ratios of neighbours.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::bulk::{bulk_to, pin};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, TopologyOptions};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::figures::{figure, median, median_ratio, say};
use crate::stage::{self, SENDER_CORE, SHAPES, VM_CORE};

const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_millis(1200);

pub fn measure() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, from_vm) in SHAPES {
        let topology =
            stage::build_with(TopologyOptions { from_vm, ..TopologyOptions::default() })?;
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        // The thread that sends.
        pin(VM_CORE)?;
        let mut rates = [const { Vec::new() }; 2];
        for round in 0..ROUNDS {
            // Each round begins with another state.
            for turn in 0..2 {
                interrupt::check()?;
                let state = (round + turn) % 2;
                rates[state].push(rate(&topology, &vsnoop, state == 1)?);
            }
        }
        let [detached, attached] = &rates;
        let ratio = median_ratio(attached, detached);
        let [off, on] = [detached, attached].map(|rates| median(rates.clone()));
        say(&format!("a prompt VM sends, {name}: detached {off:.2}, attached {on:.2} Gb/s"));
        let name = format!("throughput_from_vm_{name}_attached_over_detached");
        figures.push(figure(&name, ratio, "ratio", "higher"));
    }
    Ok(figures)
}

fn rate(topology: &Topology, vsnoop: &Vsnoop, is_attached: bool) -> Result<f64> {
    if is_attached {
        vsnoop.attach_with(PORT, &["--downloads", "on"])?;
        let has_downloads = vsnoop.stats(PORT)?["ports"][0]["split"].is_object();
        ensure!(has_downloads, "the port was attached without downloads: `vsnoop doctor` says why");
    }
    let flow = bulk_to(topology, Side::Client, Family::V4, ROUND, Some(SENDER_CORE));
    if is_attached {
        vsnoop.detach(PORT)?;
    }
    Ok(flow.context("one bulk flow")?.gigabits_per_second())
}

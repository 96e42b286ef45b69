//! One bulk flow with nothing to gain: the namespace behind the tap has a core to
//! itself, as an idle VM would, and the flow saturates the cores. Attached and
//! detached rounds take turns; the figure is the median over pairs of neighbours,
//! so that a drifting machine cancels out.

use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_lab::results::Figure;
use vsnoop_lab::testbed::bulk::bulk;
use vsnoop_lab::testbed::topology::{Family, PORT};
use vsnoop_lab::{interrupt, vsnoop::Vsnoop};

use crate::stage::{self, SHAPES, VM_CORE};
use crate::{figure, median, say};

const PAIRS: usize = 7;
const ROUND: Duration = Duration::from_secs(8);

pub fn measure() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, from_client) in SHAPES {
        let topology = stage::build(from_client)?;
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        let (mut ratios, mut attached, mut detached) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..PAIRS {
            interrupt::check()?;
            let mut rate = [0.0; 2];
            // Which of the two goes first alternates.
            for turn in 0..2 {
                let on = (pair + turn) % 2 == 0;
                if on {
                    vsnoop.attach(PORT)?;
                }
                let flow = bulk(&topology, Family::V4, ROUND, Some(VM_CORE));
                if on {
                    vsnoop.detach(PORT)?;
                }
                rate[usize::from(on)] = flow.context("one bulk flow")?.gigabits_per_second();
            }
            say(&format!(
                "{name} pair {} of {PAIRS}: detached {:.2} Gb/s, attached {:.2} Gb/s",
                pair + 1,
                rate[0],
                rate[1]
            ));
            detached.push(rate[0]);
            attached.push(rate[1]);
            ratios.push(rate[1] / rate[0]);
        }
        let ratio = median(ratios);
        figures.push(figure(
            &format!("throughput_{name}_attached_over_detached"),
            ratio,
            "ratio",
            "higher",
        ));
        figures.push(figure(
            &format!("throughput_{name}_detached_gbps"),
            median(detached),
            "Gb/s",
            "higher",
        ));
    }
    Ok(figures)
}

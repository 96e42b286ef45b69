//! Transfers on one stage, each set up and undone as its configuration asks.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use vsnoop_guest::transfer;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::Stage;
use vsnoop_testbed::stage::path::PathOptions;

use crate::experiment::configuration::Configuration;
use crate::experiment::path_check::check_path;
use crate::experiment::spent::Clock;
use crate::experiment::ways::{Ways, settle};
use crate::results::{Cell, Ending, Sample, Values};

const PAUSE_MS: std::ops::Range<u64> = 5..100;
const WARM_UP_BYTES: u64 = 10_000;

pub struct Transfers {
    // Fields are dropped in this order: peers end before the namespaces that they are in.
    ways: Ways,
    stage: Stage,
    configurations: Vec<Configuration>,
    cell: Cell,
    /// The client's.
    congestion_control: &'static str,
}

impl Transfers {
    /// Takes a stage whose machines are loaded, and starts the peers that the configurations need.
    pub fn new(
        session: &mut Session,
        stage: Stage,
        configurations: &[Configuration],
        congestion_control: &'static str,
    ) -> Result<Self> {
        let ways = Ways::open(session, &stage, configurations, transfer::PORT)?;
        let configurations = configurations.to_vec();
        let cell = Cell::default();
        Ok(Self { ways, stage, configurations, cell, congestion_control })
    }

    /// Sets up the path of a cell, measures it, and transfers some bytes in each configuration, so
    /// that neighbours are resolved. Returns the measured round trips, as text.
    pub fn enter(&mut self, cell: Cell) -> Result<String> {
        let rtt = Duration::from_secs_f64(cell.path_rtt_ms / 1e3);
        self.stage.set_path(&PathOptions {
            rtt,
            segment_loss: cell.path_loss_percent / 100.0,
            link: cell.path_link,
        })?;
        let measured = check_path(&self.stage, rtt)?;
        self.cell = cell;
        for machine in 0..self.stage.vm_count() {
            for &configuration in &self.configurations {
                let way = self.ways.way(&self.stage, configuration, machine)?;
                way.upload(self.stage.client(), WARM_UP_BYTES, self.congestion_control)
                    .context("the first transfer of a cell")?;
            }
        }
        settle(&self.stage)?;
        Ok(format!("ping p50 {:.2} ms, p90 {:.2} ms", measured.p50_ms, measured.p90_ms))
    }

    /// Prints a warning if the path's own queue lost frames in this cell.
    pub fn leave(&self) {
        let overflows = self.stage.path_overflows();
        if overflows > 0 {
            eprintln!("{}: the path's own queue was full and lost {overflows} frames", self.cell);
        }
    }

    /// One transfer of round `round`.
    pub fn measure(
        &self,
        configuration: Configuration,
        size_bytes: u64,
        round: usize,
    ) -> Result<Sample> {
        let machine = round % self.stage.vm_count();
        let way = self.ways.way(&self.stage, configuration, machine)?;
        configuration.set_up(&self.stage, machine)?;
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
        let drops_before = self.stage.counts_of(way.tap)?.drops;
        let before = self.clock(configuration, machine)?;
        let times = way
            .upload(self.stage.client(), size_bytes, self.congestion_control)
            .with_context(|| format!("VM {machine}"))?;
        let spent = self.clock(configuration, machine)?.zip(before);
        let tap_drops = self.stage.counts_of(way.tap)?.drops - drops_before;
        settle(&self.stage)?;
        let mut values = spent.map_or_else(Values::new, |(after, before)| after.since(&before));
        if configuration.attach_options().is_some() {
            // The port was attached for this transfer.
            values.extend(of_hold(&self.stage.vsnoop()?.stats(way.tap)?));
        }
        configuration.undo(&self.stage, machine)?;
        Ok(Sample {
            configuration: configuration.name().to_owned(),
            size_bytes,
            cell: self.cell,
            ending: Ending::Exact,
            tap_drops,
            values,
            vm: machine,
            ..Sample::from(times)
        })
    }

    /// Of the machine that receives, if one does.
    fn clock(&self, configuration: Configuration, machine: usize) -> Result<Option<Clock>> {
        let receives = configuration != Configuration::Host;
        receives.then(|| Clock::read(&self.stage, machine)).transpose()
    }
}

/// Names of values of a sample, and of counters of `vsnoop stats`: acknowledged before its
/// hand-over to the VM; segments that found no memory to be kept in.
pub const HELD: &str = "held_bytes";
pub const HOLD_FULL: &str = "hold_full";

fn of_hold(stats: &Value) -> Values {
    let port = &stats["ports"][0];
    let value = |name: &str| Some((name.to_owned(), port[name].as_u64()? as f64));
    [HELD, HOLD_FULL].into_iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_hold_are_those_of_the_only_port() {
        let stats =
            serde_json::json!({"ports": [{"held_bytes": 7000, "hold_full": 2, "hold": {}}]});
        let expected = [(HELD.to_owned(), 7000.0), (HOLD_FULL.to_owned(), 2.0)];
        assert_eq!(of_hold(&stats), expected.into());
        assert_eq!(of_hold(&serde_json::json!({"ports": []})), Values::new());
    }
}

//! The figures of all cells.

use crate::cell::{Cell, Configuration, Kind, Outcome};
use crate::record::{Done, Figure};
use crate::scenario::Lab;

/// The series that are compared with the lab.
pub const VALIDATION: &str = "validation";

/// A cell of the lab beside the one of the simulator.
pub struct Pair<'a> {
    pub lab: &'a Lab,
    pub simulated: &'a Outcome,
}

impl Pair<'_> {
    /// Returns the figures of the lab and of the simulator: Mb/s of queries, ms of transfers.
    pub fn values(&self) -> (f64, f64) {
        if self.lab.kind.is_transfers() {
            return (self.lab.p50_ms, self.simulated.completion_p50_ms);
        }
        (self.lab.goodput_mbps, self.simulated.goodput_of_rounds_mbps)
    }

    /// Simulated over measured.
    pub fn ratio(&self) -> f64 {
        let (lab, simulated) = self.values();
        simulated / lab
    }
}

pub fn pairs<'a>(cells: &'a [Done], lab: &'a [Lab]) -> Vec<Pair<'a>> {
    let find = |lab: &'a Lab| {
        let is_it = |cell: &Cell| {
            cell.series == VALIDATION
                && (cell.kind, cell.configuration) == (lab.kind, lab.configuration)
                && (cell.gbps, cell.answer_bytes) == (lab.gbps, lab.answer_bytes)
                && cell.senders == lab.senders
        };
        let done = cells.iter().find(|done| is_it(&done.cell))?;
        Some(Pair { lab, simulated: done.outcome.as_ref()? })
    };
    lab.iter().filter_map(find).collect()
}

/// Finished cells with incast control whose last hop holds a segment of each sender.
fn controlled(cells: &[Done]) -> impl Iterator<Item = (&Cell, &Outcome)> {
    let finished = cells.iter().filter_map(|done| Some((&done.cell, done.outcome.as_ref()?)));
    finished.filter(|(cell, _)| {
        let c = cell.configuration;
        let is_bound_by_line = cell.stop_ms == 0 && cell.vm_gbps == 0.0;
        let is_bound_by_line = is_bound_by_line && cell.kind == Kind::Queries;
        c.is_controlled() && cell.is_shaped() && cell.holds_a_segment_of_each() && is_bound_by_line
    })
}

/// The best goodput of those without incast control that need no support of the switch.
fn best_of_others(cells: &[Done], wanted: &Cell) -> Option<f64> {
    let is_other = |cell: &Cell| {
        let c = cell.configuration;
        let same = Cell { configuration: c, ..wanted.clone() } == *cell;
        same && !c.is_controlled() && !c.needs_marks() && !c.is_early()
    };
    let others = cells.iter().filter(|done| is_other(&done.cell));
    others.filter_map(|done| Some(done.outcome.as_ref()?.goodput_mbps)).reduce(f64::max)
}

/// Times sooner than with `off`, for each VM, from the least gain on. Both have all their VMs.
pub fn gains(cells: &[Done], wanted: &Cell) -> Option<Vec<f64>> {
    let find = |configuration| {
        let cell = Cell { configuration, ..wanted.clone() };
        cells.iter().find(|done| done.cell == cell)?.outcome.as_ref()
    };
    let (off, with) = (find(Configuration::Off)?, find(wanted.configuration)?);
    let pairs = off.vm_ms.iter().zip(&with.vm_ms);
    let mut gains: Vec<f64> = pairs.map(|(off, with)| off / with).collect();
    gains.sort_by(f64::total_cmp);
    (off.ended > 0 && with.ended > 0 && !gains.is_empty()).then_some(gains)
}

/// The value below which this part of sorted values is.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() as f64 * part) as usize).min(sorted.len() - 1)]
}

pub fn all(cells: &[Done], lab: &[Lab]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut push = |name: &str, value: Option<f64>, unit: &str, better: &str| {
        if let Some(value) = value {
            let (name, unit, better) = (name.into(), unit.into(), better.into());
            figures.push(Figure { name, value, unit, better });
        }
    };
    let pairs = pairs(cells, lab);
    let far = |alike: bool| {
        let wanted = pairs.iter().filter(|pair| pair.lab.differs.is_empty() == alike);
        wanted.map(|pair| pair.ratio().max(1.0 / pair.ratio())).reduce(f64::max)
    };
    push("sim_validation_worst_ratio", far(true), "ratio", "lower");
    push("sim_validation_worst_ratio_where_it_must_differ", far(false), "ratio", "lower");
    let to = |most: u64| controlled(cells).filter(move |(cell, _)| cell.senders <= most);
    let timeouts: u64 = to(1_000).map(|(_, outcome)| outcome.timeouts).sum();
    let any = to(1_000).next().is_some();
    push(
        "sim_incast_timeouts_to_1000_senders",
        any.then_some(timeouts as f64),
        "timeouts",
        "lower",
    );
    // DCTCP has its own reasons to leave a part of the line.
    let plain = |(cell, _): &(&Cell, &Outcome)| !cell.configuration.needs_marks();
    let many = |(cell, _): &(&Cell, &Outcome)| cell.senders >= 16;
    let of_line =
        to(500).filter(plain).filter(many).map(|(cell, o)| o.goodput_mbps / cell.line_mbps());
    push(
        "sim_incast_least_goodput_to_500_senders",
        of_line.reduce(f64::min),
        "of the line",
        "higher",
    );
    let of_best = to(500).filter(plain);
    let of_best = of_best
        .filter_map(|(cell, outcome)| Some(outcome.goodput_mbps / best_of_others(cells, cell)?));
    push("sim_incast_least_over_best_other", of_best.reduce(f64::min), "ratio", "higher");
    let of_dctcp = to(500).filter(|(cell, _)| cell.configuration == Configuration::IncastDctcp);
    let of_dctcp = of_dctcp.filter_map(|(cell, outcome)| {
        let alone = Cell { configuration: Configuration::Dctcp, ..cell.clone() };
        let alone = cells.iter().find(|done| done.cell == alone)?;
        Some(outcome.goodput_mbps / alone.outcome.as_ref()?.goodput_mbps)
    });
    push("sim_incast_dctcp_least_over_dctcp", of_dctcp.reduce(f64::min), "ratio", "higher");
    let fair = cells.iter().filter(|done| done.cell.configuration == Configuration::Incast);
    let jain = fair.filter_map(|done| done.outcome.as_ref()?.other("jain")).reduce(f64::min);
    push("sim_incast_least_jain", jain, "index", "higher");
    for (series, kind, with) in [
        ("recorded waits", Kind::Uploads, Configuration::Early),
        ("recorded waits", Kind::Downloads, Configuration::Split),
        ("many VMs", Kind::Uploads, Configuration::Early),
        ("many VMs", Kind::Downloads, Configuration::Split),
    ] {
        let is_it = |done: &&Done| {
            let cell = &done.cell;
            cell.series == series && (cell.kind, cell.configuration) == (kind, with)
        };
        let gains = cells.iter().filter(is_it).filter_map(|done| gains(cells, &done.cell));
        let median = gains.map(|gains| percentile(&gains, 0.5)).reduce(f64::min);
        let series = series.replace(' ', "_").to_lowercase();
        let name = format!("sim_{series}_{}_least_median_gain", kind.name());
        push(&name, median, "times sooner", "higher");
    }
    figures
}

//! How vsnoop compares with what else there is, in reports of requests to nginx.

use vsnoop_testbed::vm::Share;

use crate::results::statistics::{Metric, Ratio, by_turn, ratio_of_medians};
use crate::results::{Cell, Figure, Group, Results};

pub const OFF: &str = "off";
pub const VSNOOP: &str = "vsnoop";
pub const PROXY: &str = "proxy";

/// Columns of a table of cells: what [`place`] says, both medians, how many times sooner vsnoop is.
pub const COLUMNS: [&str; 8] = [
    "path\nms",
    "share",
    "control",
    "off\nms p50",
    "vsnoop\nms p50",
    "off/\nvsnoop",
    "proxy/\nvsnoop",
    "priority/\nvsnoop",
];

/// What vsnoop is compared with, in this order.
pub const OTHERS: [&str; 3] = [OFF, PROXY, "priority"];

/// How many times sooner vsnoop is than another configuration.
pub fn sooner(results: &Results, other: &str, group: &Group, metric: &Metric) -> Option<Ratio> {
    let of = |name: &str| by_turn(results, name, group, metric);
    ratio_of_medians(&of(other), &of(VSNOOP))
}

/// Groups in which vsnoop can be told from another configuration, or not.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Those with samples enough for an interval.
    pub compared: Vec<Group>,
    /// Beyond the noise.
    pub sooner: Vec<Group>,
    pub later: Vec<Group>,
}

impl Comparison {
    pub fn of<'a>(
        results: &Results,
        other: &str,
        groups: impl Iterator<Item = &'a Group>,
        metric: &Metric,
    ) -> Self {
        let mut comparison = Self::default();
        for group in groups {
            let ratio = sooner(results, other, group, metric).filter(Ratio::has_interval);
            let Some(ratio) = ratio else { continue };
            comparison.compared.push(*group);
            if ratio.low > 1.0 {
                comparison.sooner.push(*group);
            }
            if ratio.high < 1.0 {
                comparison.later.push(*group);
            }
        }
        comparison
    }

    /// `of 12 requests vsnoop is sooner than proxy in 3 beyond the noise, later in 0`.
    pub fn text(&self, other: &str) -> Option<String> {
        let Self { compared, sooner, later } = self;
        (!compared.is_empty()).then(|| {
            format!(
                "of {} requests vsnoop is sooner than {other} in {} beyond the noise, later in {}",
                compared.len(),
                sooner.len(),
                later.len()
            )
        })
    }

    /// How many are later; nothing, if none could be told.
    pub fn later_figure(&self, name: &str) -> Option<Figure> {
        (!self.compared.is_empty()).then(|| Figure {
            name: name.into(),
            value: self.later.len() as f64,
            unit: "cells".into(),
            better: "lower".into(),
        })
    }
}

/// Path, share and congestion control of a cell.
pub fn place(cell: &Cell) -> [String; 3] {
    let share = match cell.share {
        Some(Share::Quota { percent }) => format!("{percent} %"),
        Some(share) => share.to_string(),
        None => String::new(),
    };
    let control = cell.congestion_control.map_or("", |control| control.name());
    [cell.path_rtt_ms.to_string(), share, control.to_owned()]
}

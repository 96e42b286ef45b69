//! The definition of a comparison.

use std::time::Duration;

use crate::experiment::configuration::Configuration;

/// An experiment of this kind.
pub struct Comparison {
    pub name: &'static str,
    pub configurations: &'static [Configuration],
    /// Machines and the load of each; with `--quick` the first only.
    pub machines: &'static [(usize, f64)],
    /// With `--quick` the first only.
    pub path_rtts_ms: &'static [f64],
    /// Sizes, and rounds of each in every cell.
    pub plan: &'static [(u64, usize)],
    pub quick_plan: &'static [(u64, usize)],
    /// Longest time of a cell's measurements, even if rounds of its plan remain.
    pub budget: Duration,
}

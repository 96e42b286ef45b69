//! Experiments that are declared in files: experiments/NAME.toml says what is measured where, which
//! runner does it, and what its report is.
//!
//! [`Experiment`] is such a file, [`Parts`](parts::Parts) what a run measures (the plan of the
//! file, changed by its `quick` table and by the options of the command, in parts if it has some),
//! [`Runner`] the code that measures. [`on_stages`] has the loop of runners that need VMs on a
//! stage. The plan of an experiment with a network of its own is read by its runner alone.

mod file;
mod on_stages;
mod parts;
mod plan;

use std::sync::LazyLock;

use anyhow::{Context, Result};

pub use file::{Experiment, Runner, Task};
pub use on_stages::{Ground, Measure, on_stages};
pub use parts::distinct;

/// In the order of lists.
const FILES: &[&str] = &[
    include_str!("../../../experiments/demo.toml"),
    include_str!("../../../experiments/hold.toml"),
    include_str!("../../../experiments/incast.toml"),
    include_str!("../../../experiments/link-lan.toml"),
    include_str!("../../../experiments/link-wan.toml"),
    include_str!("../../../experiments/link-compress.toml"),
    include_str!("../../../experiments/migrate.toml"),
    include_str!("../../../experiments/ping.toml"),
    include_str!("../../../experiments/delays.toml"),
    include_str!("../../../experiments/sequence.toml"),
    include_str!("../../../experiments/profile.toml"),
    include_str!("../../../experiments/transfer-cdf.toml"),
    include_str!("../../../experiments/transfer-sizes.toml"),
    include_str!("../../../experiments/uploads.toml"),
    include_str!("../../../experiments/downloads.toml"),
    include_str!("../../../experiments/services.toml"),
    include_str!("../../../experiments/web.toml"),
    include_str!("../../../experiments/mpi.toml"),
];

static ALL: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    // A test reads each of them.
    FILES
        .iter()
        .map(|text| toml::from_str(text).unwrap_or_else(|error| panic!("{error}")))
        .collect()
});

/// All experiments, in the order of lists.
pub fn all() -> &'static [Experiment] {
    &ALL
}

impl Experiment {
    pub fn find(name: &str) -> Result<&'static Self> {
        all().iter().find(|experiment| experiment.name == name).with_context(|| {
            let names: Vec<_> = all().iter().map(|experiment| &*experiment.name).collect();
            format!("there is no experiment {name:?}; there are: {}", names.join(", "))
        })
    }
}

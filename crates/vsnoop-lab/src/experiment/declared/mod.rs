//! Experiments that are declared in files: experiments/NAME.toml says what is measured where, and
//! which runner does it.
//!
//! [`Declaration`] is such a file, [`Parts`] what a run measures (the plan of the file, changed by
//! its `quick` table and by the options of the command, in parts if it has some), [`Runner`] the
//! code: a function that measures, and those that make tables, figures and plots of the samples.
//! [`on_stages`] has the loop of runners that need VMs on a stage. Files of experiments with a
//! network of their own are [`Own`]: their plan is read by their code alone.

mod file;
mod on_stages;
mod own;
mod parts;
mod plan;
mod runner;

use std::sync::LazyLock;

pub use file::Declaration;
pub use on_stages::{Ground, Measure, on_stages};
pub use own::{Own, OwnRunner};
pub use runner::{Runner, Task};

/// In the order of lists.
const FILES: &[&str] = &[
    include_str!("../../../experiments/demo.toml"),
    include_str!("../../../experiments/hold.toml"),
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

static ALL: LazyLock<Vec<Declaration>> = LazyLock::new(|| {
    // A test reads each of them.
    FILES
        .iter()
        .map(|text| toml::from_str(text).unwrap_or_else(|error| panic!("{error}")))
        .collect()
});

pub fn all() -> &'static [Declaration] {
    &ALL
}

impl Declaration {
    pub fn find(name: &str) -> Option<&'static Self> {
        all().iter().find(|declaration| declaration.name == name)
    }
}

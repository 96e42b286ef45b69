//! `link-lan`, `link-wan`, `link-compress`: what carries a guest's frames to another host, and how well.
//!
//! All carriers of an experiment ([`peers::link`](crate::peers::link)) stand side by side on two hosts
//! ([`rig`]), and measurements take turns. A measurement is one TCP stream with cubic at both ends
//! ([`stream`]), with echoes before and beside it ([`probe`]); [`content`] is what is sent.

mod compress;
pub mod content;
mod goals;
mod lan;
mod plots;
mod probe;
mod rig;
mod stream;
mod tables;
mod values;
mod wan;

use anyhow::{Result, ensure};
use serde_json::json;

use super::progress::Progress;
use super::{Experiment, Options, environment};
use crate::results::Results;
use crate::workspace;

pub const LAN: Experiment = lan::EXPERIMENT;
pub const WAN: Experiment = wan::EXPERIMENT;
pub const COMPRESS: Experiment = compress::EXPERIMENT;

/// What an experiment on links begins with: only some options make sense, and root is needed.
fn begin(name: &str, options: &Options) -> Result<Results> {
    ensure!(
        options.sizes_bytes.is_empty()
            && options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none(),
        "{name} takes --quick, --configuration, --rounds and --out only"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and starts tunnels: run it as root"
    );
    let mut results = Results::begin(name, environment::describe());
    if let Ok(program) = workspace::vsnoop_command() {
        let version = crate::testbed::net::checked(&program.to_string_lossy(), ["--version"]);
        results.environment.insert("vsnoop".into(), json!(version?.trim()));
    }
    Ok(results)
}

/// How much there is to do, in measurements.
fn progress<T>(turns: &[&[(T, usize)]]) -> Progress {
    let measurements = turns.iter().flat_map(|turns| turns.iter()).map(|(_, rounds)| rounds);
    Progress::new(measurements.sum())
}

//! `link-lan`, `link-wan`, `link-compress`: comparisons of carriers, the programs that carry a
//! guest's frames to another host. `link-scale`: one link with many peers.
//!
//! All carriers of an experiment ([`peers::link`](crate::peers::link)) run at the same time on two
//! hosts ([`rig`]), and are measured in turn. A measurement is one TCP stream with cubic at both
//! ends ([`stream`]), with echoes before and beside it ([`probe`]); [`content`] makes the data.
//! Carriers, paths, streams and rounds are declared in experiments/link-*.toml.

mod compress;
pub mod content;
mod differences;
mod lan;
mod plots;
mod probe;
mod rated_path;
mod rig;
mod scale;
mod series;
mod stream;
mod tables;
mod values;
mod wan;

use super::definition::Experiment;
pub use scale::SCALE;

/// In the order of lists.
pub fn experiments() -> [Experiment; 4] {
    [lan::experiment(), wan::experiment(), compress::experiment(), scale::experiment()]
}

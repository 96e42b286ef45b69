//! `link-lan`, `link-wan`, `link-compress`: comparisons of carriers, the programs that carry a
//! guest's frames to another host. `link-scale`: one link with many peers.
//!
//! All carriers of an experiment ([`peers::link`](crate::peers::link)) run at the same time on two
//! hosts ([`rig`]), and are measured in turn. A measurement is one TCP stream with cubic at both
//! ends ([`stream`]), with echoes before and beside it ([`probe`]); [`content`] makes the data.

mod compress;
pub mod content;
mod lan;
mod papers;
mod plots;
mod probe;
mod rig;
mod scale;
mod series;
mod stream;
mod tables;
mod values;
mod wan;

use super::definition::Experiment;

pub const LAN: Experiment = lan::EXPERIMENT;
pub const WAN: Experiment = wan::EXPERIMENT;
pub const COMPRESS: Experiment = compress::EXPERIMENT;
pub const SCALE: Experiment = scale::EXPERIMENT;

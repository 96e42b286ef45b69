//! `link-lan`, `link-wan`, `link-compress`: what carries a guest's frames to another host, and how
//! well.
//!
//! All carriers of an experiment ([`peers::link`](crate::peers::link)) stand side by side on two
//! hosts ([`rig`]), and measurements take turns. A measurement is one TCP stream with cubic at both
//! ends ([`stream`]), with echoes before and beside it ([`probe`]); [`content`] is what is sent.

mod compress;
pub mod content;
mod goals;
mod lan;
mod plots;
mod probe;
mod rig;
mod series;
mod stream;
mod tables;
mod values;
mod wan;

use super::definition::Experiment;

pub const LAN: Experiment = lan::EXPERIMENT;
pub const WAN: Experiment = wan::EXPERIMENT;
pub const COMPRESS: Experiment = compress::EXPERIMENT;

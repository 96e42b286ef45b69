//! Split connections of a port (bpf/split.bpf.c, flow/split.h): their programs, and what the
//! splitter does with them.
//!
//! All is pinned in the directory `split` of the port's pins. [`attach`] and [`detach`] belong to
//! the process that attaches the port; the splitter opens the pins ([`SplitPort`]).

mod attach;
mod port;

pub use attach::{SplitSpec, attach, detach, has_pins, id, is_attached, program_ids};
pub use port::{SplitPort, counters, flows, note_place};
pub use vsnoop_flow::split::{Candidate, Copied, Record, State, full_key};

use crate::objects::split::{Map, Program};

/// The directory of the pins, in the port's.
pub(crate) const DIRECTORY: &str = "split";

/// Pins of the links, in the order in which they are taken off. The sockets' segments come last:
/// they still reach both ends while no new ones come.
pub(crate) const LINKS: [(&str, Program); 3] = [
    ("link_to_vm", Program::SplitToVm),
    ("link_from_vm", Program::SplitFromVm),
    ("link_from_socket", Program::SplitFromSocket),
];

/// Pins of the maps.
const PORT: &str = "port";
const CANDIDATES: &str = "candidates";
const FLOWS: &str = "flows";
const RING: &str = "ring";
const MAPS: [(&str, Map); 4] = [
    (PORT, Map::SplitPort),
    (CANDIDATES, Map::SplitCandidates),
    (FLOWS, Map::SplitFlows),
    (RING, Map::SplitRing),
];

/// Pin of the program that changes the state of a connection.
const CHANGE: &str = "change";

/// The candidate in a map's value.
fn candidate_from(bytes: &[u8]) -> Option<Candidate> {
    use crate::record::Record as _;
    vsnoop_flow::types::split_candidate::from_bytes(bytes).map(Candidate)
}

//! The VM: TCPs of different kinds, behind one interface; or a router with such a TCP behind it.

mod application;
mod forward;
mod linux;
mod lwip;
mod smol;
mod tcp;

pub use forward::{Forwarder, Link};
pub use linux::Linux;
pub use lwip::Lwip;
pub use smol::Smol;
pub use tcp::{Guest, Kind, Progress};

use vsnoop_flow::testing::end::EndSettings;

use crate::wire::Path;

/// A VM of this kind with one end of each connection.
pub fn make(kind: Kind, ends: &[(usize, Path, EndSettings)], seed: u64) -> Box<dyn Guest> {
    match kind {
        Kind::Linux => Box::new(Linux::new(ends)),
        Kind::Smol => Box::new(Smol::new(ends, seed)),
        Kind::Lwip => Box::new(Lwip::new(ends, seed)),
    }
}

//! Incast control of one port, as user space sees it: words that it shares with the hooks, and the
//! queues of connections that wait.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use vsnoop_flow::types::{
    flow_key, incast_account, incast_port, incast_turn_taken, port, port_state,
};

use crate::error::{Error, Result};
use crate::inject::Runner;
use crate::mapping::Mapping;
use crate::record::Record;

/// What the connections of a port owe its uplink, and which of them wait.
pub struct PortIncast(Mapping);

/// Within the port's record.
const INCAST: usize = std::mem::offset_of!(port, state) + std::mem::offset_of!(port_state, incast);
const OWN: usize = INCAST + std::mem::offset_of!(incast_port, own);
const WAITING: usize = OWN + std::mem::offset_of!(incast_account, waiting);
const SHUT: usize = INCAST + std::mem::offset_of!(incast_port, shut);
const IDLE: usize = INCAST + std::mem::offset_of!(incast_port, idle);
const TURNS: usize = INCAST + std::mem::offset_of!(incast_port, turns);

impl PortIncast {
    pub(crate) fn new(port: &MapHandle, dir: &Path) -> Result<Self> {
        Ok(Self(Mapping::new(port, dir)?))
    }

    /// Connections in line for credit.
    pub fn waiting(&self) -> u32 {
        self.count(WAITING)
    }

    /// Connections with a closed window that had nothing to send.
    pub fn shut(&self) -> u32 {
        self.count(SHUT) + self.count(IDLE)
    }

    /// How many turns connections have had that waited.
    pub fn turns(&self) -> u32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        let turns = unsafe { AtomicU32::from_ptr(self.0.at(TURNS).cast()) };
        turns.load(Ordering::Relaxed)
    }

    /// For the hooks' own functions.
    pub(crate) fn as_ptr(&self) -> *mut incast_port {
        self.0.at(INCAST).cast()
    }

    fn count(&self, offset: usize) -> u32 {
        // SAFETY: as in turns().
        let count = unsafe { AtomicI32::from_ptr(self.0.at(offset).cast()) };
        count.load(Ordering::Relaxed).max(0) as u32
    }
}

/// The connections of a port that wait for incast control to open their windows.
pub struct Line {
    incast: PortIncast,
    line: MapHandle,
    shut: MapHandle,
    turn: Runner,
    ifindex: u32,
    dir: PathBuf,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nobody can have one now.
    Nobody,
    /// A connection had it, and its sender was told.
    Once,
    /// Those that were asked did not take it; others may.
    Later,
}

impl Line {
    pub(crate) fn open(incast: PortIncast, dir: &Path, ifindex: u32) -> Result<Self> {
        let error = |name: &str| Error::bpf(format!("open {}", dir.join(name).display()));
        let map = |name: &str| MapHandle::from_pinned_path(dir.join(name)).map_err(error(name));
        Ok(Self {
            incast,
            line: map("line")?,
            shut: map("shut")?,
            turn: Runner::open(dir, "turn")?,
            ifindex,
            dir: dir.to_owned(),
        })
    }

    /// How many wait, and what has been.
    pub fn incast(&self) -> &PortIncast {
        &self.incast
    }

    /// Who is next: of those in line, or of those that are shut where nobody is.
    pub fn head(&self) -> Result<Option<flow_key>> {
        let queue = if self.incast.waiting() > 0 { &self.line } else { &self.shut };
        let what = || format!("read a line of {}", self.dir.display());
        let found = queue.lookup(&[], MapFlags::ANY).map_err(Error::bpf(what()))?;
        Ok(found.and_then(|bytes| flow_key::from_bytes(&bytes)))
    }

    /// Whoever is next has a turn, if there is credit; `ack`: a pure ACK of the VM whose addresses
    /// and VLAN tags are of the same form. The calling thread must be in the tap's network
    /// namespace.
    pub fn take_turn(&self, ack: &[u8]) -> Result<Taken> {
        let run = self.turn.run(self.ifindex, [0, 0], ack);
        let run =
            run.map_err(Error::bpf(format!("open a window behind {}", self.dir.display())))?;
        Ok(match run.verdict as u32 {
            incast_turn_taken::TURN_TAKEN => Taken::Once,
            incast_turn_taken::TURN_LATER => Taken::Later,
            _ => Taken::Nobody,
        })
    }
}

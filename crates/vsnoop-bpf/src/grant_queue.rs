//! Incast control of one port, as user space sees it: words that it shares with the hooks, and the
//! queues of connections that wait.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use vsnoop_flow::types::{
    flow_key, incast_account, incast_grant_result, incast_port, port, port_state,
};

use crate::error::{Error, Result};
use crate::inject::Runner;
use crate::mapping::Mapping;
use crate::maps::{PortMap, SharedProgram};
use crate::record::Record;

/// The outstanding credit of a port's connections, and how many of them wait.
pub struct PortIncast(Mapping);

/// Within the port's record.
const INCAST: usize = std::mem::offset_of!(port, state) + std::mem::offset_of!(port_state, incast);
const OWN: usize = INCAST + std::mem::offset_of!(incast_port, own);
const QUEUED: usize = OWN + std::mem::offset_of!(incast_account, queued);
const SHUT: usize = INCAST + std::mem::offset_of!(incast_port, shut);
const IDLE: usize = INCAST + std::mem::offset_of!(incast_port, idle);
const GRANTS: usize = INCAST + std::mem::offset_of!(incast_port, grants);

impl PortIncast {
    pub(crate) fn new(port: &MapHandle, dir: &Path) -> Result<Self> {
        Ok(Self(Mapping::new(port, dir)?))
    }

    /// Connections in the grant queue.
    pub fn queued(&self) -> u32 {
        self.count(QUEUED)
    }

    /// Connections with a closed window that had nothing to send.
    pub fn finished(&self) -> u32 {
        self.count(SHUT) + self.count(IDLE)
    }

    /// How many connections that waited were granted a window.
    pub fn grants(&self) -> u32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        let grants = unsafe { AtomicU32::from_ptr(self.0.at(GRANTS).cast()) };
        grants.load(Ordering::Relaxed)
    }

    /// For the hooks' own functions.
    pub(crate) fn as_ptr(&self) -> *mut incast_port {
        self.0.at(INCAST).cast()
    }

    fn count(&self, offset: usize) -> u32 {
        // SAFETY: as in grants().
        let count = unsafe { AtomicI32::from_ptr(self.0.at(offset).cast()) };
        count.load(Ordering::Relaxed).max(0) as u32
    }
}

/// The connections of a port that wait for incast control to open their windows.
pub struct GrantQueue {
    incast: PortIncast,
    queue: MapHandle,
    finished: MapHandle,
    grant: Runner,
    ifindex: u32,
    dir: PathBuf,
}

/// What came of offering a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// No connection can have one now.
    None,
    /// A connection took it, and its sender was told.
    Sent,
    /// Those that were tried could not take it; others may.
    Retry,
}

impl GrantQueue {
    pub(crate) fn open(incast: PortIncast, dir: &Path, ifindex: u32) -> Result<Self> {
        let map = |map: PortMap| {
            let path = dir.join(map.pin());
            let what = format!("open {}", path.display());
            MapHandle::from_pinned_path(path).map_err(Error::bpf(what))
        };
        Ok(Self {
            incast,
            queue: map(PortMap::GrantQueue)?,
            finished: map(PortMap::FinishedQueue)?,
            grant: Runner::open(dir, SharedProgram::Grant)?,
            ifindex,
            dir: dir.to_owned(),
        })
    }

    /// How many wait, and what has been.
    pub fn incast(&self) -> &PortIncast {
        &self.incast
    }

    /// Which connection is next: the head of the grant queue or, where that is empty, the first of
    /// those that have finished.
    pub fn head(&self) -> Result<Option<flow_key>> {
        let queue = if self.incast.queued() > 0 { &self.queue } else { &self.finished };
        let what = || format!("read the grant queue of {}", self.dir.display());
        let found = queue.lookup(&[], MapFlags::ANY).map_err(Error::bpf(what()))?;
        Ok(found.and_then(|bytes| flow_key::from_bytes(&bytes)))
    }

    /// Grants the next connection a window, if there is credit; `ack`: a pure ACK of the VM whose
    /// addresses and VLAN tags are of the same form. The calling thread must be in the tap's
    /// network namespace.
    pub fn grant_next(&self, ack: &[u8]) -> Result<Granted> {
        let run = self.grant.run(self.ifindex, [0, 0], ack);
        let run =
            run.map_err(Error::bpf(format!("open a window behind {}", self.dir.display())))?;
        Ok(match run.verdict as u32 {
            incast_grant_result::GRANT_SENT => Granted::Sent,
            incast_grant_result::GRANT_RETRY => Granted::Retry,
            _ => Granted::None,
        })
    }
}

//! Incast control of one port: words shared with the hooks, and the queues of waiting connections.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use vsnoop_flow::types::{
    flow_key, incast_account, incast_grant_result, incast_port, port, port_state,
};
use vsnoop_hold::grants::{self, Granted};

use crate::error::{Error, Result};
use crate::inject::Runner;
use crate::mapping::Mapping;
use crate::maps::{PortMap, SharedProgram};
use crate::record::Record;

/// Outstanding credit of a port's connections, and the number of waiting ones.
pub struct PortIncast(Mapping);

/// Offset in the port's record.
const INCAST: usize = std::mem::offset_of!(port, state) + std::mem::offset_of!(port_state, incast);
const OWN: usize = INCAST + std::mem::offset_of!(incast_port, own);
const QUEUED: usize = OWN + std::mem::offset_of!(incast_account, queued);
const FINISHED_ANSWERERS: usize = INCAST + std::mem::offset_of!(incast_port, finished_answerers);
const FINISHED_OTHERS: usize = INCAST + std::mem::offset_of!(incast_port, finished_others);
const GRANTS: usize = INCAST + std::mem::offset_of!(incast_port, grants);

impl PortIncast {
    pub(crate) fn new(port: &MapHandle, dir: &Path) -> Result<Self> {
        Ok(Self(Mapping::new(port, dir)?))
    }

    /// Connections in the grant queue.
    pub fn queued(&self) -> u32 {
        self.count(QUEUED)
    }

    /// Finished connections with a closed window.
    pub fn finished(&self) -> u32 {
        self.count(FINISHED_ANSWERERS) + self.count(FINISHED_OTHERS)
    }

    /// Grants to waiting connections.
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

    /// The port's counters of incast control.
    pub fn incast(&self) -> &PortIncast {
        &self.incast
    }
}

/// The calling thread must be in the tap's network namespace to grant.
impl grants::GrantQueue for &GrantQueue {
    type Error = Error;

    fn queued(&self) -> u32 {
        self.incast.queued()
    }

    fn finished(&self) -> u32 {
        self.incast.finished()
    }

    fn grants(&self) -> u32 {
        self.incast.grants()
    }

    fn head(&mut self) -> Result<Option<flow_key>> {
        let queue = if self.incast.queued() > 0 { &self.queue } else { &self.finished };
        let what = || format!("read the grant queue of {}", self.dir.display());
        let found = queue.lookup(&[], MapFlags::ANY).map_err(Error::bpf(what()))?;
        Ok(found.and_then(|bytes| flow_key::from_bytes(&bytes)))
    }

    fn grant_next(&mut self, segment: &[u8]) -> Result<Granted> {
        let run = self.grant.run(self.ifindex, [0, 0], segment);
        let run =
            run.map_err(Error::bpf(format!("open a window behind {}", self.dir.display())))?;
        Ok(match run.verdict as u32 {
            incast_grant_result::GRANT_SENT => Granted::Sent,
            incast_grant_result::GRANT_RETRY => Granted::Retry,
            _ => Granted::None,
        })
    }
}

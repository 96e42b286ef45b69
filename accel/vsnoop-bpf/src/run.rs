//! The run state of a port: the operator's choice, the helper's suspension, and the service's pause
//! for a migration.
//!
//! The operator chooses active or paused. The helper may suspend the port, whatever the choice,
//! while something on the tap makes the hand-over inexact, and the service pauses it while its VM
//! migrates. All are in one word of the policy in the port's pinned record, `run`: the choice, and
//! the bits `PORT_SUSPENDED` and `PORT_MIGRATING`. The hooks compare the word with
//! `PORT_ACCELERATE` and `PORT_OBSERVE` and treat all other values as `PORT_PAUSED`, so a bit alone
//! pauses the port. Because it is in the kernel, neither the end of a process nor a `resume` clears
//! it, and the operator's choice is kept.

use std::fs::File;

use libbpf_rs::{MapCore, MapFlags};
use vsnoop_flow::types::{self, PORT_MIGRATING, PORT_SUSPENDED, policy, port_run};

use crate::congestion_control::CongestionControl;
use crate::error::{Error, Result};
use crate::maps::PortMap;
use crate::pins;
use crate::port::Port;
use crate::record::Record;
use crate::service_mark::ServiceMark;
use crate::text::c_name;

/// The bits of `run` beside the operator's choice.
const BITS: u32 = PORT_SUSPENDED | PORT_MIGRATING;

/// While it lives, no other process changes the port's records that user space writes.
#[derive(Debug)]
pub(crate) struct RecordLock {
    /// `None` of an orphan: only processes that had it open can change it.
    _directory: Option<File>,
}

impl Port {
    /// The settings in force; `run` is the operator's choice.
    pub fn policy(&self) -> Result<policy> {
        let policy = self.raw_policy()?;
        Ok(policy { run: policy.run & !BITS, ..policy })
    }

    /// Sets `PORT_OBSERVE`, `PORT_ACCELERATE` or `PORT_PAUSED`. A suspension continues, and so does
    /// the pause for a migration.
    pub fn set_run(&self, run: port_run::Type) -> Result<()> {
        let _lock = self.lock_records()?;
        let policy = self.raw_policy()?;
        self.write_policy(&policy { run: run | policy.run & BITS, ..policy })
    }

    /// Changes the quota of the hold, and how far senders may send beyond the VM's own window.
    /// Packets after the return are subject to the new bounds; copies beyond them stay until the VM
    /// has acknowledged them.
    pub fn set_bounds(&self, hold_chunks: Option<u32>, ahead: Option<u32>) -> Result<policy> {
        let _lock = self.lock_records()?;
        let mut policy = self.raw_policy()?;
        policy.hold_chunks = hold_chunks.unwrap_or(policy.hold_chunks);
        policy.ahead = ahead.unwrap_or(policy.ahead);
        self.write_policy(&policy)?;
        if hold_chunks.is_some() {
            self.want_slabs()?;
        }
        Ok(policy)
    }

    /// Records whether the splitter splits connections of the port.
    pub fn set_downloads(&self, is_on: bool) -> Result<()> {
        let _lock = self.lock_records()?;
        let policy = self.raw_policy()?;
        self.write_policy(&policy { downloads: is_on.into(), ..policy })
    }

    /// Records the congestion control of connections that are split from now on.
    pub fn set_congestion_control(&self, chosen: CongestionControl) -> Result<()> {
        let _lock = self.lock_records()?;
        let policy = self.raw_policy()?;
        self.write_policy(&types::policy { congestion_control: chosen.record(), ..policy })
    }

    /// Records by what the service knows the port.
    pub fn set_service(&self, mark: &ServiceMark) -> Result<()> {
        let _lock = self.lock_records()?;
        self.write_meta(&mark.write(self.meta()?))
    }

    /// May its connections be split: has it downloads, is it active, and neither suspended nor
    /// paused?
    pub fn may_split(&self) -> Result<bool> {
        let policy = self.raw_policy()?;
        Ok(policy.downloads != 0 && policy.run == port_run::PORT_ACCELERATE)
    }

    /// Has the helper suspended the port?
    pub fn is_suspended(&self) -> Result<bool> {
        Ok(self.raw_policy()?.run & PORT_SUSPENDED != 0)
    }

    /// Number of suspensions since the port was attached.
    pub fn times_suspended(&self) -> Result<u64> {
        Ok(self.meta()?.times_suspended)
    }

    /// Suspends the port (no new early ACKs; those given out are honoured) or ends the suspension.
    /// False if nothing changed.
    pub fn suspend(&self, suspended: bool) -> Result<bool> {
        let _lock = self.lock_records()?;
        let policy = self.raw_policy()?;
        if (policy.run & PORT_SUSPENDED != 0) == suspended {
            return Ok(false);
        }
        self.write_policy(&policy { run: policy.run ^ PORT_SUSPENDED, ..policy })?;
        if suspended {
            let mut meta = self.meta()?;
            meta.times_suspended += 1;
            self.write_meta(&meta)?;
        }
        Ok(true)
    }

    /// Is the port paused because its VM migrates?
    pub fn is_migrating(&self) -> Result<bool> {
        Ok(self.raw_policy()?.run & PORT_MIGRATING != 0)
    }

    /// Pauses the port for a migration of its VM (no new early ACKs; those given out are honoured),
    /// or ends this pause.
    pub fn set_migrating(&self, migrating: bool) -> Result<()> {
        let _lock = self.lock_records()?;
        let policy = self.raw_policy()?;
        let run =
            if migrating { policy.run | PORT_MIGRATING } else { policy.run & !PORT_MIGRATING };
        self.write_policy(&types::policy { run, ..policy })
    }

    /// Notes the tap's present bridge.
    pub fn set_bridge(&self, ifindex: u32) -> Result<()> {
        let _lock = self.lock_records()?;
        let mut meta = self.meta()?;
        meta.bridge = ifindex;
        self.write_meta(&meta)
    }

    /// Notes the tap's present name.
    pub fn set_ifname(&self, ifname: &str) -> Result<()> {
        let _lock = self.lock_records()?;
        let mut meta = self.meta()?;
        meta.ifname = c_name(ifname);
        self.write_meta(&meta)
    }

    /// Counts connections that user space reset, and their bytes that the VM had not acknowledged.
    pub fn count_reset(
        &self,
        why: types::reset_reason::Type,
        flows: u64,
        bytes: u64,
    ) -> Result<()> {
        let _lock = self.lock_records()?;
        let mut meta = self.meta()?;
        meta.resets[why as usize] += flows;
        meta.reset_bytes += bytes;
        self.write_meta(&meta)
    }

    /// Counts a connection that user space reset, and whose sender could not be sent a RST.
    pub fn count_unsent(&self) -> Result<()> {
        let _lock = self.lock_records()?;
        let mut meta = self.meta()?;
        meta.resets_unsent += 1;
        self.write_meta(&meta)
    }

    /// Counts a failure of this VM port (host byte order): after two within a minute new
    /// connections go to BYPASS for some minutes. `now_ns` is CLOCK_MONOTONIC. A simultaneous
    /// change by the hooks may be lost.
    pub fn note_failure(&self, vm_port: u16, now_ns: u64) -> Result<()> {
        let _lock = self.lock_records()?;
        let path = self.dir().join(PortMap::Failures.pin());
        let what = || format!("note a failure in {}", path.display());
        let map = self.open_map::<types::failures>(PortMap::Failures)?;
        let key = u32::from(vm_port).to_ne_bytes();
        let found = map.lookup(&key, MapFlags::ANY).map_err(Error::bpf(what()))?;
        let mut failures =
            found.and_then(|bytes| types::failures::from_bytes(&bytes)).unwrap_or_default();
        vsnoop_flow::note_failure(&mut failures, now_ns);
        map.update(&key, failures.as_bytes(), MapFlags::ANY).map_err(Error::bpf(what()))
    }

    /// VM ports (host byte order) whose new connections go to BYPASS at `now_ns` (CLOCK_MONOTONIC),
    /// sorted, with their failures.
    pub fn bypassed_vm_ports(&self, now_ns: u64) -> Result<Vec<(u16, types::failures)>> {
        let path = self.dir().join(PortMap::Failures.pin());
        let what = || format!("read {}", path.display());
        let map = self.open_map::<types::failures>(PortMap::Failures)?;
        let mut found = Vec::new();
        for key in map.keys() {
            let value = map.lookup(&key, MapFlags::ANY).map_err(Error::bpf(what()))?;
            let failures = value.and_then(|bytes| types::failures::from_bytes(&bytes));
            let number = key.first_chunk::<4>().map(|key| u32::from_ne_bytes(*key) as u16);
            found.extend(number.zip(failures.filter(|failures| failures.until_ns > now_ns)));
        }
        found.sort_by_key(|(number, _)| *number);
        Ok(found)
    }

    /// Waits for the lock for read-modify-write of records, with a bound. The kernel releases it
    /// with the process.
    fn lock_records(&self) -> Result<RecordLock> {
        let directory = match File::open(self.dir()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(Error::io(format!("lock {}", self.dir().display())))?),
        };
        if let Some(directory) = &directory {
            pins::lock_directory(directory, self.dir())?;
        }
        // If the port was detached during the wait, a change would have no effect.
        let lock = RecordLock { _directory: directory };
        if self.is_there() || self.is_orphaned() { Ok(lock) } else { Err(self.taken_away()) }
    }
}

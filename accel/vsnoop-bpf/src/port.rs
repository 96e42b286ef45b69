//! One attached tap.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, ProgramHandle};
use vsnoop_flow::types::{
    self, flow, flow_key, inject_way, policy, port_meta, port_state, port_stats,
};
use vsnoop_hold::Place;
use vsnoop_hold::outstanding::outstanding;

use crate::account::{ProgramInfo, program_info};
use crate::error::{Damage, Error, Result};
use crate::grant_queue::{GrantQueue, PortIncast};
use crate::hook::Hook;
use crate::inject::{self, OpenHook};
use crate::link::{self, LinkInfo, PinnedLink};
use crate::map::{open_map, unopened};
use crate::mapping::Mapping;
use crate::maps::{HadBy, PortMap, SharedProgram};
use crate::objects::Named;
use crate::program_slot::ProgramSlot;
use crate::record::Record;
use crate::text::c_string;
use crate::{batch, pins, program_slot, programs, routed};

const ZERO: [u8; 4] = [0; 4];

/// The pins of one attached tap, open.
#[derive(Debug)]
pub struct Port {
    dir: PathBuf,
    /// Inode of `dir`; another attachment of the same tap has another one.
    inode: u64,
    meta: MapHandle,
    /// Settings and state: struct port of flow/types/port.h.
    shared: MapHandle,
    stats: MapHandle,
    pub(crate) flows: MapHandle,
    /// Sends frames.
    inject: ProgramHandle,
    /// Keep the hooks on the tap if other programs remove the pins.
    links: [PinnedLink; 2],
    /// The arrays by which the hooks call their programs. The kernel empties one that no process
    /// has open and no pin names.
    _programs: [MapHandle; 2],
}

impl Port {
    /// The attachment of interface `ifindex` in network namespace `netns`
    /// (inode). [`Error::NotAttached`] when there is none.
    pub fn open(netns: u64, ifindex: u32) -> Result<Port> {
        match Self::open_dir(&pins::directory(netns, ifindex)) {
            Err(Error::NotAttached(_)) => Err(Error::NotAttached(format!("with index {ifindex}"))),
            // An earlier version made the directory first, and filled it seconds later.
            Err(Error::Damaged { path, .. }) if pins::is_empty(&path) => {
                Err(Error::NotAttached(format!("with index {ifindex}")))
            }
            other => other,
        }
    }

    pub(crate) fn open_dir(dir: &Path) -> Result<Port> {
        let gone = || Error::NotAttached(format!("of {}", dir.display()));
        let inode = pins::inode(dir).ok_or_else(gone)?;
        let opened = Self::open_pins(dir, inode);
        // Set aside while its pins were opened: it is not there, or there is another one.
        match pins::inode(dir) {
            Some(now) if now == inode => opened,
            Some(_) => Self::open_dir(dir),
            None => Err(gone()),
        }
    }

    fn open_pins(dir: &Path, inode: u64) -> Result<Port> {
        let damaged = |reason| Error::Damaged { path: dir.to_owned(), reason };
        let pin = |map: PortMap| dir.join(map.pin());
        let meta = open_map::<port_meta>(&pin(PortMap::Meta))?;
        let abi = only_value::<port_meta>(&meta, "meta", dir)?.abi;
        if abi != types::VSNOOP_ABI {
            return Err(damaged(Damage::Abi { abi }));
        }
        if !program_slot::are_there(dir) {
            return Err(damaged(Damage::NoPrograms));
        }
        let port = Port {
            meta,
            shared: open_map::<types::port>(&pin(PortMap::Ports))?,
            stats: open_map::<port_stats>(&pin(PortMap::Stats))?,
            flows: open_map::<flow>(&pin(PortMap::Flows))?,
            inject: program_slot::program_of(dir, SharedProgram::Inject)?,
            links: [open_link(dir, Hook::ToVm)?.0, open_link(dir, Hook::FromVm)?.0],
            _programs: [
                program_slot::array_of(dir, Hook::ToVm)?,
                program_slot::array_of(dir, Hook::FromVm)?,
            ],
            dir: dir.to_owned(),
            inode,
        };
        if ProgramSlot::from_directory(dir).is_none() {
            return Err(damaged(Damage::NoSlot));
        }
        // Opened when they are used.
        let others = PortMap::ALL.iter().filter(|map| map.had_by() == HadBy::All);
        if let Some(missing) = others.map(|map| pin(*map)).find(|pin| !pin.exists()) {
            return Err(damaged(Damage::NoPin { pin: missing }));
        }
        Ok(port)
    }

    fn read<T: Record>(&self, map: &MapHandle, what: &'static str) -> Result<T> {
        only_value(map, what, &self.dir)
    }

    fn write<T: Record>(&self, map: &MapHandle, value: &T, what: &str) -> Result<()> {
        map.update(&ZERO, value.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("write {what} of {}", self.dir.display())))
    }

    /// Distinguishes this attachment from others of the same tap.
    pub fn id(&self) -> u64 {
        self.inode
    }

    /// The links of its hooks, to_vm first.
    pub(crate) fn links(&self) -> &[PinnedLink] {
        &self.links
    }

    /// The directory of the pins.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The record of the attachment.
    pub fn meta(&self) -> Result<port_meta> {
        self.read(&self.meta, "meta")
    }

    /// The tap's name when it was attached.
    pub fn ifname(&self) -> Result<String> {
        Ok(c_string(&self.meta()?.ifname))
    }

    /// The default qdisc that was replaced by noqueue, if one was.
    pub fn qdisc_replaced(&self) -> Result<Option<String>> {
        Ok(Some(c_string(&self.meta()?.qdisc)).filter(|q| !q.is_empty()))
    }

    pub(crate) fn write_meta(&self, meta: &port_meta) -> Result<()> {
        self.write(&self.meta, meta, "meta")
    }

    /// The policy; `run` includes `PORT_SUSPENDED` and `PORT_MIGRATING`.
    pub(crate) fn raw_policy(&self) -> Result<policy> {
        Ok(self.read::<types::port>(&self.shared, "the port's record")?.policy)
    }

    pub(crate) fn write_policy(&self, policy: &policy) -> Result<()> {
        let words = Mapping::new(&self.shared, &self.dir)?;
        let start = std::mem::offset_of!(types::port, policy);
        // Word by word, as the hooks read; they write the fields beside it.
        for (at, word) in policy.as_bytes().chunks_exact(4).enumerate() {
            let word = u32::from_ne_bytes(word.try_into().expect("chunks_exact(4) gives 4 bytes"));
            // SAFETY: an aligned word within the mapping, which lives as long as the reference.
            let to = unsafe { AtomicU32::from_ptr(words.at(start + 4 * at).cast()) };
            to.store(word, Ordering::Release);
        }
        Ok(())
    }

    /// The hooks' state of the VM.
    pub fn state(&self) -> Result<port_state> {
        Ok(self.read::<types::port>(&self.shared, "the port's record")?.state)
    }

    /// Incast control of the port, live.
    pub fn incast(&self) -> Result<PortIncast> {
        PortIncast::new(&self.shared, &self.dir)
    }

    /// The connections that wait for incast control to open their windows.
    pub fn grant_queue(&self) -> Result<GrantQueue> {
        GrantQueue::open(self.incast()?, &self.dir, self.meta()?.ifindex)
    }

    /// Asks the engine for memory, which it adds at its next tick. The hooks ask when a segment
    /// comes, but a sender that was shown a closed window sends none.
    pub(crate) fn want_slabs(&self) -> Result<()> {
        let state = Mapping::new(&self.shared, &self.dir)?;
        let offset = std::mem::offset_of!(types::port, state)
            + std::mem::offset_of!(port_state, wants_slabs);
        // SAFETY: an aligned word within the mapping, which lives as long as the reference.
        let wants = unsafe { AtomicU32::from_ptr(state.at(offset).cast()) };
        wants.store(1, Ordering::Release);
        Ok(())
    }

    /// The counters, summed over all CPUs.
    pub fn stats(&self) -> Result<port_stats> {
        let what = || format!("read stats of {}", self.dir.display());
        let per_cpu = self.stats.lookup_percpu(&ZERO, MapFlags::ANY).map_err(Error::bpf(what()))?;
        let mut sum = [0u64; size_of::<port_stats>() / 8];
        for bytes in per_cpu.unwrap_or_default() {
            for (sum, word) in sum.iter_mut().zip(bytes.chunks_exact(8)) {
                let word: [u8; 8] = word.try_into().expect("chunks_exact(8) gives 8 bytes");
                *sum = sum.wrapping_add(u64::from_ne_bytes(word));
            }
        }
        let bytes: Vec<u8> = sum.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(port_stats::from_bytes(&bytes).expect("port_stats is an array of u64"))
    }

    /// All flows on record. One that is added or removed meanwhile may be missing.
    pub fn flows(&self) -> Result<Vec<(flow_key, flow)>> {
        batch::entries(&self.flows)
            .map_err(Error::bpf(format!("read flows of {}", self.dir.display())))
    }

    /// Puts a flow on record, as known from elsewhere; an error when it exists
    /// or the table is full.
    pub fn insert_flow(&self, key: &flow_key, flow: &flow) -> Result<()> {
        let flow = flow { key_hash: vsnoop_flow::key_hash(key), ..*flow };
        self.flows
            .update(key.as_bytes(), flow.as_value_of(&self.flows), MapFlags::NO_EXIST)
            .map_err(Error::bpf(format!("insert a flow of {}", self.dir.display())))
    }

    /// How many flows there may be.
    pub fn max_flows(&self) -> u32 {
        self.flows.max_entries()
    }

    /// Connections and bytes that were acknowledged early and not yet by the VM.
    pub fn outstanding(&self) -> Result<(u64, u64)> {
        Ok(outstanding(&self.flows()?))
    }

    /// The record of one flow.
    pub fn flow(&self, key: &flow_key) -> Result<Option<flow>> {
        let found = self
            .flows
            .lookup(key.as_bytes(), MapFlags::LOCK)
            .map_err(Error::bpf(format!("read a flow of {}", self.dir.display())))?;
        Ok(found.and_then(|bytes| flow::from_bytes(&bytes)))
    }

    /// Sends an Ethernet frame, of [`Place::Routed`] an IP packet. The calling thread must be in
    /// the tap's network namespace.
    pub fn send(&self, place: Place, frame: &[u8]) -> Result<()> {
        let (ifindex, way) = match place {
            Place::ToVm => (self.meta()?.ifindex, inject_way::INJECT_TO_VM),
            Place::FromVm => (self.meta()?.ifindex, inject_way::INJECT_TO_SENDER),
            Place::OutOf(ifindex) => (ifindex, inject_way::INJECT_OUT),
            Place::InBy(ifindex) => (ifindex, inject_way::INJECT_IN),
            Place::Routed => return routed::send(frame).map_err(Error::io("send an IP packet")),
        };
        inject::inject(&self.inject, ifindex, frame, way)
    }

    /// A hook, to be run on frames that came in through the uplink.
    pub fn open_hook(&self, hook: Hook) -> Result<OpenHook> {
        let meta = self.meta()?;
        OpenHook::open(self.program_id(hook)?, meta.ifindex, meta.uplink)
    }

    /// See [`OpenHook::run`].
    pub fn run_hook(&self, hook: Hook, frame: &[u8], repeat: u32) -> Result<(i32, Vec<u8>)> {
        self.open_hook(hook)?.run(frame, repeat)
    }

    /// Are the hooks detached, as their pinned links show? For a listed port this means that the
    /// tap was deleted. A pin that cannot be read proves nothing, and is an error:
    /// [`Error::NotAttached`] if the port was detached meanwhile.
    pub fn hooks_are_off(&self) -> Result<bool> {
        let is_off = |hook| self.link(hook).map(|link| link.ifindex == 0);
        let off = is_off(Hook::ToVm).and_then(|off| Ok(is_off(Hook::FromVm)? || off));
        if self.is_there() { off } else { Err(self.taken_away()) }
    }

    /// Are both hooks certainly on the tap?
    pub fn links_alive(&self) -> bool {
        matches!(self.hooks_are_off(), Ok(false))
    }

    /// Is a process detaching it, or was one killed while it did ([`Port::cut_short`])?
    pub fn is_set_aside(&self) -> bool {
        pins::is_aside(&self.dir)
    }

    /// Is it an incomplete attach of a killed process?
    pub fn is_arriving(&self) -> bool {
        pins::is_arriving(&self.dir)
    }

    /// Are the pins where they were when they were opened?
    pub fn is_there(&self) -> bool {
        pins::inode(&self.dir) == Some(self.inode)
    }

    /// Opens one of its maps, with values of type `T`.
    pub(crate) fn open_map<T: Record>(&self, map: PortMap) -> Result<MapHandle> {
        self.if_there(open_map::<T>(&self.dir.join(map.pin())))
    }

    /// Replaces the error by [`Error::NotAttached`] if the port was detached meanwhile.
    pub(crate) fn if_there<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| if self.is_there() { error } else { self.taken_away() })
    }

    pub(crate) fn taken_away(&self) -> Error {
        Error::NotAttached(format!("of {}", self.dir.display()))
    }

    /// The kernel's id of a hook's program.
    pub fn program_id(&self, hook: Hook) -> Result<u32> {
        Ok(self.link(hook)?.program_id)
    }

    /// Memory of the port's own maps, and of the programs on its tap, as accounted by the kernel
    /// (`memlock` in /proc/PID/fdinfo), without slabs and records of flows; bytes.
    pub fn kernel_bytes(&self) -> Result<u64> {
        let what = || format!("read {}", self.dir.display());
        let mut bytes = 0;
        for entry in std::fs::read_dir(&self.dir).map_err(Error::io(what()))? {
            let entry = entry.map_err(Error::io(what()))?;
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let fd = link::open_pin(&entry.path()).map_err(Error::bpf(what()))?;
                bytes += memlock(fd.as_fd()).unwrap_or(0);
            }
        }
        for hook in [Hook::ToVm, Hook::FromVm] {
            let program =
                ProgramHandle::from_prog_id(self.program_id(hook)?).map_err(Error::bpf(what()))?;
            bytes += memlock(program.as_fd()).unwrap_or(0);
        }
        Ok(bytes)
    }

    /// The programs behind the hooks, with the kernel's own accounting of this port's packets.
    pub fn programs(&self) -> Result<Vec<ProgramInfo>> {
        let program = |hook| {
            let what = || format!("read the program of {hook:?}");
            let entry =
                ProgramHandle::from_prog_id(self.program_id(hook)?).map_err(Error::bpf(what()))?;
            let entry = program_info(entry.as_fd()).map_err(Error::bpf(what()))?;
            let shared = program_slot::hook_of(&self.dir, hook)?;
            let shared = program_info(shared.as_fd()).map_err(Error::bpf(what()))?;
            // The kernel accounts the time to the program that it calls.
            let (run_count, run_time_ns) = (entry.run_count, entry.run_time_ns);
            Ok(ProgramInfo { run_count, run_time_ns, ..shared })
        };
        [Hook::ToVm, Hook::FromVm].into_iter().map(program).collect()
    }

    fn link(&self, hook: Hook) -> Result<LinkInfo> {
        open_link(&self.dir, hook).map(|(_, info)| info)
    }

    /// First part of [`Port::detach`]: the port is no longer listed, and when this returns no
    /// packet passes a hook. Its records can still be read, and frames be sent. False if another
    /// process has done so: then there is nothing left to do.
    pub fn leave(&mut self) -> Result<bool> {
        if !self.is_there() {
            return Ok(false);
        }
        if !self.is_set_aside() {
            let Some(aside) = pins::set_aside(&self.dir)? else { return Ok(false) };
            self.dir = aside;
        }
        pins::take_hooks_off(&self.dir)?;
        Ok(true)
    }

    /// Detaches the hooks and drops all records and copies: the caller has reset the connections.
    pub fn detach(mut self) -> Result<()> {
        let left = self.leave();
        if self.is_set_aside() && self.is_there() {
            programs::clear_port(&self.dir)?;
        }
        left.map(drop)
    }
}

fn open_link(dir: &Path, hook: Hook) -> Result<(PinnedLink, LinkInfo)> {
    let path = dir.join(pins::LINKS[hook as usize]);
    let opened = PinnedLink::open(&path).and_then(|link| link.info().map(|info| (link, info)));
    opened.map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => {
            Error::Permission { what: format!("read {}", path.display()) }
        }
        _ => unopened(&path, source),
    })
}

/// The only value of a map of the port in `dir`.
fn only_value<T: Record>(map: &MapHandle, what: &'static str, dir: &Path) -> Result<T> {
    let bytes = map
        .lookup(&ZERO, MapFlags::ANY)
        .map_err(Error::bpf(format!("read {what} of {}", dir.display())))?;
    let damaged = || Error::Damaged { path: dir.to_owned(), reason: Damage::Unread { what } };
    bytes.and_then(|bytes| T::from_bytes(&bytes)).ok_or_else(damaged)
}

/// Memory of a map or a program; a link has none.
fn memlock(fd: BorrowedFd) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"))?;
    line.trim().parse().ok()
}

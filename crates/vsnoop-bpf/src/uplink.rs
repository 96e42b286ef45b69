//! The uplink that ports are behind: the record that incast control shares among them, and the hook
//! that counts what comes in.
//!
//! Pinned in a directory of its own, `/sys/fs/bpf/vsnoop-uplinks/<netns>-<ifindex>`, and taken into
//! use by each port that is attached with incast control. It goes when no port is behind it any
//! more; who takes the last one away removes it. With a rate of 0 incast control is off: the record
//! stays, and so does the hook.
//!
//! The hook goes with its interface, or may be taken off with other tools. The record outlives it,
//! for the programs of the ports have it; a hook that is put on again counts into the same one.
//! What the interface was called stands in a symbolic link beside it, for messages about one that
//! is gone.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder, ProgramHandle};
use vsnoop_flow::types::{self, flow, uplink};

use crate::account::{ProgramInfo, program_info};
use crate::bpffs::check_bpffs;
use crate::error::{Error, Result};
use crate::grant_queue::PortIncast;
use crate::inject::OpenHook;
use crate::link::{PinnedLink, tcx_link};
use crate::map::open_map;
use crate::mapping::Mapping;
use crate::objects::uplink::{Map, Program};
use crate::objects::{self, Named};
use crate::pins;
use crate::record::Record;

/// The directory of all uplinks' pins.
pub const UPLINK_ROOT: &str = "/sys/fs/bpf/vsnoop-uplinks";
/// The record's pin.
const MAP: &str = "uplink";
const LINK: &str = "link_count";
/// Leads to the name of the interface, which is no file.
const NAME: &str = "interface";

/// How many interfaces may lead from an uplink to its ports; a 0 ends them.
pub const WAYS: usize = types::INCAST_WAYS as usize - 1;

/// Which uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UplinkId {
    /// Inode of the network namespace.
    pub netns: u64,
    /// The interface there.
    pub ifindex: u32,
}

impl UplinkId {
    /// What a directory of pins is about, of an uplink or of a port: its name says so.
    pub fn of(dir: &Path) -> Option<Self> {
        let (netns, ifindex) = dir.file_name()?.to_str()?.split_once('-')?;
        Some(Self { netns: netns.parse().ok()?, ifindex: ifindex.parse().ok()? })
    }
}

/// What is configured of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UplinkSettings {
    /// C, bits per second.
    pub bits_per_second: u64,
    /// Queue of the last hop before it, bytes.
    pub buffer_bytes: u32,
}

/// As the hooks reckon: bytes per 2^20 ns; at least 1.
pub fn uplink_rate(bits_per_second: u64) -> u32 {
    let bytes = u128::from(bits_per_second) * (1 << 20) / 8 / 1_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(1)
}

/// The pins of one uplink, open.
pub struct Uplink {
    dir: PathBuf,
    map: MapHandle,
    words: Mapping,
}

impl Uplink {
    /// Puts the hook on interface `ifindex` of the calling thread's network namespace, whose inode
    /// is `netns`, unless it is there; either way the settings are these from now on.
    pub fn attach(
        netns: u64,
        ifindex: u32,
        ifname: &str,
        settings: &UplinkSettings,
    ) -> Result<Self> {
        check_bpffs()?;
        let found = Self::open(netns, ifindex)?;
        let uplink = match found {
            Some(found) if found.has_hook() => found,
            found => Self::make(netns, ifindex, ifname, found.is_none())?,
        };
        uplink.set_buffer(settings.buffer_bytes);
        uplink.set_rate(settings.bits_per_second);
        Ok(uplink)
    }

    fn make(netns: u64, ifindex: u32, ifname: &str, is_new: bool) -> Result<Self> {
        let dir = directory(UplinkId { netns, ifindex });
        fs::create_dir_all(&dir).map_err(Error::io(format!("create {}", dir.display())))?;
        let made = load(&dir, ifindex, ifname).and_then(|()| Self::open_dir(dir.clone()));
        if let Ok(uplink) = &made
            && is_new
        {
            uplink.set_ways(&[ifindex]);
        }
        if made.is_err() && is_new {
            // Best effort: the error that led here is the one to report.
            let _ = pins::clear(&dir);
        }
        made
    }

    /// That of interface `ifindex` in network namespace `netns` (inode), if there is one.
    pub fn open(netns: u64, ifindex: u32) -> Result<Option<Self>> {
        let dir = directory(UplinkId { netns, ifindex });
        let is_there = || dir.join(MAP).exists();
        if !is_there() {
            return Ok(None);
        }
        match Self::open_dir(dir.clone()) {
            // Taken off while we looked.
            Err(_) if !is_there() => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn open_dir(dir: PathBuf) -> Result<Self> {
        let map = open_map::<uplink>(&dir.join(MAP))?;
        let words = Mapping::new(&map, &dir)?;
        Ok(Self { dir, map, words })
    }

    /// All uplinks of the host, in a stable order.
    pub fn list() -> Result<Vec<UplinkId>> {
        let mut found: Vec<_> = directories()?.iter().filter_map(|dir| UplinkId::of(dir)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Is there anything for [`Uplink::sweep`] to look at?
    pub fn are_any() -> bool {
        Path::new(UPLINK_ROOT).exists()
    }

    /// Removes those that no port is behind.
    pub fn sweep(used: &[UplinkId]) -> Result<()> {
        let is_used = |dir: &PathBuf| UplinkId::of(dir).is_some_and(|id| used.contains(&id));
        for dir in directories()?.into_iter().filter(|dir| !is_used(dir)) {
            take_off(&dir)?;
        }
        // Of no use when it is empty; no error when it is not.
        let _ = fs::remove_dir(UPLINK_ROOT);
        Ok(())
    }

    /// What the interface was called when the hook was put on it.
    pub fn ifname(&self) -> String {
        let name = fs::read_link(self.dir.join(NAME));
        name.map_or_else(|_| "(without a name)".into(), |name| name.display().to_string())
    }

    /// The record, as it is now; fields that change together may be from different moments.
    pub fn state(&self) -> Result<uplink> {
        let what = || format!("read {}", self.dir.display());
        let bytes = self.map.lookup(&[0; 4], MapFlags::ANY).map_err(Error::bpf(what()))?;
        bytes.and_then(|bytes| uplink::from_bytes(&bytes)).ok_or_else(|| Error::Damaged {
            path: self.dir.clone(),
            reason: "its record cannot be read".into(),
        })
    }

    /// Where the map is pinned: for the programs of a port.
    pub(crate) fn map_path(&self) -> PathBuf {
        self.dir.join(MAP)
    }

    /// The kernel's number of the map: another one for another record.
    pub(crate) fn map_id(&self) -> Result<u32> {
        let what = || format!("ask about {}", self.dir.display());
        Ok(self.map.info().map_err(Error::bpf(what()))?.info.id)
    }

    /// Is the hook on the interface? Not when that was deleted.
    pub fn has_hook(&self) -> bool {
        let info = PinnedLink::open(&self.dir.join(LINK)).and_then(|link| link.info());
        info.is_ok_and(|info| info.ifindex != 0)
    }

    /// The hook, with the kernel's own accounting.
    pub fn program(&self) -> Result<ProgramInfo> {
        let info = self.handle().and_then(|program| program_info(program.as_fd()));
        info.map_err(Error::bpf(format!("read the program of {}", self.dir.display())))
    }

    /// The hook, to be run on frames that it counts.
    pub fn open_hook(&self) -> Result<OpenHook> {
        let link = PinnedLink::open(&self.dir.join(LINK)).and_then(|link| link.info());
        let link = link.map_err(Error::bpf(format!("open the hook of {}", self.dir.display())))?;
        OpenHook::open(link.program_id, 0, 0)
    }

    fn handle(&self) -> libbpf_rs::Result<ProgramHandle> {
        let link = PinnedLink::open(&self.dir.join(LINK))?.info()?;
        ProgramHandle::from_prog_id(link.program_id)
    }

    /// C, from now on. Turns incast control on.
    pub fn set_rate(&self, bits_per_second: u64) {
        let rate = uplink_rate(bits_per_second);
        self.u32(std::mem::offset_of!(uplink, rate)).store(rate, Ordering::Release);
    }

    /// Queue of the last hop, from now on.
    pub fn set_buffer(&self, bytes: u32) {
        self.u32(std::mem::offset_of!(uplink, buffer)).store(bytes, Ordering::Release);
    }

    /// The interfaces that what comes through the uplink may be seen to come in by, from now on. At
    /// most [`WAYS`]; the rest is left out.
    pub fn set_ways(&self, ways: &[u32]) {
        let of_record = |at: usize| self.u32(std::mem::offset_of!(uplink, ways) + 4 * at);
        for (at, way) in ways.iter().take(WAYS).chain([&0]).enumerate() {
            of_record(at).store(*way, Ordering::Release);
        }
    }

    /// As [`Uplink::set_ways`] has set them.
    pub fn ways(&self) -> Result<Vec<u32>> {
        Ok(self.state()?.ways.into_iter().take_while(|way| *way != 0).collect())
    }

    /// Turns incast control off: windows are those of the VMs again.
    pub fn disable(&self) {
        self.u32(std::mem::offset_of!(uplink, rate)).store(0, Ordering::Release);
    }

    /// Is there credit for a connection of this port that waits? `now_ns`: CLOCK_MONOTONIC.
    pub fn has_grant(&self, port: &PortIncast, now_ns: u64) -> bool {
        // SAFETY: as in forget().
        unsafe { types::incast_next(self.words.at(0).cast(), port.as_ptr(), now_ns) != 0 }
    }

    /// A record of this port that was shaped has been forgotten, with all that it counted for.
    pub fn forget(&self, flow: &flow, port: &PortIncast) {
        if !flow.incast.is_shaped() {
            return;
        }
        let mut gone = *flow;
        // SAFETY: the mappings hold an uplink and a port's record, and live as long as `self` and
        // `port`; the hooks' own function changes what it shares with them by atomic instructions
        // only.
        unsafe { types::incast_end(&raw mut gone, self.words.at(0).cast(), port.as_ptr()) };
    }

    /// Takes the hook off and forgets the record. Ports that still use it keep it, without control.
    pub fn remove(self) -> Result<()> {
        take_off(&self.dir)
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.words.at(offset).cast()) }
    }
}

fn directory(id: UplinkId) -> PathBuf {
    Path::new(UPLINK_ROOT).join(format!("{}-{}", id.netns, id.ifindex))
}

fn directories() -> Result<Vec<PathBuf>> {
    match fs::read_dir(UPLINK_ROOT) {
        Ok(entries) => Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(format!("read {UPLINK_ROOT}"))(error)),
    }
}

/// See [`Uplink::remove`].
fn take_off(dir: &Path) -> Result<()> {
    if let Ok(uplink) = Uplink::open_dir(dir.to_owned()) {
        uplink.disable();
    }
    if let Ok(link) = PinnedLink::open(&dir.join(LINK)) {
        // The pin goes all the same: without it the kernel takes the hook off by itself.
        let _ = link.detach();
    }
    pins::clear(dir)
}

fn load(dir: &Path, ifindex: u32, ifname: &str) -> Result<()> {
    let refused =
        |source: libbpf_rs::Error| Error::Load { what: "the uplink's program".into(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name("vsnoop_uplink")
        .and_then(|builder| builder.open_memory(objects::UPLINK))
        .map_err(refused)?;
    let path = dir.join(MAP);
    let has_record = path.exists();
    if has_record {
        for mut map in open.maps_mut() {
            match Map::of(map.name()) {
                Map::DataUplink => map.reuse_pinned_map(&path).map_err(refused)?,
            }
        }
    }
    let mut object = open.load().map_err(refused)?;
    for mut map in object.maps_mut().filter(|_| !has_record) {
        match Map::of(map.name()) {
            Map::DataUplink => map.pin(&path),
        }
        .map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    let link: NonNull<_> =
        tcx_link(&object, Program::Count, ifindex, ifname, libbpf_sys::BPF_F_BEFORE)?;
    // SAFETY: a fresh link that nobody else owns.
    let mut link = unsafe { Link::from_ptr(link) };
    for stale in [LINK, NAME] {
        pins::clear(&dir.join(stale))?;
    }
    let path = dir.join(NAME);
    symlink(ifname, &path).map_err(Error::io(format!("create {}", path.display())))?;
    let path = dir.join(LINK);
    link.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))
}

const _: () = assert!(size_of::<types::uplink>().is_multiple_of(8));

//! An uplink: the record that incast control shares among its ports, and the hook that counts
//! incoming bytes.
//!
//! Pinned in a directory of its own, `/sys/fs/bpf/vsnoop-uplinks/<netns>-<ifindex>`, and used by
//! each port that is attached with incast control. It is removed with the last port. With a rate of
//! 0 incast control is off; record and hook stay.
//!
//! The hook ends with its interface, or may be removed by other tools. The record outlives it,
//! because the programs of the ports use it; a hook that is attached again counts into the same
//! record. A symbolic link beside it has the interface's name, for messages about one that is gone.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder, ProgramHandle};
use vsnoop_flow::incast::uplink_rate;
use vsnoop_flow::types::{self, flow, uplink};

use crate::account::{ProgramInfo, program_info};
use crate::bpffs::check_bpffs;
use crate::error::{Damage, Error, Result};
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
/// Symbolic link whose target is the name of the interface.
const NAME: &str = "interface";

/// Most interfaces by which packets of an uplink may come in; a 0 ends the list.
pub const INGRESS_MAX: usize = types::INCAST_INGRESS as usize - 1;

/// Identifies an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UplinkId {
    /// Inode of the network namespace.
    pub netns: u64,
    /// The interface there.
    pub ifindex: u32,
}

impl UplinkId {
    /// The interface of a directory of pins, of an uplink or a port, from its name.
    pub fn from_directory(dir: &Path) -> Option<Self> {
        let (netns, ifindex) = dir.file_name()?.to_str()?.split_once('-')?;
        Some(Self { netns: netns.parse().ok()?, ifindex: ifindex.parse().ok()? })
    }
}

/// Settings of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UplinkSettings {
    /// C, bits per second.
    pub bits_per_second: u64,
    /// Queue of the last hop before it, bytes.
    pub buffer_bytes: u32,
}

/// The pins of one uplink, open.
pub struct Uplink {
    dir: PathBuf,
    map: MapHandle,
    words: Mapping,
}

impl Uplink {
    /// Attaches the hook to interface `ifindex` of the calling thread's network namespace, whose
    /// inode is `netns`, unless it is there, and sets the settings.
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
        pins::create_root(Path::new(UPLINK_ROOT))?;
        pins::create_root(&dir)?;
        let made = load(&dir, ifindex, ifname).and_then(|()| Self::open_dir(dir.clone()));
        if let Ok(uplink) = &made
            && is_new
        {
            uplink.set_ingress(&[ifindex]);
        }
        if made.is_err() && is_new {
            // Best effort: the error that led here is the one to report.
            let _ = pins::clear(&dir);
        }
        made
    }

    /// The uplink `ifindex` in network namespace `netns` (inode), if there is one.
    pub fn open(netns: u64, ifindex: u32) -> Result<Option<Self>> {
        let dir = directory(UplinkId { netns, ifindex });
        let is_there = || dir.join(MAP).exists();
        if !is_there() {
            return Ok(None);
        }
        match Self::open_dir(dir.clone()) {
            // Removed meanwhile.
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
        let mut found: Vec<_> =
            directories()?.iter().filter_map(|dir| UplinkId::from_directory(dir)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Is there any uplink?
    pub fn are_any() -> bool {
        Path::new(UPLINK_ROOT).exists()
    }

    /// Removes uplinks that are not in `used`.
    pub fn sweep(used: &[UplinkId]) -> Result<()> {
        let is_used =
            |dir: &PathBuf| UplinkId::from_directory(dir).is_some_and(|id| used.contains(&id));
        for dir in directories()?.into_iter().filter(|dir| !is_used(dir)) {
            take_off(&dir)?;
        }
        // Removes the directory if it is empty.
        let _ = fs::remove_dir(UPLINK_ROOT);
        Ok(())
    }

    /// The interface's name when the hook was attached.
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
            reason: Damage::Unread { what: "its record" },
        })
    }

    /// Path of the pinned map, for the programs of a port.
    pub(crate) fn map_path(&self) -> PathBuf {
        self.dir.join(MAP)
    }

    /// The kernel's id of the map, unique for each record.
    pub(crate) fn map_id(&self) -> Result<u32> {
        let what = || format!("ask about {}", self.dir.display());
        Ok(self.map.info().map_err(Error::bpf(what()))?.info.id)
    }

    /// Is the hook attached? Not if the interface was deleted.
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

    /// Sets C. Turns incast control on.
    pub fn set_rate(&self, bits_per_second: u64) {
        let rate = uplink_rate(bits_per_second);
        self.u32(std::mem::offset_of!(uplink, rate)).store(rate, Ordering::Release);
    }

    /// Sets the queue of the last hop.
    pub fn set_buffer(&self, bytes: u32) {
        self.u32(std::mem::offset_of!(uplink, buffer)).store(bytes, Ordering::Release);
    }

    /// Sets the interfaces by which packets of the uplink may come in; at most
    /// [`INGRESS_MAX`], the rest is ignored.
    pub fn set_ingress(&self, ifindexes: &[u32]) {
        let of_record = |at: usize| self.u32(std::mem::offset_of!(uplink, ingress) + 4 * at);
        for (at, ifindex) in ifindexes.iter().take(INGRESS_MAX).chain([&0]).enumerate() {
            of_record(at).store(*ifindex, Ordering::Release);
        }
    }

    /// The list of [`Uplink::set_ingress`].
    pub fn ingress(&self) -> Result<Vec<u32>> {
        Ok(self.state()?.ingress.into_iter().take_while(|ifindex| *ifindex != 0).collect())
    }

    /// Turns incast control off: windows are those of the VMs again.
    pub fn disable(&self) {
        self.u32(std::mem::offset_of!(uplink, rate)).store(0, Ordering::Release);
    }

    /// Is there credit for a waiting connection of this port? `now_ns`: CLOCK_MONOTONIC.
    pub fn has_grant(&self, port: &PortIncast, now_ns: u64) -> bool {
        // SAFETY: as in forget().
        unsafe { types::incast_next(self.words.at(0).cast(), port.as_ptr(), now_ns) != 0 }
    }

    /// Returns the credit of a shaped flow whose record was removed.
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

    /// Detaches the hook and unpins the record. Ports that still use it keep it, without control.
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
        // The pin is removed all the same, and the kernel then detaches the hook.
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
            match Map::from_libbpf(map.name()) {
                Map::DataUplink => map.reuse_pinned_map(&path).map_err(refused)?,
            }
        }
    }
    let mut object = open.load().map_err(refused)?;
    for mut map in object.maps_mut().filter(|_| !has_record) {
        match Map::from_libbpf(map.name()) {
            Map::DataUplink => map.pin(&path),
        }
        .map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    let link: NonNull<_> =
        tcx_link(&object, Program::Count, ifindex, ifname, libbpf_sys::BPF_F_BEFORE)?;
    // SAFETY: a new link, owned by this value alone.
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

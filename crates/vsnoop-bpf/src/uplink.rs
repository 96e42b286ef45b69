//! The uplink that ports are behind: the record that incast control shares among them, and the hook
//! that counts what comes in.
//!
//! Pinned in a directory of its own, `/sys/fs/bpf/vsnoop-uplinks/<netns>-<ifindex>`, and taken into
//! use by each port that is attached with incast control. It goes when no port is behind it any more;
//! who takes the last one away removes it.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder, ProgramHandle};
use vsnoop_flow::types::{self, flow, uplink};

use crate::attach::{check_bpffs, open_map, tcx_link};
use crate::error::{Error, Result};
use crate::inject;
use crate::link::PinnedLink;
use crate::mapping::Mapping;
use crate::pins;
use crate::port::program_info;
use crate::record::{ProgramInfo, Record};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));

/// The directory of all uplinks' pins.
pub const UPLINK_ROOT: &str = "/sys/fs/bpf/vsnoop-uplinks";
/// The data section of bpf/uplink.h, as libbpf names it.
pub(crate) const SECTION: &str = ".data.uplink";
const MAP: &str = "uplink";
const LINK: &str = "link_count";

/// What is configured of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UplinkSettings {
    /// C, bits per second.
    pub bits_per_second: u64,
    /// Queue of the last hop before it, bytes.
    pub buffer_bytes: u32,
}

impl UplinkSettings {
    /// Bytes per 2^20 ns, as the hooks reckon; at least 1.
    fn rate(&self) -> u32 {
        let bytes = u128::from(self.bits_per_second) * (1 << 20) / 8 / 1_000_000_000;
        u32::try_from(bytes).unwrap_or(u32::MAX).max(1)
    }
}

/// The pins of one uplink, open.
pub struct Uplink {
    dir: PathBuf,
    map: MapHandle,
    words: Mapping,
}

impl Uplink {
    /// Puts the hook on interface `ifindex` of the calling thread's network namespace, whose inode is
    /// `netns`, unless it is there; either way the settings are these from now on.
    pub fn attach(
        netns: u64,
        ifindex: u32,
        ifname: &str,
        settings: &UplinkSettings,
    ) -> Result<Self> {
        check_bpffs()?;
        let found = match Self::open(netns, ifindex)? {
            Some(found) if found.is_on() => found,
            Some(dead) => {
                dead.remove()?;
                Self::make(netns, ifindex, ifname)?
            }
            None => Self::make(netns, ifindex, ifname)?,
        };
        found.set(settings);
        Ok(found)
    }

    fn make(netns: u64, ifindex: u32, ifname: &str) -> Result<Self> {
        let dir = directory(netns, ifindex);
        fs::create_dir_all(&dir).map_err(Error::io(format!("create {}", dir.display())))?;
        let made = load(&dir, ifindex, ifname).and_then(|()| Self::open_dir(dir.clone()));
        if made.is_err() {
            // Best effort: the error that led here is the one to report.
            let _ = pins::clear(&dir);
        }
        made
    }

    /// That of interface `ifindex` in network namespace `netns` (inode), if there is one.
    pub fn open(netns: u64, ifindex: u32) -> Result<Option<Self>> {
        let dir = directory(netns, ifindex);
        if !dir.join(MAP).exists() {
            return Ok(None);
        }
        Self::open_dir(dir).map(Some)
    }

    fn open_dir(dir: PathBuf) -> Result<Self> {
        let damaged = |reason| Error::Damaged { path: dir.clone(), reason };
        let map = open_map::<uplink>(&dir.join(MAP)).map_err(damaged)?;
        let words = Mapping::new(&map, &dir)?;
        Ok(Self { dir, map, words })
    }

    /// The directories of all uplinks.
    pub fn list() -> Result<Vec<PathBuf>> {
        match fs::read_dir(UPLINK_ROOT) {
            Ok(entries) => Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(Error::io(format!("read {UPLINK_ROOT}"))(error)),
        }
    }

    /// Removes those of [`Uplink::list`] that no port is behind. `used`: namespace and interface.
    pub fn sweep(used: &[(u64, u32)]) -> Result<()> {
        let kept: Vec<PathBuf> = used.iter().map(|(n, i)| directory(*n, *i)).collect();
        for dir in Self::list()?.into_iter().filter(|dir| !kept.contains(dir)) {
            take_off(&dir)?;
        }
        // Of no use when it is empty; no error when it is not.
        let _ = fs::remove_dir(UPLINK_ROOT);
        Ok(())
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

    /// How many connections stand in line for credit.
    pub fn waiting(&self) -> i32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        let at = self.words.at(std::mem::offset_of!(uplink, waiting)).cast();
        unsafe { AtomicI32::from_ptr(at) }.load(Ordering::Relaxed)
    }

    /// Where the map is pinned: for the programs of a port.
    pub(crate) fn map_path(&self) -> PathBuf {
        self.dir.join(MAP)
    }

    /// Is the hook on the interface? Not when that was deleted.
    pub fn is_on(&self) -> bool {
        let info = PinnedLink::open(&self.dir.join(LINK)).and_then(|link| link.info());
        info.is_ok_and(|info| info.ifindex != 0)
    }

    /// The hook, with the kernel's own accounting.
    pub fn program(&self) -> Result<ProgramInfo> {
        let info = self.handle().and_then(|program| program_info(program.as_fd()));
        info.map_err(Error::bpf(format!("read the program of {}", self.dir.display())))
    }

    /// Has the hook count a frame that goes nowhere.
    pub fn count(&self, frame: &[u8]) -> Result<()> {
        let run = self.handle().and_then(|program| inject::run(&program, 0, 0, frame, 1));
        run.map(drop).map_err(Error::bpf(format!("count a frame in {}", self.dir.display())))
    }

    fn handle(&self) -> libbpf_rs::Result<ProgramHandle> {
        let link = PinnedLink::open(&self.dir.join(LINK))?.info()?;
        ProgramHandle::from_prog_id(link.program_id)
    }

    fn set(&self, settings: &UplinkSettings) {
        self.u32(std::mem::offset_of!(uplink, buffer))
            .store(settings.buffer_bytes, Ordering::Relaxed);
        self.u32(std::mem::offset_of!(uplink, rate)).store(settings.rate(), Ordering::Release);
    }

    /// Incast control stands still: windows are those of the VMs again.
    pub fn disable(&self) {
        self.u32(std::mem::offset_of!(uplink, rate)).store(0, Ordering::Release);
    }

    /// A record that was shaped has been forgotten. What its flow owed is forgotten by itself.
    pub fn forget(&self, flow: &flow) {
        let sub = |offset: usize, number: i32| {
            // SAFETY: an aligned word within the mapping, which lives as long as `self`.
            unsafe { AtomicI32::from_ptr(self.words.at(offset).cast()) }
                .fetch_sub(number, Ordering::Relaxed)
        };
        if flow.incast.shaped != 0 {
            sub(std::mem::offset_of!(uplink, open), 1);
            sub(std::mem::offset_of!(uplink, waiting), i32::from(flow.incast.waiting != 0));
            let is_patient =
                u32::from(flow.incast.waiting) == types::incast_waiting::INCAST_PATIENT;
            sub(std::mem::offset_of!(uplink, patient), i32::from(is_patient));
        }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.words.at(offset).cast()) }
    }

    /// Takes the hook off and forgets the record. Ports that still use it keep it, without control.
    pub fn remove(self) -> Result<()> {
        self.disable();
        take_off(&self.dir)
    }
}

fn directory(netns: u64, ifindex: u32) -> PathBuf {
    Path::new(UPLINK_ROOT).join(format!("{netns}-{ifindex}"))
}

fn take_off(dir: &Path) -> Result<()> {
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
    let open = builder
        .name("vsnoop_uplink")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(refused)?;
    let mut object = open.load().map_err(refused)?;
    for mut map in object.maps_mut() {
        if map.name() == SECTION {
            let path = dir.join(MAP);
            map.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))?;
        }
    }
    let link: NonNull<_> = tcx_link(&object, "count", ifindex, ifname, libbpf_sys::BPF_F_BEFORE)?;
    // SAFETY: a fresh link that nobody else owns.
    let mut link = unsafe { Link::from_ptr(link) };
    let path = dir.join(LINK);
    link.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))
}

const _: () = assert!(size_of::<types::uplink>() % 8 == 0);

//! Slabs that are made and mapped, and no port's yet.
//!
//! To make a slab takes the kernel about 0.1 ms, and a sender beside the host fills the first ones
//! within a millisecond. So the engine keeps a few for all ports together, gives them to the port
//! that wants some, and makes others one by one when nothing else is to be done. None has ever been
//! used: what a port gives back goes to the kernel.
//!
//! Before it makes slabs the reserve asks how much memory may be taken ([`Reserve::within`]): where
//! it is short, the kernel would not refuse, but end processes, this one among them.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapHandle, MapInfo};
use vsnoop_flow::growth::SLABS_AT_ONCE;
use vsnoop_flow::types::{HOLD_READY_SLABS, hold_slab};

use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::text::c_name;

/// Bytes that a slab takes.
const SLAB: u64 = size_of::<hold_slab>() as u64;
/// Slabs in a full reserve: those for a new connection, and the largest step of growth after it.
const MOST: usize = (HOLD_READY_SLABS + SLABS_AT_ONCE) as usize;

/// How long an answer of `room` counts, less what was taken since: it is read from a dozen files.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
/// With less than this it is asked each time: another process may take as much meanwhile.
const AMPLE: u64 = 8 * MOST as u64 * SLAB;

/// The engine's, of all ports. Copies are of the same one.
#[derive(Clone)]
pub struct Reserve {
    pub(crate) slabs: Rc<RefCell<Vec<NewSlab>>>,
    /// Bytes that may be taken now.
    pub(crate) room: fn() -> u64,
    /// Its last answer, less what was taken since, and when that was.
    pub(crate) known: Rc<Cell<Option<(u64, Instant)>>>,
}

impl Default for Reserve {
    /// Without a bound.
    fn default() -> Self {
        Self::within(|| u64::MAX)
    }
}

/// A slab that is in no port's map.
pub(crate) struct NewSlab {
    /// The kernel frees it with its last descriptor, unless a map of maps holds it by then.
    pub(crate) map: MapHandle,
    pub(crate) map_id: u32,
    pub(crate) memory: Mapping,
}

impl Reserve {
    /// `room`: the bytes that may be taken from the kernel now.
    pub fn within(room: fn() -> u64) -> Self {
        Self { slabs: Rc::default(), room, known: Rc::default() }
    }

    /// Makes one slab; false when there are enough, or there is no memory for it.
    pub fn refill(&self) -> Result<bool> {
        let there = self.slabs.borrow().len();
        if there >= MOST || self.available(there as u32 + 1) <= there as u32 {
            return Ok(false);
        }
        let slab = self.make(Path::new("the reserve of memory for what is held"))?;
        self.slabs.borrow_mut().push(slab);
        Ok(true)
    }

    /// How many of the wanted slabs it has, or may make.
    pub(crate) fn available(&self, wanted: u32) -> u32 {
        let there = self.slabs.borrow().len() as u32;
        if wanted <= there {
            return wanted;
        }
        let more = self.room() / SLAB;
        wanted.min(there.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)))
    }

    /// One of them, or a new one. `dir`: of the port that gets it.
    pub(crate) fn take(&self, dir: &Path) -> Result<NewSlab> {
        let ready = self.slabs.borrow_mut().pop();
        ready.map_or_else(|| self.make(dir), Ok)
    }

    fn room(&self) -> u64 {
        let now = Instant::now();
        let counts =
            |(bytes, at): &(u64, Instant)| *bytes > AMPLE && now.duration_since(*at) < ASKED_AGAIN;
        let known = self.known.get().filter(counts);
        let (bytes, at) = known.unwrap_or_else(|| ((self.room)(), now));
        self.known.set(Some((bytes, at)));
        bytes
    }

    fn make(&self, dir: &Path) -> Result<NewSlab> {
        let slab = NewSlab::make(dir)?;
        self.known.update(|known| known.map(|(bytes, at)| (bytes.saturating_sub(SLAB), at)));
        Ok(slab)
    }
}

impl NewSlab {
    /// `dir` is whose it is, for errors.
    fn make(dir: &Path) -> Result<Self> {
        let error = |what: &str| Error::bpf(format!("{what}, of {}", dir.display()));
        let map = create_slab().map_err(error("make memory for what is held"))?;
        let map_id = map.info().map_err(error("ask about a slab"))?.info.id;
        let memory = Mapping::new(&map, dir)?;
        Ok(Self { map, map_id, memory })
    }
}

/// By the system call itself: libbpf gives a map its name only after it has loaded a program to try
/// the kernel out, and the engine may load none (cli/src/background.rs).
pub(crate) fn create_slab() -> libbpf_rs::Result<MapHandle> {
    let mut attributes = libbpf_sys::bpf_attr::default();
    attributes.__bindgen_anon_1 = libbpf_sys::bpf_attr__bindgen_ty_1 {
        map_type: libbpf_sys::BPF_MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<hold_slab>() as u32,
        max_entries: 1,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        map_name: c_name("vsnoop_slab"),
        ..Default::default()
    };
    // SAFETY: complete attributes and their true length.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            libbpf_sys::BPF_MAP_CREATE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has just made the descriptor, and only this function knows its number.
    let map = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    MapHandle::from_map_id(MapInfo::new(map.as_fd())?.info.id)
}

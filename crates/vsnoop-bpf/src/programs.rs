//! The programs that ports share, and each port's slot in their arrays of maps (bpf/maps.h).
//!
//! Ports whose programs have the same constants have the same programs: what they take in the
//! kernel, and what the verifier takes of time, they take once for [`PORT_SLOTS`] ports. They are
//! pinned in a directory beside those of the ports, whose name says which build of vsnoop made
//! them and what their constants are. What is on a tap itself are two programs of seven
//! instructions that name the port's slot and go on in the shared ones ([`entry`]).
//!
//! The directory of a port says by two symbolic links which programs it has, and which slot. That
//! alone counts: a slot is free when no directory names it, programs go when no directory names
//! them. Who reads these to change them, or renames such a directory, has the lock of
//! [`PIN_ROOT`]. What a process that was killed has left in a slot, its next owner overwrites, or
//! its engine removes (src/slabs.rs).

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramHandle};
use vsnoop_flow::types::{PORT_SLOTS, SLABS, port_config};

use crate::attach::{AttachSpec, refused};
use crate::empty::owned;
use crate::error::{Error, Result};
use crate::pins::{self, PIN_ROOT};
use crate::port::Hook;
use crate::record::Record;
use crate::uplink::{self, Uplink};

static PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vsnoop.bpf.o"));
static WITH_INCAST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vsnoop_incast.bpf.o"));

/// Begins the names of their directories.
const PREFIX: &str = "programs-";
/// In the directory of a port: leads to that of its programs.
pub(crate) const PROGRAMS: &str = "programs";
/// In the directory of a port: leads to the number of its slot, which is no file.
const SLOT: &str = "slot";
/// The arrays of maps, by their names in bpf/maps.h and bpf/port.bpf.c, with those that a port
/// without lists, or without incast control, has not.
pub(crate) const TABLES: [&str; 11] = [
    "ports",
    "flows",
    "embryos",
    "stats",
    "failures",
    "doorbell",
    "port_list",
    "prefix_list",
    "line",
    "shut",
    "beside",
];
const SLAB_TABLE: &str = "slabs";
/// What user space runs, of those of them that are loaded.
const RUN: [&str; 3] = ["inject", "tend", "turn"];
const INCAST_PROGRAM: &str = "turn";
/// Of bpf/maps.h and bpf/line.h: what only ports with incast control have.
pub(crate) const INCAST_MAPS: [&str; 5] = ["beside", "line", "shut", "turns", "uplink"];
/// System calls that wait for the kernel at the same time.
const AT_ONCE: usize = 32;

/// What is constant in the programs of a port.
struct Constants {
    config: port_config,
    /// The pinned record of the uplink that incast control looks at, and the kernel's number of
    /// it.
    uplink: Option<(PathBuf, u32)>,
}

impl Constants {
    fn of(spec: &AttachSpec) -> Result<Self> {
        let uplink = if spec.uplink == 0 {
            None
        } else {
            let uplink = Uplink::open(spec.netns, spec.uplink)?
                .ok_or_else(|| Error::NotAttached(format!("to interface {}", spec.uplink)))?;
            Some((uplink.map_path(), uplink.map_id()?))
        };
        Ok(Self { config: spec.config(), uplink })
    }

    fn object(&self) -> &'static [u8] {
        if self.uplink.is_some() { WITH_INCAST } else { PLAIN }
    }

    /// Of the names of directories with such programs; a number follows.
    fn prefix(&self) -> String {
        let mut build = DefaultHasher::new();
        self.object().hash(&mut build);
        let uplink = self.uplink.as_ref().map_or(0, |(_, map_id)| *map_id);
        let port_config { hold, lists } = self.config;
        format!("{PREFIX}{:016x}-{hold}-{lists}-{uplink}-", build.finish())
    }

    /// `maps`: those of a port, which show the kernel what is in the tables.
    fn load(&self, maps: &mut Object) -> Result<Object> {
        let mut builder = ObjectBuilder::default();
        let mut open = builder
            .name("vsnoop")
            .and_then(|builder| builder.open_memory(self.object()))
            .map_err(refused("the BPF object"))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if TABLES.contains(&name.as_str()) {
                let like = maps.maps_mut().find(|like| *like.name() == *name && like.autocreate());
                like.map_or(Ok(()), |like| map.set_inner_map_fd(like.as_fd()))
                    .map_err(refused("the maps"))?;
            }
            let resized = match name.as_str() {
                "port_list" | "prefix_list" => map.set_autocreate(is_wanted(&self.config, &name)),
                name if name == uplink::SECTION => match &self.uplink {
                    Some((path, _)) => map.reuse_pinned_map(path),
                    None => map.set_autocreate(false),
                },
                name if INCAST_MAPS.contains(&name) => map.set_autocreate(self.uplink.is_some()),
                name if name.ends_with(".rodata") => map.set_initial_value(self.config.as_bytes()),
                _ => Ok(()),
            };
            resized.map_err(refused("the maps"))?;
        }
        for mut program in open.progs_mut().filter(|program| program.name() == INCAST_PROGRAM) {
            program.set_autoload(self.uplink.is_some());
        }
        open.load().map_err(refused("the BPF programs"))
    }
}

/// Has a port of this configuration such a list?
pub(crate) fn is_wanted(config: &port_config, list: &str) -> bool {
    use vsnoop_flow::types::{LIST_PORTS, LIST_PREFIXES};
    config.lists & if list == "port_list" { LIST_PORTS } else { LIST_PREFIXES } != 0
}

/// The programs for a port that is to be attached.
pub(crate) struct Ready {
    constants: Constants,
    /// Loaded, and pinned nowhere: there were none with a slot free.
    fresh: Option<Object>,
}

impl Ready {
    /// Loads them, unless there are some with a slot free. `maps`: the port's own.
    pub(crate) fn new(spec: &AttachSpec, maps: &mut Object) -> Result<Self> {
        let constants = Constants::of(spec)?;
        let is_there = free_slot(&constants.prefix())?.is_some();
        let fresh = if is_there { None } else { Some(constants.load(maps)?) };
        Ok(Self { constants, fresh })
    }

    /// A slot for the port that arrives in `dir`. Its `maps` are not in it yet.
    pub(crate) fn seat(mut self, dir: &Path, maps: &mut Object) -> Result<Seat> {
        let memory = dir.join(pins::MEMORY);
        fs::create_dir(&memory).map_err(Error::io(format!("create {}", memory.display())))?;
        let _lock = pins::lock()?;
        let prefix = self.constants.prefix();
        let (programs, slot) = match free_slot(&prefix)? {
            Some(found) => found,
            None => {
                let fresh = match self.fresh.take() {
                    Some(fresh) => fresh,
                    // They have gone with their last port.
                    None => self.constants.load(maps)?,
                };
                (pin(fresh, &prefix)?, 0)
            }
        };
        let name = programs.file_name().unwrap_or_default();
        let link = |to: &Path, name: &str| {
            let path = dir.join(name);
            symlink(to, &path).map_err(Error::io(format!("create {}", path.display())))
        };
        // The slot first: a directory that names programs names a slot.
        link(Path::new(&slot.to_string()), SLOT)?;
        link(&Path::new("..").join(name), PROGRAMS)?;
        Ok(Seat { programs, slot })
    }
}

/// A port's place among those that share its programs.
pub(crate) struct Seat {
    /// The directory of the programs.
    programs: PathBuf,
    pub(crate) slot: u32,
}

impl Seat {
    /// Of a port, as its directory has it; `None` where that has none.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        let slot = fs::read_link(dir.join(SLOT)).ok()?.to_str()?.parse().ok()?;
        let programs = fs::read_link(dir.join(PROGRAMS)).ok()?;
        Some(Self { programs: Path::new(PIN_ROOT).join(programs.file_name()?), slot })
    }

    /// Puts the port's own maps into its slot. The kernel returns from each such change when no
    /// program runs any more that may have seen the slot as it was, so they are made at the same
    /// time.
    pub(crate) fn fill(&self, maps: &mut Object) -> Result<()> {
        let mut changes = Vec::new();
        for map in maps.maps_mut().filter(|map| map.autocreate()) {
            let name = map.name().to_string_lossy().into_owned();
            if TABLES.contains(&name.as_str()) {
                changes.push((self.table(&name)?, map.as_fd().as_raw_fd()));
            }
        }
        let key = self.slot.to_ne_bytes();
        let changes = changes.iter().map(|(table, fd)| (table, *fd)).collect();
        at_once(changes, |(table, fd)| table.update(&key, &fd.to_ne_bytes(), MapFlags::ANY))
            .map_err(Error::bpf(format!("fill slot {} of {}", self.slot, self.programs.display())))
    }

    /// Takes the maps of the port in `dir` out again, and what is left of the hold's memory;
    /// nothing where they are another's.
    fn vacate(&self, dir: &Path) -> Result<()> {
        let is_there = |name: &&str| self.programs.join(name).exists();
        let names: Vec<&str> = TABLES.into_iter().chain([SLAB_TABLE]).filter(is_there).collect();
        let tables: Vec<MapHandle> =
            names.iter().map(|name| self.table(name)).collect::<Result<_>>()?;
        let of = |name| names.iter().position(|found| *found == name).map(|at| &tables[at]);
        let own = MapHandle::from_pinned_path(dir.join("port")).and_then(|map| map.info());
        let own = own.map(|info| info.info.id).ok();
        let is_own = |table: &MapHandle| inner_id(table, self.slot) == own && own.is_some();
        if !of(TABLES[0]).is_some_and(is_own) {
            return Ok(());
        }
        let slabs = self.slot * SLABS..(self.slot + 1) * SLABS;
        let slabs = of(SLAB_TABLE).into_iter().flat_map(|table| {
            let is_used = |index: &u32| inner_id(table, *index).is_some();
            slabs.clone().filter(is_used).map(move |index| (table, index))
        });
        let maps = names.iter().zip(&tables).filter(|(name, _)| **name != SLAB_TABLE);
        let changes = maps.map(|(_, table)| (table, self.slot)).chain(slabs).collect();
        at_once(changes, |(table, index)| match table.delete(&index.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .map_err(Error::bpf(format!(
            "clear slot {} of {}",
            self.slot,
            self.programs.display()
        )))
    }

    fn table(&self, name: &str) -> Result<MapHandle> {
        open_table(&self.programs, name)
    }

    /// Loads the program that a tap's hook has for this port.
    pub(crate) fn entry(&self, hook: Hook) -> Result<OwnedFd> {
        let array = open_table(&self.programs, array_name(hook))?;
        entry(hook, &array, self.slot)
    }
}

/// The kernel's number of a map within a map.
fn inner_id(table: &MapHandle, index: u32) -> Option<u32> {
    let found = table.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??;
    Some(u32::from_ne_bytes(found.try_into().ok()?))
}

/// The slabs of all ports with the programs of the port in `dir`, and the number of its own first
/// one.
pub(crate) fn slabs_of(dir: &Path) -> Result<(MapHandle, u32)> {
    let seat = Seat::of(dir)
        .ok_or_else(|| Error::Damaged { path: dir.to_owned(), reason: "it has no slot".into() })?;
    Ok((open_table(&dir.join(PROGRAMS), SLAB_TABLE)?, seat.slot * SLABS))
}

/// A program that the port in `dir` shares with others.
pub(crate) fn program_of(dir: &Path, name: &str) -> Result<ProgramHandle> {
    let path = dir.join(PROGRAMS).join(name);
    ProgramHandle::from_pinned_path(&path).map_err(Error::bpf(format!("open {}", path.display())))
}

/// Has the port in `dir` its programs, as far as their pins tell?
pub(crate) fn are_there(dir: &Path) -> bool {
    are_whole(&dir.join(PROGRAMS))
}

fn are_whole(programs: &Path) -> bool {
    let places = [Hook::ToVm, Hook::FromVm].map(array_name);
    // The first ones every port has.
    let names = TABLES[..6].iter().chain(&[SLAB_TABLE, "inject", "tend"]).chain(&places);
    names.into_iter().all(|name| programs.join(name).exists())
}

/// The program behind a hook.
pub(crate) fn hook_of(dir: &Path, hook: Hook) -> Result<ProgramHandle> {
    program_of(dir, hook_name(hook))
}

/// Takes a port's hooks off its tap, if they are on, and then its pins away, its slot, and
/// programs that no port has any more.
pub(crate) fn clear_port(dir: &Path) -> Result<()> {
    let Some(_lock) = pins::lock()? else { return Ok(()) };
    if !dir.exists() {
        // Another process has cleared it, and the slot may be another port's.
        return sweep();
    }
    pins::take_hooks_off(dir)?;
    let vacated = match File::open(dir.join(pins::MEMORY)) {
        // Its engine may be in the middle of a change.
        Ok(memory) => pins::flock_in_time(&memory, libc::LOCK_EX)
            .map_err(Error::io(format!("lock {}", dir.display())))
            .and_then(|()| Seat::of(dir).map_or(Ok(()), |seat| seat.vacate(dir))),
        // It never had a slot, or does not any more.
        Err(_) => Ok(()),
    };
    // Else the next port of the slot, and its engine, do what is left.
    pins::clear(dir)?;
    sweep()?;
    vacated
}

/// Takes away what no port has any more, also the directory of all pins.
pub fn tidy() {
    // Whatever stands against it, the next one who tidies up does it.
    if let Ok(Some(_lock)) = pins::lock()
        && sweep().is_ok()
    {
        // Fails as long as something is attached, and that is as it should be.
        let _ = fs::remove_dir(PIN_ROOT);
    }
}

/// Programs that ports name.
fn used() -> Result<HashSet<PathBuf>> {
    Ok(directories()?.iter().filter_map(|dir| Seat::of(dir)).map(|seat| seat.programs).collect())
}

/// Takes away programs that no port has. The caller has the lock.
fn sweep() -> Result<()> {
    let used = used()?;
    for programs in directories()?.into_iter().filter(|dir| is_programs(dir)) {
        // Renamed first: no process finds a part of them.
        if !used.contains(&programs)
            && let Some(aside) = pins::rename_aside(&programs)?
        {
            pins::clear(&aside)?;
        }
    }
    Ok(())
}

/// Is this no port's directory, but one of programs?
pub(crate) fn is_programs(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// Everything under [`PIN_ROOT`].
fn directories() -> Result<Vec<PathBuf>> {
    match fs::read_dir(PIN_ROOT) {
        Ok(entries) => Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(format!("read {PIN_ROOT}"))(error)),
    }
}

/// Programs whose directories' names begin so, and a slot of theirs that no port has.
fn free_slot(prefix: &str) -> Result<Option<(PathBuf, u32)>> {
    let directories = directories()?;
    let seats: Vec<Seat> = directories.iter().filter_map(|dir| Seat::of(dir)).collect();
    let has_prefix = |dir: &&PathBuf| {
        dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    let is_whole = |dir: &&PathBuf| are_whole(dir);
    let mut found: Vec<&PathBuf> = directories.iter().filter(has_prefix).filter(is_whole).collect();
    found.sort();
    Ok(found.into_iter().find_map(|programs| {
        let taken: HashSet<u32> =
            seats.iter().filter(|seat| seat.programs == *programs).map(|seat| seat.slot).collect();
        let free = (0..PORT_SLOTS).find(|slot| !taken.contains(slot))?;
        Some((programs.clone(), free))
    }))
}

/// Pins programs under the first such name that is free: whole, or not at all. The caller has the
/// lock.
fn pin(mut object: Object, prefix: &str) -> Result<PathBuf> {
    let used = used()?;
    let arrival = pins::create_arrival()?;
    let pinned = pin_all(&mut object, &arrival).and_then(|()| {
        for number in 0u32.. {
            let programs = Path::new(PIN_ROOT).join(format!("{prefix}{number}"));
            // They may have gone by other hands, and ports still name them.
            if used.contains(&programs) {
                continue;
            }
            if pins::arrive(&arrival, &programs)? {
                return Ok(programs);
            }
        }
        unreachable!("there are fewer directories than numbers")
    });
    pinned.inspect_err(|_| {
        // Best effort: the error that led here is the one to report.
        let _ = pins::clear(&arrival);
    })
}

fn pin_all(object: &mut Object, dir: &Path) -> Result<()> {
    let pinned = |path: &Path| Error::bpf(format!("pin {}", path.display()));
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let pin = match name.as_str() {
            name if name == uplink::SECTION => "uplink",
            name if name == SLAB_TABLE || TABLES.contains(&name) => name,
            _ => continue,
        };
        if map.autocreate() {
            let path = dir.join(pin);
            map.pin(&path).map_err(pinned(&path))?;
        }
    }
    for mut program in object.progs_mut().filter(|program| program.autoload()) {
        let name = program.name().to_string_lossy().into_owned();
        let hook = [Hook::ToVm, Hook::FromVm].into_iter().find(|hook| hook_name(*hook) == name);
        if let Some(hook) = hook {
            let path = dir.join(array_name(hook));
            let filled =
                array_of(program.as_fd().as_raw_fd()).and_then(|mut array| array.pin(&path));
            filled.map_err(pinned(&path))?;
        } else if !RUN.contains(&name.as_str()) {
            continue;
        }
        let path = dir.join(&name);
        program.pin(&path).map_err(pinned(&path))?;
    }
    Ok(())
}

/// The place from which [`entry`] goes on in a program.
fn array_of(program: i32) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let array = MapHandle::create(MapType::ProgArray, Some("vsnoop_hook"), 4, 4, 1, &options)?;
    array.update(&[0; 4], &program.to_ne_bytes(), MapFlags::ANY)?;
    Ok(array)
}

fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::ToVm => "to_vm",
        Hook::FromVm => "from_vm",
    }
}

fn array_name(hook: Hook) -> &'static str {
    match hook {
        Hook::ToVm => "at_to_vm",
        Hook::FromVm => "at_from_vm",
    }
}

fn open_table(programs: &Path, name: &str) -> Result<MapHandle> {
    let path = programs.join(name);
    MapHandle::from_pinned_path(&path).map_err(Error::bpf(format!("open {}", path.display())))
}

/// Offset of cb[CB_SLOT] in struct __sk_buff (linux/bpf.h).
const SLOT_OFFSET: u16 = 48 + 4 * vsnoop_flow::types::CB_SLOT as u16;

/// Loads what is on a tap: notes the port's slot in the packet's control block and goes on in the
/// one program of `array`. Where that is not any more, the packet passes.
fn entry(hook: Hook, array: &MapHandle, slot: u32) -> Result<OwnedFd> {
    let instruction = |code: u8, registers: u8, offset: u16, immediate: u32| {
        let [o0, o1] = offset.to_ne_bytes();
        let [i0, i1, i2, i3] = immediate.to_ne_bytes();
        [code, registers, o0, o1, i0, i1, i2, i3]
    };
    // Codes: linux/bpf.h and linux/bpf_common.h. r1 is the packet.
    let instructions = [
        // *(u32 *)(r1 + SLOT_OFFSET) = slot
        instruction(0x62, 0x01, SLOT_OFFSET, slot),
        // r2 = array, by its descriptor
        instruction(0x18, 0x12, 0, array.as_fd().as_raw_fd() as u32),
        [0; 8],
        // r3 = 0; bpf_tail_call(r1, r2, r3)
        instruction(0xb7, 0x03, 0, 0),
        instruction(0x85, 0x00, 0, libbpf_sys::BPF_FUNC_tail_call),
        // return TCX_NEXT
        instruction(0xb7, 0x00, 0, -1i32 as u32),
        instruction(0x95, 0x00, 0, 0),
    ];
    let (name, place): (&CStr, _) = match hook {
        Hook::ToVm => (c"vsnoop_to_vm", libbpf_sys::BPF_TCX_EGRESS),
        Hook::FromVm => (c"vsnoop_from_vm", libbpf_sys::BPF_TCX_INGRESS),
    };
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        // As of the programs that it goes on in.
        expected_attach_type: place,
        ..Default::default()
    };
    // SAFETY: instructions, C strings and options outlive the call.
    owned("load the program of a hook", unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            name.as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as u64,
            &mut options,
        )
    })
}

/// Makes changes that each wait for the kernel, some at a time.
fn at_once<T: Send + Copy>(
    changes: Vec<T>,
    change: impl Fn(T) -> libbpf_rs::Result<()> + Sync,
) -> libbpf_rs::Result<()> {
    let mut changes = changes.into_iter().peekable();
    let mut result = Ok(());
    while changes.peek().is_some() {
        thread::scope(|threads| {
            let change = &change;
            let mut begun = Vec::new();
            for what in changes.by_ref().take(AT_ONCE) {
                match thread::Builder::new().spawn_scoped(threads, move || change(what)) {
                    Ok(thread) => begun.push(thread),
                    // There may be no more threads: one after the other.
                    Err(_) => result = std::mem::replace(&mut result, Ok(())).and(change(what)),
                }
            }
            for thread in begun {
                let made = thread.join().expect("a thread that makes a system call does not panic");
                result = std::mem::replace(&mut result, Ok(())).and(made);
            }
        });
    }
    result
}

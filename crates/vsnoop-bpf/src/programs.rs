//! The programs that ports share (bpf/maps.h): which there are, loading, and taking them away.
//!
//! Ports whose programs have the same constants have the same programs: what they take in the
//! kernel, and what the verifier takes of time, they take once for [`PORT_SLOTS`] ports. They are
//! pinned in a directory beside those of the ports, whose name says which build of vsnoop made
//! them and what their constants are. What is on a tap itself are two programs of seven
//! instructions that name the port's slot and go on in the shared ones ([`Seat::entry`]).
//!
//! The directory of a port says by two symbolic links which programs it has, and which slot. That
//! alone counts: a slot is free when no directory names it, programs go when no directory names
//! them. Who reads these to change them, or renames such a directory, has the lock of
//! [`PIN_ROOT`]. What a process that was killed has left in a slot, its next owner overwrites, or
//! its engine removes (src/slabs.rs).

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapMut, MapType, Object, ObjectBuilder};
use vsnoop_flow::types::{PORT_SLOTS, port_config};

use crate::error::{Error, Result, refused};
use crate::maps::{PortMap, Role, SharedMap, SharedProgram};
use crate::objects::{self, Named};
use crate::pins::{self, PIN_ROOT, PROGRAMS_PREFIX, is_programs};
use crate::record::Record;
use crate::seat::{PROGRAMS, SLOT, Seat, are_whole, array_name};
use crate::spec::AttachSpec;
use crate::uplink::Uplink;

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
        if self.uplink.is_some() { objects::WITH_INCAST } else { objects::PLAIN }
    }

    /// Of the names of directories with such programs; a number follows.
    fn prefix(&self) -> String {
        let mut build = DefaultHasher::new();
        self.object().hash(&mut build);
        let uplink = self.uplink.as_ref().map_or(0, |(_, map_id)| *map_id);
        let port_config { hold, lists } = self.config;
        format!("{PROGRAMS_PREFIX}{:016x}-{hold}-{lists}-{uplink}-", build.finish())
    }

    /// `maps`: those of a port, which show the kernel what is in the tables.
    fn load(&self, maps: &mut Object) -> Result<Object> {
        let mut builder = ObjectBuilder::default();
        let mut open = builder
            .name("vsnoop")
            .and_then(|builder| builder.open_memory(self.object()))
            .map_err(refused("the BPF object"))?;
        let has_uplink = self.uplink.is_some();
        for mut map in open.maps_mut() {
            let set = match SharedMap::of(map.name()).role() {
                Role::Table(own) => {
                    let is_own = |like: &MapMut<'_>| PortMap::of(like.name()) == own;
                    let like = maps.maps_mut().find(|like| is_own(like) && like.autocreate());
                    like.map_or(Ok(()), |like| map.set_inner_map_fd(like.as_fd())).and_then(|()| {
                        map.set_autocreate(own.had_by().includes(&self.config, has_uplink))
                    })
                }
                Role::Slabs => Ok(()),
                Role::Constants => map.set_initial_value(self.config.as_bytes()),
                Role::Uplink => match &self.uplink {
                    Some((path, _)) => map.reuse_pinned_map(path),
                    None => map.set_autocreate(false),
                },
                Role::Private(had_by) => {
                    map.set_autocreate(had_by.includes(&self.config, has_uplink))
                }
            };
            set.map_err(refused("the maps"))?;
        }
        for mut program in open.progs_mut() {
            let had_by = SharedProgram::of(program.name()).had_by();
            program.set_autoload(had_by.includes(&self.config, has_uplink));
        }
        open.load().map_err(refused("the BPF programs"))
    }
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

/// All steps, with whatever there is.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let path = if pins::is_aside(path) { Some(path.to_owned()) } else { pins::set_aside(path)? };
    let Some(path) = path else { return Ok(()) };
    clear_port(&path)
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
    for mut map in object.maps_mut().filter(|map| map.autocreate()) {
        let Some(pin) = SharedMap::of(map.name()).pin() else { continue };
        let path = dir.join(pin);
        map.pin(&path).map_err(pinned(&path))?;
    }
    for mut program in object.progs_mut().filter(|program| program.autoload()) {
        let name = SharedProgram::of(program.name());
        if let Some(hook) = name.hook() {
            let path = dir.join(array_name(hook));
            let filled =
                array_of(program.as_fd().as_raw_fd()).and_then(|mut array| array.pin(&path));
            filled.map_err(pinned(&path))?;
        }
        let path = dir.join(name.name());
        program.pin(&path).map_err(pinned(&path))?;
    }
    Ok(())
}

/// The place from which [`Seat::entry`] goes on in a program.
fn array_of(program: i32) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let array = MapHandle::create(MapType::ProgArray, Some("vsnoop_hook"), 4, 4, 1, &options)?;
    array.update(&[0; 4], &program.to_ne_bytes(), MapFlags::ANY)?;
    Ok(array)
}

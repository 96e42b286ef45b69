//! Programs that ports share (bpf/maps.h): list, load, remove.
//!
//! Ports with the same constants in their programs share these: memory and verification time are
//! spent once for [`PORT_SLOTS`] ports. The programs are pinned in a directory beside those of the
//! ports, whose name has the build of vsnoop and the constants. A tap itself has two programs of
//! seven instructions, which set the port's slot and tail-call the shared ones
//! ([`ProgramSlot::entry`]).
//!
//! Two symbolic links in a port's directory name its programs and its slot, and nothing else does:
//! a slot is free if no directory names it, and programs are removed if no directory names them. A
//! process that reads these to change them, or renames such a directory, has the lock of
//! [`PIN_ROOT`]. What a killed process has left in a slot is overwritten by the next port, or
//! removed by its engine (src/slabs.rs).

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
use crate::program_slot::{PROGRAMS, ProgramSlot, SLOT, are_whole, array_name};
use crate::record::Record;
use crate::spec::AttachSpec;
use crate::uplink::Uplink;

/// Constants of a port's programs.
struct Constants {
    config: port_config,
    /// The pinned record of the uplink, and the kernel's id of it.
    uplink: Option<(PathBuf, u32)>,
}

impl Constants {
    fn from_spec(spec: &AttachSpec) -> Result<Self> {
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

    /// Prefix of directories with such programs; a number follows.
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
            let set = match SharedMap::from_libbpf(map.name()).role() {
                Role::Table(own) => {
                    let is_own = |like: &MapMut<'_>| PortMap::from_libbpf(like.name()) == own;
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
            let had_by = SharedProgram::from_libbpf(program.name()).had_by();
            program.set_autoload(had_by.includes(&self.config, has_uplink));
        }
        open.load().map_err(refused("the BPF programs"))
    }
}

/// Programs for a port before it is attached.
pub(crate) struct Ready {
    constants: Constants,
    /// Loaded, and not pinned: no pinned ones had a free slot.
    fresh: Option<Object>,
}

impl Ready {
    /// Loads them, unless pinned ones have a free slot. `maps`: the port's own.
    pub(crate) fn new(spec: &AttachSpec, maps: &mut Object) -> Result<Self> {
        let constants = Constants::from_spec(spec)?;
        let is_there = free_slot(&constants.prefix())?.is_some();
        let fresh = if is_there { None } else { Some(constants.load(maps)?) };
        Ok(Self { constants, fresh })
    }

    /// A slot for the port that arrives in `dir`. Its `maps` are not in it yet.
    pub(crate) fn take_slot(mut self, dir: &Path, maps: &mut Object) -> Result<ProgramSlot> {
        let memory = dir.join(pins::MEMORY);
        pins::create_private(&memory).map_err(Error::io(format!("create {}", memory.display())))?;
        let _lock = pins::lock()?;
        let prefix = self.constants.prefix();
        let (programs, slot) = match free_slot(&prefix)? {
            Some(found) => found,
            None => {
                let fresh = match self.fresh.take() {
                    Some(fresh) => fresh,
                    // They were removed with their last port.
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
        // The slot first: a directory that names programs must name a slot.
        link(Path::new(&slot.to_string()), SLOT)?;
        link(&Path::new("..").join(name), PROGRAMS)?;
        Ok(ProgramSlot { programs, index: slot })
    }
}

/// All steps, with the pins that exist.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let path = if pins::is_aside(path) { Some(path.to_owned()) } else { pins::set_aside(path)? };
    let Some(path) = path else { return Ok(()) };
    clear_port(&path)
}

/// Detaches a port's hooks, if they are on its tap, and then removes its pins, its slot, and
/// programs without ports.
pub(crate) fn clear_port(dir: &Path) -> Result<()> {
    let Some(_lock) = pins::lock()? else { return Ok(()) };
    if !dir.exists() {
        // Another process has cleared it, and the slot may be another port's.
        return sweep_programs();
    }
    pins::take_hooks_off(dir)?;
    let vacated = match File::open(dir.join(pins::MEMORY)) {
        // Its engine may be in the middle of a change.
        Ok(memory) => pins::flock_in_time(&memory, libc::LOCK_EX)
            .map_err(Error::io(format!("lock {}", dir.display())))
            .and_then(|()| {
                ProgramSlot::from_directory(dir).map_or(Ok(()), |slot| slot.vacate(dir))
            }),
        // It never had a slot, or has freed it.
        Err(_) => Ok(()),
    };
    // Otherwise the next port of the slot, and its engine, clean up.
    pins::clear(dir)?;
    sweep_programs()?;
    vacated
}

/// Removes programs without ports, and the directory of all pins if it is empty.
pub fn sweep() {
    // A failure is ignored: the next call tries again.
    if let Ok(Some(_lock)) = pins::lock()
        && sweep_programs().is_ok()
    {
        // Fails, as it should, while something is attached.
        let _ = fs::remove_dir(PIN_ROOT);
    }
}

/// Programs that ports name.
fn used() -> Result<HashSet<PathBuf>> {
    Ok(directories()?
        .iter()
        .filter_map(|dir| ProgramSlot::from_directory(dir))
        .map(|slot| slot.programs)
        .collect())
}

/// Removes programs without ports. The caller has the lock.
fn sweep_programs() -> Result<()> {
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

/// Programs with this prefix, and a free slot of theirs.
fn free_slot(prefix: &str) -> Result<Option<(PathBuf, u32)>> {
    let directories = directories()?;
    let taken: Vec<ProgramSlot> =
        directories.iter().filter_map(|dir| ProgramSlot::from_directory(dir)).collect();
    let has_prefix = |dir: &&PathBuf| {
        dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    let is_whole = |dir: &&PathBuf| are_whole(dir);
    let mut found: Vec<&PathBuf> = directories.iter().filter(has_prefix).filter(is_whole).collect();
    found.sort();
    Ok(found.into_iter().find_map(|programs| {
        let used: HashSet<u32> =
            taken.iter().filter(|it| it.programs == *programs).map(|it| it.index).collect();
        let free = (0..PORT_SLOTS).find(|slot| !used.contains(slot))?;
        Some((programs.clone(), free))
    }))
}

/// Pins programs under the first free name with this prefix: completely or not at all. The caller
/// has the lock.
fn pin(mut object: Object, prefix: &str) -> Result<PathBuf> {
    let used = used()?;
    let arrival = pins::create_arrival()?;
    let pinned = pin_all(&mut object, &arrival).and_then(|()| {
        for number in 0u32.. {
            let programs = Path::new(PIN_ROOT).join(format!("{prefix}{number}"));
            // Other tools may have removed them, while ports still name them.
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
        let Some(pin) = SharedMap::from_libbpf(map.name()).pin() else { continue };
        let path = dir.join(pin);
        map.pin(&path).map_err(pinned(&path))?;
    }
    for mut program in object.progs_mut().filter(|program| program.autoload()) {
        let name = SharedProgram::from_libbpf(program.name());
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

/// The array through which [`ProgramSlot::entry`] tail-calls a program.
fn array_of(program: i32) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let array = MapHandle::create(MapType::ProgArray, Some("vsnoop_hook"), 4, 4, 1, &options)?;
    array.update(&[0; 4], &program.to_ne_bytes(), MapFlags::ANY)?;
    Ok(array)
}

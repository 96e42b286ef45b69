//! A port's shared programs (src/programs.rs), and its slot in their arrays of maps.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramHandle};
use vsnoop_flow::types::SLABS;

use crate::entry;
use crate::error::{Damage, Error, Result};
use crate::hook::Hook;
use crate::maps::{HadBy, PortMap, Role, SharedMap, SharedProgram};
use crate::objects::Named;
use crate::pins::PIN_ROOT;

/// Symbolic link in the directory of a port, to that of its programs.
pub(crate) const PROGRAMS: &str = "programs";

/// Symbolic link in the directory of a port, whose target is the number of its slot.
pub(crate) const SLOT: &str = "slot";

/// System calls that wait for the kernel in parallel.
const AT_ONCE: usize = 32;

/// A port's programs and slot.
pub(crate) struct ProgramSlot {
    /// The directory of the programs.
    pub(crate) programs: PathBuf,
    /// In their arrays of maps.
    pub(crate) index: u32,
}

impl ProgramSlot {
    /// The slot that a port's directory names; `None` without one.
    pub(crate) fn from_directory(dir: &Path) -> Option<Self> {
        let index = fs::read_link(dir.join(SLOT)).ok()?.to_str()?.parse().ok()?;
        let programs = fs::read_link(dir.join(PROGRAMS)).ok()?;
        Some(Self { programs: Path::new(PIN_ROOT).join(programs.file_name()?), index })
    }

    /// Puts the port's own maps into its slot. Each such system call returns only when no program
    /// that may have used the old slot runs any more, so they are made in parallel.
    pub(crate) fn fill(&self, maps: &mut Object) -> Result<()> {
        let mut changes = Vec::new();
        for map in maps.maps_mut().filter(|map| map.autocreate()) {
            if let Some(table) = PortMap::from_libbpf(map.name()).table() {
                changes.push((self.table(table)?, map.as_fd().as_raw_fd()));
            }
        }
        let key = self.index.to_ne_bytes();
        let changes = changes.iter().map(|(table, fd)| (table, *fd)).collect();
        at_once(changes, |(table, fd)| table.update(&key, &fd.to_ne_bytes(), MapFlags::ANY))
            .map_err(Error::bpf(format!("fill slot {} of {}", self.index, self.programs.display())))
    }

    /// Removes the maps of the port in `dir` from its slot, and its slabs; nothing if the slot is
    /// another port's.
    pub(crate) fn vacate(&self, dir: &Path) -> Result<()> {
        let mut tables = Vec::new();
        for name in SharedMap::ALL.iter().filter(|name| self.programs.join(name.name()).exists()) {
            if let Role::Table(_) | Role::Slabs = name.role() {
                tables.push((*name, self.table(*name)?));
            }
        }
        let find_table =
            |name| tables.iter().find(|(found, _)| *found == name).map(|(_, table)| table);
        let own = MapHandle::from_pinned_path(dir.join(PortMap::Ports.pin()));
        let own = own.and_then(|map| map.info()).map(|info| info.info.id).ok();
        let is_own = |table: &MapHandle| inner_id(table, self.index) == own && own.is_some();
        if !find_table(SharedMap::Ports).is_some_and(is_own) {
            return Ok(());
        }
        let slabs = self.index * SLABS..(self.index + 1) * SLABS;
        let slabs = find_table(SharedMap::Slabs).into_iter().flat_map(|table| {
            let is_used = |index: &u32| inner_id(table, *index).is_some();
            slabs.clone().filter(is_used).map(move |index| (table, index))
        });
        let maps = tables.iter().filter(|(name, _)| *name != SharedMap::Slabs);
        let changes = maps.map(|(_, table)| (table, self.index)).chain(slabs).collect();
        at_once(changes, |(table, index)| match table.delete(&index.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .map_err(Error::bpf(format!(
            "clear slot {} of {}",
            self.index,
            self.programs.display()
        )))
    }

    fn table(&self, name: SharedMap) -> Result<MapHandle> {
        open_table(&self.programs, name.name())
    }

    /// Loads the program on the tap for one of this port's hooks. `maps`: the port's own.
    pub(crate) fn entry(&self, hook: Hook, maps: &Object) -> Result<OwnedFd> {
        let shared = open_table(&self.programs, array_name(hook))?;
        entry::of_port(hook, maps, &shared, self.index)
    }
}

/// The kernel's id of an inner map.
fn inner_id(table: &MapHandle, index: u32) -> Option<u32> {
    let found = table.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??;
    Some(u32::from_ne_bytes(found.try_into().ok()?))
}

/// The array with the slabs of all ports that share the programs of the port in `dir`, and the
/// index of its own first one.
pub(crate) fn slabs_of(dir: &Path) -> Result<(MapHandle, u32)> {
    let place = ProgramSlot::from_directory(dir)
        .ok_or_else(|| Error::Damaged { path: dir.to_owned(), reason: Damage::NoSlot })?;
    Ok((open_table(&dir.join(PROGRAMS), SharedMap::Slabs.name())?, place.index * SLABS))
}

/// A program that the port in `dir` shares with others.
pub(crate) fn program_of(dir: &Path, program: SharedProgram) -> Result<ProgramHandle> {
    let path = dir.join(PROGRAMS).join(program.name());
    ProgramHandle::from_pinned_path(&path).map_err(Error::bpf(format!("open {}", path.display())))
}

/// Do all pins of the programs of the port in `dir` exist?
pub(crate) fn are_there(dir: &Path) -> bool {
    are_whole(&dir.join(PROGRAMS))
}

pub(crate) fn are_whole(programs: &Path) -> bool {
    let of_all = |map: &&SharedMap| match map.role() {
        Role::Table(own) => own.had_by() == HadBy::All,
        Role::Slabs => true,
        Role::Constants | Role::Uplink | Role::Private(_) => false,
    };
    let maps = SharedMap::ALL.iter().filter(of_all).map(|map| map.name());
    let run = SharedProgram::ALL.iter().filter(|program| program.had_by() == HadBy::All);
    let run = run.filter(|program| program.hook().is_none()).map(|program| program.name());
    let places = [Hook::ToVm, Hook::FromVm].map(array_name);
    maps.chain(run).chain(places).all(|name| programs.join(name).exists())
}

/// The program behind a hook.
pub(crate) fn hook_of(dir: &Path, hook: Hook) -> Result<ProgramHandle> {
    program_of(dir, SharedProgram::of_hook(hook))
}

/// The array by which the program on the tap calls the one behind a hook.
pub(crate) fn array_of(dir: &Path, hook: Hook) -> Result<MapHandle> {
    open_table(&dir.join(PROGRAMS), array_name(hook))
}

pub(crate) fn array_name(hook: Hook) -> &'static str {
    match hook {
        Hook::ToVm => "at_to_vm",
        Hook::FromVm => "at_from_vm",
    }
}

fn open_table(programs: &Path, name: &str) -> Result<MapHandle> {
    let path = programs.join(name);
    MapHandle::from_pinned_path(&path).map_err(Error::bpf(format!("open {}", path.display())))
}

/// Makes changes that each wait for the kernel, some in parallel.
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
                    // No more threads: one after the other.
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

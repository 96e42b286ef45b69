//! A port's memory for its holds, in slabs that are added and removed as needed
//! (flow/types/hold_record.h, `struct hold_slab`).
//!
//! A slab is the only value of a map of its own. The hooks reach it through the map `slabs`, an
//! array of the maps of all ports that share programs; user space maps it. `port_state.slabs` is
//! the number of slabs, from number 0.
//!
//! Only the engine adds and removes slabs. It may be killed at any time: a map beyond the number is
//! ignored, a missing one below it ends the list, and the next engine gives back what it had
//! claimed in the last slab ([`Slabs::adopt`]). Hooks may still use a slab that was removed; the
//! kernel keeps it until they are done.
//!
//! The system call for such a change returns only when no program that may have used the old map
//! runs any more, some 10 to 25 ms later. So a thread of its own waits for each. The hooks find new
//! slabs within 0.1 ms, and the engine waits for that ([`Slabs::add`]). Several changes may add
//! slabs at the same time; while slabs are removed there is no other change.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use vsnoop_flow::types::{
    HOLD_CHUNK, HOLD_RESERVED, SLAB_CHUNKS, SLAB_HOLDS, SLABS, hold, hold_chunk, hold_slab,
};

use crate::error::{Damage, Error, Result};
use crate::mapping::Mapping;
use crate::pins;
use crate::program_slot::slabs_of;
use crate::reserve::{NewSlab, Reserve};

/// A thread that waits for the kernel.
type Change = JoinHandle<libbpf_rs::Result<()>>;

/// Most threads that wait for the kernel.
const MOST_CHANGES: usize = 4;
/// For how long the engine waits until the hooks find what it adds, and how often it looks. On a
/// busy machine the thread may not have begun by then.
const PATIENCE: Duration = Duration::from_micros(300);
const LOOK: Duration = Duration::from_micros(20);

/// The mapped slabs of a port.
pub(crate) struct Slabs {
    dir: PathBuf,
    /// Inode of `dir`.
    inode: Option<u64>,
    outer: Arc<MapHandle>,
    /// Index of the first one in `outer`, which has those of other ports, too.
    first: u32,
    mapped: Vec<Slab>,
    changes: Vec<Change>,
    /// The only one of `changes` removes slabs.
    is_taking: bool,
}

struct Slab {
    map_id: u32,
    memory: Mapping,
}

impl Slabs {
    /// For the port with these pins. Nothing is mapped yet.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let inode = pins::inode(dir);
        let (outer, first) = slabs_of(dir)?;
        Ok(Self::new(outer, first, dir, inode))
    }

    fn new(outer: MapHandle, first: u32, dir: &Path, inode: Option<u64>) -> Self {
        let (dir, outer) = (dir.to_owned(), Arc::new(outer));
        Self { dir, inode, outer, first, mapped: Vec::new(), changes: Vec::new(), is_taking: false }
    }

    /// Number of mapped slabs.
    pub(crate) fn len(&self) -> u32 {
        self.mapped.len() as u32
    }

    /// Maps slabs that were added, and unmaps those that were removed, since the last call.
    pub(crate) fn refresh(&mut self, count: &AtomicU32) -> Result<()> {
        let Some(_slot) = self.keep_slot()? else {
            self.mapped.clear();
            return Ok(());
        };
        self.map_all(count)
    }

    /// Does the work of [`Self::refresh`], for a caller that keeps the slot.
    pub(crate) fn map_all(&mut self, count: &AtomicU32) -> Result<()> {
        let count = count.load(Ordering::Acquire).min(SLABS);
        self.mapped.truncate(count as usize);
        for index in 0..count {
            // Just removed: only those before it count.
            let Some(map_id) = self.map_id(index)? else {
                self.mapped.truncate(index as usize);
                break;
            };
            let known = self.mapped.get(index as usize).map(|slab| slab.map_id);
            if known == Some(map_id) {
                continue;
            }
            self.mapped.truncate(index as usize);
            let slab = self.map_slab(map_id)?;
            self.mapped.push(slab);
        }
        Ok(())
    }

    /// Unmaps all. Not for the engine, which counts them.
    pub(crate) fn unmap(&mut self) {
        self.mapped.clear();
    }

    /// Undoes incomplete changes of an earlier engine; this is itself a change. For the engine
    /// only.
    pub(crate) fn adopt(&mut self, count: &AtomicU32) -> Result<()> {
        let Some(_slot) = self.keep_slot()? else { return Ok(()) };
        self.refresh(count)?;
        // Some may have been counted and not added.
        count.store(self.len(), Ordering::Release);
        if let Some(last) = self.mapped.last() {
            last.claims().for_each(give_back);
        }
        let mut end = self.len();
        while end < SLABS && self.map_id(end)?.is_some() {
            end += 1;
        }
        self.delete(self.len()..end)
    }

    /// Keeps the slot. `None` for a port that was detached, or whose pins were removed: its slot
    /// may be another port's, so nothing is read, changed or mapped. What is mapped stays: the
    /// engine hands it over.
    fn keep_slot(&self) -> Result<Option<File>> {
        match pins::keep_slot(&self.dir, self.inode) {
            Ok(slot) => Ok(Some(slot)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("lock {}", self.dir.display()))(error)),
        }
    }

    /// Number of changes under way.
    pub(crate) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// May slabs be added now?
    pub(crate) fn may_add(&self) -> bool {
        !self.is_taking && self.changes.len() < MOST_CHANGES
    }

    /// Notes completed changes. For the engine only.
    pub(crate) fn settle(&mut self, count: &AtomicU32) -> Result<()> {
        self.forget_made(count, JoinHandle::is_finished)
    }

    /// Waits until all changes have been made.
    pub(crate) fn wait(&mut self, count: &AtomicU32) -> Result<()> {
        self.forget_made(count, |_| true)
    }

    fn forget_made(&mut self, count: &AtomicU32, is_made: impl Fn(&Change) -> bool) -> Result<()> {
        let (made, left) = std::mem::take(&mut self.changes).into_iter().partition(is_made);
        self.changes = left;
        if let Err(error) = join_all(made) {
            // Some slabs may have come. The first error is the one to report.
            let _ = join_all(std::mem::take(&mut self.changes));
            self.is_taking = false;
            if self.keep_slot()?.is_none() {
                return Ok(());
            }
            self.adopt(count)?;
            return Err(self.error("change memory for what is held")(error));
        }
        self.is_taking &= !self.changes.is_empty();
        // The hooks may use new ones before the system call returns.
        let mut there = count.load(Ordering::Relaxed);
        while let Some(slab) = self.mapped.get(there as usize)
            && self.map_id(there)? == Some(slab.map_id)
        {
            there += 1;
            count.store(there, Ordering::Release);
        }
        Ok(())
    }

    /// Adds `more` slabs, if [`Slabs::may_add`], or as many as there is memory for. Returns their
    /// number. For the engine only. They are counted, and used, once the kernel has them: when this
    /// returns, or later ([`Slabs::settle`]).
    pub(crate) fn add(&mut self, more: u32, reserve: &Reserve, count: &AtomicU32) -> Result<u32> {
        let more = reserve.available(more);
        if more == 0 {
            return Ok(0);
        }
        self.begin_adding(more, reserve)?;
        let start = Instant::now();
        while count.load(Ordering::Relaxed) < self.len() && start.elapsed() < PATIENCE {
            thread::sleep(LOOK);
            self.settle(count)?;
        }
        Ok(more)
    }

    fn begin_adding(&mut self, more: u32, reserve: &Reserve) -> Result<()> {
        let Some(_slot) = self.keep_slot()? else { return Ok(()) };
        let first = self.len();
        let mut maps = Vec::new();
        let mut slabs = Vec::new();
        for _ in 0..more {
            let NewSlab { map, map_id, memory } = reserve.take(&self.dir)?;
            slabs.push(Slab { map_id, memory });
            maps.push(map);
        }
        let keys: Vec<u8> =
            (first..first + more).flat_map(|index| (self.first + index).to_ne_bytes()).collect();
        self.mapped.extend(slabs);
        let begun = self.begin(move |outer| {
            // The array takes descriptors, and the kernel keeps the maps.
            let descriptor = |map: &MapHandle| map.as_fd().as_raw_fd().to_ne_bytes();
            let descriptors: Vec<u8> = maps.iter().flat_map(descriptor).collect();
            outer.update_batch(&keys, &descriptors, more, MapFlags::ANY, MapFlags::ANY)
        });
        if begun.is_err() {
            self.mapped.truncate(first as usize);
        }
        begun
    }

    /// Removes the last ones while `may` allows it, given the number left, and nothing in them is
    /// in use; not during another change. For the engine only.
    pub(crate) fn take(&mut self, may: impl Fn(u32) -> bool, count: &AtomicU32) -> Result<()> {
        let Some(_slot) = self.keep_slot()? else { return Ok(()) };
        let end = self.len();
        while let Some(last) = self.mapped.last() {
            let index = self.len() - 1;
            if !may(index) || !last.claim() {
                break;
            }
            count.store(index, Ordering::Release);
            self.mapped.pop();
        }
        self.delete(self.len()..end)
    }

    /// From the end, so that an engine that is killed leaves consecutive ones.
    fn delete(&mut self, gone: Range<u32>) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        self.is_taking = true;
        let first = self.first;
        self.begin(move |outer| gone.rev().try_for_each(|index| delete(outer, first + index)))
    }

    fn begin(
        &mut self,
        change: impl FnOnce(&MapHandle) -> libbpf_rs::Result<()> + Send + 'static,
    ) -> Result<()> {
        let (outer, dir, inode) = (self.outer.clone(), self.dir.clone(), self.inode);
        let thread = thread::Builder::new().name("slabs".into()).spawn(move || {
            let _slot = pins::keep_slot(&dir, inode)?;
            change(&outer)
        });
        self.changes
            .push(thread.map_err(Error::io("start a thread that changes a hold's memory"))?);
        Ok(())
    }

    /// The hold with this number, from 1.
    pub(crate) fn hold(&self, number: u32) -> Option<*mut u8> {
        let index = number.checked_sub(1)?;
        let slab = self.mapped.get((index / SLAB_HOLDS) as usize)?;
        Some(slab.at(std::mem::offset_of!(hold_slab, holds), index % SLAB_HOLDS, size_of::<hold>()))
    }

    /// The link of a chunk.
    pub(crate) fn next(&self, chunk: u32) -> Option<&AtomicU32> {
        let slab = self.mapped.get((chunk / SLAB_CHUNKS) as usize)?;
        let offset =
            std::mem::offset_of!(hold_slab, chunks) + std::mem::offset_of!(hold_chunk, next);
        Some(slab.word(offset, chunk % SLAB_CHUNKS, size_of::<hold_chunk>()))
    }

    /// Address of a chunk's bytes; valid until its slab is removed or the value dropped.
    pub(crate) fn bytes(&self, chunk: u32) -> Option<*const u8> {
        let slab = self.mapped.get((chunk / SLAB_CHUNKS) as usize)?;
        Some(slab.at(
            std::mem::offset_of!(hold_slab, bytes),
            chunk % SLAB_CHUNKS,
            HOLD_CHUNK as usize,
        ))
    }

    /// The busy bits of a slab.
    pub(crate) fn busy(&self, index: u32) -> Option<&AtomicU32> {
        let slab = self.mapped.get(index as usize)?;
        Some(slab.word(std::mem::offset_of!(hold_slab, busy), 0, 0))
    }

    fn map_id(&self, index: u32) -> Result<Option<u32>> {
        let found = self
            .outer
            .lookup(&(self.first + index).to_ne_bytes(), MapFlags::ANY)
            .map_err(self.error("look up memory of what is held"))?;
        Ok(found.and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes))
    }

    fn map_slab(&self, map_id: u32) -> Result<Slab> {
        let map =
            MapHandle::from_map_id(map_id).map_err(self.error("open memory of what is held"))?;
        if map.value_size() as usize != size_of::<hold_slab>() {
            let reason = Damage::SlabSize { bytes: map.value_size() };
            return Err(Error::Damaged { path: self.dir.clone(), reason });
        }
        Ok(Slab { map_id, memory: Mapping::new(&map, &self.dir)? })
    }

    fn error(&self, what: &str) -> impl FnOnce(libbpf_rs::Error) -> Error + use<> {
        Error::bpf(format!("{what}, of {}", self.dir.display()))
    }
}

impl Slab {
    fn at(&self, offset: usize, index: u32, size: usize) -> *mut u8 {
        self.memory.at(offset + index as usize * size)
    }

    fn word(&self, offset: usize, index: u32, size: usize) -> &AtomicU32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset, index, size).cast()) }
    }

    /// Owners of chunks and users of holds.
    fn claims(&self) -> impl Iterator<Item = &AtomicU32> {
        let chunks =
            std::mem::offset_of!(hold_slab, chunks) + std::mem::offset_of!(hold_chunk, owner);
        let holds = std::mem::offset_of!(hold_slab, holds) + std::mem::offset_of!(hold, used);
        let chunk = move |index| self.word(chunks, index, size_of::<hold_chunk>());
        let hold = move |index| self.word(holds, index, size_of::<hold>());
        (0..SLAB_HOLDS).map(hold).chain((0..SLAB_CHUNKS).map(chunk))
    }

    /// Claims all chunks and holds of it, or none.
    fn claim(&self) -> bool {
        for (taken, word) in self.claims().enumerate() {
            let claimed =
                word.compare_exchange(0, HOLD_RESERVED, Ordering::SeqCst, Ordering::SeqCst);
            if claimed.is_err() {
                self.claims().take(taken).for_each(give_back);
                return false;
            }
        }
        true
    }
}

/// The first error of all.
fn join_all(changes: Vec<Change>) -> libbpf_rs::Result<()> {
    let mut result = Ok(());
    for change in changes {
        let made = change.join().expect("a thread that makes a system call does not panic");
        result = result.and(made);
    }
    result
}

fn give_back(word: &AtomicU32) {
    // Any other value belongs to a flow.
    let _ = word.compare_exchange(HOLD_RESERVED, 0, Ordering::SeqCst, Ordering::SeqCst);
}

fn delete(outer: &MapHandle, index: u32) -> libbpf_rs::Result<()> {
    match outer.delete(&index.to_ne_bytes()) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use libbpf_rs::MapType;

    use super::*;
    use crate::reserve::create_slab;

    /// The port has another's slabs before its own.
    const FIRST: u32 = SLABS;

    /// A map of maps as the object has it, for two ports; `None` without the right to make one.
    fn outer() -> Option<MapHandle> {
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: needs root");
            return None;
        }
        let template = create_slab().expect("create a slab");
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            inner_map_fd: template.as_fd().as_raw_fd() as u32,
            ..Default::default()
        };
        let outer =
            MapHandle::create(MapType::ArrayOfMaps, Some("slabs"), 4, 4, 2 * SLABS, &options);
        Some(outer.expect("create the map of slabs"))
    }

    /// The engine's, and those of another process.
    fn two() -> Option<(Slabs, Slabs, AtomicU32)> {
        let outer = outer()?;
        let other = MapHandle::from_map_id(outer.info().expect("ask").info.id).expect("open");
        // Stands for the port's.
        let dir = Path::new(env!("OUT_DIR")).join("slabs");
        std::fs::create_dir_all(dir.join(pins::MEMORY)).expect("create a directory");
        let slabs_of = |outer| Slabs::new(outer, FIRST, &dir, pins::inode(&dir));
        Some((slabs_of(outer), slabs_of(other), AtomicU32::new(0)))
    }

    fn add(slabs: &mut Slabs, more: u32, count: &AtomicU32) {
        let reserve = Reserve::default();
        slabs.add(more, &reserve, count).and_then(|_| slabs.wait(count)).expect("add");
    }

    /// One; false when something in it is used.
    fn take_last(slabs: &mut Slabs, count: &AtomicU32) -> bool {
        let before = slabs.len();
        let taken = slabs.take(|left| left + 1 == before, count).and_then(|()| slabs.wait(count));
        taken.expect("take");
        slabs.len() < before
    }

    fn used(slabs: &Slabs, number: u32) -> &AtomicU32 {
        let at = slabs.hold(number).expect("it is there");
        // SAFETY: an aligned word within the mapping.
        unsafe { AtomicU32::from_ptr(at.add(std::mem::offset_of!(hold, used)).cast()) }
    }

    fn owner(slabs: &Slabs, chunk: u32) -> &AtomicU32 {
        let slab = &slabs.mapped[(chunk / SLAB_CHUNKS) as usize];
        let offset = std::mem::offset_of!(hold_slab, chunks);
        slab.word(offset, chunk % SLAB_CHUNKS, size_of::<hold_chunk>())
    }

    #[test]
    fn what_one_process_adds_another_maps() {
        let Some((mut engine, mut other, count)) = two() else { return };
        add(&mut engine, 1, &count);
        add(&mut engine, 1, &count);
        assert_eq!(count.load(Ordering::Acquire), 2);
        other.refresh(&count).expect("refresh");
        // The last byte of the last chunk, the last hold, a link, a busy bit.
        let last = 2 * SLAB_CHUNKS - 1;
        // SAFETY: mapped, and as large as a chunk.
        unsafe {
            let start = engine.bytes(last).expect("it is there").cast_mut();
            start.add(HOLD_CHUNK as usize - 1).write_volatile(7);
            let start = other.bytes(last).expect("it is there");
            assert_eq!(start.add(HOLD_CHUNK as usize - 1).read_volatile(), 7);
        }
        used(&engine, 2 * SLAB_HOLDS).store(1, Ordering::SeqCst);
        assert_eq!(used(&other, 2 * SLAB_HOLDS).load(Ordering::SeqCst), 1);
        engine.next(last).expect("it is there").store(5, Ordering::SeqCst);
        assert_eq!(other.next(last).expect("it is there").load(Ordering::SeqCst), 5);
        engine.busy(1).expect("it is there").store(9, Ordering::SeqCst);
        assert_eq!(other.busy(1).expect("it is there").load(Ordering::SeqCst), 9);
    }

    #[test]
    fn what_is_not_there_is_none() {
        let Some((mut engine, _, count)) = two() else { return };
        add(&mut engine, 1, &count);
        assert!(engine.hold(0).is_none() && engine.hold(SLAB_HOLDS + 1).is_none());
        assert!(engine.hold(1).is_some() && engine.hold(SLAB_HOLDS).is_some());
        assert!(engine.bytes(SLAB_CHUNKS).is_none() && engine.next(SLAB_CHUNKS).is_none());
        assert!(engine.busy(1).is_none());
    }

    #[test]
    fn the_last_slab_goes_only_when_nothing_in_it_is_used() {
        let Some((mut engine, mut other, count)) = two() else { return };
        add(&mut engine, 1, &count);
        add(&mut engine, 1, &count);
        for is_hold in [true, false] {
            let word = |slabs: &Slabs, value| match is_hold {
                true => used(slabs, SLAB_HOLDS + 3).store(value, Ordering::SeqCst),
                false => owner(slabs, 2 * SLAB_CHUNKS - 1).store(value, Ordering::SeqCst),
            };
            word(&engine, 1);
            assert!(!take_last(&mut engine, &count));
            let is_claimed = |word: &&AtomicU32| word.load(Ordering::SeqCst) == HOLD_RESERVED;
            let claimed = engine.mapped[1].claims().filter(is_claimed).count();
            assert_eq!(claimed, 0, "the claims are undone");
            word(&engine, 0);
        }
        other.refresh(&count).expect("refresh");
        assert!(take_last(&mut engine, &count));
        assert_eq!((count.load(Ordering::Acquire), engine.len()), (1, 1));
        assert_eq!(engine.map_id(1).expect("look up"), None);
        other.refresh(&count).expect("refresh");
        assert_eq!(other.len(), 1);
        assert!(take_last(&mut engine, &count));
        assert!(!take_last(&mut engine, &count), "there is none");
    }

    #[test]
    fn a_slab_that_came_back_is_mapped_anew() {
        let Some((mut engine, mut other, count)) = two() else { return };
        add(&mut engine, 1, &count);
        other.refresh(&count).expect("refresh");
        assert!(take_last(&mut engine, &count));
        add(&mut engine, 1, &count);
        used(&engine, 1).store(1, Ordering::SeqCst);
        other.refresh(&count).expect("refresh");
        assert_eq!(used(&other, 1).load(Ordering::SeqCst), 1);
    }

    #[test]
    fn they_count_as_soon_as_the_kernel_has_them_and_the_engine_need_not_wait() {
        let Some((mut engine, _, count)) = two() else { return };
        engine.begin_adding(3, &Reserve::default()).expect("add");
        assert_eq!((count.load(Ordering::Acquire), engine.len()), (0, 3));
        assert!(engine.changes() > 0 && engine.hold(3 * SLAB_HOLDS).is_some());
        // The kernel may have them one after the other.
        while count.load(Ordering::Acquire) < 3 {
            engine.settle(&count).expect("settle");
        }
        assert_eq!(count.load(Ordering::Acquire), 3);
        assert!(engine.map_id(2).expect("look up").is_some());
        engine.wait(&count).expect("wait");
        assert_eq!(engine.changes(), 0);
    }

    #[test]
    fn what_is_in_reserve_is_added_first() {
        let Some((mut engine, _, count)) = two() else { return };
        let reserve = Reserve::default();
        for _ in 0..2 {
            assert!(reserve.refill().expect("refill"));
        }
        engine.add(3, &reserve, &count).and_then(|_| engine.wait(&count)).expect("add");
        assert_eq!(count.load(Ordering::Acquire), 3);
        // It has none left, and is filled up to its bound.
        let mut made = 0;
        while reserve.refill().expect("refill") {
            made += 1;
        }
        assert!(made > 2, "{made}");
        assert!(!reserve.refill().expect("refill"));
    }

    #[test]
    fn as_many_come_as_there_is_memory_for_and_the_reserve_does_not_take_the_last() {
        const SLAB: u64 = size_of::<hold_slab>() as u64;
        let Some((mut engine, _, count)) = two() else { return };
        let two = Reserve::within(|| 3 * SLAB - 1);
        assert_eq!(engine.add(5, &two, &count).expect("add"), 2);
        engine.wait(&count).expect("wait");
        assert_eq!(count.load(Ordering::Acquire), 2);
        let none = Reserve::within(|| SLAB - 1);
        assert_eq!(engine.add(5, &none, &count).expect("add"), 0);
        assert_eq!((count.load(Ordering::Acquire), engine.changes()), (2, 0));
        assert!(!none.refill().expect("refill"));
        assert!(two.refill().expect("refill"));
        // Its chunks were taken before.
        let one = Reserve { room: || 0, ..two };
        assert!(!one.refill().expect("refill"));
        assert_eq!(engine.add(5, &one, &count).expect("add"), 1);
    }

    #[test]
    fn an_ample_answer_counts_for_a_while_less_what_was_taken() {
        const SLAB: u64 = size_of::<hold_slab>() as u64;
        if two().is_none() {
            return;
        }
        let ample = Reserve::within(|| 1000 * SLAB);
        assert!(ample.refill().expect("refill"));
        let asked = Reserve { room: || 0, ..ample };
        assert!(asked.refill().expect("refill"));
        assert_eq!(asked.known.get().map(|(bytes, _)| bytes), Some(998 * SLAB));
    }

    #[test]
    fn several_come_at_once() {
        let Some((mut engine, mut other, count)) = two() else { return };
        add(&mut engine, 1, &count);
        add(&mut engine, 5, &count);
        other.refresh(&count).expect("refresh");
        assert_eq!((count.load(Ordering::Acquire), engine.len(), other.len()), (6, 6, 6));
        used(&engine, 6 * SLAB_HOLDS).store(1, Ordering::SeqCst);
        assert_eq!(used(&other, 6 * SLAB_HOLDS).load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_a_killed_engine_had_counted_and_not_added_does_not_count() {
        let Some((mut engine, mut next, count)) = two() else { return };
        add(&mut engine, 2, &count);
        count.store(4, Ordering::Release);
        next.adopt(&count).expect("adopt");
        assert_eq!((count.load(Ordering::Acquire), next.len()), (2, 2));
    }

    #[test]
    fn more_is_added_while_the_kernel_is_at_work_and_nothing_while_some_goes() {
        let Some((mut engine, mut other, count)) = two() else { return };
        for more in [1, 2, 3] {
            assert!(engine.may_add());
            engine.add(more, &Reserve::default(), &count).expect("add");
        }
        assert_eq!(engine.len(), 6);
        engine.wait(&count).expect("wait");
        assert_eq!(count.load(Ordering::Acquire), 6);
        other.refresh(&count).expect("refresh");
        assert_eq!(other.len(), 6);
        engine.take(|left| left > 1, &count).expect("take");
        assert!(!engine.may_add());
        engine.wait(&count).expect("wait");
        assert!(engine.may_add());
        assert_eq!((engine.len(), count.load(Ordering::Acquire)), (2, 2));
    }

    #[test]
    fn what_a_killed_engine_had_begun_is_undone() {
        let Some((mut engine, mut next, count)) = two() else { return };
        add(&mut engine, 1, &count);
        add(&mut engine, 1, &count);
        // Killed while it took one away: a few claims are made.
        used(&engine, SLAB_HOLDS + 1).store(HOLD_RESERVED, Ordering::SeqCst);
        used(&engine, SLAB_HOLDS + 2).store(1, Ordering::SeqCst);
        // Killed while it added one: the number is not written.
        add(&mut engine, 1, &count);
        count.store(2, Ordering::Release);
        next.adopt(&count).and_then(|()| next.wait(&count)).expect("adopt");
        assert_eq!(used(&next, SLAB_HOLDS + 1).load(Ordering::SeqCst), 0);
        assert_eq!(used(&next, SLAB_HOLDS + 2).load(Ordering::SeqCst), 1);
        assert_eq!(next.map_id(2).expect("look up"), None);
        add(&mut next, 1, &count);
        assert_eq!(count.load(Ordering::Acquire), 3);
    }
}

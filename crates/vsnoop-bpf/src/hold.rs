//! The hold's memory, mapped: what the engine shares with the hooks (flow/types.h, bpf/hold.h).
//!
//! Hooks and engine write while the other reads, so nothing here hands out a reference: words are read
//! and written one by one. The bytes of a chunk are stable from the moment that `hold.tail` covers them
//! until the VM has acknowledged them; a chunk is handed out as a pointer for a system call to copy
//! from, which may at worst send bytes that the VM has and drops.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle, ProgramHandle, RingBuffer, RingBufferBuilder};
use vsnoop_flow::types::{self, HOLD_CHUNK, hold, hold_chunk, port_state, seq};

use crate::attach::open_map;
use crate::error::{Error, Result};
use crate::inject;
use crate::mapping::Mapping;
use crate::port::Port;

/// A hold, as read at some moment.
pub type Hold = hold;

/// What became of a hold that was looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tended {
    /// Its flow is there.
    Used,
    /// Its flow is over: it can be ended when no hook can be at it any more.
    Over,
    /// It is free.
    Free,
}

/// The maps of one port with a hold.
pub struct Memory {
    pool: Mapping,
    chunks: Mapping,
    holds: Mapping,
    port: Mapping,
    tend: ProgramHandle,
    doorbell: RingBuffer<'static>,
    rung: Rc<RefCell<Vec<u32>>>,
    chunk_count: u32,
    hold_count: u32,
}

impl Memory {
    /// `None` when the port was attached without a hold.
    pub fn open(port: &Port) -> Result<Option<Self>> {
        let policy = port.policy()?;
        if policy.hold_chunks == 0 {
            return Ok(None);
        }
        let dir = port.dir();
        let damaged = |reason| Error::Damaged { path: dir.to_owned(), reason };
        let chunks = open_map::<hold_chunk>(&dir.join("chunks")).map_err(damaged)?;
        let holds = open_map::<hold>(&dir.join("holds")).map_err(damaged)?;
        let state = open_map::<port_state>(&dir.join("port")).map_err(damaged)?;
        let open = |name: &str| {
            let path = dir.join(name);
            MapHandle::from_pinned_path(&path)
                .map_err(Error::bpf(format!("open {}", path.display())))
        };
        let (pool, bell) = (open("pool")?, open("doorbell")?);
        let (chunk_count, hold_count) = (chunks.max_entries(), holds.max_entries());
        if chunk_count < policy.hold_chunks || pool.value_size() / HOLD_CHUNK < chunk_count {
            return Err(damaged(format!("its hold has {chunk_count} chunks")));
        }
        let rung = Rc::new(RefCell::new(Vec::new()));
        Ok(Some(Self {
            pool: Mapping::new(&pool, dir)?,
            chunks: Mapping::new(&chunks, dir)?,
            holds: Mapping::new(&holds, dir)?,
            port: Mapping::new(&state, dir)?,
            tend: open_tend(dir)?,
            doorbell: listen(&bell, rung.clone())
                .map_err(Error::bpf(format!("listen to the doorbell of {}", dir.display())))?,
            rung,
            chunk_count,
            hold_count,
        }))
    }

    /// Readable when the hooks have news: for epoll.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer's own, open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.doorbell.epoll_fd()) }
    }

    /// Numbers of holds that the hooks have news of since the last call; one may be there twice.
    pub fn take_rung(&self) -> Vec<u32> {
        // Whatever it says, what has come is in the list; and all holds are looked at now and then.
        let _ = self.doorbell.consume();
        self.rung.borrow_mut().split_off(0)
    }

    /// Tells the hooks that the engine is alive. `now_ns`: CLOCK_MONOTONIC.
    pub fn heartbeat(&self, now_ns: u64) {
        self.port_u64(std::mem::offset_of!(port_state, engine_ns)).store(now_ns, Ordering::Release);
    }

    /// When an engine was last alive, CLOCK_MONOTONIC; 0: never.
    pub fn engine_ns(&self) -> u64 {
        self.port_u64(std::mem::offset_of!(port_state, engine_ns)).load(Ordering::Acquire)
    }

    /// No hold with a higher number was ever used; some with a lower one may not have been.
    pub fn highest(&self) -> u32 {
        let offset = std::mem::offset_of!(port_state, holds_high);
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        let word = unsafe { AtomicU32::from_ptr(self.port.at(offset).cast()) };
        word.load(Ordering::Acquire).min(self.hold_count)
    }

    /// Chunks in all.
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// How many holds there is memory for.
    pub fn hold_count(&self) -> u32 {
        self.highest()
    }

    /// Holds 32 * `group` + 1 and the 31 that follow, a bit for each: the VM may have to acknowledge something.
    pub fn busy(&self, group: u32) -> u32 {
        let first = group * 32 + 1;
        let is_busy = |number: u32| {
            let hold = self.read(number);
            hold.used != 0 && hold.vm_seq != hold.tail
        };
        let numbers = (first..first + 32).filter(|number| *number <= self.highest());
        numbers.filter(|number| is_busy(*number)).fold(0, |bits, number| bits | 1 << (number - first))
    }

    /// From now on the hooks tell when something is kept again.
    pub fn clear_busy(&self, _number: u32) {}

    /// Counts a probe.
    pub fn count_probe(&self, number: u32) {
        let offset = std::mem::offset_of!(hold, probes);
        self.word(number, offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds memory if the hooks want it.
    pub fn grow(&mut self) -> Result<()> {
        Ok(())
    }

    /// Gives memory back that nobody uses.
    pub fn shrink(&mut self) -> Result<()> {
        Ok(())
    }

    /// The hold with this number, from 1. Fields that change together may be from different moments.
    pub fn read(&self, number: u32) -> Hold {
        // SAFETY: hold_at() checks the number; any bytes are a hold, and what another CPU changes
        // meanwhile is read as it was or as it will be, word by word.
        let hold = unsafe { self.hold_at(number).cast::<hold>().read_volatile() };
        // Bytes and chunks are read after the tail that covers them.
        fence(Ordering::Acquire);
        hold
    }

    /// SEQ of the first chunk's first byte, and that chunk.
    pub fn front(&self, number: u32) -> (seq, u32) {
        // SAFETY: an aligned word within the mapping.
        let word = unsafe {
            let at = self.hold_at(number).add(std::mem::offset_of!(hold, front));
            AtomicU64::from_ptr(at.cast())
        };
        let front = word.load(Ordering::SeqCst);
        (seq::new((front >> 32) as u32), front as u32)
    }

    /// The chunk with the bytes that follow those of `chunk`.
    pub fn next(&self, chunk: u32) -> u32 {
        let offset = std::mem::offset_of!(hold_chunk, next);
        let at = self.chunks.at(self.chunk(chunk) * size_of::<hold_chunk>() + offset);
        // SAFETY: an aligned word within the mapping.
        unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Acquire)
    }

    /// Where a chunk's bytes are; valid as long as the memory is open.
    pub fn bytes(&self, chunk: u32) -> Option<*const u8> {
        Some(self.pool.at(self.chunk(chunk) * HOLD_CHUNK as usize))
    }

    /// From now on the hooks may ring for this hold again.
    pub fn clear_rung(&self, number: u32) {
        self.word(number, std::mem::offset_of!(hold, rung)).swap(0, Ordering::SeqCst);
    }

    /// The VM has been handed everything below.
    pub fn set_released(&self, number: u32, released: seq) {
        self.word(number, std::mem::offset_of!(hold, released))
            .store(released.v, Ordering::Release);
    }

    /// The VM, which had answered for everything, is handed data now. `now_ns`: CLOCK_MONOTONIC.
    pub fn set_released_ns(&self, number: u32, now_ns: u64) {
        // SAFETY: an aligned word within the mapping.
        let word = unsafe {
            let at = self.hold_at(number).add(std::mem::offset_of!(hold, released_ns));
            AtomicU64::from_ptr(at.cast())
        };
        word.store(now_ns, Ordering::Release);
    }

    /// The TSval of the segments that follow.
    pub fn set_released_tsval(&self, number: u32, tsval: u32) {
        let offset = std::mem::offset_of!(hold, released_tsval);
        self.word(number, offset).store(tsval, Ordering::Release);
    }

    /// Counts a frame that the VM was handed for the first time.
    pub fn count_release(&self, number: u32) {
        let offset = std::mem::offset_of!(hold, releases);
        self.word(number, offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame with `bytes` that the VM was handed again.
    pub fn count_resend(&self, number: u32, bytes: u32) {
        let offset = std::mem::offset_of!(hold, resends);
        self.word(number, offset).fetch_add(1, Ordering::Relaxed);
        // SAFETY: an aligned word within the mapping.
        let word = unsafe {
            let at = self.hold_at(number).add(std::mem::offset_of!(hold, resent_bytes));
            AtomicU64::from_ptr(at.cast())
        };
        word.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    /// Has the kernel side look after a hold: frees what is free, and with `end` gives it back if its
    /// flow is over. `end` only when it was [`Tended::Over`] some milliseconds ago.
    pub fn tend(&self, number: u32, end: bool) -> Result<Tended> {
        tend(&self.tend, number, if end { TEND_END } else { TEND_LOOK })
    }

    fn port_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.port.at(offset).cast()) }
    }

    fn word(&self, number: u32, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.hold_at(number).add(offset).cast()) }
    }

    fn hold_at(&self, number: u32) -> *mut u8 {
        assert!((1..=self.hold_count).contains(&number), "hold {number} of {}", self.hold_count);
        self.holds.at((number as usize - 1) * size_of::<hold>())
    }

    /// Chunk numbers come from memory that the hooks write: one out of range is taken for the first.
    fn chunk(&self, chunk: u32) -> usize {
        if chunk < self.chunk_count { chunk as usize } else { 0 }
    }
}

/// Nothing more is to be sent of a flow that was reset, whose record names this hold.
pub(crate) fn end(dir: &Path, number: u32) -> Result<()> {
    let program = open_tend(dir)?;
    tend(&program, number, TEND_RESET).map(drop)
}

fn open_tend(dir: &Path) -> Result<ProgramHandle> {
    ProgramHandle::from_pinned_path(dir.join("tend"))
        .map_err(Error::bpf(format!("open the program tend of {}", dir.display())))
}

/// Why a hold is looked after: enum tend of bpf/hold.h.
const TEND_LOOK: u32 = 0;
const TEND_END: u32 = 1;
const TEND_RESET: u32 = 2;

fn tend(program: &ProgramHandle, number: u32, why: u32) -> Result<Tended> {
    let run = inject::run_with(program, 0, [number, why], &[0; 64], 1)
        .map_err(Error::bpf(format!("look after hold {number}")))?;
    Ok(match run.verdict {
        0 => Tended::Used,
        1 => Tended::Over,
        _ => Tended::Free,
    })
}

fn listen(bell: &MapHandle, rung: Rc<RefCell<Vec<u32>>>) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(bell, move |bytes| {
        if let Some(number) = bytes.first_chunk::<4>() {
            rung.borrow_mut().push(u32::from_ne_bytes(*number));
        }
        0
    })?;
    builder.build()
}

const _: () = assert!(types::HOLD_CHUNK == 4096);

//! The hold's memory, mapped (src/slabs.rs) and shared by engine and hooks
//! (flow/types/hold_record.h, bpf/hold_memory.h).
//!
//! Hooks and engine write while the other reads, so no reference into it is handed out: words are
//! read and written one by one. The bytes of a chunk are stable from the moment that `hold.tail`
//! covers them until the VM has acknowledged them. A chunk is handed out as a pointer for a system
//! call to copy from; at worst this sends bytes that the VM has, and drops.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle, RingBuffer, RingBufferBuilder};
use vsnoop_flow::growth::{may_shrink_to, slab_quota, slabs_to_add};
use vsnoop_flow::hold::Reclaimed;
use vsnoop_flow::types::{
    self, SLAB_BYTES, SLAB_HOLDS, hold, policy, port_state, reclaim as why, seq,
};

use crate::error::{Error, Result};
use crate::inject::Runner;
use crate::map::open_any_map;
use crate::mapping::Mapping;
use crate::maps::{PortMap, SharedProgram};
use crate::port::Port;
use crate::reclaim::reclaim;
use crate::reserve::Reserve;
use crate::slabs::Slabs;

/// A hold, as read at some moment.
pub type Hold = hold;

/// The maps of one port with a hold.
pub struct HoldMaps {
    slabs: Slabs,
    reserve: Reserve,
    port: Mapping,
    reclaim: Runner,
    doorbell: RingBuffer<'static>,
    woken: Rc<RefCell<Vec<u32>>>,
    /// Size of the doorbell, records.
    room: usize,
}

/// Offset in the memory shared with the hooks.
const STATE: usize = std::mem::offset_of!(types::port, state);
const POLICY: usize = std::mem::offset_of!(types::port, policy);
/// Size of a record in the doorbell: its header, and the number of a hold.
const RECORD_BYTES: u32 = 16;

impl HoldMaps {
    /// `None` when the port was attached without a hold.
    pub fn open(port: &Port) -> Result<Option<Self>> {
        let mut memory = Self::open_without_slabs(port)?;
        memory.iter_mut().try_for_each(Self::refresh)?;
        Ok(memory)
    }

    /// Opens the memory as [`Self::open`] does, but maps no slabs: a mapping would keep slabs alive
    /// that the engine takes away. Holds can be read between [`Self::refresh`] and
    /// [`Self::unmap_slabs`].
    pub fn open_without_slabs(port: &Port) -> Result<Option<Self>> {
        if port.policy()?.hold_chunks == 0 {
            return Ok(None);
        }
        let dir = port.dir();
        let shared = port.open_map::<types::port>(PortMap::Ports)?;
        let bell = port.if_there(open_any_map(&dir.join(PortMap::Doorbell.pin())))?;
        let woken = Rc::new(RefCell::new(Vec::new()));
        let memory = Self {
            slabs: port.if_there(Slabs::open(dir))?,
            reserve: Reserve::default(),
            port: Mapping::new(&shared, dir)?,
            reclaim: port.if_there(Runner::open(dir, SharedProgram::Reclaim))?,
            doorbell: listen(&bell, woken.clone())
                .map_err(Error::bpf(format!("listen to the doorbell of {}", dir.display())))?,
            woken,
            room: (bell.max_entries() / RECORD_BYTES) as usize,
        };
        Ok(Some(memory))
    }

    /// Maps slabs that were added since it was opened, and unmaps those that were removed.
    pub fn refresh(&mut self) -> Result<()> {
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        self.slabs.refresh(count)
    }

    /// [`Self::refresh`] of a port whose pins were removed. Its slot may be another port's by now:
    /// a hold is the port's if its key says so.
    pub fn refresh_without_pins(&mut self) -> Result<()> {
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        self.slabs.map_all(count)
    }

    /// Lets go of the slabs, whose memory the kernel frees once no process has them mapped.
    pub fn unmap_slabs(&mut self) {
        self.slabs.unmap();
    }

    /// Undoes incomplete changes of an earlier engine. From now on this process is the engine,
    /// which alone changes slabs, and takes them from `reserve` first.
    ///
    /// It also adds memory for the first connection, whose first data may come before memory that
    /// its handshake asks for. An idle port gives it back.
    pub fn adopt(&mut self, reserve: &Reserve) -> Result<()> {
        self.reserve = reserve.clone();
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        self.slabs.adopt(count)?;
        if self.slabs.len() == 0 && self.quota() > 0 {
            self.slabs.wait(count)?;
            // Without memory for it the port begins without.
            self.slabs.add(1, reserve, count)?;
            self.slabs.wait(count)?;
        }
        Ok(())
    }

    /// Notes completed changes of the memory; true if one was just completed. For the engine only.
    pub fn settle(&mut self) -> Result<bool> {
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        let before = self.slabs.changes();
        if let Err(error) = self.slabs.settle(count) {
            // The hooks do not ask again after an addition that failed.
            self.wants_slabs().store(1, Ordering::Release);
            return Err(error);
        }
        Ok(self.slabs.changes() < before)
    }

    /// Was memory added that the hooks do not use yet? See [`HoldMaps::settle`].
    pub fn is_growing(&self) -> bool {
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        count.load(Ordering::Relaxed) < self.slabs.len()
    }

    /// Adds memory if the hooks want it, within the port's quota. For the engine only.
    pub fn grow(&mut self) -> Result<()> {
        self.settle()?;
        if !self.slabs.may_add() {
            return Ok(());
        }
        // Cleared first: a request during the change is a new one.
        if self.wants_slabs().swap(0, Ordering::AcqRel) == 0 {
            return Ok(());
        }
        let there = self.slabs.len();
        let quota = self.quota();
        let more = slabs_to_add(there, quota);
        if more == 0 {
            return Ok(());
        }
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        let added = self.slabs.add(more, &self.reserve, count);
        if !matches!(added, Ok(added) if added == more) {
            // A connection whose window is closed for want of memory does not ask again.
            self.wants_slabs().store(1, Ordering::Release);
        }
        match added? {
            0 => Err(Error::NoRoom),
            _ => Ok(()),
        }
    }

    /// Do the hooks want memory? Set by them, cleared by the engine.
    fn wants_slabs(&self) -> &AtomicU32 {
        word(&self.port, STATE + std::mem::offset_of!(port_state, wants_slabs))
    }

    /// Takes unused memory away, and memory beyond the quota. For the engine only.
    pub fn shrink(&mut self) -> Result<()> {
        self.settle()?;
        if self.slabs.changes() > 0 {
            return Ok(());
        }
        let count = word(&self.port, STATE + std::mem::offset_of!(port_state, slabs));
        let used = word(&self.port, STATE + std::mem::offset_of!(port_state, chunks_used));
        let (there, quota) = (self.slabs.len(), self.quota());
        let may = |left: u32| may_shrink_to(left, there, quota, used.load(Ordering::Relaxed));
        self.slabs.take(may, count)
    }

    /// Slabs that the port may have.
    fn quota(&self) -> u32 {
        let chunks = word(&self.port, POLICY + std::mem::offset_of!(policy, hold_chunks));
        slab_quota(chunks.load(Ordering::Relaxed))
    }

    /// For epoll: readable after the hooks rang.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer's own, open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.doorbell.epoll_fd()) }
    }

    /// Takes the numbers of holds from the doorbell, with duplicates; 0: the hooks want memory.
    pub fn take_woken(&self) -> Vec<u32> {
        // All complete records are in the list, whatever the result.
        let _ = self.doorbell.consume();
        let mut woken = self.woken.borrow_mut().split_off(0);
        // It may have been full, and records may be lost.
        if woken.len() >= self.room / 2 {
            let is_woken = |number: &u32| {
                let word = self.word(*number, std::mem::offset_of!(hold, woken));
                word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
            };
            woken.extend((1..=self.hold_count()).filter(is_woken));
        }
        woken
    }

    /// Sign of life of the engine for the hooks. `now_ns`: CLOCK_MONOTONIC.
    pub fn heartbeat(&self, now_ns: u64) {
        self.port_u64(STATE + std::mem::offset_of!(port_state, engine_ns))
            .store(now_ns, Ordering::Release);
    }

    /// Notes for the hooks that the VM waits for a CPU. `now_ns`: CLOCK_MONOTONIC.
    pub fn starves(&self, now_ns: u64) {
        self.port_u64(STATE + std::mem::offset_of!(port_state, starved_ns))
            .store(now_ns, Ordering::Release);
    }

    /// Time of the engine's last sign of life, CLOCK_MONOTONIC; 0: never.
    pub fn engine_ns(&self) -> u64 {
        self.port_u64(STATE + std::mem::offset_of!(port_state, engine_ns)).load(Ordering::Acquire)
    }

    /// Number of holds in the slabs.
    pub fn hold_count(&self) -> u32 {
        self.slabs.len() * SLAB_HOLDS
    }

    /// Size of all slabs, bytes.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.slabs.len()) * u64::from(SLAB_BYTES)
    }

    /// A bit for each of the 32 holds from number 32 * `group` + 1: the VM may have to acknowledge
    /// something.
    pub fn busy(&self, group: u32) -> u32 {
        self.slabs.busy(group).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Clears a busy bit: the hooks set it when they keep something.
    pub fn clear_busy(&self, number: u32) {
        let (group, bit) = ((number - 1) / SLAB_HOLDS, (number - 1) % SLAB_HOLDS);
        if let Some(word) = self.slabs.busy(group) {
            word.fetch_and(!(1 << bit), Ordering::SeqCst);
        }
    }

    /// The hold with this number, from 1; a free one where there is none. Fields that change
    /// together may be from different moments.
    pub fn read(&self, number: u32) -> Hold {
        let Some(at) = self.slabs.hold(number) else { return Hold::default() };
        // SAFETY: within a slab that is mapped; any bytes are a hold, and what another CPU changes
        // meanwhile is read as it was or as it will be, word by word.
        let hold = unsafe { at.cast::<hold>().read_volatile() };
        // Bytes and chunks are read after the tail that covers them.
        fence(Ordering::Acquire);
        hold
    }

    /// SEQ of the first chunk's first byte, and that chunk.
    pub fn front(&self, number: u32) -> (seq, u32) {
        let word = self.word64(number, std::mem::offset_of!(hold, front));
        let front = word.map_or(0, |word| word.load(Ordering::SeqCst));
        (seq::new((front >> 32) as u32), front as u32)
    }

    /// The chunk with the bytes that follow those of `chunk`.
    pub fn next(&self, chunk: u32) -> u32 {
        self.slabs.next(chunk).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Address of a chunk's bytes, valid until memory is added or taken away; `None` if the chunk's
    /// slab is gone.
    pub fn bytes(&self, chunk: u32) -> Option<*const u8> {
        self.slabs.bytes(chunk)
    }

    /// Tells the hooks whether the engine reads the doorbell soon without being woken.
    pub fn set_looks(&self, looks: bool) {
        word(&self.port, STATE + std::mem::offset_of!(port_state, engine_looks))
            .swap(looks.into(), Ordering::SeqCst);
    }

    /// Lets the hooks ring for this hold again.
    pub fn clear_woken(&self, number: u32) {
        self.set(number, std::mem::offset_of!(hold, woken), |word| {
            word.swap(0, Ordering::SeqCst);
        });
    }

    /// Notes that the VM was handed all bytes below `handed`.
    pub fn set_handed(&self, number: u32, handed: seq) {
        self.set(number, std::mem::offset_of!(hold, handed), |word| {
            word.store(handed.v, Ordering::Release);
        });
    }

    /// Notes when data were handed to a VM that had acknowledged everything before. `now_ns`:
    /// CLOCK_MONOTONIC.
    pub fn set_handed_ns(&self, number: u32, now_ns: u64) {
        if let Some(word) = self.word64(number, std::mem::offset_of!(hold, handed_ns)) {
            word.store(now_ns, Ordering::Release);
        }
    }

    /// Notes the TSval of the frames that follow.
    pub fn set_handed_tsval(&self, number: u32, tsval: u32) {
        self.set(number, std::mem::offset_of!(hold, handed_tsval), |word| {
            word.store(tsval, Ordering::Release);
        });
    }

    /// Tells the hooks whether to ring for each ACK of the VM.
    pub fn set_wants_acks(&self, number: u32, wants: bool) {
        self.set(number, std::mem::offset_of!(hold, wants_acks), |word| {
            // The hooks see it before the engine reads the VM's ACKs again. One that has read it
            // before leaves a note, for the next tick.
            word.swap(wants.into(), Ordering::SeqCst);
        });
    }

    /// Tells the hooks from how much room in the VM's window on they are to ring; 0: any.
    pub fn set_portion(&self, number: u32, bytes: u32) {
        self.set(number, std::mem::offset_of!(hold, portion), |word| {
            // As in set_wants_acks().
            word.swap(bytes, Ordering::SeqCst);
        });
    }

    /// Notes why the connection is to be left to the VM (`LATE_*`).
    pub fn set_late(&self, number: u32, why: u32) {
        self.set(number, std::mem::offset_of!(hold, late), |word| {
            word.store(why, Ordering::Release);
        });
    }

    /// Tells the hooks that a frame is being written since `now_ns`; `None`: it has been.
    pub fn set_sending(&self, number: u32, now_ns: Option<u64>) {
        let since = now_ns.map_or(0, vsnoop_flow::hold::sending_since);
        self.set(number, std::mem::offset_of!(hold, sending), |word| {
            // The hook that the frame passes reads the sender's ACK after this.
            word.swap(since, Ordering::SeqCst);
        });
    }

    /// Notes whether an ACK that the hooks dropped waits for a frame.
    pub fn set_ack_waits(&self, number: u32, waits: bool) {
        self.set(number, std::mem::offset_of!(hold, ack_waits), |word| {
            word.store(waits.into(), Ordering::SeqCst);
        });
    }

    /// Counts a frame that the VM was handed for the first time.
    pub fn count_handover(&self, number: u32) {
        self.set(number, std::mem::offset_of!(hold, handovers), count_one);
    }

    /// Counts a frame with `bytes` that the VM was handed again.
    pub fn count_resend(&self, number: u32, bytes: u32) {
        self.set(number, std::mem::offset_of!(hold, resends), count_one);
        if let Some(word) = self.word64(number, std::mem::offset_of!(hold, resent_bytes)) {
            word.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    /// Counts a probe.
    pub fn count_probe(&self, number: u32) {
        self.set(number, std::mem::offset_of!(hold, probes), count_one);
    }

    /// Frees the chunks that the VM has acknowledged, and with `end` the hold itself if its flow is
    /// over. Use `end` only some milliseconds after [`Reclaimed::Over`].
    pub fn reclaim(&self, number: u32, end: bool) -> Result<Reclaimed> {
        reclaim(&self.reclaim, number, if end { why::RECLAIM_HOLD } else { why::RECLAIM_CHUNKS })
    }

    fn port_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.port.at(offset).cast()) }
    }

    fn set(&self, number: u32, offset: usize, change: impl FnOnce(&AtomicU32)) {
        if let Some(word) = self.word(number, offset) {
            change(word);
        }
    }

    fn word(&self, number: u32, offset: usize) -> Option<&AtomicU32> {
        let at = self.slabs.hold(number)?;
        // SAFETY: an aligned word within a slab, which is mapped as long as `self.slabs` does not
        // change.
        Some(unsafe { AtomicU32::from_ptr(at.add(offset).cast()) })
    }

    fn word64(&self, number: u32, offset: usize) -> Option<&AtomicU64> {
        let at = self.slabs.hold(number)?;
        // SAFETY: as in word().
        Some(unsafe { AtomicU64::from_ptr(at.add(offset).cast()) })
    }
}

fn count_one(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Relaxed);
}

fn word(mapping: &Mapping, offset: usize) -> &AtomicU32 {
    // SAFETY: an aligned word within the mapping, which lives as long as the reference.
    unsafe { AtomicU32::from_ptr(mapping.at(offset).cast()) }
}

fn listen(
    bell: &MapHandle,
    woken: Rc<RefCell<Vec<u32>>>,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(bell, move |bytes| {
        if let Some(number) = bytes.first_chunk::<4>() {
            woken.borrow_mut().push(u32::from_ne_bytes(*number));
        }
        0
    })?;
    builder.build()
}

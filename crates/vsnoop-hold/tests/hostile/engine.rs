//! The engine's I/O layer, as in crates/vsnoop/src/engine: what it remembers, and its steps.
//!
//! Between any two of its steps it may be killed ([`Crashed`]), or another CPU may do something.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use fastrand::Rng;
use vsnoop_flow::seq;
use vsnoop_flow::testing::clock::MS;
use vsnoop_flow::testing::memory::Memory;
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::types::{HOLD_OVER, HOLD_TIMESTAMPS, hold};
use vsnoop_hold::{Chain, Chunks, Flow, Frame, Kind, Slice, View};

use crate::world::World;

const TURN: u32 = 8;
const TEND_TICKS: u32 = 20;
const TICK: u64 = 50 * MS;
const RETRY: u64 = MS;

/// It was killed.
#[derive(Debug)]
pub struct Crashed;

pub struct Engine {
    ran_ns: u64,
    looked_at: u64,
    was_waiting: bool,
    held: HashMap<u32, Held>,
    inherited: Vec<u32>,
    due: VecDeque<u32>,
    ring_is_full: bool,
    ticks: u32,
    over: Vec<u32>,
    tick_at: u64,
}

struct Held {
    flow: Flow,
    chain: Chain,
    marked: u32,
}

enum Sent {
    Taken,
    Refused,
    NotNeeded,
}

/// The chain, out of which the hooks may take chunks at any time.
struct Links<'a> {
    memory: RefCell<&'a mut Memory>,
    frees: RefCell<&'a mut Vec<u32>>,
    rng: RefCell<&'a mut Rng>,
    number: u32,
}

impl Links<'_> {
    fn race(&self) {
        if self.rng.borrow_mut().u32(0..4) == 0
            && let Some(number) = self.frees.borrow_mut().pop()
        {
            self.memory.borrow_mut().release(number, false);
        }
    }
}

impl Chunks for Links<'_> {
    fn front(&self) -> (seq, u32) {
        let front = self.memory.borrow().front(self.number);
        self.race();
        front
    }

    fn next(&self, chunk: u32) -> u32 {
        let next = self.memory.borrow().next(chunk);
        self.race();
        next
    }
}

impl Engine {
    pub fn new(w: &World) -> Self {
        Self {
            ran_ns: 0,
            looked_at: w.now,
            was_waiting: false,
            held: HashMap::new(),
            inherited: (1..=w.memory.highest()).collect(),
            due: (1..=w.memory.highest()).collect(),
            ring_is_full: false,
            ticks: 0,
            over: Vec::new(),
            tick_at: w.now,
        }
    }

    /// Does what there is to do; when it wants to run again at the latest.
    pub fn run(&mut self, w: &mut World) -> Result<u64, Crashed> {
        if w.now >= self.tick_at {
            self.tick_at = w.now + TICK;
            self.tick(w)?;
        }
        self.work(w)?;
        Ok(match (self.ring_is_full, self.due.is_empty()) {
            (true, _) => w.now + RETRY,
            (false, false) => w.now + 10_000,
            (false, true) => self.tick_at,
        })
    }

    fn tick(&mut self, w: &mut World) -> Result<(), Crashed> {
        w.memory.port.engine_ns = w.now;
        w.engine_step()?;
        self.ticks += 1;
        let mut quiet = Vec::new();
        let mut is_waiting = false;
        for number in 1..=w.memory.highest() {
            let hold = *w.memory.hold(number);
            if hold.used == 0 {
                self.held.remove(&number);
                continue;
            }
            let is_done = View::new(&hold).is_done();
            if !is_done || hold.rung != 0 {
                is_waiting |= !is_done;
                self.due.push_back(number);
            } else {
                self.held.remove(&number);
            }
            quiet.push(number);
        }
        self.look_at_clock(w, is_waiting);
        if self.ticks.is_multiple_of(TEND_TICKS) {
            let before = std::mem::take(&mut self.over);
            for number in quiet {
                w.engine_step()?;
                match w.tend(number, before.contains(&number)) {
                    0 => {}
                    1 => self.over.push(number),
                    // Somebody else's may have the number next.
                    _ => drop(self.held.remove(&number)),
                }
            }
        }
        Ok(())
    }

    fn look_at_clock(&mut self, w: &World, is_waiting: bool) {
        let ran = w.sc.freezes.run_time(self.looked_at, w.now);
        self.looked_at = w.now;
        if !is_waiting && !self.was_waiting {
            return;
        }
        self.was_waiting = is_waiting;
        self.ran_ns += ran;
    }

    fn work(&mut self, w: &mut World) -> Result<(), Crashed> {
        self.ring_is_full = false;
        for number in std::mem::take(&mut w.doorbell) {
            if !self.due.contains(&number) {
                self.due.push_back(number);
            }
        }
        for _ in 0..self.due.len() {
            let Some(number) = self.due.pop_front() else { break };
            w.engine_step()?;
            if self.serve(w, number)? {
                self.due.push_back(number);
            }
            if self.ring_is_full {
                break;
            }
        }
        Ok(())
    }

    fn serve(&mut self, w: &mut World, number: u32) -> Result<bool, Crashed> {
        w.memory.hold_mut(number).rung = 0;
        let is_inherited = self.inherited.contains(&number);
        self.inherited.retain(|&other| other != number);
        let begin = if is_inherited { Flow::resumed } else { Flow::new };
        for _ in 0..TURN {
            w.engine_step()?;
            let hold = *w.memory.hold(number);
            if hold.used == 0 || u32::from(hold.flags) & HOLD_OVER != 0 {
                self.held.remove(&number);
                return Ok(false);
            }
            let view = View::new(&hold);
            let ran_ns = self.ran_ns;
            let held = self.held.entry(number).or_insert_with(|| Held {
                flow: begin(&view, ran_ns),
                chain: Chain::default(),
                marked: hold.marked,
            });
            let frame = held.flow.poll(&view, ran_ns);
            if held.flow.is_dead() {
                w.engine_step()?;
                self.held.remove(&number);
                w.give_up(&hold);
                return Ok(false);
            }
            let Some(frame) = frame else { return Ok(false) };
            w.engine_step()?;
            match self.send(w, number, &hold, &view, &frame)? {
                Sent::Taken => {}
                Sent::Refused => {
                    self.ring_is_full = true;
                    return Ok(true);
                }
                Sent::NotNeeded => return Ok(false),
            }
        }
        Ok(true)
    }

    fn send(
        &mut self,
        w: &mut World,
        number: u32,
        hold: &hold,
        view: &View,
        frame: &Frame,
    ) -> Result<Sent, Crashed> {
        let Some(held) = self.held.get_mut(&number) else { return Ok(Sent::NotNeeded) };
        let mut slices = Vec::new();
        if frame.len > 0 {
            let links = Links {
                memory: RefCell::new(&mut w.memory),
                frees: RefCell::new(&mut w.frees),
                rng: RefCell::new(&mut w.rng),
                number,
            };
            let found = held.chain.find(&links, frame.seq, frame.len);
            let Some(found) = found else { return Ok(Sent::NotNeeded) };
            slices = found;
        }
        let marked = frame.kind == Kind::Release && hold.marked != held.marked;
        w.engine_step()?;
        w.memory.hold_mut(number).released_tsval = hold.tsval;
        w.engine_step()?;
        if !w.frame_for_vm(hold, frame, marked, &slices) {
            return Ok(Sent::Refused);
        }
        w.engine_step()?;
        if marked {
            held.marked = hold.marked;
        }
        held.flow.sent(view, frame);
        match frame.kind {
            Kind::Release => {
                if view.handed == view.vm_seq {
                    w.memory.hold_mut(number).released_ns = w.now;
                    w.engine_step()?;
                }
                w.memory.hold_mut(number).released = frame.end();
                w.tally.releases += 1;
            }
            Kind::Resend => w.tally.resends += 1,
            Kind::Ack => w.tally.engine_acks += 1,
            Kind::Probe => w.tally.probes += 1,
        }
        w.engine_step()?;
        Ok(Sent::Taken)
    }
}

/// The frame that crates/vsnoop/src/engine/frame.rs makes.
pub fn segment(hold: &hold, frame: &Frame, marked: bool, slices: &[Slice], m: &Memory) -> Seg {
    let mut data = Vec::with_capacity(frame.len as usize);
    for slice in slices {
        data.extend_from_slice(
            &m.bytes(slice.chunk)[slice.offset as usize..][..slice.len as usize],
        );
    }
    assert_eq!(data.len(), frame.len as usize);
    let mut flags = ACK;
    flags |= if frame.len > 0 { PSH } else { 0 };
    flags |= if frame.fin { FIN } else { 0 };
    let has_timestamps = u32::from(hold.flags) & HOLD_TIMESTAMPS != 0;
    Seg {
        window: hold.sender_window,
        data: data.into(),
        unit: hold.mss,
        ts: has_timestamps.then_some((hold.tsval, hold.tsecr)),
        ce: marked,
        ..Seg::bare(frame.seq.v, hold.snd_una.v, flags)
    }
}

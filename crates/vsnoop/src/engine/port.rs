//! One port and its holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use vsnoop_bpf::types::reset_reason::RESET_REFUSED;
use vsnoop_bpf::types::{HOLD_OVER, seq};
use vsnoop_bpf::{Hold, Memory, Tended};
use vsnoop_hold::{Chain, Chunks, Flow, Frame, Kind, View};

use super::device::{Device, Part};
use super::frame::headers;
use crate::command::flows::monotonic_ns;
use crate::helper::chance::Chance;
use crate::helper::reset::reset;
use crate::helper::vm::Vm;
use crate::ports::Attached;
use crate::system::netns::Netns;

/// Frames of one connection before the next has its turn.
const TURN: u32 = 8;
/// Turns before the other ports have theirs, and a sign of life is given.
const TURNS: usize = 256;
/// Ticks from one look after a hold that nothing happens on to the next: a second.
const TEND_TICKS: u32 = 20;

/// How soon it has to be worked on again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// When the doorbell rings, or at the next tick.
    None,
    /// The ring was full.
    Soon,
    /// There is more to be done.
    Now,
}

pub struct EnginePort {
    attached: Attached,
    memory: Memory,
    device: Device,
    netns_path: Option<PathBuf>,
    vm: Vm,
    /// How long the VM has had to answer, as far as is known.
    ran_ns: u64,
    looked_at: Instant,
    was_waiting: bool,
    held: HashMap<u32, Held>,
    /// Holds of before this engine, at which it has not looked yet.
    inherited: HashSet<u32>,
    /// Numbers of holds with something to do, each once.
    due: VecDeque<u32>,
    queued: HashSet<u32>,
    ring_is_full: bool,
    ticks: u32,
    /// Holds whose flow was over at the last look.
    over: Vec<u32>,
    trouble: Option<String>,
}

/// What is remembered of a hold.
struct Held {
    flow: Flow,
    chain: Chain,
    marked: u32,
}

/// What became of a frame.
enum Sent {
    Taken,
    /// The ring is full.
    Refused,
    /// The VM has acknowledged its bytes meanwhile.
    NotNeeded,
}

struct Links<'a> {
    memory: &'a Memory,
    number: u32,
}

impl Chunks for Links<'_> {
    fn front(&self) -> (seq, u32) {
        self.memory.front(self.number)
    }

    fn next(&self, chunk: u32) -> u32 {
        self.memory.next(chunk)
    }
}

impl EnginePort {
    pub fn new(attached: Attached, memory: Memory) -> Result<Self> {
        let mut netns_path = None;
        let place = Netns::find_again(attached.meta.netns, &mut netns_path)
            .context("its network namespace cannot be found")?;
        let device = place.run(|| Device::open(attached.meta.ifindex))?;
        let vm = Vm::behind(&attached.name, attached.meta.netns);
        let mut port = Self {
            attached,
            memory,
            device,
            netns_path,
            vm,
            ran_ns: 0,
            looked_at: Instant::now(),
            was_waiting: false,
            held: HashMap::new(),
            inherited: HashSet::new(),
            due: VecDeque::new(),
            queued: HashSet::new(),
            ring_is_full: false,
            ticks: 0,
            over: Vec::new(),
            trouble: None,
        };
        // What the last engine was told, and did not come to.
        port.inherited = (1..=port.memory.highest()).collect();
        (1..=port.memory.highest()).for_each(|number| port.queue(number));
        Ok(port)
    }

    pub fn is_of(&self, attached: &Attached) -> bool {
        self.attached.port.id() == attached.port.id()
    }

    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.memory.doorbell()
    }

    pub fn urgency(&self) -> Urgency {
        match (self.ring_is_full, self.due.is_empty()) {
            (true, _) => Urgency::Soon,
            (false, false) => Urgency::Now,
            (false, true) => Urgency::None,
        }
    }

    /// A sign of life, and whatever has waited for time to pass.
    pub fn tick(&mut self, now_ns: u64) {
        self.memory.heartbeat(now_ns);
        self.ticks += 1;
        let is_time_to_tend = self.ticks.is_multiple_of(TEND_TICKS);
        let mut quiet = Vec::new();
        let mut is_waiting = false;
        for number in 1..=self.memory.highest() {
            let hold = self.memory.read(number);
            if hold.used == 0 {
                self.held.remove(&number);
                continue;
            }
            let is_done = View::new(&hold).is_done();
            if !is_done || hold.rung != 0 {
                is_waiting |= !is_done;
                self.queue(number);
            } else {
                self.held.remove(&number);
            }
            quiet.push(number);
        }
        self.look_at_clock(is_waiting);
        if is_time_to_tend {
            self.tend(&quiet);
        }
    }

    /// Does what is due, a turn for each connection.
    pub fn work(&mut self) {
        self.ring_is_full = false;
        for number in self.memory.take_rung() {
            self.queue(number);
        }
        for _ in 0..self.due.len().min(TURNS) {
            let Some(number) = self.due.pop_front() else { break };
            self.queued.remove(&number);
            match self.serve(number) {
                Ok(true) => self.queue(number),
                Ok(false) => self.trouble = None,
                Err(error) => self.complain(format!("{error:#}")),
            }
            if self.ring_is_full {
                break;
            }
        }
    }

    fn queue(&mut self, number: u32) {
        if self.queued.insert(number) {
            self.due.push_back(number);
        }
    }

    fn complain(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!(
                "port {}: {text}; what is held for its VM waits, and is tried again",
                self.attached.name
            );
            self.trouble = Some(text);
        }
    }

    /// A connection's turn; true when it wants another.
    fn serve(&mut self, number: u32) -> Result<bool> {
        // Before anything is read: news that come later ring again.
        self.memory.clear_rung(number);
        let is_inherited = self.inherited.remove(&number);
        let begin = if is_inherited { Flow::resumed } else { Flow::new };
        for _ in 0..TURN {
            let hold = self.memory.read(number);
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
                return self.give_up(number, &hold).map(|()| false);
            }
            let Some(frame) = frame else { return Ok(false) };
            match self.send(number, &hold, &view, &frame)? {
                Sent::Taken => {}
                Sent::Refused => {
                    self.ring_is_full = true;
                    return Ok(true);
                }
                // The VM's ACK rings.
                Sent::NotNeeded => return Ok(false),
            }
        }
        Ok(true)
    }

    fn send(&mut self, number: u32, hold: &Hold, view: &View, frame: &Frame) -> Result<Sent> {
        let Some(held) = self.held.get_mut(&number) else { return Ok(Sent::NotNeeded) };
        let links = Links { memory: &self.memory, number };
        let mut slices = Vec::new();
        if frame.len > 0 {
            let found = held.chain.find(&links, frame.seq, frame.len);
            let Some(found) = found else { return Ok(Sent::NotNeeded) };
            slices = found;
        }
        let marked = frame.kind == Kind::Release && hold.marked != held.marked;
        let headers = headers(hold, frame, marked)?;
        let mut parts = Vec::with_capacity(slices.len() + 1);
        parts.push(Part::of(&headers));
        for slice in &slices {
            let start = self.memory.bytes(slice.chunk).wrapping_add(slice.offset as usize);
            parts.push(Part::at(start, slice.len as usize));
        }
        // Before the frame: ACKs that the hooks forward must not look newer than it (RFC 7323).
        self.memory.set_released_tsval(number, hold.tsval);
        if !self.device.send(&parts).context("hand a frame over")? {
            return Ok(Sent::Refused);
        }
        if marked {
            held.marked = hold.marked;
        }
        held.flow.sent(view, frame);
        match frame.kind {
            Kind::Release => {
                if view.handed == view.vm_seq {
                    self.memory.set_released_ns(number, monotonic_ns()?);
                }
                self.memory.set_released(number, frame.end());
                self.memory.count_release(number);
            }
            Kind::Resend => self.memory.count_resend(number, frame.len),
            Kind::Ack | Kind::Probe => {}
        }
        Ok(Sent::Taken)
    }

    /// The VM had every chance and does not answer: both ends are reset.
    fn give_up(&mut self, number: u32, hold: &Hold) -> Result<()> {
        self.held.remove(&number);
        let port = &self.attached.port;
        let Some(flow) = port.flow(&hold.key)? else { return Ok(()) };
        let place = Netns::find_again(self.attached.meta.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        if place.run(|| reset(port, &hold.key, &flow, RESET_REFUSED))? {
            tracing::warn!(
                "port {}: a connection was reset: its VM ran and did not take what it was sent",
                self.attached.name
            );
        }
        Ok(())
    }

    fn look_at_clock(&mut self, is_waiting: bool) {
        let elapsed = self.looked_at.elapsed();
        self.looked_at = Instant::now();
        // One look longer than needed, so that a wait always begins with a fresh sample.
        if !is_waiting && !self.was_waiting {
            return self.vm.forget();
        }
        self.was_waiting = is_waiting;
        self.ran_ns += match self.vm.chance(elapsed) {
            Chance::None => 0,
            Chance::Ran { ns } | Chance::Wall { ns } => ns,
        };
    }

    /// Memory of connections that are over, or have nothing on their way, goes back to the pool.
    fn tend(&mut self, used: &[u32]) {
        let before = std::mem::take(&mut self.over);
        for &number in used {
            match self.memory.tend(number, before.contains(&number)) {
                Ok(Tended::Over) => self.over.push(number),
                Ok(Tended::Used) => {}
                Ok(Tended::Free) => {
                    self.held.remove(&number);
                }
                Err(error) => tracing::debug!("port {}: {error:#}", self.attached.name),
            }
        }
    }
}

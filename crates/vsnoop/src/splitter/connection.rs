//! One split connection: its sockets, until it is joined or over.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vsnoop_bpf::split::SplitPort;
use vsnoop_bpf::types::{SPLIT_LATE_NS, flow_key, rejoined, seq};
use vsnoop_split::{Broken, Direction, Side, Split, State, Waits};

use crate::keeper::Keeper;
use crate::splitter::record::{Left, PortKey, Received, Record};

/// A connection on which nothing moves is joined after this time.
const IDLE: Duration = Duration::from_secs(2);
/// How long the hooks know a connection that is over: RSTs leave, and a FIN that comes again is
/// answered.
const AFTER: Duration = Duration::from_secs(1);
/// A VM that takes longer to acknowledge is late.
const LATE: Duration = Duration::from_nanos(SPLIT_LATE_NS as u64);

/// How long a VM waits for its next turns: what the path carries in this time, it may be ahead.
const TURNS: Duration = Duration::from_millis(200);
/// Between two changes of that.
const ADAPT: Duration = Duration::from_millis(5);

/// A split connection.
pub struct Connected {
    pub key: flow_key,
    /// Its number at the keeper, and what the next splitter has to know of it.
    pub id: u64,
    pub record: Vec<u8>,
    /// Bytes that the VM may be ahead.
    pub ahead: u32,
    /// `None`: it was reset.
    split: Option<Split>,
    /// SEQ behind the last byte of each end, at the time when a socket had received so much.
    vm: Received,
    peer: Received,
    moved: Instant,
    adapted: Instant,
    over: Option<Instant>,
}

/// Whether a connection waits after some bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing until a socket says so.
    Waits,
    /// More can be moved at once.
    More,
}

/// SEQ behind the last byte of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub sent: u32,
    pub peer_nxt: u32,
}

impl Connected {
    /// `numbers`: when the sockets were made.
    pub fn new(
        id: u64,
        port: PortKey,
        key: flow_key,
        split: Split,
        numbers: Numbers,
        ahead: u32,
    ) -> Result<Self> {
        let received = |side, seq| {
            let info = split.info(side).context("ask about a socket that was made")?;
            Ok::<_, anyhow::Error>(Received { seq, bytes: info.bytes_received })
        };
        let (vm, peer) =
            (received(Side::Vm, numbers.sent)?, received(Side::Peer, numbers.peer_nxt)?);
        Ok(Self::with(id, &Record { port, key, vm, peer, ahead }, split))
    }

    fn with(id: u64, record: &Record, split: Split) -> Self {
        let Record { key, vm, peer, ahead, .. } = *record;
        let now = Instant::now();
        let (record, split) = (record.to_bytes(), Some(split));
        Self { key, id, record, ahead, split, vm, peer, moved: now, adapted: now, over: None }
    }

    /// Takes up what an earlier splitter has left. After an error both ends are sent a RST.
    pub fn take_up(left: Left) -> Result<Self> {
        let Left { id, record, parts } = left;
        let mut taken = Self::with(id, &record, Split::from_parts(parts)?);
        if taken.was_reset().unwrap_or(true) {
            taken.reset();
            bail!("an end had reset it");
        }
        taken.limit(taken.ahead);
        Ok(taken)
    }

    /// Was it reset by an end, which an earlier splitter has seen? The socket that faces it is
    /// closed, though the other end has not closed.
    fn was_reset(&self) -> io::Result<bool> {
        let Some(split) = &self.split else { return Ok(true) };
        let (vm, peer) = (split.info(Side::Vm)?.state, split.info(Side::Peer)?.state);
        Ok(vm.is_closed() && !peer.has_received_fin() || peer.is_closed() && !vm.has_received_fin())
    }

    /// Has the keeper keep it, if it does not.
    pub fn keep(&self, keeper: &mut Keeper) {
        if let Some(split) = self.split.as_ref().filter(|_| !keeper.has(self.id)) {
            keeper.keep(self.id, &self.record, split.parts());
        }
    }

    /// `None`: it was reset.
    pub fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// Closes both sockets without a word.
    pub fn give_back(mut self) {
        if let Some(split) = self.split.take() {
            // Best effort: an end that gets a RST begins anew.
            let _ = split.join();
        }
    }

    /// How many bytes the VM may be ahead from now on.
    pub fn limit(&self, bytes: u32) {
        if let Some(split) = &self.split {
            // Best effort: it is a matter of time and memory only.
            let _ = split.limit(bytes);
        }
    }

    /// Was it not adapted for a while?
    pub fn may_adapt(&self, now: Instant) -> bool {
        now.duration_since(self.adapted) >= ADAPT
    }

    /// Lets the VM be ahead by what the path carries until its next turns: as the last ACKs tell,
    /// but at least `least` and at most `most`.
    pub fn adapt(&mut self, least: u32, most: u32, now: Instant) {
        let Some(split) = &self.split else { return };
        self.adapted = now;
        let Ok(info) = split.info(Side::Peer) else { return };
        let carried = u128::from(info.delivery_rate) * TURNS.as_millis() / 1000;
        let wanted = (carried.min(most.into()) as u32).max(least);
        // A change costs some system calls.
        if wanted.abs_diff(self.ahead) > self.ahead / 4 {
            self.ahead = wanted;
            self.limit(wanted);
        }
    }

    /// Moves bytes in both directions.
    pub fn pump(&mut self) -> Result<Progress, Broken> {
        let Some(split) = &mut self.split else { return Ok(Progress::Waits) };
        let mut progress = Progress::Waits;
        for direction in Direction::BOTH {
            let moved = split.pump(direction)?;
            if moved.bytes > 0 {
                self.moved = Instant::now();
            }
            if moved.waits == Waits::No {
                progress = Progress::More;
            }
        }
        Ok(progress)
    }

    /// Both ends have closed, or it was reset, some time ago.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let is_over = |split: &Split| split.is_over().unwrap_or(true);
        self.split.as_ref().is_none_or(is_over)
            && now.duration_since(*self.over.get_or_insert(now)) > AFTER
    }

    /// Is it to be joined: nothing moves, or nothing is to be split any more?
    pub fn is_to_be_joined(&self, is_paused: bool, now: Instant) -> bool {
        self.over.is_none() && (is_paused || now.duration_since(self.moved) > IDLE)
    }

    /// Does the VM take long to acknowledge, while something moves?
    pub fn vm_is_late(&self, now: Instant) -> bool {
        let is_late = |split: &Split| split.info(Side::Vm).is_ok_and(|info| info.round_trip > LATE);
        now.duration_since(self.moved) < IDLE && self.split.as_ref().is_some_and(is_late)
    }

    /// Lets the ends talk to each other, if nothing is on its way. Returns where they are, `None`
    /// if something is.
    pub fn join(&mut self, maps: &SplitPort) -> Result<Option<rejoined>> {
        let Some(split) = &self.split else { return Ok(None) };
        let Some(ends) = self.at_rest(split)? else { return Ok(None) };
        let numbers = Numbers { sent: ends.snd_nxt.v, peer_nxt: ends.vm_seq.v };
        let Some(flow) = maps.end(&self.key, numbers.sent, numbers.peer_nxt)? else {
            return Ok(None);
        };
        // A socket that has acknowledged something did so before.
        if !split.is_drained()? || self.numbers(split)? != numbers {
            maps.again(&self.key, flow, numbers.sent)?;
            return Ok(None);
        }
        if let Some(split) = self.split.take() {
            split.join()?;
        }
        Ok(Some(rejoined { vm_tsval: flow.vm_tsval, ts_recent: flow.peer_tsval, ..ends }))
    }

    /// Resets both ends. Returns how many bytes were on their way.
    pub fn reset(&mut self) -> u64 {
        let Some(split) = self.split.take() else { return 0 };
        let held = Direction::BOTH.map(|direction| split.held(direction).unwrap_or(0) as u64);
        let _ = split.reset();
        held.iter().sum()
    }

    /// Where both ends are, `None` if something is on its way or an end has closed.
    fn at_rest(&self, split: &Split) -> io::Result<Option<rejoined>> {
        let (vm, peer) = (split.info(Side::Vm)?, split.info(Side::Peer)?);
        if [vm.state, peer.state] != [State::Established; 2] || !split.is_drained()? {
            return Ok(None);
        }
        let numbers = self.numbers(split)?;
        let edge = |bytes: u32| seq::new(numbers.peer_nxt.wrapping_add(bytes));
        Ok(Some(rejoined {
            vm_seq: seq::new(numbers.peer_nxt),
            snd_nxt: seq::new(numbers.sent),
            right_edge: edge(vm.send_window),
            adv_edge: edge(peer.receive_window),
            ..Default::default()
        }))
    }

    fn numbers(&self, split: &Split) -> io::Result<Numbers> {
        let behind = |side, from: Received| {
            let bytes = split.info(side)?.bytes_received - from.bytes;
            Ok::<_, io::Error>(from.seq.wrapping_add(bytes as u32))
        };
        Ok(Numbers { sent: behind(Side::Vm, self.vm)?, peer_nxt: behind(Side::Peer, self.peer)? })
    }
}

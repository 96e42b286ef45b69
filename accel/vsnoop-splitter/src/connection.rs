//! One split connection: its sockets, until it is joined or over.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vsnoop_flow::ends_at;
use vsnoop_flow::types::{SPLIT_LATE_NS, flow_key, rejoined, seq, split_place, split_totals};
use vsnoop_hold::moves::PATIENCE_NS;
use vsnoop_split::{Broken, Direction, Facing, Pair, Side, State, Waits};

use crate::hooks::{Hooks, Keeper};
use crate::record::{Left, PortKey, Received, Record};

/// A connection on which nothing moves is joined after this time.
const IDLE_NS: u64 = 2_000_000_000;
/// How long the hooks know a connection that is over: RSTs leave, and a FIN that comes again is
/// answered.
const AFTER_NS: u64 = 1_000_000_000;
/// A VM that takes longer to acknowledge is late.
const LATE: Duration = Duration::from_nanos(SPLIT_LATE_NS as u64);

/// How long a VM waits for its next turns: what the path carries in this time, it may be ahead.
const TURNS: Duration = Duration::from_millis(200);
/// No more than the path carries in this time, so that what is ahead leaves soon. Not before it is
/// known, in slow start.
const LEAVES: Duration = Duration::from_millis(200);
/// But this at least.
const LITTLE: u32 = 64 << 10;
/// While a VM is found elsewhere, and not given up yet, the ends are asked whether they are here
/// once in this time.
const ASKED_NS: u64 = 1_000_000_000;
/// Between two changes of that.
const ADAPT_NS: u64 = 5_000_000;

/// A split connection.
#[derive(Debug)]
pub struct Connected<S: Facing> {
    /// Its number at the keeper.
    pub id: u64,
    /// When the sockets were made.
    record: Record,
    /// Bytes that the VM may be ahead.
    pub ahead: u32,
    /// It is not further ahead than that.
    is_settled: bool,
    /// `None`: it was reset.
    split: Option<Pair<S>>,
    /// When bytes were moved, and when [`Self::ahead`] was adapted: CLOCK_MONOTONIC, as all times
    /// here.
    moved_ns: u64,
    adapted_ns: u64,
    over_ns: Option<u64>,
    /// Its record is in RESET: both ends must hear of it.
    is_record_reset: bool,
    /// Where else its VM was found, since when, and when it was asked last.
    elsewhere: Option<(split_place::Type, u64, u64)>,
    /// The parts of the sockets' counters that the totals have: bytes that both ends have
    /// acknowledged, and bytes that the peer was sent again.
    acknowledged: Amount,
    retransmitted: u64,
}

/// Simulated sockets can be cloned: searches go on from a state in several ways.
impl<S: Facing + Clone> Clone for Connected<S>
where
    S::Pipe: Clone,
{
    fn clone(&self) -> Self {
        Self { split: self.split.clone(), ..*self }
    }
}

/// Bytes of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub to_peer: u64,
    pub to_vm: u64,
}

/// Whether a connection waits after some bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing until a socket says so.
    Waits,
    /// More can be moved at once.
    More,
    /// Nothing ever again: both ends have closed, and know it.
    Over,
}

/// Where the VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    Here,
    Unknown,
    /// Both ends answer, though another Ethernet address has announced its IP address.
    HereAfterAll,
    Elsewhere,
}

/// SEQ behind the last byte of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub sent: u32,
    pub peer_nxt: u32,
}

impl Numbers {
    /// SEQ of the first byte that the VM has not acknowledged. `to_vm`: bytes held for it.
    fn vm_seq(self, to_vm: usize) -> seq {
        seq::new(self.peer_nxt.wrapping_sub(to_vm as u32))
    }
}

impl<S: Facing> Connected<S> {
    /// `numbers`: when the sockets were made.
    pub fn new(
        id: u64,
        port: PortKey,
        key: flow_key,
        split: Pair<S>,
        numbers: Numbers,
        ahead: u32,
        now_ns: u64,
    ) -> Result<Self> {
        let received = |side, seq| {
            let info = split.info(side).context("ask about a socket that was made")?;
            Ok::<_, anyhow::Error>(Received { seq, bytes: info.bytes_received })
        };
        let (vm, peer) =
            (received(Side::Vm, numbers.sent)?, received(Side::Peer, numbers.peer_nxt)?);
        Ok(Self::with(id, Record { port, key, vm, peer, ahead }, split, now_ns))
    }

    fn with(id: u64, record: Record, split: Pair<S>, now_ns: u64) -> Self {
        let mut connected = Self {
            id,
            record,
            ahead: record.ahead,
            is_settled: true,
            split: Some(split),
            moved_ns: now_ns,
            adapted_ns: now_ns,
            over_ns: None,
            is_record_reset: false,
            elsewhere: None,
            acknowledged: Amount::default(),
            retransmitted: 0,
        };
        // An earlier splitter has counted what there is.
        connected.count(&mut split_totals::default());
        connected
    }

    /// Takes up what an earlier splitter has left. After an error both ends are sent a RST.
    pub fn take_up(left: Left<S>, now_ns: u64) -> Result<Self> {
        let Left { id, record, parts } = left;
        let mut taken = Self::with(id, record, Pair::take_up(parts)?, now_ns);
        if taken.was_reset().unwrap_or(true) {
            taken.reset();
            bail!("an end had reset it");
        }
        taken.limit(taken.ahead);
        Ok(taken)
    }

    pub fn key(&self) -> &flow_key {
        &self.record.key
    }

    /// Was it reset by an end, which an earlier splitter has seen? The socket that faces it is
    /// closed, though the other end has not closed.
    fn was_reset(&self) -> io::Result<bool> {
        let Some(split) = &self.split else { return Ok(true) };
        let (vm, peer) = (split.info(Side::Vm)?.state, split.info(Side::Peer)?.state);
        Ok(vm.is_closed() && !peer.has_received_fin() || peer.is_closed() && !vm.has_received_fin())
    }

    /// Has the keeper keep it, if it does not.
    pub fn keep(&self, keeper: &mut impl Keeper<S>) {
        if let Some(split) = self.split.as_ref().filter(|_| !keeper.has(self.id)) {
            keeper.keep(self.id, &self.record, split);
        }
    }

    /// `None`: it was reset.
    pub fn split(&self) -> Option<&Pair<S>> {
        self.split.as_ref()
    }

    /// Closes both sockets without a word.
    pub fn give_back(mut self) {
        if let Some(split) = self.split.take() {
            // Best effort: an end that gets a RST begins anew.
            let _ = split.join();
        }
    }

    /// Adds what was moved since the last time. Returns what is held: acknowledged to one end, and
    /// not by the other.
    pub fn count(&mut self, totals: &mut split_totals) -> Amount {
        let Some(split) = &self.split else { return Amount::default() };
        let (Ok(vm), Ok(peer)) = (split.info(Side::Vm), split.info(Side::Peer)) else {
            return Amount::default();
        };
        let (now, before) = (
            Amount { to_peer: peer.bytes_acknowledged, to_vm: vm.bytes_acknowledged },
            self.acknowledged,
        );
        totals.to_peer_bytes += now.to_peer.saturating_sub(before.to_peer);
        totals.to_vm_bytes += now.to_vm.saturating_sub(before.to_vm);
        totals.retransmitted_bytes += peer.bytes_retransmitted.saturating_sub(self.retransmitted);
        (self.acknowledged, self.retransmitted) = (now, peer.bytes_retransmitted);
        Amount {
            to_peer: vm.bytes_received.saturating_sub(now.to_peer),
            to_vm: peer.bytes_received.saturating_sub(now.to_vm),
        }
    }

    /// How many bytes the VM may be ahead from now on.
    pub fn limit(&mut self, bytes: u32) {
        if let Some(split) = &mut self.split {
            // Best effort: it is a matter of time and memory only.
            self.is_settled = split.limit(bytes).unwrap_or(true);
        }
    }

    /// Lets what is held leave, and next to nothing more come from the VM.
    pub fn drain(&mut self) {
        if let Some(split) = &mut self.split {
            // Best effort, as above.
            let _ = split.drain();
        }
    }

    /// Was it not adapted for a while?
    pub fn may_adapt(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.adapted_ns) >= ADAPT_NS
    }

    /// Lets the VM be ahead by what the path carries until its next turns: as the last ACKs tell,
    /// but at least `least` and at most `most`.
    pub fn adapt(&mut self, least: u32, most: u32, now_ns: u64) {
        let Some(split) = &self.split else { return };
        self.adapted_ns = now_ns;
        let Ok(info) = split.info(Side::Peer) else { return };
        let carried = |time: Duration| -> u32 {
            let bytes = u128::from(info.delivery_rate) * time.as_millis() / 1000;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let least = match info.knows_path && info.delivery_rate > 0 {
            true => least.min(carried(LEAVES).max(LITTLE)),
            false => least,
        };
        let wanted = carried(TURNS).min(most).max(least);
        // A change costs some system calls.
        let holds = self.is_settled && split.is_limited(self.ahead).unwrap_or(true);
        if wanted.abs_diff(self.ahead) > self.ahead / 4 || !holds {
            self.ahead = wanted;
            self.limit(wanted);
        }
    }

    /// Moves bytes in both directions.
    pub fn pump(&mut self, now_ns: u64) -> Result<Progress, Broken> {
        let Some(split) = &mut self.split else { return Ok(Progress::Waits) };
        let mut progress = Progress::Waits;
        let mut have_ended = 0;
        for direction in Direction::BOTH {
            let moved = split.pump(direction)?;
            have_ended += usize::from(moved.waits == Waits::Over);
            if moved.bytes > 0 {
                self.moved_ns = now_ns;
            }
            if moved.waits == Waits::No {
                progress = Progress::More;
            }
        }
        if have_ended == Direction::BOTH.len() && split.is_over().unwrap_or(true) {
            progress = Progress::Over;
        }
        Ok(progress)
    }

    /// Both ends have closed, or it was reset, some time ago.
    pub fn is_over(&mut self, now_ns: u64) -> bool {
        let is_over = |split: &Pair<S>| split.is_over().unwrap_or(true);
        self.split.as_ref().is_none_or(is_over)
            && now_ns.saturating_sub(*self.over_ns.get_or_insert(now_ns)) > AFTER_NS
    }

    /// Is it to be joined: nothing moves, or nothing is to be split any more?
    pub fn is_to_be_joined(&self, is_paused: bool, now_ns: u64) -> bool {
        let is_soon = is_paused || self.is_elsewhere();
        self.over_ns.is_none() && (is_soon || now_ns.saturating_sub(self.moved_ns) > IDLE_NS)
    }

    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Is its VM where the hooks have it? One that was learned at another port is here if it sends
    /// something, which the hooks see: it is asked to. If its IP address was announced by another
    /// Ethernet address, the ends for which something is held are asked.
    pub fn look_for_vm(&mut self, place: split_place::Type, now_ns: u64) -> Whereabouts {
        let Some(split) = self.split.as_ref().filter(|_| place != split_place::SPLIT_AT_TAP) else {
            self.elsewhere = None;
            return Whereabouts::Here;
        };
        let known = self.elsewhere.filter(|(before, ..)| *before == place);
        let (_, since_ns, asked_ns) = known.unwrap_or((place, now_ns, now_ns));
        let is_due = known.is_none() || now_ns.saturating_sub(asked_ns) >= ASKED_NS;
        self.elsewhere = Some((place, since_ns, if is_due { now_ns } else { asked_ns }));
        if is_due {
            ask_ends(split, place);
        }
        let elapsed_ns = now_ns.saturating_sub(since_ns);
        match place {
            split_place::SPLIT_GONE => Whereabouts::Elsewhere,
            _ if elapsed_ns < PATIENCE_NS => Whereabouts::Unknown,
            split_place::SPLIT_TAKEN => {
                do_ends_answer(split, elapsed_ns).unwrap_or(Whereabouts::Elsewhere)
            }
            _ => Whereabouts::Elsewhere,
        }
    }

    /// Does the VM take long to acknowledge, while something moves?
    pub fn vm_is_late(&self, now_ns: u64) -> bool {
        let is_late =
            |split: &Pair<S>| split.info(Side::Vm).is_ok_and(|info| info.round_trip > LATE);
        now_ns.saturating_sub(self.moved_ns) < IDLE_NS && self.split.as_ref().is_some_and(is_late)
    }

    /// Lets the ends talk to each other, if nothing is on its way. Returns where they are, `None`
    /// if something is.
    /// `drains`: they were shown no room.
    pub fn join(&mut self, hooks: &mut impl Hooks, drains: bool) -> Result<Option<rejoined>> {
        let Some(split) = &self.split else { return Ok(None) };
        let Some(ends) = self.at_rest(split)? else { return Ok(None) };
        let numbers = Numbers { sent: ends.snd_nxt.v, peer_nxt: ends.vm_seq.v };
        if drains {
            split.ask_for_windows()?;
        }
        let Some(flow) = hooks.end(self.key(), numbers.sent, numbers.peer_nxt)? else {
            return Ok(None);
        };
        // A socket that has acknowledged something did so before.
        if !split.is_drained()? || self.numbers(split)? != numbers {
            hooks.again(self.key(), flow, numbers.sent)?;
            return Ok(None);
        }
        if let Some(split) = self.split.take() {
            split.join()?;
        }
        Ok(Some(rejoined { vm_tsval: flow.vm_tsval, ts_recent: flow.peer_tsval, ..ends }))
    }

    /// Resets both ends. Returns how many bytes were on their way, `None` if it was reset before.
    pub fn reset(&mut self) -> Option<u64> {
        let split = self.split.take()?;
        let held = Direction::BOTH.map(|direction| split.held(direction).unwrap_or(0) as u64);
        let _ = split.reset();
        Some(held.iter().sum())
    }

    /// Before a reset for a reason that is counted. An end may lose its RST, and send nothing: the
    /// helper repeats the RSTs, and lets it send something.
    pub fn mark_record_reset(&mut self, hooks: &mut impl Hooks, now_ns: u64) -> Result<()> {
        let Some(split) = &self.split else { return Ok(()) };
        if let Some(flow) = hooks.split_flow(self.key())? {
            let to_vm = split.held(Direction::ToVm).unwrap_or(0);
            let vm_seq = self.numbers(split)?.vm_seq(to_vm);
            mark_reset(self.key(), &ends_at(vm_seq, &flow), hooks, now_ns)?;
            self.is_record_reset = true;
        }
        Ok(())
    }

    pub fn is_record_reset(&self) -> bool {
        self.is_record_reset
    }

    /// Closes both sockets without a word, and lets the ends' segments pass. If bytes were on their
    /// way, both ends get RSTs from the helper. Returns how many there were, `None` if none.
    pub fn leave(&mut self, hooks: &mut impl Hooks, now_ns: u64) -> Result<Option<u64>> {
        let Some(split) = self.split.take() else { return Ok(None) };
        let (numbers, is_drained) = (self.numbers(&split)?, split.is_drained()?);
        let [to_peer, to_vm] = Direction::BOTH.map(|direction| split.held(direction).unwrap_or(0));
        let vm_seq = numbers.vm_seq(to_vm);
        let before = if is_drained { None } else { hooks.split_flow(self.key())? };
        // First: a detach that finds no entry any more reads the record.
        if let Some(flow) = &before {
            mark_reset(self.key(), &ends_at(vm_seq, flow), hooks, now_ns)?;
        }
        let after = hooks.end(self.key(), numbers.sent, numbers.peer_nxt)?;
        split.join()?;
        let (Some(before), Some(after)) = (before, after) else { return Ok(None) };
        if after.sent_end != before.sent_end {
            hooks.rejoin(self.key(), &ends_at(vm_seq, &after), now_ns)?;
        }
        Ok(Some((to_peer + to_vm) as u64))
    }

    /// Where both ends are, `None` if something is on its way or an end has closed.
    fn at_rest(&self, split: &Pair<S>) -> io::Result<Option<rejoined>> {
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

    fn numbers(&self, split: &Pair<S>) -> io::Result<Numbers> {
        let behind = |side, from: Received| {
            let bytes = split.info(side)?.bytes_received - from.bytes;
            Ok::<_, io::Error>(from.seq.wrapping_add(bytes as u32))
        };
        Ok(Numbers {
            sent: behind(Side::Vm, self.record.vm)?,
            peer_nxt: behind(Side::Peer, self.record.peer)?,
        })
    }
}

/// Its ends get RSTs from the helper.
fn mark_reset(key: &flow_key, ends: &rejoined, hooks: &mut impl Hooks, now_ns: u64) -> Result<()> {
    hooks.rejoin(key, ends, now_ns)?;
    match hooks.flow(key)? {
        Some(flow) => hooks.mark_reset(key, &flow, now_ns),
        None => Ok(()),
    }
}

/// Best effort: they are asked again. Of an address that was taken each end for which something is
/// held: another one has nothing to answer, and the address's new owner would reset it.
fn ask_ends<S: Facing>(split: &Pair<S>, place: split_place::Type) {
    match place {
        split_place::SPLIT_GONE => {}
        split_place::SPLIT_TAKEN => {
            for direction in Direction::BOTH {
                if split.held(direction).is_ok_and(|bytes| bytes > 0) {
                    let _ = split.ask(direction.sink());
                }
            }
        }
        _ => {
            let _ = split.ask(Side::Vm);
        }
    }
}

/// Decides [`PATIENCE_NS`] after another Ethernet address has announced the VM's IP address, or
/// later: an end for which something is held, and that has answered nothing of what it was sent for
/// [`PATIENCE_NS`], is lost. An ACK that comes before then is no sign: it was on its way, or its
/// sender had not learned of the announcement. Nor is silence: a reader that stands still answers
/// probes of its window only, which may be two minutes apart.
fn do_ends_answer<S: Facing>(split: &Pair<S>, elapsed_ns: u64) -> io::Result<Whereabouts> {
    let mut whereabouts = Whereabouts::HereAfterAll;
    for direction in Direction::BOTH {
        if split.held(direction)? == 0 {
            continue;
        }
        let info = split.info(direction.sink())?;
        let silent_ns = info.since_last_ack.as_nanos() as u64;
        if silent_ns >= PATIENCE_NS && (info.timeouts > 0 || info.probes > 0) {
            return Ok(Whereabouts::Elsewhere);
        }
        if elapsed_ns.saturating_sub(silent_ns) < PATIENCE_NS {
            whereabouts = Whereabouts::Unknown;
        }
    }
    Ok(whereabouts)
}

//! The network namespace of the sockets: their TCPs, which are like Linux's, and the pipes between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use fastrand::Rng;
use vsnoop_flow::testing::segment::{ACK, FIN, RST, SYN, Seg};
use vsnoop_flow::testing::tcp::{Tcp, TcpState};
use vsnoop_split::Side;

use crate::frame::{Frame, Summed};
use crate::layout;
use crate::wire::{self, Path};

/// A socket that faces an end of connection `c`.
#[derive(Clone, Debug)]
pub struct Faced {
    pub c: usize,
    pub side: Side,
    pub tcp: Tcp,
    /// Most bytes that are queued and cannot be sent yet, and most that are queued.
    pub unsent: u64,
    pub queue: u64,
    /// The error that SO_ERROR returns.
    pub error: Option<io::ErrorKind>,
    /// The pipe into which it is read.
    pub pipe: Option<u32>,
}

impl Faced {
    /// Does the kernel find it when a segment arrives? There is no TIME-WAIT.
    pub fn is_live(&self) -> bool {
        self.tcp.state == TcpState::Open && !self.has_ended()
    }

    /// Both directions have ended.
    pub fn has_ended(&self) -> bool {
        self.tcp.got_fin && self.tcp.is_finished() && self.tcp.una == self.tcp.cfg.bytes + 2
    }
}

#[derive(Clone, Debug)]
pub struct Namespace {
    pub now: u64,
    pub rng: Rng,
    pub sockets: BTreeMap<u32, Faced>,
    pub pipes: BTreeMap<u32, VecDeque<u8>>,
    next: u32,
    pub paths: Vec<(usize, Path)>,
    /// Most bytes of a super-packet; with 0 the sockets send none.
    pub super_packet_bytes: u16,
    /// Sockets that something has happened to: edge-triggered epoll tells of them.
    pub events: BTreeSet<u32>,
    /// Segments of no socket.
    out: Vec<(usize, bool, Seg)>,
    /// The probability that the splitter is killed at a call, per 100,000; and at which call.
    pub crashes: u32,
    pub crash_at: Option<u64>,
    pub calls: u64,
    pub is_killed: bool,
    /// The sockets say that all they sent is acknowledged.
    pub lies: bool,
}

impl Namespace {
    pub fn new(paths: Vec<(usize, Path)>, seed: u64) -> Self {
        Self {
            now: 0,
            rng: Rng::with_seed(seed ^ 0x7e7e),
            sockets: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next: 1,
            paths,
            super_packet_bytes: 60_000,
            events: BTreeSet::new(),
            out: Vec::new(),
            crashes: 0,
            crash_at: None,
            calls: 0,
            is_killed: false,
            lies: false,
        }
    }

    /// A system call of the splitter; an error: it was killed, and its calls have no effect.
    pub fn call(&mut self) -> io::Result<()> {
        if self.is_killed {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.calls += 1;
        let by_chance = self.crashes > 0 && self.rng.u32(0..100_000) < self.crashes;
        if by_chance || self.crash_at == Some(self.calls) {
            self.is_killed = true;
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }

    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn find(&self, c: usize, side: Side) -> Option<u32> {
        let is_it =
            |(_, faced): &(&u32, &Faced)| faced.c == c && faced.side == side && faced.is_live();
        self.sockets.iter().find(is_it).map(|(number, _)| *number)
    }

    /// A frame of an end arrives.
    pub fn input(&mut self, frame: &Frame) {
        let Some((from, to)) = layout::ports(&frame.bytes) else { return };
        let Some(s) = wire::decode(frame) else { return };
        let by_vm = |path: &Path| (path.vm.1, path.sender.1) == (from, to);
        let by_peer = |path: &Path| (path.sender.1, path.vm.1) == (from, to);
        let found = self.paths.iter().find(|(_, path)| by_vm(path) || by_peer(path));
        let Some((c, path)) = found else { return };
        let side = if by_vm(path) { Side::Vm } else { Side::Peer };
        let c = *c;
        let Some(number) = self.find(c, side) else {
            if !s.has(RST) {
                self.out.push((c, side == Side::Vm, refusal(&s)));
            }
            return;
        };
        let (now, Self { sockets, rng, events, .. }) = (self.now, self);
        let faced = sockets.get_mut(&number).expect("it was found");
        faced.tcp.input(now, &s, rng);
        if faced.tcp.state == TcpState::Reset {
            faced.error = Some(io::ErrorKind::ConnectionReset);
        }
        events.insert(number);
    }

    pub fn timers(&mut self, now: u64) {
        self.now = now;
        for (number, faced) in self.sockets.iter_mut().filter(|(_, faced)| faced.is_live()) {
            if faced.tcp.next_timer(now).is_none_or(|at| at > now + 1_000) {
                continue;
            }
            faced.tcp.timers(now, &mut self.rng);
            if faced.tcp.state == TcpState::Reset {
                faced.error = Some(io::ErrorKind::TimedOut);
                self.events.insert(*number);
            }
        }
    }

    pub fn next_timer(&self, now: u64) -> Option<u64> {
        let live = self.sockets.values().filter(|faced| faced.is_live());
        live.filter_map(|faced| faced.tcp.next_timer(now)).min()
    }

    /// The kernel closes a socket, by a RST if its state wants one. Returns whether it was open.
    pub fn reset(&mut self, number: u32) -> bool {
        let Some(faced) = self.sockets.get_mut(&number) else { return false };
        let was_open = faced.is_live();
        if faced.tcp.needs_reset() {
            faced.tcp.abort();
        }
        faced.tcp.state = TcpState::Reset;
        was_open
    }

    /// Takes the frames that the sockets have sent, for the device beside the tap.
    pub fn output(&mut self) -> Vec<Frame> {
        let mut sent = std::mem::take(&mut self.out);
        for faced in self.sockets.values_mut() {
            let to_vm = faced.side == Side::Vm;
            sent.extend(faced.tcp.out.drain(..).map(|s| (faced.c, to_vm, s)));
        }
        let path =
            |c: usize| &self.paths.iter().find(|(other, _)| *other == c).expect("a connection").1;
        let encode =
            |(c, to_vm, s): &(usize, bool, Seg)| wire::encode(s, path(*c), *to_vm, Summed::Partial);
        sent.iter().map(encode).collect()
    }

    /// The latest socket of this connection that faces the end at `side`.
    fn facing(&self, c: usize, side: Side) -> Option<&Faced> {
        self.sockets.values().rfind(|one| one.c == c && one.side == side)
    }

    /// Has the connection sockets that were not closed by the splitter?
    pub fn are_any(&self, c: usize) -> bool {
        let is_open =
            |side| self.facing(c, side).is_some_and(|one| one.tcp.state != TcpState::Reset);
        is_open(Side::Vm) || is_open(Side::Peer)
    }

    /// Is a FIN on its way to the end at `side`?
    pub fn has_fin(&self, c: usize, side: Side) -> bool {
        self.facing(c, side).is_some_and(|one| one.tcp.is_finished())
            || self.facing(c, !side).is_some_and(|one| one.tcp.got_fin)
    }

    /// Bytes that are on their way to the end at `side`, from SEQ `from` until `to`; `None` if some
    /// are not there.
    pub fn holds(&self, c: usize, side: Side, from: u32, to: u32) -> Option<Vec<u8>> {
        let (sink, source) = (self.facing(c, side)?, self.facing(c, !side)?);
        let (first, written) = sink.tcp.all_written();
        // Read, and not yet written: it is in the pipe of this direction.
        let behind = first.wrapping_add(written.len() as u32);
        let unread = source.tcp.all_unread();
        let received = source.tcp.received_seq().wrapping_sub(u32::from(source.tcp.got_fin));
        let read = received.wrapping_sub(unread.len() as u32);
        let in_pipe = read.wrapping_sub(behind) as i32;
        let nothing = VecDeque::new();
        let pipe = if in_pipe > 0 { &self.pipes[&source.pipe?] } else { &nothing };
        // The sink has bytes that were in flight at first and are not read at the source.
        let unread = unread.get((-in_pipe).max(0) as usize..).unwrap_or_default();
        let start = from.wrapping_sub(first) as usize;
        let len = to.wrapping_sub(from) as usize;
        let all = written.iter().chain(pipe).chain(unread);
        let bytes: Vec<u8> = all.skip(start).take(len).copied().collect();
        (bytes.len() == len).then_some(bytes)
    }
}

/// The kernel's answer to a segment for which there is no socket.
fn refusal(s: &Seg) -> Seg {
    let mut rst = Seg::bare(s.ack, 0, RST);
    if !s.has(ACK) {
        let flags = u32::from(s.has(SYN)) + u32::from(s.has(FIN));
        (rst.seq, rst.ack) = (0, s.seq.wrapping_add(s.len() + flags));
        rst.flags |= ACK;
    }
    rst
}

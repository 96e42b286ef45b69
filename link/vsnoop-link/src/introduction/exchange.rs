//! A handshake in pieces, which a hub passes on and may lose.
//!
//! Each end says a stream of bytes. It sends them in pieces with their offsets, and again
//! from the first that the other end has not received, when nothing came for a while (go back N).
//! The other end takes what is next, and says how far it is. An exchange that is done stays until
//! its end, to say that again, and to repeat its last bytes.

use std::time::Duration;

use super::message::{Label, PIECE_BYTES, Piece};
use crate::handshake::{Answer, Error, Hello, Machine, Outcome, Step};
use crate::identity::PeerId;

/// Longest time of an exchange.
const DEADLINE: Duration = Duration::from_secs(8);
/// Pieces under way.
const WINDOW_BYTES: usize = 16 * PIECE_BYTES;
/// The first wait for a word of the other end, and the longest.
const FIRST_WAIT_NS: u64 = 250_000_000;
const LONGEST_WAIT_NS: u64 = 2_000_000_000;

/// How the acceptor answers a hello.
pub type AnswerPolicy<'a> = &'a dyn Fn(&PeerId, &Hello) -> Answer;

/// One end.
#[derive(Debug)]
pub struct Exchange {
    id: u32,
    is_initiator: bool,
    /// `None`: it is done, or has failed.
    machine: Option<Box<Machine>>,
    said: Vec<u8>,
    /// Number of these bytes that the other end has acknowledged.
    acknowledged: usize,
    sent: usize,
    /// Bytes of the other end.
    received: usize,
    must_acknowledge: bool,
    wait_ns: u64,
    again_ns: u64,
    ends_ns: u64,
}

impl Exchange {
    pub fn new(id: u32, is_initiator: bool, machine: Machine, now_ns: u64) -> Self {
        let mut machine = Box::new(machine);
        Self {
            id,
            is_initiator,
            said: machine.send(),
            machine: Some(machine),
            acknowledged: 0,
            sent: 0,
            received: 0,
            must_acknowledge: false,
            wait_ns: FIRST_WAIT_NS,
            again_ns: now_ns,
            ends_ns: now_ns.saturating_add(DEADLINE.as_nanos() as u64),
        }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Neither done nor failed.
    pub fn is_under_way(&self) -> bool {
        self.machine.is_some()
    }

    /// It has had its time. If it was under way, this is what it waited for.
    pub fn timed_out(&mut self) -> Option<Error> {
        let machine = self.machine.take()?;
        let (with, proved) = (machine.peer().cloned(), machine.is_proved());
        Some(Error::TimedOut { with, proved, waited_for: machine.waits_for() })
    }

    pub fn ends_ns(&self) -> u64 {
        self.ends_ns
    }

    /// When [`take_due`](Self::take_due) has something to send, without a piece of the other end.
    pub fn deadline_ns(&self) -> u64 {
        let waits = self.acknowledged < self.said.len();
        if waits { self.again_ns.min(self.ends_ns) } else { self.ends_ns }
    }

    /// Takes a piece of the other end; what the handshake has come to, once.
    pub fn receive_piece(
        &mut self,
        piece: &Piece,
        policy: AnswerPolicy<'_>,
        now_ns: u64,
    ) -> Option<Result<Outcome, Error>> {
        let acknowledged = piece.received as usize;
        if (self.acknowledged + 1..=self.said.len()).contains(&acknowledged) {
            self.acknowledged = acknowledged;
            self.sent = self.sent.max(acknowledged);
            self.wait_ns = FIRST_WAIT_NS;
            self.again_ns = now_ns.saturating_add(self.wait_ns);
        }
        self.must_acknowledge |= !piece.bytes.is_empty();
        let skipped = self.received.checked_sub(piece.offset as usize)?;
        let new = piece.bytes.get(skipped..).filter(|new| !new.is_empty())?;
        self.received += new.len();
        let result = self.feed_machine(new, policy)?;
        self.machine = None;
        Some(result)
    }

    fn feed_machine(
        &mut self,
        mut bytes: &[u8],
        policy: AnswerPolicy<'_>,
    ) -> Option<Result<Outcome, Error>> {
        loop {
            let machine = self.machine.as_mut()?;
            let result = match machine.step() {
                Step::Done => {
                    let machine = self.machine.take()?;
                    return machine.finish();
                }
                Step::Answer(peer, hello) => {
                    let answer = policy(peer, hello);
                    machine.answer_hello(answer)
                }
                Step::Read(_) if bytes.is_empty() => return None,
                Step::Read(most) => {
                    let (now, later) = bytes.split_at(most.min(bytes.len()));
                    bytes = later;
                    machine.receive(now)
                }
            };
            self.said.extend(machine.send());
            if let Err(error) = result {
                return Some(Err(error));
            }
        }
    }

    /// Pieces that are to be sent now.
    pub fn take_due(&mut self, label: Label, now_ns: u64) -> Vec<Piece> {
        if now_ns >= self.again_ns && self.acknowledged < self.sent {
            self.sent = self.acknowledged;
            self.wait_ns = self.wait_ns.saturating_mul(2).min(LONGEST_WAIT_NS);
        }
        let mut pieces = Vec::new();
        let end = self.said.len().min(self.acknowledged + WINDOW_BYTES);
        while self.sent < end {
            let next = end.min(self.sent + PIECE_BYTES);
            pieces.push(self.make_piece(label, self.sent..next));
            self.sent = next;
        }
        if pieces.is_empty() && self.must_acknowledge {
            pieces.push(self.make_piece(label, self.sent..self.sent));
        }
        self.must_acknowledge = false;
        if pieces.iter().any(|piece| !piece.bytes.is_empty()) {
            self.again_ns = now_ns.saturating_add(self.wait_ns);
        }
        pieces
    }

    fn make_piece(&self, label: Label, range: std::ops::Range<usize>) -> Piece {
        Piece {
            label,
            exchange: self.id,
            from_initiator: self.is_initiator,
            offset: range.start as u32,
            received: self.received as u32,
            bytes: self.said[range].to_vec(),
        }
    }
}

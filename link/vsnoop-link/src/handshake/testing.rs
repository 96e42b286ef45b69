//! Two ends in memory, for tests, also of the daemon (see `crate::identity::testing`).

use super::*;
use crate::compress::CompressionLimits;
use crate::identity::testing::{host, peer, pinned};
use crate::identity::{Acceptor, Identity, Initiator, Trust};

/// The default hello of a host.
pub fn hello(instance: u64) -> Hello {
    Hello {
        versions: Versions::OURS,
        purpose: Purpose::Control,
        network: "office".into(),
        instance,
        session: 0x1234,
        epoch: 0,
        transport: HelloTransport::Udp,
        connections: 4,
        mtu_bytes: 1500,
        takes: Vec::new(),
        accepts: CompressionLimits::MOST,
        ecn: true,
        software: "vsnoop 0.1.0".into(),
    }
}

/// Both ends, ready to begin: host a calls host b.
pub struct Pair {
    pub initiator: Initiator,
    pub acceptor: Acceptor,
    pub dials: Hello,
    pub answer: Answer,
}

impl Pair {
    /// Host a pins the identity `b_is` for b, and the reverse.
    pub fn new(a: &Identity, b: &Identity, a_is: Trust, b_is: Trust) -> Self {
        Self {
            initiator: a.make_initiator(&peer("b"), &b_is).unwrap(),
            acceptor: b.make_acceptor(&[(peer("a"), a_is)]).unwrap(),
            dials: hello(1),
            answer: Answer::Accept(Hello { session: 0x5678, ..hello(2) }),
        }
    }

    /// Two hosts that have pinned one another.
    pub fn pinned() -> Self {
        let (a, b) = (host(), host());
        Self::new(&a, &b, pinned(&a), pinned(&b))
    }

    pub fn machines(&self) -> (Machine, Machine) {
        (
            Machine::dial(&self.initiator, self.dials.clone()).unwrap(),
            Machine::accept(&self.acceptor).unwrap(),
        )
    }

    /// The whole handshake in memory: what it came to at a and b.
    pub fn shake(&self) -> (Result<Outcome, Error>, Result<Outcome, Error>) {
        let (a, b) = self.machines();
        let (mut a, mut b) = (Party::new(a), Party::new(b));
        while a.exchange(&mut b, &self.answer) | b.exchange(&mut a, &self.answer) {}
        (a.result(), b.result())
    }

    /// Bytes that each end sends.
    pub fn sent_bytes(&self) -> [usize; 2] {
        let (a, b) = self.machines();
        let (mut a, mut b) = (Party::new(a), Party::new(b));
        let mut sent = [0; 2];
        loop {
            let exchange = |from: &mut Party, to: &mut Party, sent: &mut usize| {
                let before = to.inbox.len();
                let moved = from.exchange(to, &self.answer);
                *sent += to.inbox.len() - before;
                moved
            };
            let moved = exchange(&mut a, &mut b, &mut sent[0]);
            if !(exchange(&mut b, &mut a, &mut sent[1]) | moved) {
                return sent;
            }
        }
    }
}

/// One end, and what the network has for it.
pub struct Party {
    pub machine: Machine,
    pub inbox: Vec<u8>,
    pub error: Option<Error>,
}

impl Party {
    pub fn new(machine: Machine) -> Self {
        Self { machine, inbox: Vec::new(), error: None }
    }

    /// One step: delivers this end's output to `other` and reads from its own inbox.
    /// True if anything was moved.
    pub fn exchange(&mut self, other: &mut Self, answer: &Answer) -> bool {
        let output = self.machine.send();
        other.inbox.extend_from_slice(&output);
        if self.error.is_some() {
            return !output.is_empty();
        }
        let result = match self.machine.step() {
            Step::Read(most) if most > 0 && !self.inbox.is_empty() => {
                let n = most.min(self.inbox.len());
                let bytes: Vec<u8> = self.inbox.drain(..n).collect();
                self.machine.receive(&bytes)
            }
            Step::Answer(..) => self.machine.answer_hello(answer.clone()),
            _ => return !output.is_empty(),
        };
        self.error = result.err();
        true
    }

    pub fn is_done(&self) -> bool {
        self.error.is_none() && matches!(self.machine.step(), Step::Done)
    }

    pub fn result(self) -> Result<Outcome, Error> {
        match self.error {
            Some(error) => Err(error),
            None => self.machine.finish().unwrap_or_else(|| panic!("neither done nor failed")),
        }
    }
}

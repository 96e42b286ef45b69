//! Two ends in memory and over loopback.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::*;
use crate::identity::testing::{Files, peer, pinned};
use crate::identity::{Acceptor, Dialer, Identity, PeerId, Trust};

/// What a host says by default.
pub(super) fn hello(instance: u64) -> Hello {
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
        software: "vsnoop 0.1.0".into(),
    }
}

/// Both ends, ready to begin: host a calls host b.
pub(super) struct Pair {
    pub(super) dialer: Dialer,
    pub(super) acceptor: Acceptor,
    pub(super) dials: Hello,
    pub(super) answer: Answer,
}

impl Pair {
    /// Host a believes that b is whom `b_is` says, and the reverse.
    pub(super) fn new(a: &Identity, b: &Identity, a_is: Trust, b_is: Trust) -> Self {
        Self {
            dialer: a.dialer(&peer("b"), &b_is).unwrap(),
            acceptor: b.acceptor(&[(peer("a"), a_is)]).unwrap(),
            dials: hello(1),
            answer: Answer::Accept(Hello { session: 0x5678, ..hello(2) }),
        }
    }

    /// Two hosts that have pinned one another.
    pub(super) fn pinned() -> Self {
        let files = Files::new();
        let (a, b) = (files.host("a"), files.host("b"));
        Self::new(&a, &b, pinned(&a), pinned(&b))
    }

    pub(super) fn machines(&self) -> (Machine, Machine) {
        (
            Machine::dial(&self.dialer, self.dials.clone()).unwrap(),
            Machine::accept(&self.acceptor).unwrap(),
        )
    }

    /// The whole handshake in memory: what it came to at a and b.
    pub(super) fn shake(&self) -> (Result<Outcome, Error>, Result<Outcome, Error>) {
        let (a, b) = self.machines();
        let (mut a, mut b) = (Party::new(a), Party::new(b));
        while a.turn(&mut b, &self.answer) | b.turn(&mut a, &self.answer) {}
        (a.result(), b.result())
    }

    /// The whole handshake over loopback.
    pub(super) fn connect(&self) -> (Result<Established, Error>, Result<Established, Error>) {
        let (ours, theirs) = sockets();
        thread::scope(|scope| {
            let policy = |_: &PeerId, _: &Hello| self.answer.clone();
            let accepting =
                scope.spawn(move || accept(theirs, &self.acceptor, &policy, deadline()));
            let dialled = dial(ours, &self.dialer, self.dials.clone(), deadline());
            (dialled, accepting.join().unwrap())
        })
    }
}

/// One end, and what the network has for it.
pub(super) struct Party {
    pub(super) machine: Machine,
    pub(super) inbox: Vec<u8>,
    pub(super) error: Option<Error>,
}

impl Party {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, inbox: Vec::new(), error: None }
    }

    /// One step: whether anything happened.
    pub(super) fn turn(&mut self, other: &mut Self, answer: &Answer) -> bool {
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
            Step::Answer(..) => self.machine.answer(answer.clone()),
            _ => return !output.is_empty(),
        };
        self.error = result.err();
        true
    }

    pub(super) fn is_done(&self) -> bool {
        self.error.is_none() && matches!(self.machine.step(), Step::Done)
    }

    pub(super) fn result(self) -> Result<Outcome, Error> {
        match self.error {
            Some(error) => Err(error),
            None => self.machine.finish().unwrap_or_else(|| panic!("neither done nor failed")),
        }
    }
}

/// Both ends of a TCP connection.
pub(super) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

/// Far away: for handshakes that end by themselves.
pub(super) fn deadline() -> Instant {
    Instant::now() + 12 * DEADLINE
}

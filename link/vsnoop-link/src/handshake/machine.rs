//! One end of the handshake, free of input and output: it is given bytes and gives bytes.
//!
//! It asks for its input in pieces that never reach beyond a record of TLS ([`Step::Read`]). So,
//! when it is done, nothing has been read that belongs to what follows, and the connection may go
//! on without TLS.

use std::io::{self, Read, Write};

use rustls::Connection;

use super::agree::{Answer, Disagreement};
use super::challenge;
use super::hello::{Agreed, BadHello, Hello, LENGTH_BYTES, MOST_BYTES, Purpose, Reply};
use super::secrets::{Cipher, Secrets};
use super::{Error, Refusal, RefusalKind, Violation};
use crate::identity::{Acceptor, Initiator, PeerId, Proof, PublicKey};

/// Bytes of the header of a TLS record: its type, version and length.
const HEADER_BYTES: usize = 5;
/// Bytes that the two flights of a handshake may have: certificates of an authority and some above
/// it.
const MOST_HANDSHAKE_BYTES: usize = 128 << 10;

/// The machine's next need.
#[derive(Debug)]
pub enum Step<'a> {
    /// Bound on bytes received from the other end.
    Read(usize),
    /// An [`Answer`] to this peer, that of the acceptor's owner.
    Answer(&'a PeerId, &'a Hello),
    /// Nothing more, once all output is sent.
    Done,
}

/// Result of a complete handshake.
#[derive(Debug)]
pub struct Outcome {
    /// The peer at the other end.
    pub peer: PeerId,
    /// Its key.
    pub peer_key: PublicKey,
    /// The peer's hello.
    pub theirs: Hello,
    /// This end's hello.
    pub ours: Hello,
    pub agreed: Agreed,
    pub cipher: Cipher,
    pub secrets: Secrets,
    /// The peer's proof of identity.
    pub proof: Proof,
    /// The TLS connection, if it continues after the handshake.
    pub tls: Connection,
}

/// One end of a handshake.
#[derive(Debug)]
pub struct Machine {
    tls: Connection,
    end: HandshakeRole,
    state: HandshakeState,
    /// Whether the other end is authenticated.
    proved: bool,
    /// Bytes of the current record that are still to come, once its header is here.
    record_left: Option<usize>,
    header: Vec<u8>,
    read_bytes: usize,
    message: Vec<u8>,
    /// The acceptor's challenge, as far as it is here; empty without one.
    challenge: Vec<u8>,
    /// Output beside that of TLS.
    challenge_answer: Vec<u8>,
    #[cfg(test)]
    instead: Option<Vec<u8>>,
}

#[derive(Debug)]
enum HandshakeRole {
    Initiator(Initiator, Hello),
    Acceptor(Acceptor),
}

#[derive(Debug)]
enum HandshakeState {
    /// TLS is not complete.
    Handshake,
    /// TLS is complete; the other end's message has not come yet.
    Message(PeerId, PublicKey),
    /// The initiator's message has come; it waits for the answer.
    Asked(PeerId, PublicKey, Hello),
    Done(Box<Agreement>),
    /// The last message to the peer is in the output.
    Failed,
}

/// The hellos of both ends, once they agree.
#[derive(Debug)]
struct Agreement {
    peer: PeerId,
    peer_key: PublicKey,
    theirs: Hello,
    ours: Hello,
    agreed: Agreed,
}

impl Machine {
    /// The dialling end, with its `hello`.
    pub fn dial(initiator: &Initiator, hello: Hello) -> Result<Self, Error> {
        hello.encode().map_err(Error::Ours)?;
        let end = HandshakeRole::Initiator(initiator.clone(), hello);
        match initiator.start_client() {
            Ok(tls) => Ok(Self::new(tls.into(), end)),
            Err(error) => Err(end.tls_error(error, false)),
        }
    }

    /// The accepting end.
    pub fn accept(acceptor: &Acceptor) -> Result<Self, Error> {
        let end = HandshakeRole::Acceptor(acceptor.clone());
        match acceptor.start_server() {
            Ok(tls) => Ok(Self::new(tls.into(), end)),
            Err(error) => Err(end.tls_error(error, false)),
        }
    }

    fn new(tls: Connection, end: HandshakeRole) -> Self {
        Self {
            tls,
            end,
            state: HandshakeState::Handshake,
            proved: false,
            record_left: None,
            header: Vec::new(),
            read_bytes: 0,
            message: Vec::new(),
            challenge: Vec::new(),
            challenge_answer: Vec::new(),
            #[cfg(test)]
            instead: None,
        }
    }

    /// The next need. Output comes first: see [`Machine::send`].
    pub fn step(&self) -> Step<'_> {
        match &self.state {
            HandshakeState::Handshake | HandshakeState::Message(..) => {
                Step::Read(self.record_left.unwrap_or(HEADER_BYTES - self.header.len()))
            }
            HandshakeState::Asked(peer, _, hello) => Step::Answer(peer, hello),
            HandshakeState::Done(_) | HandshakeState::Failed => Step::Done,
        }
    }

    /// Bytes for the other end, also after an error, which they may explain to it.
    pub fn send(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            // Writing to memory does not fail.
            if self.tls.write_tls(&mut bytes).is_err() {
                break;
            }
        }
        bytes.append(&mut self.challenge_answer);
        bytes
    }

    /// The message that this end waits for, in words.
    pub fn waits_for(&self) -> &'static str {
        match (&self.state, &self.end) {
            (HandshakeState::Handshake, _) if self.read_bytes == 0 => "first message",
            (HandshakeState::Handshake, _) => "part of the TLS handshake",
            (_, HandshakeRole::Initiator(..)) => "answer to our hello",
            (_, HandshakeRole::Acceptor(_)) => "hello",
        }
    }

    /// Whether the other end is authenticated: it has the key of [`Machine::peer`].
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    /// The peer, if it is known.
    pub fn peer(&self) -> Option<&PeerId> {
        match &self.state {
            HandshakeState::Message(peer, _) | HandshakeState::Asked(peer, ..) => Some(peer),
            HandshakeState::Done(done) => Some(&done.peer),
            HandshakeState::Handshake | HandshakeState::Failed => self.end.peer(),
        }
    }

    /// Bytes from the other end: no more than [`Machine::step`] has asked for.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let result = self.take_bytes(bytes);
        if result.is_err() {
            self.state = HandshakeState::Failed;
            self.tls.send_close_notify();
        }
        result
    }

    /// The acceptor's owner answers.
    pub fn answer_hello(&mut self, answer: Answer) -> Result<(), Error> {
        let HandshakeState::Asked(peer, key, theirs) =
            std::mem::replace(&mut self.state, HandshakeState::Failed)
        else {
            return Ok(());
        };
        let agreed = match answer {
            Answer::Refuse(refusal) => Err(refusal),
            Answer::Accept(mut ours) => {
                ours.purpose = theirs.purpose;
                let agreed = Agreed::choose(&theirs, &ours).map_err(Refusal::from);
                agreed.map(|agreed| (ours, agreed))
            }
        };
        match agreed {
            Err(refusal) => Err(self.refuse_peer(peer, refusal)),
            Ok((ours, agreed)) => {
                let reply = Reply::Accepted { hello: ours.clone(), agreed: agreed.clone() };
                self.say_message(reply.encode())?;
                let agreement = Agreement { peer, peer_key: key, theirs, ours, agreed };
                self.state = HandshakeState::Done(Box::new(agreement));
                Ok(())
            }
        }
    }

    /// Makes the initiator say these bytes instead of its hello.
    #[cfg(test)]
    pub(super) fn say_instead(&mut self, message: Vec<u8>) {
        self.instead = Some(message);
    }

    /// The result; `None` before the handshake is done.
    pub fn finish(self) -> Option<Result<Outcome, Error>> {
        let HandshakeState::Done(done) = self.state else { return None };
        let Agreement { peer, peer_key, theirs, ours, agreed } = *done;
        let with = Some(peer.clone());
        let tls = self.tls;
        let Some(cipher) = Cipher::negotiated(&tls) else {
            return Some(Err(bad_message(&peer, Violation::Cipher)));
        };
        let chain = tls.peer_certificates().unwrap_or_default();
        // A data connection ends with the session of its control connection.
        let ends = ours.purpose == Purpose::Control;
        let proof = match &self.end {
            HandshakeRole::Initiator(initiator, _) => Proof::of_acceptor(initiator, chain, ends),
            HandshakeRole::Acceptor(acceptor) => Proof::of_initiator(acceptor, chain, ends),
        };
        Some(match Secrets::export(&tls, agreed.epoch) {
            Ok(secrets) => {
                Ok(Outcome { peer, peer_key, theirs, ours, agreed, cipher, secrets, proof, tls })
            }
            Err(error) => Err(Error::Tls { with, proved: true, ours: self.end.own_key(), error }),
        })
    }

    fn take_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.count_bytes(bytes);
        if self.read_bytes > MOST_HANDSHAKE_BYTES {
            return Err(self.tls_error(rustls::Error::General("it does not end".into())));
        }
        if self.is_challenge(bytes)? {
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.tls.read_tls(&mut rest) {
                Ok(0) | Err(_) => {
                    let full = rustls::Error::General("more than a handshake needs".into());
                    return Err(self.tls_error(full));
                }
                Ok(_) => (),
            }
            self.tls.process_new_packets().map_err(|e| self.tls_error(e))?;
        }
        if matches!(self.state, HandshakeState::Handshake) && !self.tls.is_handshaking() {
            self.handle_shaken()?;
        }
        if matches!(self.state, HandshakeState::Message(..)) {
            self.hear_message()?;
        }
        Ok(())
    }

    /// Whether these bytes belong to a challenge, which is answered when it is complete. It comes
    /// before everything else, or not at all.
    fn is_challenge(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let (HandshakeRole::Initiator(_, hello), Some(first)) = (&self.end, bytes.first()) else {
            return Ok(false);
        };
        let have = self.challenge.len();
        let is_first = self.read_bytes == bytes.len() && challenge::begins(*first);
        let goes_on = have > 0 && have < challenge::CHALLENGE_BYTES;
        if !is_first && !goes_on {
            return Ok(false);
        }
        self.challenge.extend_from_slice(bytes);
        // Its header may say that it is longer, or shorter.
        let is_whole = self.record_left.is_none() && self.header.is_empty();
        if is_whole || self.challenge.len() >= challenge::CHALLENGE_BYTES {
            match challenge::answer_challenge(&hello.network, &self.challenge) {
                Some(answer) => self.challenge_answer.extend_from_slice(&answer),
                None => {
                    let bad = rustls::Error::General("a malformed challenge".into());
                    return Err(self.tls_error(bad));
                }
            }
        }
        Ok(true)
    }

    /// Keeps track of record boundaries.
    fn count_bytes(&mut self, bytes: &[u8]) {
        self.read_bytes = self.read_bytes.saturating_add(bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            let left = match self.record_left {
                Some(left) => left,
                None => {
                    let n = rest.len().min(HEADER_BYTES - self.header.len());
                    self.header.extend_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    let [_, _, _, high, low] = self.header[..] else { return };
                    self.header.clear();
                    usize::from(u16::from_be_bytes([high, low]))
                }
            };
            let n = left.min(rest.len());
            rest = &rest[n..];
            self.record_left = (left > n).then_some(left - n);
        }
    }

    /// TLS is complete: identifies the peer.
    fn handle_shaken(&mut self) -> Result<(), Error> {
        if self.tls.alpn_protocol() != Some(crate::identity::ALPN) {
            return Err(self.tls_error(rustls::Error::NoApplicationProtocol));
        }
        let chain = self.tls.peer_certificates().unwrap_or_default();
        let (peer, key) = match &self.end {
            HandshakeRole::Initiator(initiator, _) => initiator.peer_of(chain),
            HandshakeRole::Acceptor(acceptor) => acceptor.peer_of(chain),
        }
        .map_err(|e| self.tls_error(e))?;
        self.proved = true;
        if let HandshakeRole::Initiator(_, hello) = &self.end {
            let hello = hello.encode();
            #[cfg(test)]
            let hello = self.instead.take().map_or(hello, Ok);
            self.say_message(hello)?;
        }
        self.state = HandshakeState::Message(peer, key);
        Ok(())
    }

    /// Reads on in the message of `peer`. Returns whether it is complete.
    fn read_message(&mut self, peer: &PeerId) -> Result<bool, Error> {
        loop {
            let wanted = match self.message[..] {
                [high, low, ..] => {
                    let bytes = usize::from(u16::from_be_bytes([high, low]));
                    if bytes > MOST_BYTES {
                        return Err(bad_message(peer, BadHello::Size(bytes)));
                    }
                    LENGTH_BYTES + bytes
                }
                _ => LENGTH_BYTES,
            };
            let have = self.message.len();
            if have == wanted && wanted > LENGTH_BYTES {
                return Ok(true);
            }
            if have == wanted {
                return Err(bad_message(peer, BadHello::Empty));
            }
            self.message.resize(wanted, 0);
            let read = self.tls.reader().read(&mut self.message[have..]);
            self.message.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(n) if n > 0 => (),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                _ => {
                    let (with, waited_for) = (Some(peer.clone()), self.waits_for());
                    return Err(Error::Cut { with, proved: true, waited_for });
                }
            }
        }
    }

    /// Handles the other end's message once it is complete.
    fn hear_message(&mut self) -> Result<(), Error> {
        let HandshakeState::Message(peer, key) = &self.state else { return Ok(()) };
        let (peer, key) = (peer.clone(), *key);
        if !self.read_message(&peer)? {
            return Ok(());
        }
        let message = std::mem::take(&mut self.message);
        let message = &message[LENGTH_BYTES..];
        if let HandshakeRole::Initiator(_, ours) = &self.end {
            let agreement = match Reply::decode(message).map_err(|e| bad_message(&peer, e))? {
                Reply::Refused(refusal) => return Err(Error::RefusedBy { peer, refusal }),
                Reply::Accepted { hello, agreed } => {
                    agreed.verify(ours, &hello).map_err(|e| bad_message(&peer, e))?;
                    let ours = ours.clone();
                    Agreement { peer, peer_key: key, theirs: hello, ours, agreed }
                }
            };
            self.state = HandshakeState::Done(Box::new(agreement));
            return Ok(());
        }
        match Hello::decode(message) {
            Ok(hello) => self.state = HandshakeState::Asked(peer, key, hello),
            Err(BadHello::Versions(theirs)) => {
                return Err(self.refuse_peer(peer, Disagreement::Version(theirs).into()));
            }
            Err(e) => {
                let refusal = Refusal::new(RefusalKind::Other, e.to_string());
                return Err(self.refuse_peer(peer, refusal));
            }
        }
        Ok(())
    }

    /// Sends the peer a refusal.
    fn refuse_peer(&mut self, peer: PeerId, refusal: Refusal) -> Error {
        match self.say_message(Reply::Refused(refusal.clone()).encode()) {
            Err(e) => e,
            Ok(()) => {
                self.tls.send_close_notify();
                Error::Refused { peer, refusal }
            }
        }
    }

    fn say_message(&mut self, message: Result<Vec<u8>, BadHello>) -> Result<(), Error> {
        let message = message.map_err(Error::Ours)?;
        let written = self.tls.writer().write_all(&message);
        let proved = self.proved;
        written.map_err(|error| Error::Io { with: self.peer().cloned(), proved, error })
    }

    fn tls_error(&self, error: rustls::Error) -> Error {
        self.end.tls_error(error, self.proved)
    }
}

impl HandshakeRole {
    fn peer(&self) -> Option<&PeerId> {
        match self {
            Self::Initiator(initiator, _) => Some(initiator.peer()),
            Self::Acceptor(_) => None,
        }
    }

    fn own_key(&self) -> PublicKey {
        match self {
            Self::Initiator(initiator, _) => initiator.ours(),
            Self::Acceptor(acceptor) => acceptor.ours(),
        }
    }

    fn tls_error(&self, error: rustls::Error, proved: bool) -> Error {
        Error::Tls { with: self.peer().cloned(), proved, ours: self.own_key(), error }
    }
}

fn bad_message(peer: &PeerId, why: impl Into<Violation>) -> Error {
    Error::Peer { peer: peer.clone(), why: why.into() }
}

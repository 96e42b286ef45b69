//! The hub: its sessions with both hosts, what it relays and says.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_link::handshake::{
    Answer, Cipher, Direction, Hello, Machine, Refusal, RefusalKind, Secrets,
};
use vsnoop_link::identity::{Acceptor, Identity, Initiator, PeerId, Trust};
use vsnoop_link::introduction::{Exchange, HubMessage, LEAST_KEPT_S, Label, Piece, Standing};
use vsnoop_link::session::{Counters, Message, message};
use vsnoop_link::wire::item::{INTRODUCTION, SESSION};
use vsnoop_link::wire::seal::{HEADER_BYTES, Material, Opener, Sealer, Suite, header_of};
use vsnoop_linkd::handshake::tcp_handshake;
use vsnoop_linkd::identity::{credentials, key_file};
use vsnoop_testbed::hosts::{Network, PORT, outer};

use crate::hello::hello;
use crate::raw_vm::PATIENCE;

/// Between the words of a hub that says the same again and again.
const EACH: Duration = Duration::from_millis(2);
/// Messages of a flood at once, of each kind.
const FLOOD: usize = 4;

/// The hub does this beside relaying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Nothing: it introduces the hosts to each other.
    None,
    /// It says that it is where the other host is, and shows its own key in handshakes.
    InPlace,
    /// It says that both are at one of these addresses, then at the other.
    Addresses([SocketAddr; 2]),
    /// It repeats all pieces of handshakes, and all datagrams, that it has passed on before.
    Repeats,
    /// It says again and again where they are, and has them begin handshakes.
    Floods,
    /// It says that it has no such peer.
    Denies,
}

/// The session of the hub with a host.
struct Spoke {
    number: usize,
    sealer: Sealer,
    opener: Opener,
    /// By which the host calls the other.
    label: Option<Label>,
    initiator: Initiator,
}

pub struct LyingHub {
    socket: UdpSocket,
    began: Instant,
    spokes: [Spoke; 2],
    acceptor: Acceptor,
    /// In the place of the peers, by spoke and number.
    exchanges: HashMap<(usize, u32), Exchange>,
    /// Pieces that it passed on, each with its receiver.
    pieces: Vec<(usize, Piece)>,
    datagrams: Vec<(usize, Vec<u8>)>,
    probed: Instant,
    spoke: Instant,
    said: u64,
}

/// The other one of two.
fn beside(at: usize) -> usize {
    1 - at
}

fn nobody(_: &PeerId, _: &Hello) -> Answer {
    Answer::Refuse(Refusal::new(RefusalKind::Other, "a hub has no sessions for peers"))
}

impl LyingHub {
    pub fn join(network: &Network) -> Result<Self> {
        let identity = credentials::read_identity(&network.key_file(0), None)?;
        let netns = &network.hosts[0].netns;
        let socket = netns.run(|| Ok(UdpSocket::bind((outer(0), PORT))?))?;
        socket.set_read_timeout(Some(EACH)).context("a socket")?;
        let trust = |host: usize| -> Result<(PeerId, Trust)> {
            let key = key_file::read_public_key(&network.key_file(host))?;
            Ok((PeerId::new(&format!("h{host}")), Trust::key(key)))
        };
        let peers = [trust(1)?, trust(2)?];
        let spoke = |host: usize| Spoke::join(network, &identity, &peers[host - 1], host);
        Ok(Self {
            spokes: [spoke(1)?, spoke(2)?],
            acceptor: identity.make_acceptor(&peers)?,
            socket,
            began: Instant::now(),
            exchanges: HashMap::new(),
            pieces: Vec::new(),
            datagrams: Vec::new(),
            probed: Instant::now(),
            spoke: Instant::now(),
            said: 0,
        })
    }

    pub fn run(&mut self, lie: &Mutex<Lie>, is_over: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        (0..2).try_for_each(|at| self.probe(at))?;
        while !is_over.load(Ordering::Relaxed) {
            let lie = *lie.lock().unwrap_or_else(PoisonError::into_inner);
            match self.socket.recv_from(&mut buffer) {
                Ok((bytes, _)) => self.hear(&mut buffer[..bytes], lie)?,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error).context("receiving"),
            }
            self.speak(lie)?;
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn hear(&mut self, record: &mut [u8], lie: Lie) -> Result<()> {
        let Some((number, _)) = header_of(record) else { return Ok(()) };
        let Some(at) = self.spokes.iter().position(|spoke| spoke.index() == number) else {
            return Ok(());
        };
        let Ok((item, _)) = self.spokes[at].opener.open(record) else { return Ok(()) };
        match item.split_first() {
            Some((&SESSION, said)) => match Message::read(said) {
                Some(Message::Probe { id, sent_ns, .. }) => self.answer(at, id, sent_ns),
                _ => Ok(()),
            },
            Some((&INTRODUCTION, said)) => match HubMessage::decode(said) {
                Some(HubMessage::Ask { label, .. }) => {
                    self.spokes[at].label = Some(label);
                    self.tell_standing(at, lie)
                }
                Some(HubMessage::ToPeer(piece)) => self.piece(at, piece, lie),
                _ => Ok(()),
            },
            _ => {
                let (frame, label) = (item.to_vec(), self.spokes[beside(at)].label);
                self.send(beside(at), &frame, label)
            }
        }
    }

    fn speak(&mut self, lie: Lie) -> Result<()> {
        if self.spoke.elapsed() < EACH {
            return Ok(());
        }
        (self.said, self.spoke) = (self.said + 1, Instant::now());
        if self.probed.elapsed() > Duration::from_millis(500) {
            self.probed = Instant::now();
            (0..2).try_for_each(|at| self.probe(at))?;
            (0..2).try_for_each(|at| self.dial_in_place(at, lie))?;
        }
        let turn = self.said as usize;
        match lie {
            Lie::Addresses(_) if turn.is_multiple_of(10) => {
                (0..2).try_for_each(|at| self.tell_standing(at, lie))
            }
            Lie::Floods => (0..2 * FLOOD).try_for_each(|number| self.flood(number)),
            Lie::Repeats => {
                let Some((to, piece)) = self.pieces.get(turn % self.pieces.len().max(1)) else {
                    return Ok(());
                };
                let (to, piece) = (*to, piece.clone());
                self.say(to, &HubMessage::FromPeer(piece))?;
                let (to, datagram) = &self.datagrams[turn % self.datagrams.len()];
                self.transmit(*to, datagram)
            }
            _ => Ok(()),
        }
    }

    /// Says where the other is, and begins a handshake of which no more will come.
    fn flood(&mut self, number: usize) -> Result<()> {
        let at = number % 2;
        self.said += 1;
        self.tell_standing(at, Lie::Floods)?;
        let label = self.spokes[at].label.context("it has asked")?;
        let (exchange, bytes) = (self.said as u32, vec![22; 1000]);
        let (from_initiator, offset, received) = (true, 0, 0);
        let begin = Piece { label, exchange, from_initiator, offset, received, bytes };
        self.say(at, &HubMessage::FromPeer(begin))
    }

    /// Where the other one is.
    fn tell_standing(&mut self, at: usize, lie: Lie) -> Result<()> {
        let Some(label) = self.spokes[at].label else { return Ok(()) };
        let there = SocketAddr::new(outer(1 + beside(at)), PORT);
        let standing = match lie {
            Lie::None | Lie::Repeats => Standing::Mutual(there),
            Lie::InPlace => Standing::Mutual(SocketAddr::new(outer(0), PORT)),
            Lie::Addresses(lies) => Standing::Mutual(lies[(self.said as usize / 10) % 2]),
            Lie::Floods => {
                [Standing::Mutual(there), Standing::Silent][(self.said as usize / 2) % 2]
            }
            Lie::Denies => Standing::Unknown,
        };
        self.say(at, &HubMessage::Known { label, standing, kept_s: LEAST_KEPT_S })
    }

    /// A piece of a handshake with the other host.
    fn piece(&mut self, at: usize, piece: Piece, lie: Lie) -> Result<()> {
        if lie != Lie::InPlace {
            let Some(label) = self.spokes[beside(at)].label else { return Ok(()) };
            let piece = Piece { label, ..piece };
            self.pieces.push((beside(at), piece.clone()));
            return self.say(beside(at), &HubMessage::FromPeer(piece));
        }
        let (key, now_ns) = ((at, piece.exchange), self.now_ns());
        if piece.from_initiator && !self.exchanges.contains_key(&key) {
            let machine = Machine::accept(&self.acceptor)?;
            self.exchanges.insert(key, Exchange::new(piece.exchange, false, machine, now_ns));
        }
        let Some(exchange) = self.exchanges.get_mut(&key) else { return Ok(()) };
        exchange.receive_piece(&piece, &nobody, now_ns);
        self.continue_exchange(at, key)
    }

    /// Calls a host as if the other one did.
    fn dial_in_place(&mut self, at: usize, lie: Lie) -> Result<()> {
        if lie != Lie::InPlace || self.spokes[at].label.is_none() {
            return Ok(());
        }
        let (id, now_ns) = (fastrand::u32(..), self.now_ns());
        let machine = Machine::dial(&self.spokes[at].initiator, hello(1))?;
        self.exchanges.insert((at, id), Exchange::new(id, true, machine, now_ns));
        self.continue_exchange(at, (at, id))
    }

    fn continue_exchange(&mut self, at: usize, key: (usize, u32)) -> Result<()> {
        let (Some(label), now_ns) = (self.spokes[at].label, self.now_ns()) else { return Ok(()) };
        let due = self.exchanges.get_mut(&key).map(|exchange| exchange.take_due(label, now_ns));
        let due = due.into_iter().flatten();
        due.map(HubMessage::FromPeer).try_for_each(|message| self.say(at, &message))
    }

    fn probe(&mut self, at: usize) -> Result<()> {
        let (id, sent_ns, counters) = (1, self.now_ns(), Counters::default());
        self.say_of_session(at, Message::Probe { id, sent_ns, wants_rekey: false, counters })
    }

    fn answer(&mut self, at: usize, id: u32, sent_ns: u64) -> Result<()> {
        let (answered_ns, counters) = (self.now_ns(), Counters::default());
        let answer =
            Message::Answer { id, sent_ns, held_ns: 0, answered_ns, size_bytes: 0, counters };
        self.say_of_session(at, answer)
    }

    fn say_of_session(&mut self, at: usize, said: Message) -> Result<()> {
        let mut item = [0; 1 + message::LARGEST_BYTES];
        item[0] = SESSION;
        let bytes = said.write(&mut item[1..]).context("it fits")?;
        self.send(at, &item[..1 + bytes], None)
    }

    fn say(&mut self, at: usize, said: &HubMessage) -> Result<()> {
        self.send(at, &[&[INTRODUCTION][..], &said.encode()].concat(), None)
    }

    fn send(&mut self, at: usize, item: &[u8], label: Option<Label>) -> Result<()> {
        let sealer = &mut self.spokes[at].sealer;
        let mut record = vec![0; item.len() + sealer.suite().overhead_bytes()];
        record[HEADER_BYTES..HEADER_BYTES + item.len()].copy_from_slice(item);
        let is_sealed = sealer.seal_labelled(&mut record, label.map_or(0, Label::number));
        ensure!(is_sealed, "the key is used up");
        self.transmit(at, &record)?;
        if self.datagrams.len() < 1000 {
            self.datagrams.push((at, record));
        }
        Ok(())
    }

    fn transmit(&self, at: usize, record: &[u8]) -> Result<()> {
        let to = SocketAddr::new(outer(self.spokes[at].number), PORT);
        match self.socket.send_to(record, to) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error).context("sending"),
            _ => Ok(()),
        }
    }
}

impl Spoke {
    /// Calls a host as its hub.
    fn join(
        network: &Network,
        identity: &Identity,
        peer: &(PeerId, Trust),
        number: usize,
    ) -> Result<Self> {
        let initiator = identity.make_initiator(&peer.0, &peer.1)?;
        let at = SocketAddr::new(outer(number), PORT);
        let stream = network.hosts[0].netns.run(|| Ok(TcpStream::connect(at)?))?;
        let deadline = Instant::now() + PATIENCE;
        let made = tcp_handshake::dial(stream, &initiator, hello(number as u32), deadline)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        let outcome = made.outcome;
        let suite = match outcome.cipher {
            Cipher::Aes128Gcm => Suite::Aes128Gcm,
            Cipher::ChaCha20Poly1305 => Suite::ChaCha20Poly1305,
        };
        let (to, from) = (Direction::ToAcceptor, Direction::ToInitiator);
        let (epoch, theirs) = (outcome.agreed.epoch as u8, outcome.theirs.session);
        let sealer = Sealer::new(suite, &material(&outcome.secrets, to), theirs, epoch, 0);
        let opener = Opener::new(suite, &material(&outcome.secrets, from), epoch, 0);
        Ok(Self { number, sealer, opener, label: None, initiator })
    }

    /// The number of its session here.
    fn index(&self) -> u32 {
        self.number as u32
    }
}

fn material(secrets: &Secrets, direction: Direction) -> Material {
    Material { key: *secrets.derive_key(direction, 0), nonce: *secrets.nonce_base(direction, 0) }
}

//! Making sessions: the handshakes, each on a short-lived thread, and their results for the data
//! threads.
//!
//! The control connection ends with the handshake. A session over UDP has all it needs then; one
//! over an ordered transport dials its data connections next, each with a handshake of its own, and
//! each for one direction only, so that one thread at each end owns it.
//!
//! # From a dial to the first frame
//!
//! ```text
//!          initiator                                       acceptor
//!  1 session::Peer    Action::Dial
//!  2 peers            start_dial(): thread "dial"
//!  3 dial             dial(): TCP ------------------> peers          CallListener::listen():
//!                                                       thread "accept"; Guard::admit_caller,
//!                                                       CallListener::run_handshake
//!  4 tcp_handshake    dial() <-- handshake::Machine --> tcp_handshake accept()
//!                                                       ListenerConfig::answer_hello
//!  5 Established                                        ControlEvent::Accepted(Established)
//!  6 establish        make_datagram_session(), or     peers          handle_accepted(): the same,
//!    and dial         dial_connections() and              or waits for add_connection() and then
//!                     make_ordered_session()              make_ordered_session()
//!  7 ControlEvent::Dialled(Made)                        Made
//!  8 peers            keep_made()                       peers          take_in(), keep_made()
//!  9 session::Peer    PeerEvent::Dialled                session::Peer  PeerEvent::Accepted
//! 10                  Action::Install                                  Action::Install
//! 11 peers            install_session(): to each end's threads, the same at both ends
//!                       Made::incoming -> ingress::Order::Datagrams or ::Connections
//!                       Made::outgoing -> egress::Order::Install (PeerSender)
//! 12 session::Peer    probes; what comes back, or what the initiator sends first, makes
//!                     Action::Use -> egress::Order::Use: frames go under this session
//! ```
//!
//! Steps 2 to 7 of the initiator and 3 to 5 of the acceptor run on short-lived threads, all others
//! on the control thread. A session that is given up ends with `Action::Forget`: `Order::Retire` to
//! both threads. [`Made`] has what both ends agreed on; `session` (of vsnoop-link) shows the phases
//! that a session has from step 9 on.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use socket2::SockRef;

use crate::config::Transport;
use crate::counters::counts::SessionCounts;
use crate::counters::cpu::coding_clock;
use crate::egress::connection::ConnectionSender;
use crate::egress::datagrams::DatagramSender;
use crate::egress::session_sender::{Connections, Datagrams, SessionSender};
use crate::handshake::tcp_handshake::Established;
use crate::ingress::connection::ConnectionReceiver;
use crate::ingress::session::DatagramSession;
use crate::io::tcp;
use crate::threads::pairs::SessionNumber;
use vsnoop_link::compress::{CompressionLimits, Decoder, DecoderMemory, Encoder};
use vsnoop_link::handshake::{self, Cipher, Direction, Hello, Outcome, Purpose, Secrets, Versions};
use vsnoop_link::identity::{Proof, PublicKey};
use vsnoop_link::queue;
use vsnoop_link::wire::seal::{Material, Opener, Sealer, Suite};

/// A path with a longer round trip is a long path.
const FAR: Duration = Duration::from_millis(2);
/// The stream of records that the egress thread seals.
const STREAM: u8 = 0;
/// Datagrams until the path's MTU is known: what IPv6 demands of every path, less its headers.
const FIRST_LIMIT_BYTES: usize = 1280 - 40 - 8;

/// Why there is no session although the peer has answered.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    #[error("{}", .0.what())]
    Handshake(Box<handshake::Error>),
    #[error("calling {address} for a data connection")]
    Call {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("no thread for a data connection")]
    NoThread(#[source] io::Error),
    #[error("the thread of a data connection has panicked")]
    Panicked,
    #[error("a connection that carries no data")]
    NoData,
    #[error("a data connection of another peer")]
    OtherPeer,
    #[error("preparing a data connection")]
    Prepare(#[source] io::Error),
    #[error("a direction without a data connection")]
    NoDirection,
    #[error(
        "its data connections got no answer, and its control connection, in short segments, did: the \
         path may swallow long packets; data connections have short segments from now on"
    )]
    LongSegments,
    #[error("the peer wants a transport of another version")]
    UnknownTransport,
}

impl From<handshake::Error> for EstablishError {
    fn from(error: handshake::Error) -> Self {
        Self::Handshake(Box::new(error))
    }
}

type Result<T, E = EstablishError> = std::result::Result<T, E>;

/// The part of a hello that is the same for all sessions of a link.
#[derive(Clone, Debug)]
pub struct Introduction {
    pub network: String,
    pub instance: u64,
    pub mtu_bytes: u16,
    /// Prefixes to which diverted packets are let in here.
    pub takes: Vec<IpNet>,
}

impl Introduction {
    /// A hello for a new session, whose records have this number.
    pub fn build_hello(
        &self,
        session: SessionNumber,
        epoch: u32,
        transport: Transport,
        connections: u8,
        accepts: CompressionLimits,
        ecn: bool,
    ) -> Hello {
        Hello {
            versions: Versions::OURS,
            purpose: Purpose::Control,
            network: self.network.clone(),
            instance: self.instance,
            session: session.0,
            epoch: epoch.min(u16::MAX.into()) as u16,
            transport: wire_transport(transport),
            connections,
            mtu_bytes: self.mtu_bytes,
            takes: self.takes.clone(),
            accepts,
            ecn,
            software: concat!("vsnoop ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// A session that both ends have made, ready for the data threads.
pub struct Made {
    pub dialled: bool,
    pub epoch: u32,
    pub instance: u64,
    pub peer_key: PublicKey,
    pub address: SocketAddr,
    pub transport: Transport,
    pub version: u16,
    /// The number of its records that come here.
    pub number: SessionNumber,
    /// Prefixes to which diverted packets are let in there.
    pub takes: Vec<IpNet>,
    /// MTU of the VMs' network there.
    pub mtu_bytes: u16,
    /// Its limits of decompression.
    pub accepts: CompressionLimits,
    /// Both ends read ECN of datagrams.
    pub ecn: bool,
    /// Its proof of identity.
    pub proof: Proof,
    /// A hub has passed on the handshake.
    pub introduced: bool,
    pub outgoing: SessionSender,
    pub incoming: Incoming,
    pub counts: Arc<SessionCounts>,
}

impl Made {
    fn new(
        control: &Outcome,
        transport: Transport,
        address: SocketAddr,
        role: SessionRole,
        outgoing: SessionSender,
        incoming: Incoming,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            dialled: role.is_initiator(),
            introduced: role.is_introduced(),
            epoch: control.agreed.epoch.into(),
            instance: control.theirs.instance,
            peer_key: control.peer_key,
            address,
            transport,
            version: control.agreed.version,
            number: SessionNumber(control.ours.session),
            takes: control.theirs.takes.clone(),
            mtu_bytes: control.theirs.mtu_bytes,
            accepts: control.theirs.accepts,
            ecn: control.ours.ecn && control.theirs.ecn,
            proof: control.proof.clone(),
            outgoing,
            incoming,
            counts,
        }
    }
}

/// The part that this host had in making a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    Dialled,
    Called,
    /// By way of a hub.
    DialledByHub,
    CalledByHub,
}

impl SessionRole {
    fn is_initiator(self) -> bool {
        matches!(self, Self::Dialled | Self::DialledByHub)
    }

    fn is_introduced(self) -> bool {
        matches!(self, Self::DialledByHub | Self::CalledByHub)
    }
}

pub enum Incoming {
    Datagrams(Box<DatagramSession>),
    Connections(Vec<ConnectionReceiver>),
}

/// Makes a session over UDP.
pub fn make_datagram_session(
    control: &Outcome,
    address: SocketAddr,
    role: SessionRole,
) -> Result<Made> {
    let transport = transport_of(control)?;
    let dialled = role.is_initiator();
    let suite = suite_of(transport, control.cipher);
    let (out, back) = choose_directions(dialled);
    let epoch = control.agreed.epoch as u8;
    let sealer = Sealer::new(
        suite,
        &key_material(&control.secrets, out),
        control.theirs.session,
        epoch,
        STREAM,
    );
    let opener = Opener::new(suite, &key_material(&control.secrets, back), epoch, STREAM);
    let counts = Arc::new(SessionCounts::default());
    // An acceptor learns from the first datagram where the initiator's come from.
    let known = (role != SessionRole::Called).then_some(address);
    let (accepted, counted) = (control.theirs.accepts.codecs, Arc::clone(&counts));
    let outgoing = DatagramSender::new(sealer, known, FIRST_LIMIT_BYTES, accepted, counted);
    let outgoing = SessionSender::Datagrams(Box::new(Datagrams::new(outgoing)));
    let accepted = control.ours.accepts.codecs;
    let incoming = DatagramSession::new(vec![opener], accepted, Arc::clone(&counts));
    let incoming = Incoming::Datagrams(Box::new(incoming));
    Ok(Made::new(control, transport, address, role, outgoing, incoming, counts))
}

/// Makes a session over an ordered transport of its data connections. `memory` is that of all
/// decoders of the peer.
pub fn make_ordered_session(
    control: Established,
    connections: Vec<Established>,
    address: SocketAddr,
    dialled: bool,
    memory: &Arc<DecoderMemory>,
) -> Result<Made> {
    let control = &control.outcome;
    let transport = transport_of(control)?;
    let counts = Arc::new(SessionCounts::default());
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    for connection in connections {
        // The acceptor repeats what the initiator said.
        let Established { outcome: connection, stream } = connection;
        let purpose = if dialled { connection.ours.purpose } else { connection.theirs.purpose };
        let Purpose::Data { index, direction, .. } = purpose else {
            return Err(EstablishError::NoData);
        };
        if connection.peer != control.peer {
            return Err(EstablishError::OtherPeer);
        }
        prepare_stream(&stream).map_err(EstablishError::Prepare)?;
        let Outcome { mut tls, .. } = connection;
        let counts = Arc::clone(&counts);
        if (direction == Direction::ToAcceptor) == dialled {
            tls.set_buffer_limit(None);
            let limits = queue::QueueLimits::default();
            let accepted = limits_of(&control.theirs, control.agreed.connections, index);
            let encoder = Encoder::new(accepted, coding_clock());
            let sender = ConnectionSender::new(stream, tls, limits, encoder, counts);
            outgoing.push((index, sender));
        } else {
            let accepted = limits_of(&control.ours, control.agreed.connections, index);
            let decoder = Decoder::new(accepted, Arc::clone(memory), coding_clock());
            incoming.push(ConnectionReceiver::new(stream, tls, decoder, counts));
        }
    }
    if outgoing.is_empty() || incoming.is_empty() {
        return Err(EstablishError::NoDirection);
    }
    outgoing.sort_by_key(|(index, _)| *index);
    let outgoing = outgoing.into_iter().map(|(_, connection)| connection).collect();
    let outgoing = SessionSender::Connections(Box::new(Connections::new(outgoing)));
    let incoming = Incoming::Connections(incoming);
    let role = if dialled { SessionRole::Dialled } else { SessionRole::Called };
    Ok(Made::new(control, transport, address, role, outgoing, incoming, counts))
}

/// Limits of this connection, towards the end that sent the hello. Dictionaries are on all
/// connections but the first, unless there is one only (`egress::session_sender`).
fn limits_of(receiver: &Hello, connections: u8, index: u8) -> CompressionLimits {
    let limits = CompressionLimits::MOST.limit_to(receiver.accepts);
    if connections > 1 && index == 0 {
        CompressionLimits { dictionaries: 0, ..limits }
    } else {
        limits
    }
}

/// Makes the socket of a data connection non-blocking, and lets it send short segments at once.
fn prepare_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // On a long path bbr, which does not take a random loss for congestion; on a short one cubic,
    // which costs less time. Where the kernel has not got it, or does not allow it, it stays as it
    // is.
    let far = tcp::round_trip(stream).is_none_or(|round_trip| round_trip > FAR);
    let _ = socket.set_tcp_congestion(if far { b"bbr" } else { b"cubic" });
    Ok(())
}

fn choose_directions(dialled: bool) -> (Direction, Direction) {
    if dialled {
        (Direction::ToAcceptor, Direction::ToInitiator)
    } else {
        (Direction::ToInitiator, Direction::ToAcceptor)
    }
}

fn key_material(secrets: &Secrets, direction: Direction) -> Material {
    let (key, nonce) =
        (secrets.derive_key(direction, STREAM), secrets.nonce_base(direction, STREAM));
    Material { key: *key, nonce: *nonce }
}

fn suite_of(transport: Transport, cipher: Cipher) -> Suite {
    match cipher {
        _ if !transport.is_encrypted() => Suite::Plain,
        Cipher::Aes128Gcm => Suite::Aes128Gcm,
        Cipher::ChaCha20Poly1305 => Suite::ChaCha20Poly1305,
    }
}

pub fn wire_transport(transport: Transport) -> handshake::HelloTransport {
    match transport {
        Transport::Udp => handshake::HelloTransport::Udp,
        Transport::Tls => handshake::HelloTransport::Tls,
        Transport::UdpPlain => handshake::HelloTransport::UdpPlain,
    }
}

fn transport_of(control: &Outcome) -> Result<Transport> {
    Ok(match control.agreed.transport {
        handshake::HelloTransport::Udp => Transport::Udp,
        handshake::HelloTransport::Tls => Transport::Tls,
        handshake::HelloTransport::UdpPlain => Transport::UdpPlain,
        handshake::HelloTransport::Unknown => {
            return Err(EstablishError::UnknownTransport);
        }
    })
}

pub fn is_ordered(transport: handshake::HelloTransport) -> bool {
    transport == handshake::HelloTransport::Tls
}

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
//!  2 control_thread   dial(): thread "dial"
//!  3 establish        dial(): TCP ------------------> control_thread  CallListener::listen():
//!                                                       thread "accept"; Guard::admit,
//!                                                       CallListener::handshake
//!  4 tcp_handshake    dial() <-- handshake::Machine --> tcp_handshake accept()
//!                                                       ListenerConfig::answer
//!  5 Established                                        ControlEvent::Accepted(Established)
//!  6 establish        over UDP: datagrams(),            control_thread accepted(): datagrams(), or
//!                     or dial_connections()               waits for add_connection() and then
//!                     and ordered()                       ordered()
//!  7 ControlEvent::Dialled(Made)                        Made
//!  8 control_thread   keep()                            control_thread take_in(), keep()
//!  9 session::Peer    PeerEvent::Dialled                session::Peer   PeerEvent::Accepted
//! 10                  Action::Install                                   Action::Install
//! 11 control_thread   install(): to each end's threads, the same at both ends
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
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use socket2::{Domain, SockRef, Socket, Type};
use tracing::info;

use super::causes::with_causes;
use super::config::{BETWEEN_ADDRESSES, PeerSource, Transport};
use super::counts::SessionCounts;
use super::cpu::coding_clock;
use super::egress::connection::ConnectionSender;
use super::egress::datagrams::DatagramSender;
use super::egress::peer_sender::{Connections, Datagrams, SessionSender};
use super::ingress::connection::ConnectionReceiver;
use super::ingress::session::DatagramSession;
use super::io::tcp;
use super::race;
use super::tcp_handshake::{self, Established};
use super::tcp_path::{SHORT_MSS_BYTES, TcpPath};
use vsnoop_link::compress::{CompressionLimits, Decoder, DecoderMemory, Encoder};
use vsnoop_link::handshake::{self, Cipher, Direction, Hello, Outcome, Purpose, Secrets, Versions};
use vsnoop_link::identity::{Initiator, Proof, PublicKey};
use vsnoop_link::queue;
use vsnoop_link::session::{DialError, is_of_another_host};
use vsnoop_link::wire::seal::{Material, Opener, Sealer, Suite};

/// Data connections of a session that are dialled at the same time: half of what a listener lets
/// one source have.
const ABREAST: usize = 8;
/// A path with a longer round trip is a long path.
const FAR: Duration = Duration::from_millis(2);
/// The stream of records that the egress thread seals.
const STREAM: u8 = 0;
/// Datagrams until the path's MTU is known: what IPv6 demands of every path, less its headers.
const FIRST_LIMIT_BYTES: usize = 1280 - 40 - 8;

/// Why a peer has not answered.
#[derive(Debug, thiserror::Error)]
enum Unreached {
    #[error("resolving {address}: {error}")]
    Resolve { address: String, error: io::Error },
    #[error("{address} has no address")]
    NoAddress { address: String },
    #[error("{address} has no address of another host")]
    NoHost { address: String },
    #[error("calling {address} (TCP): {error}")]
    Call { address: SocketAddr, error: io::Error },
    #[error("the connection is gone: {0}")]
    Gone(io::Error),
}

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
    pub fn hello(
        &self,
        session: u32,
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
            session,
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
    /// The number by which we know its records.
    pub index: u32,
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
    fn of(
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
            index: control.ours.session,
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

/// What this host has done for a session.
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

/// Calls a peer and makes a session with it. `resolved` gets the addresses that its name resolves
/// to; `failed` is the one that took the connection last, if no session came of that. A peer that
/// etcd names (`source`) is called at addresses of other hosts only: else a writer there could have
/// this host call its own services.
///
/// A completed TCP handshake does not prove that the peer answers: a port forwarder may accept the
/// connection, or the kernel for a process that ends.
pub fn dial(
    (address, source): (&str, PeerSource),
    initiator: &Initiator,
    hello: Hello,
    memory: &Arc<DecoderMemory>,
    (failed, path): (&Mutex<Option<SocketAddr>>, &TcpPath),
    resolved: impl FnOnce(&[SocketAddr]),
) -> Result<Made, DialError> {
    let unreached = |error: Unreached| DialError { reason: error.to_string(), answered: false };
    let mut addresses = resolve(address).map_err(unreached)?;
    if source == PeerSource::Etcd && !addresses.is_empty() {
        addresses.retain(|address| is_of_another_host(address.ip()));
        if addresses.is_empty() {
            return Err(unreached(Unreached::NoHost { address: address.to_owned() }));
        }
    }
    resolved(&addresses);
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    let stream = race::connect(&addresses, SHORT_MSS_BYTES, *failed).map_err(|last| {
        unreached(match last {
            Some((address, error)) => Unreached::Call { address, error },
            None => Unreached::NoAddress { address: address.to_owned() },
        })
    })?;
    let gone = |error| unreached(Unreached::Gone(error));
    let reached = stream.peer_addr().map_err(gone)?;
    *failed = Some(reached);
    let deadline = Instant::now() + tcp_handshake::DEADLINE;
    let control = tcp_handshake::dial(stream, initiator, hello, deadline).map_err(|error| {
        DialError { reason: error.what().to_string(), answered: error.proved() }
    })?;
    if path.answered(control.outcome.theirs.instance, Instant::now()) {
        info!(
            "{reached} has lived on while its last session fell silent: data connections have segments \
             of {SHORT_MSS_BYTES} bytes for a while, in case the path swallows longer ones"
        );
    }
    let made = made(control, initiator, reached, memory, path)
        .map_err(|error| DialError { reason: with_causes(&error), answered: true })?;
    *failed = None;
    Ok(made)
}

/// All known addresses of a peer.
fn resolve(addresses: &str) -> std::result::Result<Vec<SocketAddr>, Unreached> {
    let (mut all, mut failed) = (Vec::new(), None);
    for address in addresses.split(BETWEEN_ADDRESSES) {
        match address.to_socket_addrs() {
            Ok(found) => all.extend(found),
            Err(error) => {
                failed = Some(Unreached::Resolve { address: address.to_owned(), error });
            }
        }
    }
    failed.filter(|_| all.is_empty()).map_or(Ok(all), Err)
}

/// Makes the session that a dialled handshake has agreed on, and dials its data connections.
fn made(
    control: Established,
    initiator: &Initiator,
    reached: SocketAddr,
    memory: &Arc<DecoderMemory>,
    path: &TcpPath,
) -> Result<Made> {
    if !is_ordered(control.outcome.agreed.transport) {
        return datagrams(&control.outcome, reached, SessionRole::Dialled);
    }
    let mss_bytes = path.mss_bytes(Instant::now());
    let connections =
        dial_connections(&control.outcome, initiator, reached, mss_bytes).map_err(|error| {
            match error {
                EstablishError::Handshake(why)
                    if matches!(*why, handshake::Error::TimedOut { .. })
                        && path.data_unanswered(Instant::now()) =>
                {
                    EstablishError::LongSegments
                }
                other => other,
            }
        })?;
    ordered(control, connections, reached, true, memory)
}

/// Dials all data connections of a session, [`ABREAST`] at a time: one after another they would
/// take longer over a long path than the acceptor waits.
fn dial_connections(
    control: &Outcome,
    initiator: &Initiator,
    reached: SocketAddr,
    mss_bytes: Option<u32>,
) -> Result<Vec<Established>> {
    let session = control.theirs.session;
    let wanted: Vec<_> = (0..control.agreed.connections.max(1))
        .flat_map(|index| {
            [Direction::ToAcceptor, Direction::ToInitiator].map(|direction| Purpose::Data {
                session,
                index,
                direction,
            })
        })
        .collect();
    let mut connections = Vec::new();
    for abreast in wanted.chunks(ABREAST) {
        thread::scope(|scope| -> Result<()> {
            let dialling = abreast
                .iter()
                .map(|purpose| {
                    let hello = Hello { purpose: *purpose, ..control.ours.clone() };
                    thread::Builder::new()
                        .name("connection".into())
                        .spawn_scoped(scope, move || {
                            dial_connection(initiator, hello, reached, mss_bytes)
                        })
                        .map_err(EstablishError::NoThread)
                })
                .collect::<Result<Vec<_>>>()?;
            for connection in dialling {
                let Ok(connection) = connection.join() else {
                    return Err(EstablishError::Panicked);
                };
                connections.push(connection?);
            }
            Ok(())
        })?;
    }
    Ok(connections)
}

fn dial_connection(
    initiator: &Initiator,
    hello: Hello,
    reached: SocketAddr,
    mss_bytes: Option<u32>,
) -> Result<Established> {
    let stream = connect(reached, mss_bytes)
        .map_err(|error| EstablishError::Call { address: reached, error })?;
    let deadline = Instant::now() + tcp_handshake::DEADLINE;
    Ok(tcp_handshake::dial(stream, initiator, hello, deadline)?)
}

/// Both ends keep to what the SYN says of segments.
fn connect(to: SocketAddr, mss_bytes: Option<u32>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(bytes) = mss_bytes {
        socket.set_tcp_mss(bytes)?;
    }
    socket.connect_timeout(&to.into(), race::CONNECT)?;
    Ok(socket.into())
}

/// Makes a session over UDP.
pub fn datagrams(control: &Outcome, address: SocketAddr, role: SessionRole) -> Result<Made> {
    let transport = transport_of(control)?;
    let dialled = role.is_initiator();
    let suite = suite_of(transport, control.cipher);
    let (out, back) = directions(dialled);
    let epoch = control.agreed.epoch as u8;
    let sealer =
        Sealer::new(suite, &material(&control.secrets, out), control.theirs.session, epoch, STREAM);
    let opener = Opener::new(suite, &material(&control.secrets, back), epoch, STREAM);
    let counts = Arc::new(SessionCounts::default());
    // An acceptor learns from the first datagram where the initiator's come from.
    let known = (role != SessionRole::Called).then_some(address);
    let (accepted, counted) = (control.theirs.accepts.codecs, Arc::clone(&counts));
    let outgoing = DatagramSender::new(sealer, known, FIRST_LIMIT_BYTES, accepted, counted);
    let outgoing = SessionSender::Datagrams(Box::new(Datagrams::new(outgoing)));
    let accepted = control.ours.accepts.codecs;
    let incoming = DatagramSession::new(vec![opener], accepted, Arc::clone(&counts));
    let incoming = Incoming::Datagrams(Box::new(incoming));
    Ok(Made::of(control, transport, address, role, outgoing, incoming, counts))
}

/// Makes a session over an ordered transport of its data connections. `memory` is that of all
/// decoders of the peer.
pub fn ordered(
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
        prepare(&stream).map_err(EstablishError::Prepare)?;
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
    Ok(Made::of(control, transport, address, role, outgoing, incoming, counts))
}

/// Limits of this connection, towards the end that sent the hello. Dictionaries are on all
/// connections but the first, unless there is one only (`egress::peer_sender`).
fn limits_of(receiver: &Hello, connections: u8, index: u8) -> CompressionLimits {
    let limits = CompressionLimits::MOST.within(receiver.accepts);
    if connections > 1 && index == 0 {
        CompressionLimits { dictionaries: 0, ..limits }
    } else {
        limits
    }
}

/// Makes the socket of a data connection non-blocking, and lets it send short segments at once.
fn prepare(stream: &TcpStream) -> io::Result<()> {
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

fn directions(dialled: bool) -> (Direction, Direction) {
    if dialled {
        (Direction::ToAcceptor, Direction::ToInitiator)
    } else {
        (Direction::ToInitiator, Direction::ToAcceptor)
    }
}

fn material(secrets: &Secrets, direction: Direction) -> Material {
    let (key, nonce) = (secrets.key(direction, STREAM), secrets.nonce_base(direction, STREAM));
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use vsnoop_link::handshake::{Answer, Refusal, RefusalKind};
    use vsnoop_link::identity::testing::{host, peer, pinned};
    use vsnoop_link::identity::{Identity, Trust};

    fn hello() -> Hello {
        let introduction =
            Introduction { network: "n".into(), instance: 1, mtu_bytes: 1500, takes: Vec::new() };
        introduction.hello(7, 0, Transport::Udp, 1, CompressionLimits::MOST, true)
    }

    /// Calls b from a, where `far` has the connection, and says why there is no session.
    fn call_in_vain(a: &Identity, b: &Identity, far: impl FnOnce(TcpStream) + Send) -> DialError {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let initiator = a.initiator(&peer("b"), &pinned(b)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| far(listener.accept().unwrap().0));
            let memory = Arc::new(DecoderMemory::new(0));
            let at = (&*address, PeerSource::File);
            let before = (&Mutex::default(), &TcpPath::default());
            dial(at, &initiator, hello(), &memory, before, |_| {}).err().expect("no session")
        })
    }

    /// As b that knows `knows`, and refuses it.
    fn refuse(b: &Identity, knows: Trust, stream: TcpStream) {
        let acceptor = b.acceptor(&[(peer("a"), knows)]).unwrap();
        let policy = |_: &_, _: &_| Answer::Refuse(Refusal::new(RefusalKind::Other, "not now"));
        let _ = tcp_handshake::accept(
            stream,
            &acceptor,
            &policy,
            Instant::now() + 12 * tcp_handshake::DEADLINE,
        );
    }

    #[test]
    fn a_name_in_etcd_that_resolves_to_this_host_is_not_called() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let initiator = host().initiator(&peer("b"), &pinned(&host())).unwrap();
        let memory = Arc::new(DecoderMemory::new(0));
        let before = (&Mutex::default(), &TcpPath::default());
        let at = (&*address, PeerSource::Etcd);
        let error = dial(at, &initiator, hello(), &memory, before, |_| panic!("it is told"));
        let reason = error.err().expect("no session").reason;
        assert_eq!(reason, format!("{address} has no address of another host"));
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn only_who_has_the_peers_key_has_answered() {
        let [a, b, unknown] = [host(), host(), host()];
        // A port forwarder with nowhere to go, at once or after the first bytes.
        let error = call_in_vain(&a, &b, drop);
        assert!(!error.answered, "{error:?}");
        let error = call_in_vain(&a, &b, |mut stream| {
            let _ = io::Read::read(&mut stream, &mut [0; 64]);
        });
        assert!(!error.answered, "{error:?}");
        let error = call_in_vain(&a, &b, |stream| refuse(&unknown, pinned(&a), stream));
        assert!(!error.answered && error.reason.contains("key"), "{error:?}");
        let error = call_in_vain(&a, &b, |stream| refuse(&b, pinned(&a), stream));
        assert!(error.answered && error.reason.contains("not now"), "{error:?}");
        let error = call_in_vain(&a, &b, |stream| refuse(&b, pinned(&unknown), stream));
        assert!(error.answered && error.reason.contains("does not know our key"), "{error:?}");
    }
}

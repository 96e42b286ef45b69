//! Calls to peers: the addresses of a name, the handshake, and the data connections of a session.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use tracing::info;

use super::establish::{
    EstablishError, Made, SessionRole, is_ordered, make_datagram_session, make_ordered_session,
};
use super::race;
use super::tcp_handshake::{self, Established};
use super::tcp_path::{SHORT_MSS_BYTES, TcpPath};
use crate::causes::with_causes;
use crate::config::{BETWEEN_ADDRESSES, PeerSource};
use vsnoop_link::compress::DecoderMemory;
use vsnoop_link::handshake::{self, Direction, Hello, Outcome, Purpose};
use vsnoop_link::identity::Initiator;
use vsnoop_link::session::{DialError, is_of_another_host};

type Result<T, E = EstablishError> = std::result::Result<T, E>;

/// Data connections of a session that are dialled at the same time: half of what a listener lets
/// one source have.
const ABREAST: usize = 8;

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
    let mut addresses = resolve_addresses(address).map_err(unreached)?;
    if source == PeerSource::Etcd && !addresses.is_empty() {
        addresses.retain(|address| is_of_another_host(address.ip()));
        if addresses.is_empty() {
            return Err(unreached(Unreached::NoHost { address: address.to_owned() }));
        }
    }
    resolved(&addresses);
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    let stream = race::race_addresses(&addresses, SHORT_MSS_BYTES, *failed).map_err(|last| {
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
    if path.note_answered(control.outcome.theirs.instance, Instant::now()) {
        info!(
            "{reached} has lived on while its last session fell silent: data connections have segments \
             of {SHORT_MSS_BYTES} bytes for a while, in case the path swallows longer ones"
        );
    }
    let made = make_session(control, initiator, reached, memory, path)
        .map_err(|error| DialError { reason: with_causes(&error), answered: true })?;
    *failed = None;
    Ok(made)
}

/// All known addresses of a peer.
fn resolve_addresses(addresses: &str) -> std::result::Result<Vec<SocketAddr>, Unreached> {
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
fn make_session(
    control: Established,
    initiator: &Initiator,
    reached: SocketAddr,
    memory: &Arc<DecoderMemory>,
    path: &TcpPath,
) -> Result<Made> {
    if !is_ordered(control.outcome.agreed.transport) {
        return make_datagram_session(&control.outcome, reached, SessionRole::Dialled);
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
    make_ordered_session(control, connections, reached, true, memory)
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
    let stream = connect_from_port(reached, mss_bytes)
        .map_err(|error| EstablishError::Call { address: reached, error })?;
    let deadline = Instant::now() + tcp_handshake::DEADLINE;
    Ok(tcp_handshake::dial(stream, initiator, hello, deadline)?)
}

/// Both ends keep to what the SYN says of segments.
fn connect_from_port(to: SocketAddr, mss_bytes: Option<u32>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(bytes) = mss_bytes {
        socket.set_tcp_mss(bytes)?;
    }
    socket.connect_timeout(&to.into(), race::CONNECT)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::Transport;
    use crate::handshake::establish::Introduction;
    use crate::threads::pairs::SessionNumber;
    use vsnoop_link::compress::CompressionLimits;
    use vsnoop_link::handshake::{Answer, Refusal, RefusalKind};
    use vsnoop_link::identity::testing::{host, peer, pinned};
    use vsnoop_link::identity::{Identity, Trust};

    fn hello() -> Hello {
        let introduction =
            Introduction { network: "n".into(), instance: 1, mtu_bytes: 1500, takes: Vec::new() };
        introduction.build_hello(
            SessionNumber(7),
            0,
            Transport::Udp,
            1,
            CompressionLimits::MOST,
            true,
        )
    }

    /// Calls b from a, where `far` has the connection, and says why there is no session.
    fn call_in_vain(a: &Identity, b: &Identity, far: impl FnOnce(TcpStream) + Send) -> DialError {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let initiator = a.make_initiator(&peer("b"), &pinned(b)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| far(listener.accept().unwrap().0));
            let memory = Arc::new(DecoderMemory::new(0));
            let at = (&*address, PeerSource::File);
            let before = (&Mutex::default(), &TcpPath::default());
            dial(at, &initiator, hello(), &memory, before, |_| {}).err().expect("no session")
        })
    }

    /// Answers as b that knows `knows`, and refuses it.
    fn refuse(b: &Identity, knows: Trust, stream: TcpStream) {
        let acceptor = b.make_acceptor(&[(peer("a"), knows)]).unwrap();
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
        let initiator = host().make_initiator(&peer("b"), &pinned(&host())).unwrap();
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

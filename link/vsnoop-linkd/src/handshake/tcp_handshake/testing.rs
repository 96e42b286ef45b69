//! Handshakes over loopback for the tests of others.

use std::net::TcpListener;
use std::thread;

use vsnoop_link::handshake::testing::Pair;

use super::*;

/// Both ends of a connection between pinned hosts.
pub fn connected() -> (Established, Established) {
    let (near, far) = connect(&Pair::pinned());
    (near.unwrap(), far.unwrap())
}

/// Both ends of a TCP connection.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

/// Far away: for handshakes that end by themselves.
pub fn deadline() -> Instant {
    Instant::now() + 12 * DEADLINE
}

/// The whole handshake.
pub fn connect(pair: &Pair) -> (Result<Established, Error>, Result<Established, Error>) {
    let (ours, theirs) = sockets();
    thread::scope(|scope| {
        let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
        let accepting = scope.spawn(move || accept(theirs, &pair.acceptor, &policy, deadline()));
        let dialled = dial(ours, &pair.initiator, pair.dials.clone(), deadline());
        (dialled, accepting.join().unwrap())
    })
}

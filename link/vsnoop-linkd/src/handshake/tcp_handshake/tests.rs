//! Handshakes over loopback: connections that are cut, garbled, silent, or far too many.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use socket2::{Domain, Socket, Type};
use vsnoop_link::handshake::testing::{Pair, hello};
use vsnoop_link::handshake::{Guard, GuardLimits};
use vsnoop_link::identity::testing::{host, peer, pinned};
use vsnoop_link::slots::PeerSlot;

use super::testing::{connect, deadline, sockets};
use super::*;
use crate::handshake::callers::Callers;

#[test]
fn pinned_hosts_get_through_over_tcp() {
    let (a, b) = connect(&Pair::pinned());
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    assert_eq!((&a.outcome.peer, &b.outcome.peer), (&peer("b"), &peer("a")));
    assert_eq!((a.outcome.theirs.session, b.outcome.theirs.session), (0x5678, 0x1234));
    assert_eq!(a.outcome.agreed, b.outcome.agreed);
    assert_eq!(a.outcome.cipher, b.outcome.cipher);
    // The connection is theirs without a byte of the handshake in it.
    a.stream.write_all(b"one").unwrap();
    b.stream.write_all(b"two").unwrap();
    let mut got = [0; 3];
    b.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one");
    a.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"two");
}

#[test]
fn the_connection_goes_on_with_tls_where_that_is_wanted() {
    let (a, b) = connect(&Pair::pinned());
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    a.outcome.tls.writer().write_all(b"sealed").unwrap();
    a.outcome.tls.complete_io(&mut a.stream).unwrap();
    b.outcome.tls.complete_io(&mut b.stream).unwrap();
    let mut got = [0; 6];
    b.outcome.tls.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"sealed");
}

#[test]
fn an_unknown_caller_is_refused_and_told_so_over_tcp() {
    let (a, b, c) = (host(), host(), host());
    let (a_says, b_says) = connect(&Pair::new(&a, &b, pinned(&c), pinned(&b)));
    let (a_says, b_says) = (a_says.unwrap_err().to_string(), b_says.unwrap_err().to_string());
    assert!(b_says.starts_with("a caller: presented key"), "{b_says}");
    assert!(b_says.contains("no peer's"), "{b_says}");
    assert!(b_says.contains(&a.public_key().to_string()), "{b_says}");
    assert!(a_says.starts_with("peer b: it does not know our key"), "{a_says}");
    assert!(a_says.contains(&a.public_key().to_string()), "{a_says}");
}

#[test]
fn another_tls_program_is_told_from_a_link() {
    let pair = Pair::pinned();
    let (ours, theirs) = sockets();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut theirs = theirs;
            let _ = theirs.write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
            let _ = theirs.read(&mut [0; 4096]);
        });
        let says = dial(ours, &pair.initiator, hello(1), deadline()).unwrap_err().to_string();
        assert!(says.contains("does not speak TLS"), "{says}");
    });
}

#[test]
fn a_connection_cut_over_tcp_is_an_error_that_says_what_was_missing() {
    let pair = Pair::pinned();
    let [_, len] = pair.sent_bytes();
    for cut in [0, 1, 100, len / 2, len - 1] {
        let (ours, near) = sockets();
        let (far, theirs) = sockets();
        let relay = |mut from: TcpStream, mut to: TcpStream, most: usize| {
            let mut left = most;
            let mut buffer = [0; 1000];
            while left > 0 {
                let n = from.read(&mut buffer[..left.min(1000)]).unwrap_or(0);
                if n == 0 || to.write_all(&buffer[..n]).is_err() {
                    break;
                }
                left -= n;
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        };
        let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let dialled = thread::scope(|scope| {
            scope.spawn(move || relay(near, far, usize::MAX));
            scope.spawn(move || relay(far2, near2, cut));
            scope.spawn(|| {
                let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
                let _ = accept(theirs, &pair.acceptor, &policy, deadline());
            });
            dial(ours, &pair.initiator, hello(1), deadline())
        });
        let says = dialled.unwrap_err().to_string();
        assert!(says.starts_with("peer b: the connection was cut before its"), "{cut}: {says}");
    }
}

#[test]
fn a_silent_end_is_given_up_by_the_deadline() {
    let pair = Pair::pinned();
    let soon = || Instant::now() + Duration::from_millis(50);
    let (ours, _silent) = sockets();
    let says = dial(ours, &pair.initiator, hello(1), soon()).unwrap_err().to_string();
    assert!(says.contains("peer b: no first message in time"), "{says}");
    let (_silent, theirs) = sockets();
    let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
    let error = accept(theirs, &pair.acceptor, &policy, soon()).unwrap_err();
    assert!(matches!(error, Error::TimedOut { with: None, .. }), "{error}");
}

#[test]
fn an_end_that_dribbles_is_given_up_by_the_deadline() {
    let pair = Pair::pinned();
    let (mut ours, theirs) = sockets();
    let done = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = Machine::dial(&pair.initiator, hello(1)).unwrap();
            for byte in first.send() {
                if done.load(Relaxed) || ours.write_all(&[byte]).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
        let soon = Instant::now() + Duration::from_millis(200);
        let error = accept(theirs, &pair.acceptor, &policy, soon).unwrap_err();
        done.store(true, Relaxed);
        error
    });
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

/// How a flood occupies the listener.
#[derive(Clone, Copy)]
enum Flood {
    Nothing,
    Garbage,
    HalfAHello,
}

/// A listener as a daemon has it, behind a guard, and callers from `sources` addresses that never
/// say who they are; beside them the peer calls `times` times, from an address that is configured
/// or not. How many of the peer's calls succeeded, and how often the flood has called.
fn flooded(sources: u8, configured: bool, times: usize) -> (usize, usize) {
    const AT_LEAST: usize = 1000;
    let pair = Pair::pinned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // An unknown peer stays one, however often it calls, and shares no account with the flood.
    let guard = Guard::new(GuardLimits { proved: 0, accounts: 1 << 20, ..GuardLimits::default() });
    if configured {
        guard.set_peer(PeerSlot(0), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    let half = Machine::dial(&pair.initiator, hello(1)).unwrap().send();
    let half = &half[..half.len() / 2];
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let callers = Callers::default();
    let began = Instant::now();
    let succeeded = thread::scope(|scope| {
        let (pair, stop, calls, guard, callers) = (&pair, &stop, &calls, &guard, &callers);
        scope.spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Relaxed) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let Ok(from) = stream.peer_addr() else { continue };
                let now_ns = began.elapsed().as_nanos() as u64;
                let Ok(admitted) = guard.admit_caller(from.ip(), now_ns) else { continue };
                let permit = admitted.permit;
                if let Some(displaced) = admitted.displaced {
                    callers.end_call(displaced);
                }
                callers.note_begun(permit.id(), &stream);
                scope.spawn(move || {
                    let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
                    // Not the permit's: a busy machine may need longer for the peer's call.
                    let until = deadline();
                    let (acceptor, policy) = (&pair.acceptor, &policy);
                    let result = if permit.is_challenged() {
                        let may_go_on = || permit.note_answered(began.elapsed().as_nanos() as u64);
                        accept_challenged(stream, acceptor, "office", may_go_on, policy, until)
                    } else {
                        accept(stream, acceptor, policy, until)
                    };
                    callers.forget_call(permit.id());
                    if let Ok(established) = result {
                        let now_ns = began.elapsed().as_nanos() as u64;
                        permit.note_authenticated(&established.outcome.peer, now_ns);
                    }
                });
            }
        });
        scope.spawn(move || {
            let mut held = Vec::new();
            let kinds = [Flood::Nothing, Flood::Garbage, Flood::HalfAHello];
            for n in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                let from = Ipv4Addr::new(127, 0, 1, (n % usize::from(sources)) as u8);
                let Ok(mut stream) = connect_from(from, address) else { continue };
                calls.fetch_add(1, Relaxed);
                let _ = match kinds[n % kinds.len()] {
                    Flood::Nothing => Ok(()),
                    Flood::Garbage => stream.write_all(&[0x16; 64]),
                    Flood::HalfAHello => stream.write_all(half),
                };
                held.push(stream);
                if held.len() > 500 {
                    held.clear();
                }
            }
        });
        while calls.load(Relaxed) < AT_LEAST {
            thread::sleep(Duration::from_millis(1));
        }
        let mut succeeded = 0;
        for _ in 0..times {
            let before = calls.load(Relaxed);
            let stream = TcpStream::connect(address).unwrap();
            succeeded += usize::from(dial(stream, &pair.initiator, hello(1), deadline()).is_ok());
            while calls.load(Relaxed) < before + 20 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, Relaxed);
        let _ = TcpStream::connect(address);
        succeeded
    });
    eprintln!(
        "flood: {} calls in {:?}; {:?}",
        calls.load(Relaxed),
        began.elapsed(),
        guard.counts()
    );
    (succeeded, calls.into_inner())
}

fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

#[test]
fn a_flood_from_many_sources_does_not_keep_a_configured_peer_out() {
    let (succeeded, calls) = flooded(200, true, 30);
    assert_eq!(succeeded, 30);
    assert!(calls >= 1000);
}

#[test]
fn a_flood_from_six_sources_does_not_keep_an_unknown_peer_out() {
    let (succeeded, calls) = flooded(6, false, 30);
    assert_eq!(succeeded, 30);
    assert!(calls >= 1000);
}

/// The acceptor's result when it challenges a caller of network `office`.
fn challenge(network: &str, pair: &Pair, rate_left: bool) -> [Option<Error>; 2] {
    let (ours, theirs) = sockets();
    let may_go_on = || if rate_left { Ok(()) } else { Err(CallRefused::TotalRate) };
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
            accept_challenged(theirs, &pair.acceptor, network, may_go_on, &policy, deadline())
        });
        let dialled = dial(ours, &pair.initiator, pair.dials.clone(), deadline());
        [dialled.err(), accepting.join().unwrap().err()]
    })
}

#[test]
fn a_challenged_peer_gets_through_and_one_of_another_network_does_not() {
    let pair = Pair::pinned();
    let [dialled, accepted] = challenge("office", &pair, true);
    assert!(dialled.is_none() && accepted.is_none(), "{dialled:?} {accepted:?}");
    for (network, rate_left, why) in
        [("home", true, "does not answer our challenge"), ("office", false, "too many")]
    {
        let [dialled, accepted] = challenge(network, &pair, rate_left);
        assert!(dialled.is_some_and(|error| !error.proved()));
        let said = accepted.expect("refused").what().to_string();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn who_does_not_answer_a_challenge_is_waited_for_until_the_deadline_only() {
    let pair = Pair::pinned();
    let policy = |_: &PeerId, _: &Hello| pair.answer.clone();
    // On a busy machine a short time is over before there is a challenge.
    let first = [50, 2_000, 60_000].into_iter().find_map(|ms| {
        let (mut ours, theirs) = sockets();
        ours.write_all(&Machine::dial(&pair.initiator, hello(1)).unwrap().send()).unwrap();
        let until = Instant::now() + Duration::from_millis(ms);
        let error = accept_challenged(theirs, &pair.acceptor, "office", || Ok(()), &policy, until)
            .unwrap_err();
        assert!(error.what().to_string().contains("no answer to our challenge"), "{error}");
        let mut first = [0];
        ours.read_exact(&mut first).ok().map(|()| first)
    });
    assert_eq!(first, Some([0xf0]), "nothing of TLS was answered");
}

#[test]
fn a_flood_from_one_source_does_not_keep_an_unknown_peer_out() {
    let (succeeded, calls) = flooded(1, false, 30);
    assert_eq!(succeeded, 30);
    assert!(calls >= 1000);
}

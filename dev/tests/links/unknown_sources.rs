//! A thousand calls a second from unknown sources, which are no peers, beside a link that works.
//!
//! A call counts when its connection was made. On a busy machine there are fewer in a second. In
//! `make soak` the transfers beside them go on until there were enough seconds with a thousand.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use vsnoop_link::handshake::{Hello, Machine};
use vsnoop_link::identity::{Initiator, PeerId, PublicKey, Trust};
use vsnoop_linkd::handshake::tcp_handshake;
use vsnoop_linkd::identity::{credentials, key_file};
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::wait::wait_until;

use crate::hello::hello;
use crate::{transfer, trial};
use vsnoop_testbed::hosts::{
    Host, Network, Outside, PORT, Plan, inner_v4, outer, start_all, unknown_source,
};
use vsnoop_testbed::soak::soaked;

/// Beside the transfers, in each second that counts in `make soak`.
const CALLS_PER_S: u64 = 1000;
/// Calls that unknown sources attempt per second: some are late.
const TRIED_PER_S: u32 = 1500;
const CALLS: u64 = 3_000;
const CALLS_SOAKED: u64 = 10_000;
/// Time in which calls are counted.
const ROUND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(120);
/// A peer that is killed is missed, and one that gets no CPU for a while is not.
const MISSED_AFTER: Option<&str> = Some("20s");
/// Each may have its own share of what the link gives to unknown sources.
const ADDRESSES: u8 = 20;
const CALLERS: u32 = 32;
/// Addresses of a flood that takes all slots that unknown sources may have.
const FLOOD_ADDRESSES: u8 = 50;
const FLOODERS: usize = 4;
/// Calls of each that are open, or made anew, all the time.
const FLOODER_CALLS: usize = 50;
/// Calls that stay open and send nothing more.
const OPEN: usize = 100;
/// Bound of a link's growth in memory under the flood.
const GROWTH_KIB: u64 = 16 << 10;
/// The most threads of handshakes, beside those that a link always has.
const THREADS: u64 = 64 + 16;

/// Where replayed hellos come from: an address on the hosts' network, and 2^32 networks behind it.
const REPLAYER: &str = "fd77::99";
const REPLAYED_FROM: &str = "fd78::";
/// How long they come, and how many challenges there are before the peer calls.
const REPLAYED_FOR: Duration = Duration::from_secs(8);
const CHALLENGED: u64 = 200;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials.push(trial(
            format!(
                "unknown_sources::{transport}::a_thousand_calls_a_second_cost_the_peer_nothing"
            ),
            move || calls(transport),
        ));
        trials.push(trial(
            format!(
                "unknown_sources::{transport}::a_host_that_starts_in_a_flood_is_reached_by_its_peer"
            ),
            move || starts_in_a_flood(transport),
        ));
    }
    trials.push(trial(
        "unknown_sources::udp::a_replayed_hello_from_thousands_of_networks_is_answered_at_a_rate",
        replayed,
    ));
    trials
}

/// Behaviour of an unknown source.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Goes at once.
    Goes,
    /// Sends bytes that are no TLS.
    Babbles,
    /// Begins a handshake, sends nothing more, and stays.
    Stays,
    /// A caller with an unknown key.
    Pretends,
}

impl Manner {
    const ALL: [Self; 4] = [Self::Goes, Self::Babbles, Self::Stays, Self::Pretends];
}

fn calls(transport: &'static str) -> Result<()> {
    let plan = Plan { transport, dead_after: MISSED_AFTER, ..Plan::default() };
    let mut network = Network::up(plan)?;
    let away = network.unknown_source(ADDRESSES)?;
    let initiator = unknown(&network)?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&left[0], &mut right[0]);
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 32 << 20, &moved)?;
    let made = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| -> Result<()> {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (away, made, done, initiator) = (&away, &made, &done, &initiator);
                scope.spawn(move || caller(away, number, initiator, made, done))
            })
            .collect();
        let watched = beside(a, b, &moved, &made);
        done.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
        }
        watched
    });
    result?;
    // No caller is left; the peer may call again.
    b.kill();
    a.until("the peer is missed", |status| status["peers"][0]["state"] != "up")?;
    b.start()?;
    a.until_all_up()?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, &moved)
}

/// Runs during the flood: transfers, then the peer is restarted and gets its session.
fn beside(a: &Host, b: &mut Host, moved: &AtomicU64, made: &AtomicU64) -> Result<()> {
    let until_made = |calls: u64| -> Result<()> {
        let since = Instant::now();
        let mut counted = 0;
        while counted < calls {
            ensure!(since.elapsed() < PATIENCE, "unknown sources cannot call as often");
            let (before, round) = (made.load(Ordering::Relaxed), Instant::now());
            while round.elapsed() < ROUND {
                transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, moved)?;
                let threads = a.in_proc_status("Threads")?;
                ensure!(threads <= THREADS, "{threads} threads");
            }
            let called = made.load(Ordering::Relaxed) - before;
            let least = soaked(0.0, CALLS_PER_S as f64 * round.elapsed().as_secs_f64());
            if called as f64 >= least {
                counted += called;
            }
        }
        Ok(())
    };
    // The allocator keeps stacks of ended threads: later ones use that memory.
    let calls = soaked(CALLS, CALLS_SOAKED);
    until_made(calls / 4)?;
    let before_kib = a.in_proc_status("VmRSS")?;
    until_made(calls - calls / 4)?;
    let after_kib = a.in_proc_status("VmRSS")?;
    ensure!(after_kib < before_kib + GROWTH_KIB, "{before_kib} KiB became {after_kib} KiB");
    let peer = a.peer("h1")?;
    ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "it was disturbed: {peer}");
    b.kill();
    b.start()?;
    b.until_all_up()?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, moved)
}

/// A link that has just started has no authenticated peer, and unknown sources use all that is left
/// to them. The peer is let in because of its address. The link cannot dial it: its port is
/// another.
fn starts_in_a_flood(transport: &'static str) -> Result<()> {
    let mut network = Network::configured(Plan { transport, ..Plan::default() })?;
    let elsewhere = format!("network = \"test\"\nlisten = \"0.0.0.0:{}\"\n", PORT + 1);
    let listen = format!("network = \"test\"\nlisten = \"0.0.0.0:{PORT}\"\n");
    network.edit_config(1, |text| text.replace(&listen, &elsewhere))?;
    start_all(&mut network.hosts)?;
    let away = network.unknown_source(FLOOD_ADDRESSES)?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &mut right[0]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let flooders: Vec<_> = (0..FLOODERS)
            .map(|number| {
                let (away, done) = (&away, &done);
                scope.spawn(move || flooder(away, number, done))
            })
            .collect();
        let restarted = (|| {
            for _ in 0..2 {
                a.kill();
                b.kill();
                a.start()?;
                // The peer calls when the flood has what unknown sources may have.
                wait_until("unknown sources hold threads", PATIENCE, || {
                    Ok(a.in_proc_status("Threads")? > THREADS / 4)
                })?;
                b.start()?;
                b.until_all_up()?;
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        for flooder in flooders {
            flooder.join().map_err(|_| anyhow::anyhow!("a flooder panicked"))??;
        }
        restarted
    })?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, &AtomicU64::new(0))
}

/// Calls host 0 from many addresses, sends nothing, and calls again as soon as a call is refused.
fn flooder(away: &Netns, number: usize, done: &AtomicBool) -> Result<()> {
    let at = SocketAddr::new(outer(0), PORT);
    away.run(|| {
        let mut calls: Vec<Option<TcpStream>> = (0..FLOODER_CALLS).map(|_| None).collect();
        while !done.load(Ordering::Relaxed) {
            for (slot, call) in calls.iter_mut().enumerate() {
                let is_open = |mut stream: &TcpStream| {
                    let read = stream.read(&mut [0]);
                    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
                };
                if call.as_ref().is_some_and(is_open) {
                    continue;
                }
                let address = (number * FLOODER_CALLS + slot) % usize::from(FLOOD_ADDRESSES);
                *call = connect(at, unknown_source(address as u8)).ok();
                if let Some(stream) = call {
                    stream.set_nonblocking(true)?;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })
}

/// A recorded hello comes from one /64 after the other. The link computes for a few of them; the
/// peer, which comes from an address that the link does not know, is challenged and gets through.
fn replayed() -> Result<()> {
    let plan = Plan { outside: Outside::V6, ..Plan::default() };
    let mut network = Network::configured(plan)?;
    network.edit_config(0, |text| {
        let lines = text.lines().filter(|line| !line.starts_with("address"));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    let away = network.unknown_source(1)?;
    away.set_sysctl("net.ipv6.ip_nonlocal_bind", "1")?;
    away.ip(&format!("addr add {REPLAYER}/64 dev uplink nodad"))?;
    away.ip(&format!("route add local {REPLAYED_FROM}/32 dev lo"))?;
    network.hosts[0].netns.ip(&format!("route add {REPLAYED_FROM}/32 via {REPLAYER}"))?;
    let initiator = unknown(&network)?;
    let hello = Machine::dial(&initiator, without_ecn())?.send();
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &mut right[0]);
    a.start()?;
    let [tls, challenged, done] = [(); 3].map(|()| AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let replayers: Vec<_> = (0..FLOODERS as u64)
            .map(|number| {
                let (away, hello, counts, done) = (&away, &hello, [&tls, &challenged], &done);
                scope.spawn(move || replayer(away, number, hello, counts, done))
            })
            .collect();
        let beside = (|| {
            wait_until("unknown sources are challenged", PATIENCE, || {
                Ok(challenged.load(Ordering::Relaxed) >= CHALLENGED)
            })?;
            b.start()?;
            b.until_all_up()?;
            transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, &AtomicU64::new(0))?;
            while began.elapsed() < REPLAYED_FOR {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })();
        done.store(1, Ordering::Relaxed);
        for replayer in replayers {
            replayer.join().map_err(|_| anyhow::anyhow!("a replayer panicked"))??;
        }
        beside
    })?;
    // handshake::GuardLimits::unknown sources: 64 at once, and 32 a second.
    let most = 64 + 32 * (began.elapsed().as_secs() + 1);
    let (tls, challenged) = (tls.into_inner(), challenged.into_inner());
    eprintln!("{tls} computed, {challenged} challenged in {:?}", began.elapsed());
    ensure!(tls <= most, "{tls} answers, not {most} at most; {challenged} challenges");
    Ok(())
}

/// Sends a recorded hello from new networks, and counts what is answered: by TLS, or a challenge.
fn replayer(
    away: &Netns,
    number: u64,
    hello: &[u8],
    [tls, challenged]: [&AtomicU64; 2],
    done: &AtomicU64,
) -> Result<()> {
    /// The first byte of a record of TLS with a handshake.
    const HANDSHAKE: u8 = 22;
    let at = SocketAddr::new(Outside::V6.address(0), PORT);
    let prefix: Ipv6Addr = REPLAYED_FROM.parse()?;
    away.run(|| {
        for call in 0u64.. {
            if done.load(Ordering::Relaxed) != 0 {
                break;
            }
            let net = u128::from((number << 28) + call) << 64;
            let from = Ipv6Addr::from(u128::from(prefix) | net | 1);
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
            socket.bind(&SocketAddr::new(from.into(), 0).into())?;
            socket.set_linger(Some(Duration::ZERO))?;
            let Ok(()) = socket.connect_timeout(&at.into(), Duration::from_secs(1)) else {
                continue;
            };
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            let mut first = [0];
            let read = stream.write_all(hello).and_then(|()| stream.read_exact(&mut first));
            match (read, first) {
                (Err(_), _) => {}
                (Ok(()), [HANDSHAKE]) => drop(tls.fetch_add(1, Ordering::Relaxed)),
                (Ok(()), _) => drop(challenged.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(())
    })
}

/// An initiator with a key of its own that knows the link's public key.
fn unknown(network: &Network) -> Result<Initiator> {
    let file = network.file("unknown.key");
    key_file::write_new_key(&file)?;
    let theirs: PublicKey = key_file::read_public_key(&network.key_file(0))?;
    Ok(credentials::read_identity(&file, None)?
        .make_initiator(&PeerId::new("h0"), &Trust::key(theirs))?)
}

/// Calls host 0 in all manners in turn, from one address after the other, at its part of the rate.
fn caller(
    away: &Netns,
    number: u32,
    initiator: &Initiator,
    made: &AtomicU64,
    done: &AtomicBool,
) -> Result<()> {
    let at = SocketAddr::new(outer(0), PORT);
    let began = Instant::now();
    let mut open = std::collections::VecDeque::new();
    away.run(|| {
        for turn in 0.. {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let due = began + Duration::from_secs(1) * (turn * CALLERS + number) / TRIED_PER_S;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let call = turn * CALLERS + number;
            let manner = Manner::ALL[turn as usize % Manner::ALL.len()];
            // A link that turns a caller away may do so before the caller has said anything.
            let address = unknown_source((call % u32::from(ADDRESSES)) as u8);
            let Ok(stream) = connect(at, address) else { continue };
            made.fetch_add(1, Ordering::Relaxed);
            if let Some(stays) = behave(stream, manner, initiator) {
                open.push_back(stays);
                if open.len() > OPEN / CALLERS as usize {
                    open.pop_front();
                }
            }
        }
        Ok(())
    })
}

fn connect(at: SocketAddr, from: IpAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    // No TIME-WAIT: a thousand a second would take all ports.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&at.into(), Duration::from_secs(1)).context("calling")?;
    Ok(socket.into())
}

/// The connection, if the caller keeps it.
fn behave(mut stream: TcpStream, manner: Manner, initiator: &Initiator) -> Option<TcpStream> {
    match manner {
        Manner::Goes => None,
        Manner::Babbles => {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
            let _ = stream.write_all(&[b'x'; 600]).and_then(|()| stream.read(&mut [0; 100]));
            None
        }
        Manner::Stays => {
            // A record of TLS, of which there is no more.
            let _ = stream.write_all(&[22, 3, 1, 2, 0, 1, 0]);
            Some(stream)
        }
        Manner::Pretends => {
            let deadline = Instant::now() + Duration::from_millis(100);
            // The call is expected to be refused: if the link accepted it, the status would show
            // another peer.
            let _ = tcp_handshake::dial(stream, initiator, without_ecn(), deadline);
            None
        }
    }
}

fn without_ecn() -> Hello {
    Hello { ecn: false, ..hello(1) }
}

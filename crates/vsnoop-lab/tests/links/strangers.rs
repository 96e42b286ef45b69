//! Callers that are nobody's peers, a thousand a second, beside a link that works.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use vsnoop_lab::testbed::net::Netns;
use vsnoop_link::handshake::{self, Hello, Purpose, Transport, Versions};
use vsnoop_link::identity::{Dialer, Identity, PeerId, PublicKey, Trust};

use crate::hosts::{Host, Network, PORT, Plan, inner_v4, outer, stranger};
use crate::{transfer, trial};

const CALLS_PER_S: u32 = 1000;
/// Calls in all, at least.
const CALLS: u64 = 4000;
/// Each may have its own share of what the link gives to strangers.
const ADDRESSES: u8 = 20;
const CALLERS: u32 = 8;
/// Calls that are left open and say nothing more.
const OPEN: usize = 100;
/// By which a link may have grown, for all that it was asked.
const GROWTH_KIB: u64 = 16 << 10;
/// Handshakes have threads of their own, at most so many, beside those that a link has anyway.
const THREADS: u64 = 64 + 16;

pub fn trials() -> Vec<Trial> {
    ["udp", "tls"]
        .into_iter()
        .map(|transport| {
            trial(
                format!("strangers::{transport}::a_thousand_calls_a_second_cost_the_peer_nothing"),
                move || calls(transport),
            )
        })
        .collect()
}

/// What a stranger does.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Goes at once.
    Goes,
    /// Says what is no TLS.
    Babbles,
    /// Begins, says nothing more, and stays.
    Stays,
    /// Has a key that nobody knows.
    Pretends,
}

impl Manner {
    const ALL: [Self; 4] = [Self::Goes, Self::Babbles, Self::Stays, Self::Pretends];
}

fn calls(transport: &'static str) -> Result<()> {
    let mut network = Network::up(Plan { transport, ..Plan::default() })?;
    let away = network.stranger(ADDRESSES)?;
    let dialer = unknown(&network)?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&left[0], &mut right[0]);
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 32 << 20, &moved)?;
    let made = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| -> Result<()> {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (away, made, done, dialer) = (&away, &made, &done, &dialer);
                scope.spawn(move || caller(away, number, dialer, made, done))
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
    // Nobody is left; the peer may come again.
    b.kill();
    a.until("the peer is missed", |status| status["peers"][0]["state"] != "up")?;
    b.start()?;
    a.until_all_up()?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, &moved)
}

/// What goes on meanwhile: transfers, and then the peer is started anew and finds its place.
fn beside(a: &Host, b: &mut Host, moved: &AtomicU64, made: &AtomicU64) -> Result<()> {
    let until_made = |calls: u64| -> Result<()> {
        let since = Instant::now();
        while made.load(Ordering::Relaxed) < calls {
            ensure!(since.elapsed() < Duration::from_secs(60), "strangers cannot even call");
            transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, moved)?;
            let threads = a.in_proc_status("Threads")?;
            ensure!(threads <= THREADS, "{threads} threads");
        }
        Ok(())
    };
    // Threads that were there once leave their stacks: what comes later finds room in them.
    until_made(CALLS / 4)?;
    let before_kib = a.in_proc_status("VmRSS")?;
    until_made(CALLS)?;
    let after_kib = a.in_proc_status("VmRSS")?;
    ensure!(after_kib < before_kib + GROWTH_KIB, "{before_kib} KiB became {after_kib} KiB");
    let peer = a.peer("h1")?;
    ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "it was disturbed: {peer}");
    b.kill();
    b.start()?;
    b.until_all_up()?;
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, moved)
}

/// Who has a key, and knows the link's.
fn unknown(network: &Network) -> Result<Dialer> {
    let file = network.file("stranger.key");
    vsnoop_link::identity::keygen(&file)?;
    let theirs: PublicKey = vsnoop_link::identity::public(&network.key_file(0))?;
    Identity::load(&file, None)?.dialer(&PeerId::new("h0"), &Trust::Key(theirs))
}

/// Calls host 0 in all manners in turn, from one address after the other, at its part of the rate.
fn caller(
    away: &Netns,
    number: u32,
    dialer: &Dialer,
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
            let due = began + Duration::from_secs(1) * turn * CALLERS / CALLS_PER_S;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let call = turn * CALLERS + number;
            let manner = Manner::ALL[turn as usize % Manner::ALL.len()];
            // A link that turns a caller away may do so before the caller has said anything.
            if let Ok(stream) = connect(at, stranger((call % u32::from(ADDRESSES)) as u8))
                && let Some(stays) = behave(stream, manner, dialer)
            {
                open.push_back(stays);
                if open.len() > OPEN / CALLERS as usize {
                    open.pop_front();
                }
            }
            made.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
}

fn connect(at: SocketAddr, from: IpAddr) -> Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    // No TIME-WAIT: a thousand a second would take all ports.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&at.into(), Duration::from_secs(1)).context("calling")?;
    Ok(socket.into())
}

/// The connection, if the stranger keeps it.
fn behave(
    mut stream: std::net::TcpStream,
    manner: Manner,
    dialer: &Dialer,
) -> Option<std::net::TcpStream> {
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
            // That it is refused is what it is for; that it is taken would be seen as one peer more.
            let _ = handshake::dial(stream, dialer, hello(), deadline);
            None
        }
    }
}

fn hello() -> Hello {
    Hello {
        versions: Versions::OURS,
        purpose: Purpose::Control,
        network: "test".to_owned(),
        instance: 1,
        session: 1,
        epoch: 0,
        transport: Transport::Udp,
        lanes: 1,
        mtu_bytes: 1500,
        takes: Vec::new(),
        software: String::new(),
    }
}

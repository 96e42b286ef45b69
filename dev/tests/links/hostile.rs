//! Whole links over networks that mean harm: packets lost, doubled, late, cut short, changed,
//! replayed, made up, and connections cut after each number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::relay::{Counters, Faults};

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{
    Network, Outside, PORT, Path, Plan, inner_v4, inner_v6, outer, unknown_source,
};
use vsnoop_testbed::soak::soaked;

/// Connections are cut after each multiple of this number of bytes, from the handshake into the
/// stream. It shares no factor with the sizes of records.
const CUT_EVERY: usize = 149;
const CUT_EVERY_SOAKED: usize = 37;
const CUT_LAST: usize = 6000;
/// Pairs of hosts among which the cuts are shared out: each waits for its peer most of the time.
const PAIRS: usize = 4;
/// The connections of a session: the control connection, and four data connections in each
/// direction.
const CONNECTIONS: usize = 1 + 2 * 4;

/// Two hosts have VM, port, bridge and the link's tap each.
const DEVICES: u64 = 2 * 4;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, outside) in [("ipv4", Outside::V4), ("ipv6", Outside::V6)] {
        trials.push(trial(
            format!("hostile::udp::nothing_changed_or_made_up_is_believed_by_{name}"),
            move || datagrams(outside),
        ));
    }
    trials.push(trial("hostile::tls::changed_bytes_end_the_session_and_it_comes_back", || {
        streams("tls")
    }));
    trials.push(trial("hostile::tls::a_connection_that_is_cut_anywhere_is_made_anew", || {
        cuts("tls")
    }));
    trials
}

/// Faults of a bad network, without an attack.
fn bad_day() -> Faults {
    Faults {
        loss: 0.005,
        duplicate: 0.02,
        corrupt: 0.005,
        reorder: 0.02,
        reorder_by: Duration::from_millis(3),
        ..Faults::default()
    }
}

fn number(status: &Value, name: &str) -> Result<u64> {
    status[name].as_u64().with_context(|| format!("no {name} in {status}"))
}

fn datagrams(outside: Outside) -> Result<()> {
    let network =
        Network::up(Plan { path: Path::Relay { realtime: false }, outside, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 1 << 20, &moved)?;
    network.set_faults(&Faults { damage: 0.02, forge: 0.2, ..bad_day() });
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 4 << 20, &moved)?;
    }
    network.set_faults(&Faults::default());
    for Counters { lost, duplicated, corrupted, reordered, damaged, forged, .. } in
        network.counters()
    {
        let all = [lost, duplicated, corrupted, reordered, damaged, forged];
        ensure!(!all.contains(&0), "a fault that never came: {all:?}");
    }
    for (number_of_peer, host, peer) in [(1, a, "h1"), (0, b, "h0")] {
        let peer = host.peer(peer)?;
        let state = (peer["state"] == "up", number(&peer, "reconnects")?, number(&peer, "roams")?);
        ensure!(state == (true, 0, 0), "{state:?}: {peer}");
        let at = SocketAddr::new(outside.address(number_of_peer), PORT).to_string();
        ensure!(peer["address"] == at, "the peer is said to be at {}", peer["address"]);
        // At least a half of each kind has passed the other faults.
        let counters = network.counters()[number_of_peer];
        let wrong = counters.forged + counters.damaged + counters.duplicated;
        let status = host.status()?;
        let unknown = status["dropped"]["unknown_datagrams"].as_u64().unwrap_or_default();
        let rejected = number(&peer, "rejected")? + unknown;
        ensure!(2 * rejected > wrong, "{rejected} of {wrong} were rejected");
        // A frame that was made up would have had an address of its own.
        let learned = number(&status, "learned")?;
        ensure!(learned <= DEVICES, "{learned} addresses were learned");
    }
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)
}

/// The kernel's TCP repairs most faults, but not frames whose checksum was changed along with their
/// bytes.
fn streams(transport: &'static str) -> Result<()> {
    let network =
        Network::up(Plan { path: Path::Relay { realtime: false }, transport, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    network.set_faults(&bad_day());
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 2 << 20, &moved)?;
    }
    for counters in network.counters() {
        let Counters { lost, duplicated, corrupted, reordered, .. } = counters;
        let all = [lost, duplicated, corrupted, reordered];
        ensure!(!all.contains(&0), "a fault that never came: {all:?}");
    }
    let reconnects = number(&a.peer("h1")?, "reconnects")?;
    ensure!(reconnects == 0, "the session was given up {reconnects} times");
    let goes_on = moved.load(Ordering::Relaxed);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved));
        transfer::until_moved(&moved, goes_on + (2 << 20))?;
        network.set_faults(&Faults { falsify: 0.01, ..Faults::default() });
        let lost = a.until("a session is lost", |status| {
            let peer = &status["peers"][0];
            peer["state"] != "up" || peer["reconnects"].as_u64() > Some(0)
        });
        network.set_faults(&Faults::default());
        lost?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    let falsified: u64 = network.counters().iter().map(|counters| counters.falsified).sum();
    ensure!(falsified > 0, "nothing was changed");
    a.until_all_up()?;
    b.until_all_up()
}

/// Some pairs of hosts at a time, each with its share of the cuts.
fn cuts(transport: &'static str) -> Result<()> {
    let cut = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let pairs: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let cut = &cut;
                scope.spawn(move || cut_one_after_another(transport, pair, cut))
            })
            .collect();
        pairs
            .into_iter()
            .try_for_each(|pair| pair.join().map_err(|_| anyhow::anyhow!("a pair panicked"))?)
    })?;
    let (cut, planned) =
        (cut.load(Ordering::Relaxed), CUT_LAST / soaked(CUT_EVERY, CUT_EVERY_SOAKED));
    // A connection that carries little data may end before its cut.
    ensure!(cut > planned / 2, "{cut} connections of {planned} were cut");
    Ok(())
}

fn cut_one_after_another(transport: &'static str, pair: usize, cut: &AtomicUsize) -> Result<()> {
    let plan = Plan { transport, dead_after: Some("5s"), ..Plan::default() };
    let mut network = Network::configured(plan)?;
    let between = network.unknown_source(1)?;
    let line = |at| format!("address = \"{}\"\n", SocketAddr::new(at, PORT));
    network.edit_config(0, |text| text.replace(&line(outer(1)), &line(unknown_source(0))))?;
    network.edit_config(1, |text| text.replace(&line(outer(0)), ""))?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &mut right[0]);
    b.start()?;
    let (middle, done) = (Middle::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let listener =
            between.run(|| Ok(TcpListener::bind(SocketAddr::new(unknown_source(0), PORT))?))?;
        let (between, middle, done) = (&between, &middle, &done);
        scope.spawn(move || middle.run(between, &listener, done));
        let result = (1..)
            .map(|number| (number, number * soaked(CUT_EVERY, CUT_EVERY_SOAKED)))
            .take_while(|(_, bytes)| *bytes <= CUT_LAST)
            .filter(|(number, _)| number % PAIRS == pair)
            .try_for_each(|(number, bytes)| {
                middle.cut_next((number / PAIRS) % CONNECTIONS, bytes);
                a.kill();
                a.start()?;
                let again = || -> Result<()> {
                    let moved = AtomicU64::new(0);
                    a.until_all_up()?;
                    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 100_000, &moved)
                };
                again().with_context(|| format!("cut after {bytes} bytes"))
            });
        cut.fetch_add(middle.cut.load(Ordering::Relaxed), Ordering::Relaxed);
        done.store(true, Ordering::Relaxed);
        // Wakes its accept(), so that it sees `done`.
        let _ = between.run(|| Ok(TcpStream::connect(SocketAddr::new(unknown_source(0), PORT))?));
        a.kill();
        b.kill();
        result
    })
}

/// A proxy that forwards connections and cuts one of them.
#[derive(Default)]
struct Middle {
    /// The number of connections before the one to cut, and the bytes of both directions after
    /// which it is cut.
    next: std::sync::Mutex<Option<(usize, usize)>>,
    cut: AtomicUsize,
}

impl Middle {
    fn cut_next(&self, after_connections: usize, after_bytes: usize) {
        *self.next.lock().expect("not poisoned") = Some((after_connections, after_bytes));
    }

    /// Bytes after which a new connection is cut.
    fn limit(&self) -> Option<usize> {
        let mut next = self.next.lock().expect("not poisoned");
        match next.take() {
            Some((0, bytes)) => Some(bytes),
            other => {
                *next = other.map(|(before, bytes)| (before - 1, bytes));
                None
            }
        }
    }

    fn run(&self, between: &Netns, listener: &TcpListener, done: &AtomicBool) {
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(near) = stream else { continue };
                let limit = self.limit();
                let far = between.run(|| Ok(TcpStream::connect((outer(1), PORT))?));
                let Ok(far) = far else { continue };
                scope.spawn(move || self.carry(&near, &far, limit));
            }
        });
    }

    /// Both ways, until an end closes or the connection is cut.
    fn carry(&self, near: &TcpStream, far: &TcpStream, limit: Option<usize>) {
        let passed = AtomicUsize::new(0);
        let one_way = |mut from: &TcpStream, mut to: &TcpStream| {
            let mut buffer = [0; 16 << 10];
            loop {
                let bytes = match restarted(|| from.read(&mut buffer)) {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => bytes,
                };
                let before = passed.fetch_add(bytes, Ordering::Relaxed);
                let left = limit.map_or(bytes, |limit| limit.saturating_sub(before).min(bytes));
                if to.write_all(&buffer[..left]).is_err() {
                    break;
                }
                if limit.is_some_and(|limit| before < limit && before + bytes >= limit) {
                    self.cut.fetch_add(1, Ordering::Relaxed);
                }
                if left < bytes {
                    break;
                }
            }
            // The other way ends with it.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| one_way(far, near));
            one_way(near, far);
        });
    }
}

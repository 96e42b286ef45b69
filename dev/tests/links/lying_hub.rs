//! A hub that lies. Two hosts have it as their hub, and each other behind it; it is in this
//! process. Whatever it says, the path past it leads to the host with the pinned key or to none,
//! and what it relays goes on.

mod hub;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, inner_v4, unknown_source};
use vsnoop_testbed::wait::wait_until;

use self::hub::{Lie, LyingHub};
use crate::direct::{introduced, other, played, until_path};
use crate::raw_vm::PATIENCE;
use crate::{transfer, trial};

/// How long it lies.
const LIES_FOR: Duration = Duration::from_secs(4);

pub fn trials() -> Vec<Trial> {
    [
        ("one_that_takes_the_place_of_a_peer_is_not_believed", in_place as fn() -> Result<()>),
        ("one_that_names_wrong_addresses_has_few_datagrams_sent_there", addresses),
        ("what_one_repeats_disturbs_no_direct_path", repeats),
        ("one_that_floods_disturbs_no_direct_path", floods),
        ("one_that_denies_all_takes_no_direct_path_away", denies),
    ]
    .into_iter()
    .map(|(name, test)| trial(format!("lying_hub::{name}"), test))
    .collect()
}

/// Hosts 1 and 2, of which each waits for the hub.
fn waiting() -> Result<Network> {
    let mut network = introduced(Plan::default())?;
    for host in [1, 2] {
        network.let_wait(host, 0)?;
    }
    network.hosts[1..].iter_mut().try_for_each(Host::start)?;
    Ok(network)
}

/// They, and the hub, with what it does at first.
fn with_hub(first: Lie, test: impl Fn(&Network, &Mutex<Lie>) -> Result<()>) -> Result<()> {
    played(waiting, |network| beside_hub(network, first, &test))
}

fn beside_hub(
    network: &Network,
    first: Lie,
    test: impl FnOnce(&Network, &Mutex<Lie>) -> Result<()>,
) -> Result<()> {
    let (lie, is_over) = (Mutex::new(first), AtomicBool::new(false));
    let mut hub = LyingHub::join(network)?;
    thread::scope(|scope| {
        let running = scope.spawn(|| hub.run(&lie, &is_over));
        let result = test(network, &lie);
        is_over.store(true, Ordering::Relaxed);
        running.join().map_err(|_| anyhow::anyhow!("the hub panicked"))??;
        result
    })
}

fn tell(lie: &Mutex<Lie>, next: Lie) {
    *lie.lock().unwrap_or_else(PoisonError::into_inner) = next;
}

fn until_relayed_frames(network: &Network) -> Result<()> {
    let answers = || Ok(network.hosts[1].vms[0].ping(inner_v4(2, 0), 1).is_ok());
    wait_until("the other VM answers", PATIENCE, answers)
}

fn carries(network: &Network, bytes: u64) -> Result<()> {
    let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(2, 0), bytes, &AtomicU64::new(0))
}

/// Both have had a session with the other and with the hub all the time.
fn undisturbed(network: &Network) -> Result<()> {
    for host in &network.hosts[1..] {
        for name in ["h0".to_owned(), other(host)] {
            let peer = host.peer(&name)?;
            ensure!(peer["state"] == "up" && peer["reconnects"] == 0, "{peer}\n{}", host.words());
        }
    }
    Ok(())
}

fn in_place() -> Result<()> {
    with_hub(Lie::InPlace, |network, lie| {
        let refuses = |host: &Host| -> Result<bool> {
            let reason = host.peer(&other(host))?["reason"].clone();
            Ok(reason.as_str().is_some_and(|reason| reason.contains("not the pinned")))
        };
        let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
        wait_until("the hub is refused", PATIENCE, || Ok(refuses(a)? || refuses(b)?))?;
        thread::sleep(LIES_FOR);
        for host in [a, b] {
            let peer = host.peer(&other(host))?;
            ensure!(peer["state"] == "relayed" && peer["path"] == "relayed", "{peer}");
        }
        until_relayed_frames(network)?;
        tell(lie, Lie::None);
        until_path(network, "direct")
    })
}

/// Handshakes succeed, since the hub passes them on.
fn addresses() -> Result<()> {
    let lies = [0, 1].map(|number| SocketAddr::new(unknown_source(number), PORT));
    with_hub(Lie::Addresses(lies), |network, lie| {
        let innocent = network.unknown_source(2)?;
        let socket = innocent.run(|| Ok(UdpSocket::bind(("0.0.0.0", PORT))?))?;
        socket.set_nonblocking(true).context("a socket")?;
        until_relayed_frames(network)?;
        let since = Instant::now();
        let (mut got, mut datagram) = (0, [0; 2048]);
        while since.elapsed() < 2 * LIES_FOR {
            while socket.recv_from(&mut datagram).is_ok() {
                got += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let most = 50 * (1 + since.elapsed().as_secs());
        ensure!((1..=most).contains(&got), "{got} datagrams, not up to {most}");
        until_path(network, "relayed")?;
        until_relayed_frames(network)?;
        tell(lie, Lie::None);
        until_path(network, "direct")
    })
}

fn repeats() -> Result<()> {
    with_hub(Lie::None, |network, lie| {
        until_relayed_frames(network)?;
        until_path(network, "direct")?;
        tell(lie, Lie::Repeats);
        let since = Instant::now();
        while since.elapsed() < LIES_FOR {
            carries(network, 1 << 20)?;
        }
        until_path(network, "direct")?;
        undisturbed(network)
    })
}

fn floods() -> Result<()> {
    with_hub(Lie::None, |network, lie| {
        until_path(network, "direct")?;
        tell(lie, Lie::Floods);
        for host in &network.hosts[1..] {
            host.until("much of it is not taken", |status| {
                let peers = status["peers"].as_array().into_iter().flatten();
                peers.clone().any(|peer| peer["name"] == "h0" && peer["excess"].as_u64() > Some(0))
            })?;
        }
        let since = Instant::now();
        while since.elapsed() < LIES_FOR {
            carries(network, 1 << 20)?;
        }
        until_path(network, "direct")?;
        undisturbed(network)
    })
}

fn denies() -> Result<()> {
    with_hub(Lie::None, |network, lie| {
        until_path(network, "direct")?;
        tell(lie, Lie::Denies);
        thread::sleep(LIES_FOR);
        carries(network, 4 << 20)?;
        until_path(network, "direct")?;
        undisturbed(network)
    })
}

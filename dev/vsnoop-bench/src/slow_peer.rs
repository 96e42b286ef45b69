//! Cost of a peer behind a slow line for the other peers of a link over udp: the round trip to a
//! fast peer beside a flood to the slow one, over the round trip of the same path at rest.
//!
//! ```text
//! [VM]--[host 0]--link--+--bridge--+--[host 1]--[VM], its line has 10 Mb/s and a long queue
//!                                  +--[host 2]--[VM]
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::hosts::{Network, Plan, inner_v4};
use vsnoop_testbed::net::Netns;

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const SLOW: usize = 1;
const FAST: usize = 2;
const ROUNDS: usize = 5;
const ECHOES: u16 = 100;
/// The flood: about 100 Mb/s.
const DATAGRAM_BYTES: usize = 1400;
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);
/// State of the slow line after more was sent than any buffer holds.
const FLOODED: Duration = Duration::from_secs(2);

pub fn measure() -> Result<Vec<Figure>> {
    let network =
        Network::up(Plan { prefix: PREFIX, dead_after: None, hosts: 3, ..Plan::default() })?;
    let vm = &network.hosts[0].vms[0];
    let echoes = || -> Result<Vec<f64>> {
        let times = vm.ping(inner_v4(FAST, 0), ECHOES)?;
        let lost = usize::from(ECHOES) - times.len();
        ensure!(lost == 0, "{lost} of {ECHOES} echoes of the fast peer were lost");
        Ok(times.iter().map(Duration::as_secs_f64).collect())
    };
    echoes()?;
    let (mut idle, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        idle.push(median(echoes()?));
        network.slow_down(SLOW, "10mbit")?;
        beside.push(median(beside_flood(vm, echoes)?));
        network.speed_up(SLOW)?;
    }
    let ratio = median(beside) / median(idle);
    say(&format!(
        "beside a flooded slow peer the round trip to another is {ratio:.2} times as long"
    ));
    Ok(vec![figure("other_peer_ping_ratio_beside_slow_peer", ratio, "", "lower")])
}

/// The result of `echoes` while datagrams flood the slow peer.
fn beside_flood<T>(from: &Netns, echoes: impl Fn() -> Result<T>) -> Result<T> {
    let socket = from.run(|| UdpSocket::bind("0.0.0.0:0").context("bind"))?;
    let to = SocketAddr::new(inner_v4(SLOW, 0), 9);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..BURST {
                    // The tap may have no room.
                    let _ = socket.send_to(&[0; DATAGRAM_BYTES], to);
                }
                std::thread::sleep(PAUSE);
            }
        });
        std::thread::sleep(FLOODED);
        let result = echoes();
        ends.store(true, Ordering::Relaxed);
        result
    })
}

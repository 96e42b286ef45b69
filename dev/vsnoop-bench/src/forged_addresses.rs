//! Measures the harm that a VM that invents source addresses does to a VM beside it: the share of
//! its datagrams that a VM receives while its neighbour sends 20,000 frames a second, each from
//! another address, to one known address at another host. None of the datagrams may be seen at a
//! third host.
//!
//! ```text
//! [VM]-----+--[host 0]--link--+--[host 1]--[VM] 2000 datagrams a second to the VM of host 0
//! [hostile]+                  +--[host 2]--[raw]
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::hosts::{Network, Plan, inner_v4};
use vsnoop_testbed::net::Tap;
use vsnoop_testbed::raw_vm::{OTHER, frame, introduce, raw_vm, send};

use crate::figures::{figure, say};
use crate::stage::PREFIX;

/// At a time, with a pause of [`STEP`] behind them.
const FORGED: u32 = 40;
const DATAGRAMS: u32 = 4;
const STEP: Duration = Duration::from_millis(2);
const STEPS: u32 = 5000;
const PORT: u16 = 5001;
/// In each datagram: no other traffic has it.
const MARK: &[u8] = b"to the victim alone";

pub fn measure() -> Result<Vec<Figure>> {
    let plan = Plan { prefix: PREFIX, dead_after: None, hosts: 3, ..Plan::default() };
    let network = Network::up(plan)?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let (hostile, known, aside) = (raw_vm(a, "bad")?, raw_vm(b, "raw")?, raw_vm(c, "raw")?);
    introduce(&known, &hostile, OTHER)?;
    let to = SocketAddr::new(inner_v4(0, 0), PORT);
    let receiver = a.vms[0].run(|| UdpSocket::bind(to).context("bind"))?;
    let sender = b.vms[0].run(|| UdpSocket::bind("0.0.0.0:0").context("bind"))?;
    a.vms[0].ping(inner_v4(1, 0), 3)?;
    receiver.set_nonblocking(true)?;
    let ends = AtomicBool::new(false);
    let (sent, forged, received, elsewhere) = std::thread::scope(|scope| -> Result<_> {
        let forging = scope.spawn(|| forge(&hostile, &ends));
        let receiving = scope.spawn(|| receive(&receiver, &known, &aside, &ends));
        let began = Instant::now();
        let mut sent = 0;
        for step in 0..STEPS {
            for _ in 0..DATAGRAMS {
                sent += u64::from(sender.send_to(MARK, to).is_ok());
            }
            pace(began, step);
        }
        std::thread::sleep(Duration::from_millis(500));
        ends.store(true, Ordering::Relaxed);
        let forged = forging.join().map_err(|_| anyhow::anyhow!("the forger panicked"))?;
        let seen = receiving.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?;
        let (received, elsewhere) = seen?;
        Ok((sent, forged, received, elsewhere))
    })?;
    ensure!(forged > u64::from(FORGED * STEPS / 2), "only {forged} frames were forged");
    ensure!(elsewhere == 0, "{elsewhere} datagrams of the VM were seen at a third host");
    let share = received as f64 / sent as f64;
    say(&format!(
        "beside {forged} forged addresses a VM receives {share:.4} of {sent} datagrams, none of \
         them is seen elsewhere"
    ));
    Ok(vec![figure("share_beside_forged_addresses", share, "", "higher")])
}

/// Waits until the next step is due.
fn pace(began: Instant, step: u32) {
    std::thread::sleep((STEP * (step + 1)).saturating_sub(began.elapsed()));
}

/// Sends frames, each from another address; how many.
fn forge(hostile: &Tap, ends: &AtomicBool) -> u64 {
    let (mut number, mut sent, began) = (0u32, 0, Instant::now());
    for step in 0.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        for _ in 0..FORGED {
            let [_, x, y, z] = number.to_be_bytes();
            // The tap may have no room.
            sent += u64::from(send(hostile, &frame(OTHER, [6, 6, 6, x, y, z], number)).is_ok());
            number += 1;
        }
        pace(began, step);
    }
    sent
}

/// Datagrams that the VM received, and those that a third host saw.
fn receive(
    receiver: &UdpSocket,
    known: &Tap,
    aside: &Tap,
    ends: &AtomicBool,
) -> Result<(u64, u64)> {
    let (mut received, mut elsewhere) = (0, 0);
    let (mut bytes, mut packet) = ([0; 2048], Pool::default().take());
    while !ends.load(Ordering::Relaxed) {
        while receiver.recv(&mut bytes).is_ok() {
            received += 1;
        }
        while known.read(&mut packet).context("read a frame")? {}
        while aside.read(&mut packet).context("read a frame")? {
            elsewhere += u64::from(packet.frame().ends_with(MARK));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok((received, elsewhere))
}

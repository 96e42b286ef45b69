//! Many senders and a shallow last hop, without vsnoop: the network itself is what it says it is.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use vsnoop_lab::testbed::fan_in::{FanIn, VM_ADDRESS};
use vsnoop_lab::testbed::switch::LastHop;

use super::{PREFIX, trial};

const SENDERS: usize = 8;
const BYTES: usize = 500_000;
/// MTU and Ethernet header.
const PACKET_BYTES: u64 = 1514;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    vec![trial("fan_in::a_shallow_last_hop_drops_what_does_not_fit_and_tcp_repairs_it", shallow)]
}

fn shallow() -> Result<()> {
    let fan_in = FanIn::build(&format!("{PREFIX}900-"), SENDERS)?;
    let hop = |buffer_bytes| Some(LastHop { rate_mbit: 200, buffer_bytes });
    fan_in.switch.set_last_hop(hop(10_000_000))?;
    send(&fan_in)?;
    let deep = fan_in.switch.counts()?;
    ensure!(deep.drops == 0, "a deep queue dropped {deep:?}");

    fan_in.switch.set_last_hop(hop(16_000))?;
    let retransmissions = send(&fan_in)?;
    let shallow = fan_in.switch.counts()?;
    ensure!(shallow.drops > 0, "a shallow queue dropped nothing: {shallow:?}");
    ensure!(retransmissions >= shallow.drops, "{retransmissions} retransmissions, {shallow:?}");
    for counts in [deep, shallow] {
        let payload = (SENDERS * BYTES) as u64;
        ensure!(counts.bytes > payload, "data went another way: {counts:?}");
        ensure!(counts.bytes <= counts.packets * PACKET_BYTES, "super-packets: {counts:?}");
    }
    ensure!(fan_in.port_drops()? == 0, "packets were lost at the tap");
    Ok(())
}

/// Every sender sends as much to the VM at once; how many segments were sent again.
fn send(fan_in: &FanIn) -> Result<u64> {
    let counted = || -> Result<u64> {
        let counts = fan_in.senders.iter().map(|sender| sender.tcp_counters()?.read());
        Ok(counts.collect::<Result<Vec<_>>>()?.iter().map(|counts| counts.retransmissions).sum())
    };
    let before = counted()?;
    let at = SocketAddrV4::new(VM_ADDRESS, 7001);
    let listener = fan_in.vm()?.run(|| TcpListener::bind(at).context("listen in the VM"))?;
    let mut streams = Vec::new();
    for sender in &fan_in.senders {
        let stream = sender.run(|| {
            TcpStream::connect_timeout(&at.into(), PATIENCE).context("connect to the VM")
        })?;
        stream.set_write_timeout(Some(PATIENCE)).context("bound a write")?;
        streams.push((stream, listener.accept().context("accept in the VM")?.0));
    }
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for (sender, receiver) in &streams {
            receiver.set_read_timeout(Some(PATIENCE)).context("bound a read")?;
            receivers.push(scope.spawn(move || {
                let mut bytes = Vec::new();
                let mut receiver = receiver;
                receiver.read_to_end(&mut bytes).context("receive in the VM")?;
                ensure!(bytes == payload(), "other bytes than were sent, {} of them", bytes.len());
                Ok(())
            }));
            scope.spawn(move || {
                let mut sender = sender;
                // Its failure shows in what the receiver has.
                let _ = sender.write_all(&payload());
                let _ = sender.shutdown(Shutdown::Write);
            });
        }
        receivers
            .into_iter()
            .try_for_each(|receiver| receiver.join().map_err(|_| anyhow!("a receiver panicked"))?)
    })?;
    Ok(counted()? - before)
}

fn payload() -> Vec<u8> {
    (0..BYTES).map(|n| (n % 251) as u8).collect()
}

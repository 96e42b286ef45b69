//! Many senders and a shallow last hop, by the kernel and in user space, without vsnoop: the
//! network itself has the configured rate, delay and buffer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::fan_in::{FanIn, FanInOptions, VM_ADDRESS};
use vsnoop_testbed::switch::{LastHop, PortKind};

use super::{PREFIX, trial};

const SENDERS: usize = 8;
/// Each sender sends this much. All together fit into the relay, which holds 1024 frames, so that a
/// deep queue drops nothing however long the relay waits for a CPU.
const BYTES: usize = 160_000;
/// MTU and Ethernet header.
const PACKET_BYTES: u64 = 1514;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let ports = [("kernel", PortKind::Veth), ("user_space", PortKind::Relay)];
    let mut trials: Vec<_> = ports
        .into_iter()
        .map(|(name, port)| {
            let name = format!("a_shallow_last_hop_drops_and_tcp_repairs_it_{name}");
            trial(format!("fan_in::{name}"), move || shallow(&mut build(port, SENDERS)?))
        })
        .collect();
    trials.push(trial("fan_in::a_last_hop_marks_what_can_be_marked", || {
        marks(&mut build(PortKind::Relay, 2)?)
    }));
    trials
}

fn build(port: PortKind, senders: usize) -> Result<FanIn> {
    let options = FanInOptions { senders, port, ..FanInOptions::default() };
    FanIn::build_with(PREFIX, options)
}

fn hop(buffer_bytes: u64, mark_bytes: Option<u64>) -> Option<LastHop> {
    Some(LastHop { rate_mbit: 200, buffer_bytes, mark_bytes })
}

fn shallow(fan_in: &mut FanIn) -> Result<()> {
    fan_in.switch.set_last_hop(hop(10_000_000, None))?;
    send(fan_in)?;
    let deep = fan_in.switch.counts()?;
    ensure!(deep.drops == 0, "a deep queue dropped {deep:?}");

    fan_in.switch.set_last_hop(hop(16_000, None))?;
    let retransmissions = send(fan_in)?;
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

/// Every mark arrives: the VM's kernel takes no packet with a wrong checksum.
fn marks(fan_in: &mut FanIn) -> Result<()> {
    fan_in.switch.set_last_hop(hop(1_400_000, Some(20_000)))?;
    send(fan_in)?;
    let counts = fan_in.switch.counts()?;
    ensure!(counts.marks == 0, "packets without ECN were marked: {counts:?}");

    for netns in fan_in.senders.iter().chain([fan_in.vm()?]) {
        netns.set_sysctl("net.ipv4.tcp_ecn", "1")?;
    }
    fan_in.switch.set_last_hop(hop(1_400_000, Some(20_000)))?;
    send(fan_in)?;
    let counts = fan_in.switch.counts()?;
    // The queues have room for all that is sent. Retransmissions are no sign of a loss, nor are
    // segments beyond a hole: on a busy machine an ACK comes later than a sender's tail loss probe
    // (RFC 8985, section 7), and a sender that changes its CPU overtakes itself.
    ensure!(counts.marks > 0, "nothing was marked: {counts:?}");
    let lost = fan_in.port_drops()? + counts.drops;
    let damaged = ["Tcp", "IpExt"].map(|group| fan_in.vm()?.counter(group, "InCsumErrors"));
    let damaged = damaged.into_iter().sum::<Result<u64>>()?;
    ensure!(lost == 0 && damaged == 0, "{lost} lost, {damaged} damaged, {counts:?}");
    let arrived = fan_in.vm()?.counter("IpExt", "InCEPkts")?;
    ensure!(arrived == counts.marks, "{arrived} marked packets arrived, {counts:?}");

    fan_in.switch.set_last_hop(hop(1_400_000, None))?;
    send(fan_in)?;
    let counts = fan_in.switch.counts()?;
    ensure!(counts.marks == 0, "a queue without a threshold marks: {counts:?}");
    Ok(())
}

/// Every sender sends as much to the VM at once; how many segments were sent again.
fn send(fan_in: &FanIn) -> Result<u64> {
    let counted = || -> Result<u64> {
        let counts = fan_in.senders.iter().map(|sender| sender.tcp_counters()?.read());
        Ok(counts.collect::<Result<Vec<_>>>()?.iter().map(|counts| counts.retransmissions).sum())
    };
    let before = counted()?;
    let at = SocketAddrV4::new(VM_ADDRESS, 0);
    let listener = fan_in.vm()?.run(|| TcpListener::bind(at).context("listen in the VM"))?;
    let at = listener.local_addr().context("ask where the VM listens")?;
    let mut streams = Vec::new();
    for sender in &fan_in.senders {
        let stream = sender
            .run(|| TcpStream::connect_timeout(&at, PATIENCE).context("connect to the VM"))?;
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
                // If it fails, bytes are missing at the receiver.
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

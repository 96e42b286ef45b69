//! Throughput of one TCP flow: the bytes that it carries in a given time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::socket::{SocketOptions, connect, info, listen};
use super::topology::{Family, Side, Topology};

/// Size of a write, as that of iperf3.
const CHUNK_BYTES: usize = 128 * 1024;

/// Result of one bulk flow at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    pub bytes: u64,
    /// Time from the first byte to the end of file.
    pub seconds: f64,
    pub retransmissions: u32,
}

impl Bulk {
    pub fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }
}

/// Keeps the calling thread, and what it starts from now on, on one core.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core).with_context(|| format!("core {core} cannot be named"))?;
    sched_setaffinity(Pid::from_raw(0), &cores)
        .with_context(|| format!("keeping a thread on core {core}"))
}

/// Sends from the client to the VM for `duration`, by cubic, over a connection of its own; the
/// receiver stays on `receiver_core`, as in a VM that has one.
pub fn bulk(
    topology: &Topology,
    family: Family,
    duration: Duration,
    receiver_core: Option<usize>,
) -> Result<Bulk> {
    bulk_to(topology, Side::Vm, family, duration, receiver_core)
}

/// Sends to either side as [`bulk`] does to the VM.
pub fn bulk_to(
    topology: &Topology,
    to: Side,
    family: Family,
    duration: Duration,
    receiver_core: Option<usize>,
) -> Result<Bulk> {
    let options = SocketOptions::default();
    let (listener, at) = listen(topology, to, family, options)?;
    let from = match to {
        Side::Vm => Side::Client,
        Side::Client => Side::Vm,
    };
    let sender = connect(topology, from, at, options)?;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || -> Result<(u64, f64)> {
            receiver_core.map_or(Ok(()), pin)?;
            let (receiver, _) = listener.accept().context("accepting the bulk connection")?;
            let mut buffer = vec![0; CHUNK_BYTES];
            let mut bytes = (&receiver).read(&mut buffer).context("receiving bulk data")? as u64;
            let started = Instant::now();
            loop {
                match (&receiver).read(&mut buffer).context("receiving bulk data")? {
                    0 => break,
                    received => bytes += received as u64,
                }
            }
            Ok((bytes, started.elapsed().as_secs_f64()))
        });
        let chunk = vec![0x55; CHUNK_BYTES];
        let until = Instant::now() + duration;
        while Instant::now() < until {
            (&sender).write_all(&chunk).context("sending bulk data")?;
        }
        sender.shutdown(Shutdown::Write).context("ending bulk data")?;
        let received = receiving.join().map_err(|_| anyhow!("the bulk receiver panicked"))?;
        let (bytes, seconds) = received?;
        ensure!(seconds > 0.0, "the bulk flow ended before it began");
        Ok(Bulk { bytes, seconds, retransmissions: info(&sender)?.retransmissions })
    })
}

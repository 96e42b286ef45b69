//! Small answers of a VM that counts as late: they pass, and take as long as without vsnoop.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, address};

use super::Rig;
use crate::figures::{figure, say};

const SIZES: [usize; 2] = [1000, 10_000];
/// Round trips of the path, in milliseconds.
const RTTS_MS: [u64; 2] = [0, 5];
/// Requests of a cell, in [`TURNS`] turns.
const REQUESTS: usize = 480;
const TURNS: usize = 6;

/// The largest p99 over that without vsnoop, each request on a connection of its own.
pub fn measure() -> Result<Vec<Figure>> {
    let (topology, vsnoop) = Rig::network()?;
    let server = serve(&topology)?;
    let cells: Vec<_> =
        RTTS_MS.into_iter().flat_map(|rtt_ms| SIZES.map(|size| (rtt_ms, size))).collect();
    let mut times = vec![[const { Vec::new() }; 2]; cells.len()];
    for turn in 0..2 * TURNS {
        let is_attached = turn % 2 == 1;
        let attached = if is_attached { Some(Rig::attach(&topology, &vsnoop)?) } else { None };
        for (&(rtt_ms, size), times) in cells.iter().zip(&mut times) {
            let delay = Duration::from_millis(rtt_ms) / 2;
            for side in [Side::Client, Side::Vm] {
                topology.set_network_faults(side, Faults { delay, ..Faults::default() });
            }
            for _ in 0..REQUESTS / TURNS {
                interrupt::check()?;
                times[usize::from(is_attached)].push(get(&topology, server, size)?);
            }
        }
        if attached.is_some() {
            vsnoop.detach(PORT)?;
        }
    }
    let mut most = 0.0_f64;
    for ((rtt_ms, size), times) in cells.into_iter().zip(times) {
        let [off, on] = times.map(p99);
        say(&format!("GET {size} bytes, {rtt_ms} ms: p99 of {REQUESTS} off {off:?}, on {on:?}"));
        most = most.max(on.as_secs_f64() / off.as_secs_f64());
    }
    Ok(vec![figure("small_get_p99_attached_over_detached", most, "ratio", "lower")])
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1]
}

/// A server of the VM: a request is the size of its answer.
fn serve(topology: &Topology) -> Result<SocketAddr> {
    let at = SocketAddr::new(address(Side::Vm, Family::V4), 0);
    let listener = topology.vm.run(|| Ok(TcpListener::bind(at)?))?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // The client notices what fails.
            let _ = client.and_then(answer);
        }
    });
    Ok(at)
}

fn answer(mut client: TcpStream) -> std::io::Result<()> {
    let mut size = [0; 8];
    client.read_exact(&mut size)?;
    client.write_all(&vec![7; u64::from_be_bytes(size) as usize])
}

fn get(topology: &Topology, server: SocketAddr, size: usize) -> Result<Duration> {
    let began = Instant::now();
    let mut client = topology.client.run(|| Ok(TcpStream::connect(server)?))?;
    client.write_all(&(size as u64).to_be_bytes())?;
    let mut received = Vec::new();
    client.read_to_end(&mut received).context("receive")?;
    ensure!(received.len() == size, "{} bytes of {size}", received.len());
    Ok(began.elapsed())
}

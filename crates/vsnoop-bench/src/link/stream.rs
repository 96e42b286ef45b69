//! One TCP connection (cubic) through a tap, a carrier, and another tap: what an end user sees.
//!
//! Taps hand over super-packets, whole and with partial checksums. Both ends, the carrier and the
//! connection have two cores together, and the scheduler says who is where.

use std::io::ErrorKind::WouldBlock;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_lab::testbed::net::{Netns, Tap, TapOptions};

use super::carrier::Carrier;
use super::load::{LOOK, PAYLOAD_BYTES};
use super::road::Road;
use super::round::{ROUND, START, WARM_UP, cpu_time, roam};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2)), 7001);
const PREFIX_LENGTH: u8 = 30;
const CHUNK_BYTES: usize = 128 * 1024;

/// How fast it went.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub gbps: f64,
    /// Of everything, for 1400 bytes delivered.
    pub cpu_ns: f64,
}

pub fn stream(road: &Road, carrier: &dyn Carrier) -> Result<Stream> {
    let near_tap = tap(&road.sender, CLIENT)?;
    let far_tap = tap(&road.receiver, SERVER.ip())?;
    let (near, far) = road.sockets(carrier.connected())?;
    let listener = road.receiver.run(|| {
        let listener = tcp()?;
        listener.bind(&SERVER.into())?;
        listener.listen(1)?;
        Ok(listener)
    })?;
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, received) = (&stop, &received);
    std::thread::scope(|scope| {
        let link = [(near, near_tap, true), (far, far_tap, false)].map(|(socket, tap, dials)| {
            scope.spawn(move || {
                roam()?;
                carrier.bridge(socket, tap, dials, stop)
            })
        });
        let receiver = scope.spawn(move || -> Result<()> {
            roam()?;
            let (mut connection, _) = listener.accept().context("accept")?;
            connection.set_read_timeout(Some(LOOK))?;
            let mut buffer = vec![0; CHUNK_BYTES];
            while !stop.load(SeqCst) {
                match connection.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(bytes) => drop(received.fetch_add(bytes as u64, SeqCst)),
                    Err(error) if error.kind() == WouldBlock => {}
                    Err(error) => return Err(error).context("receive through the link"),
                }
            }
            Ok(())
        });
        let sender = road.sender.run(|| {
            let connection = tcp()?;
            connection
                .connect_timeout(&SERVER.into(), START)
                .context("connect through the link")?;
            connection.set_write_timeout(Some(LOOK))?;
            // What is left at the end of the round is of no interest.
            connection.set_linger(Some(Duration::ZERO))?;
            Ok(connection)
        });
        let sender = sender.map(|mut connection| {
            scope.spawn(move || -> Result<()> {
                roam()?;
                let chunk = vec![0x55; CHUNK_BYTES];
                while !stop.load(SeqCst) {
                    match connection.write(&chunk) {
                        Err(error) if error.kind() != WouldBlock && !stop.load(SeqCst) => {
                            return Err(error).context("send through the link");
                        }
                        _ => {}
                    }
                }
                Ok(())
            })
        });
        let watched = sender.is_ok().then(|| watch(received));
        stop.store(true, SeqCst);
        // Without a connection nobody would be accepted.
        let sender = match sender {
            Ok(sender) => sender,
            Err(error) => {
                let poke = road.receiver.run(|| Ok(tcp()?.connect(&SERVER.into())?));
                poke.context("end the receiver")?;
                return Err(error);
            }
        };
        let mut ends = vec![sender.join(), receiver.join()];
        ends.extend(link.map(|end| end.join()));
        for end in ends {
            end.map_err(|_| anyhow!("an end of the link panicked"))??;
        }
        watched.context("there is no connection")?
    })
}

fn watch(received: &AtomicU64) -> Result<Stream> {
    let started = Instant::now();
    while received.load(SeqCst) == 0 {
        ensure!(started.elapsed() < START, "nothing comes through the link");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(WARM_UP);
    let (at, cpu, before) = (Instant::now(), cpu_time()?, received.load(SeqCst));
    std::thread::sleep(ROUND);
    let bytes = (received.load(SeqCst) - before) as f64;
    let (cpu, time) = (cpu_time()? - cpu, at.elapsed());
    let gbps = bytes * 8.0 / time.as_secs_f64() / 1e9;
    Ok(Stream { gbps, cpu_ns: cpu.as_nanos() as f64 / (bytes / PAYLOAD_BYTES as f64).max(1.0) })
}

fn tap(netns: &Netns, address: IpAddr) -> Result<Tap> {
    let tap = netns.tap("guest", &TapOptions::default())?;
    netns.add_address("guest", address, PREFIX_LENGTH)?;
    netns.up("guest")?;
    Ok(tap)
}

fn tcp() -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_congestion(b"cubic").context("choose cubic")?;
    Ok(socket)
}

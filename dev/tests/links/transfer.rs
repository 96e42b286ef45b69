//! One TCP connection between two VMs, both ways at once, every byte verified.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(120);
const CHUNK_BYTES: usize = 64 << 10;

/// The bytes sent: compressible text that differs everywhere.
fn pattern(seed: u64, at: u64) -> u8 {
    let line = (at / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    b"0123456789abcdef"[(line >> (4 * (at % 16)) & 15) as usize]
}

/// `bytes` each way from a VM to an address of another; `moved` counts what arrived.
pub fn run(from: &Netns, to: &Netns, at: IpAddr, bytes: u64, moved: &AtomicU64) -> Result<()> {
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(at, 0)).context("listening"))?;
    let address = listener.local_addr().context("asking where a socket listens")?;
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| -> Result<()> {
            let (socket, _) = listener.accept().context("accepting")?;
            both_ways(socket, 1, 2, bytes, moved)
        });
        let result = from
            .run(|| Ok(TcpStream::connect_timeout(&address, PATIENCE)?))
            .with_context(|| format!("connecting to {address}"))
            .and_then(|socket| both_ways(socket, 2, 1, bytes, moved));
        if result.is_err() {
            // Lets the other thread end, which may still wait for a connection.
            let _ = to.run(|| Ok(TcpStream::connect(address)?));
        }
        let answered = answers.join().map_err(|_| anyhow::anyhow!("an end panicked"))?;
        result.and(answered)
    })
}

/// Waits until `bytes` bytes have moved.
pub fn until_moved(moved: &AtomicU64, bytes: u64) -> Result<()> {
    wait_until(
        "the transfer has moved",
        PATIENCE / 2,
        || Ok(moved.load(Ordering::Relaxed) >= bytes),
    )
}

fn both_ways(
    socket: TcpStream,
    ours: u64,
    theirs: u64,
    bytes: u64,
    moved: &AtomicU64,
) -> Result<()> {
    socket.set_read_timeout(Some(PATIENCE)).context("bounding reads")?;
    socket.set_write_timeout(Some(PATIENCE)).context("bounding writes")?;
    let mut writer = socket.try_clone().context("cloning a socket")?;
    let mut reader = socket;
    std::thread::scope(|scope| {
        let writes = scope.spawn(move || -> Result<()> {
            let mut sent = 0;
            while sent < bytes {
                let length = (bytes - sent).min(CHUNK_BYTES as u64);
                let chunk: Vec<_> = (sent..sent + length).map(|at| pattern(ours, at)).collect();
                writer.write_all(&chunk).with_context(|| format!("writing at byte {sent}"))?;
                sent += length;
            }
            Ok(())
        });
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut received = 0;
        while received < bytes {
            let read = restarted(|| reader.read(&mut buffer));
            let read = read.with_context(|| format!("reading at {received}"))?;
            ensure!(read > 0, "end of file at byte {received} of {bytes}");
            for byte in &buffer[..read] {
                ensure!(*byte == pattern(theirs, received), "wrong byte at {received}");
                received += 1;
            }
            moved.fetch_add(read as u64, Ordering::Relaxed);
        }
        writes.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?
    })
}

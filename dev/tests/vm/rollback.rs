//! A machine that goes back to a snapshot while a peer has sent on: the peer sees an end.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::transfer::{self, Direction::Upload, Header, Sender};
use vsnoop_testbed::stage::vm_address;
use vsnoop_tests::late;

use crate::behind::{Attached, HOLDS_ALWAYS, NUMBER, TAPS, at_once};
use crate::{Bench, KB, LIMIT, MB, wait_until};

/// Retransmissions after which a sender gives up: some seconds.
const RETRIES: &str = "3";
const DEFAULT_RETRIES: &str = "15";
const RETRIES_KEY: &str = "net.ipv4.tcp_retries2";
/// A stream of this length does not end by itself.
const ENDLESS: u64 = 100_000 * MB;

pub fn rolled_back(bench: &Bench) -> Result<()> {
    let client = bench.stage.client();
    client.set_sysctl(RETRIES_KEY, RETRIES)?;
    let result = until_the_peer_knows(bench, LIMIT).context("without vsnoop").and_then(|off| {
        if !bench.attached {
            return Ok(());
        }
        let attached = Attached::to(bench, &TAPS[..1], &HOLDS_ALWAYS)?;
        let with = until_the_peer_knows(bench, late::limit(off));
        let with = with.with_context(|| attached.story())?;
        eprintln!("the peer of a machine that was rolled back knows after {off:?}, {with:?}");
        ensure!(attached.count("early_acks")? > 0, "nothing was acknowledged early");
        Ok(())
    });
    client.set_sysctl(RETRIES_KEY, DEFAULT_RETRIES)?;
    result
}

/// Sends before and after a snapshot, and from the return to it on; the time from there until the
/// sender sees an error.
fn until_the_peer_knows(bench: &Bench, limit: Duration) -> Result<Duration> {
    let vm = &bench.behind.vm;
    let server = (vm_address(NUMBER, false), transfer::PORT);
    let open = || TcpStream::connect(server).context("connect");
    let mut stream = bench.stage.client().run(open)?;
    stream.set_write_timeout(Some(limit)).context("SO_SNDTIMEO")?;
    let mut sender = Sender::new(Header { direction: Upload, size_bytes: ENDLESS, seed: 1 });
    let mut send = |bytes: u64| -> std::io::Result<()> {
        for _ in 0..bytes / transfer::CHUNK_BYTES as u64 {
            let (chunk, _) = sender.next_chunk().expect("the stream does not end");
            stream.write_all(chunk)?;
        }
        Ok(())
    };
    let received = || Ok::<_, anyhow::Error>(vm.stats()?.received_bytes);
    for step in ["before the snapshot", "after it"] {
        let before = received()?;
        send(MB).context(step)?;
        wait_until("the machine has read it", || Ok(received()? >= before + MB / 2))?;
        if step == "before the snapshot" {
            vm.snapshot()?;
        }
    }
    vm.roll_back()?;
    let since = Instant::now();
    // Until a write fails, or the limit is over.
    while since.elapsed() < limit {
        match send(MB) {
            Ok(()) => (),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
            Err(_) => {
                let time = since.elapsed();
                at_once(bench, false, &[100 * KB], limit).context("the next connection")?;
                return Ok(time);
            }
        }
    }
    bail!("the connection is still open {:?} after the return", since.elapsed())
}

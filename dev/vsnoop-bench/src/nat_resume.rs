//! How long 20 MB take over `tls` after a silence in which the NAT before one host has forgotten
//! all connections that were silent themselves.
//!
//! ```text
//! [VM]--[host 0]--bridge--[NAT]--[host 1]--[VM]
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::hosts::{Nat, Network, Plan, inner_v4, start_all};

use crate::figures::{figure, median, say};
use crate::stage::PREFIX;

const ROUNDS: usize = 3;
const BYTES: u64 = 20_000_000;
const CHUNK_BYTES: usize = 64 << 10;
/// The NAT forgets what is silent for longer.
const FORGOTTEN: Duration = Duration::from_secs(12);
const SILENCE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);

pub fn measure() -> Result<Vec<Figure>> {
    let mut network = Network::configured(Plan {
        prefix: PREFIX,
        dead_after: None,
        transport: "tls",
        ..Plan::default()
    })?;
    network.let_wait(0, 1)?;
    network.put_behind_nat(1, Nat::PortPreserving)?;
    network.router(1)?.run(|| {
        for (key, value) in [("timeout_established", FORGOTTEN.as_secs()), ("loose", 0)] {
            let file = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_{key}");
            fs::write(&file, value.to_string()).with_context(|| file.clone())?;
        }
        Ok(())
    })?;
    start_all(&mut network.hosts)?;
    transfer(&network)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(SILENCE);
        times.push(transfer(&network)?);
    }
    let resumed = median(times);
    say(&format!("20 MB behind a NAT after {SILENCE:?} of silence take {resumed:.2} s"));
    Ok(vec![figure("nat_resume_s", resumed, "s", "lower")])
}

/// Seconds from the call of a VM of host 1 until a VM of host 0 has all bytes.
fn transfer(network: &Network) -> Result<f64> {
    let [to, from] = [0, 1].map(|host: usize| &network.hosts[host].vms[0]);
    let listener =
        to.run(|| TcpListener::bind(SocketAddr::new(inner_v4(0, 0), 0)).context("listening"))?;
    let address = listener.local_addr().context("asking where a socket listens")?;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| -> Result<Instant> {
            let (mut socket, _) = listener.accept().context("accepting")?;
            socket.set_read_timeout(Some(PATIENCE)).context("bounding reads")?;
            let (mut left, mut chunk) = (BYTES, vec![0; CHUNK_BYTES]);
            while left > 0 {
                left -= match socket.read(&mut chunk).context("receiving")? {
                    0 => anyhow::bail!("the connection ended with {left} bytes missing"),
                    read => read as u64,
                };
            }
            Ok(Instant::now())
        });
        let since = Instant::now();
        let mut socket = from.run(|| Ok(TcpStream::connect_timeout(&address, PATIENCE)?))?;
        let chunk = vec![0x5a; CHUNK_BYTES];
        let mut left = BYTES as usize;
        while left > 0 {
            let part = left.min(CHUNK_BYTES);
            socket.write_all(&chunk[..part]).context("sending")?;
            left -= part;
        }
        let received = receiving.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        Ok((received - since).as_secs_f64())
    })
}

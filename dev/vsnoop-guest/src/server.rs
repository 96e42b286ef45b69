//! The transfer server: a thread for each connection, every byte verified.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result};

use crate::control::Stats;
use crate::transfer::{self, Direction, Header, Sender, Verdict};

/// Counters of the server.
#[derive(Debug, Default)]
pub struct Counts {
    open: AtomicU64,
    exact: AtomicU64,
    mismatched: AtomicU64,
    short: AtomicU64,
    failed: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counts {
    pub fn stats(&self) -> Stats {
        Stats {
            open: self.open.load(Relaxed),
            exact: self.exact.load(Relaxed),
            mismatched: self.mismatched.load(Relaxed),
            short: self.short.load(Relaxed),
            failed: self.failed.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            firewall_drops: 0,
        }
    }
}

/// Serves on a thread of its own, on every IPv4 address of this one's network namespace.
pub fn start(counts: Arc<Counts>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, transfer::PORT))
        .with_context(|| format!("listen on port {}", transfer::PORT))?;
    thread::Builder::new().name("accept".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let counts = Arc::clone(&counts);
            let serve = move || serve(stream, &counts);
            if let Err(error) = thread::Builder::new().name("transfer".into()).spawn(serve) {
                println!("vsnoop-guest: no thread for a connection: {error}");
            }
        }
    })?;
    Ok(())
}

fn serve(stream: TcpStream, counts: &Counts) {
    counts.open.fetch_add(1, Relaxed);
    let count = match exchange(stream, counts) {
        Ok(Verdict::Exact { .. }) => &counts.exact,
        Ok(Verdict::Mismatch { .. }) => &counts.mismatched,
        Ok(Verdict::Short { .. }) => &counts.short,
        Err(_) => &counts.failed,
    };
    count.fetch_add(1, Relaxed);
    counts.open.fetch_sub(1, Relaxed);
}

fn exchange(mut stream: TcpStream, counts: &Counts) -> std::io::Result<Verdict> {
    stream.set_nodelay(true)?;
    let header = Header::read(&mut stream)?;
    match header.direction {
        Direction::Upload => {
            let mut counted = 0;
            let verdict = transfer::receive(header, &mut stream, |received| {
                counts.received_bytes.fetch_add(received - counted, Relaxed);
                counted = received;
            })?;
            stream.write_all(&verdict.encode())?;
            Ok(verdict)
        }
        Direction::Download => {
            Sender::new(header).send(&mut stream)?;
            Verdict::read(&mut stream)
        }
    }
}

//! Very many short connections: a request with its number, and an answer that repeats it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::topology::{Family, Side, Topology, address};

use super::plan::Short;

const REQUEST_BYTES: usize = 1000;
const NUMBER_BYTES: usize = size_of::<u64>();
const PATIENCE: Duration = Duration::from_secs(120);
/// How often an idle listener looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Of clients: most of a connection's ports, so that few are used twice within a minute.
const PORTS: &str = "10000 65000";

/// How far the connections are.
#[derive(Debug, Default)]
pub struct Counts {
    next: AtomicU64,
    pub complete: AtomicU64,
    pub broken: AtomicU64,
    end: AtomicBool,
}

impl Counts {
    /// How many connections have ended.
    pub fn over(&self) -> u64 {
        self.complete.load(Ordering::Relaxed) + self.broken.load(Ordering::Relaxed)
    }
}

/// Makes `count` connections; `watch` is called now and then.
pub fn run(
    topology: &Topology,
    plan: Short,
    count: u64,
    mut watch: impl FnMut(&Counts) -> Result<()>,
) -> Result<Counts> {
    topology.client.set_sysctl("net.ipv4.ip_local_port_range", PORTS)?;
    let listeners = listen(topology, plan.listeners)?;
    let ports = listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
    let counts = Counts::default();
    let watched = thread::scope(|scope| {
        let all = &counts;
        for listener in &listeners {
            scope.spawn(move || serve(listener, all));
        }
        let ports = &ports;
        let clients = scope.spawn(move || topology.client.run(|| call(ports, plan, count, all)));
        let mut watched = Ok(());
        while !clients.is_finished() && watched.is_ok() {
            thread::sleep(LOOK);
            watched = interrupt::check().and_then(|()| watch(all));
        }
        // Clients make no further connection.
        all.next.store(count, Ordering::Relaxed);
        let called = clients.join();
        all.end.store(true, Ordering::Relaxed);
        watched.and(called.unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked"))))
    });
    watched.map(|()| counts)
}

fn listen(topology: &Topology, count: usize) -> Result<Vec<TcpListener>> {
    let at = SocketAddr::new(address(Side::Vm, Family::V4), 0);
    topology.vm.run(|| {
        let listener = |_| -> Result<TcpListener> {
            let listener = TcpListener::bind(at).with_context(|| format!("listen on {at}"))?;
            let socket = socket2::SockRef::from(&listener);
            // `accept` ends after this time, too.
            socket.set_read_timeout(Some(LOOK)).context("bound the wait for a connection")?;
            Ok(listener)
        };
        (0..count).map(listener).collect()
    })
}

/// Answers one connection after the other.
fn serve(listener: &TcpListener, counts: &Counts) {
    while !counts.end.load(Ordering::Relaxed) {
        match listener.accept() {
            // A failure is seen, and counted, at the client.
            Ok((stream, _)) => drop(answer(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!("no connection was accepted: {error}"),
        }
    }
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request)?;
    Ok(stream.write_all(&request)?)
}

/// All clients, in the namespace of the calling thread.
fn call(ports: &[SocketAddr], plan: Short, count: u64, counts: &Counts) -> Result<()> {
    thread::scope(|scope| {
        for client in 0..ports.len() * plan.clients_each {
            let to = ports[client % ports.len()];
            scope.spawn(move || {
                loop {
                    let number = counts.next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let counter = match ask(to, number) {
                        Ok(()) => &counts.complete,
                        Err(error) => {
                            eprintln!("connection {number} failed: {error:#}");
                            &counts.broken
                        }
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(())
}

fn ask(to: SocketAddr, number: u64) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = number.to_be_bytes().repeat(REQUEST_BYTES / NUMBER_BYTES);
    stream.write_all(&request).context("send the request")?;
    let mut response = Vec::with_capacity(REQUEST_BYTES);
    stream.read_to_end(&mut response).context("read the answer")?;
    ensure!(response == request, "a wrong answer, of {} bytes", response.len());
    Ok(())
}

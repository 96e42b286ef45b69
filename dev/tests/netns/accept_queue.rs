//! A listener whose application is busy: its accept queue is full, and clients that its host has
//! acknowledged have no connection inside the VM yet, or one that only a SYN cookie stands for.
//!
//! Every client sends a request and waits for the answer, first without vsnoop, then with it: as
//! many succeed, and none is kept waiting by vsnoop.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::soak::{is_soak, soaked};
use vsnoop_testbed::topology::{Family, Side, Topology, address};

use crate::attached::{self, Attached};
use crate::case::Case;
use crate::trial;

const REQUEST_BYTES: usize = 1000;
const ANSWER: &[u8] = b"done";
/// A client that has no answer by then never gets one.
const PATIENCE: Duration = Duration::from_secs(60);
/// In a crowd some never do, and each run lasts as long as they wait: until after their fifth SYN,
/// 15 s after the first.
const PATIENCE_IN_A_CROWD: Duration = Duration::from_secs(20);
/// Bound of the time by which vsnoop may delay the last client's answer.
const LATER: Duration = Duration::from_millis(1500);
/// The kernel's own retries move the last answer by seconds from run to run.  A delay that vsnoop
/// makes shows in every try, beside all that was seen without it.
const TRIES: usize = 5;
/// Clients, backlog, and seconds for which the application is busy.
const LISTENERS: &[(usize, i32, u64)] =
    &[(8, 1, 1), (8, 1, 3), (30, 8, 1), (30, 8, 3), (300, 128, 1)];
/// Besides, in `make soak`.
const LISTENERS_OF_SOAK: &[(usize, i32, u64)] = &[
    (8, 1, 6),
    (30, 1, 1),
    (30, 1, 3),
    (30, 1, 6),
    (30, 8, 6),
    (30, 128, 1),
    (30, 128, 3),
    (30, 128, 6),
    (300, 1, 1),
    (300, 1, 3),
    (300, 1, 6),
    (300, 8, 1),
    (300, 8, 3),
    (300, 8, 6),
    (300, 128, 3),
    (300, 128, 6),
];

/// A listener, and how many want something of it.
#[derive(Clone, Copy, Debug)]
struct Scene {
    clients: usize,
    backlog: i32,
    /// Before the application accepts anything.
    busy: Duration,
    /// Value of `net.ipv4.tcp_syncookies`.
    cookies: &'static str,
}

impl Scene {
    /// The kernel accepts only some of the clients: 31 to 150 of 300 within a minute, without
    /// vsnoop, depending on what else the machine does.
    fn is_crowded(&self) -> bool {
        self.clients > 32 * self.backlog as usize
    }

    fn patience(&self) -> Duration {
        if self.is_crowded() { PATIENCE_IN_A_CROWD } else { PATIENCE }
    }
}

pub fn trials() -> Vec<Trial> {
    let cookies = [("without_cookies", "0"), ("with_cookies", "1"), ("cookies_always", "2")];
    let listeners = LISTENERS.iter().chain(soaked(&[][..], LISTENERS_OF_SOAK));
    let mut trials = Vec::new();
    for &(clients, backlog, seconds) in listeners {
        for (name, cookies) in cookies {
            let busy = Duration::from_secs(seconds);
            let scene = Scene { clients, backlog, busy, cookies };
            trials.push(trial(
                format!(
                    "accept_queue::{clients}_clients_backlog_{backlog}_busy_{seconds}_s_{name}"
                ),
                move || as_without(scene),
            ));
        }
    }
    trials
}

/// vsnoop changes neither the number of clients that are answered nor that of resets, and as many
/// have their answer at most a little later.
fn as_without(scene: Scene) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case::default();
    let topology = case.build()?;
    topology.vm.set_sysctl("net.ipv4.tcp_syncookies", scene.cookies)?;
    let mut latest = Duration::ZERO;
    for left in (0..TRIES).rev() {
        let without = run(&topology, scene)?;
        latest = latest.max(without.last());
        let mut attached = Attached::new(&topology)?;
        let before = attached.counter("early_acks")?;
        let with = run(&topology, scene).with_context(|| attached.describe())?;
        let story = || format!("without {without:?}\nwith {with:?}\n{}", attached.describe());
        if is_soak() {
            println!("{scene:?}: without {without}, with {with}");
        }
        let early_acks = attached.counter("early_acks")?;
        ensure!(early_acks > before, "nothing was acknowledged early\n{}", story());
        let may_vary = scene.is_crowded() && left > 0;
        let is_fewer = with.answered() < without.answered();
        ensure!(!is_fewer || may_vary, "fewer were answered\n{}", story());
        // One that hangs without vsnoop is reset as soon as the VM has forgotten it.
        let hung = if scene.is_crowded() { without.hung } else { 0 };
        let is_reset = with.reset > without.reset + hung;
        ensure!(!is_reset || may_vary, "clients were reset\n{}", story());
        // Those that are answered with vsnoop only may come later.
        let in_time = with.answered_after(without.answered()) <= latest + LATER;
        ensure!(in_time || left > 0, "as many were answered late, {TRIES} times\n{}", story());
        attached.detach()?;
        if in_time && !is_fewer && !is_reset {
            break;
        }
    }
    Ok(())
}

/// Results of all clients.
#[derive(Debug, Default)]
struct Outcome {
    /// When each had its answer, the earliest first.
    answers: Vec<Duration>,
    reset: usize,
    hung: usize,
}

impl Outcome {
    fn answered(&self) -> usize {
        self.answers.len()
    }

    /// How long it took until this number of clients had their answers, or all that ever had.
    fn answered_after(&self, clients: usize) -> Duration {
        self.answers.iter().take(clients).next_back().copied().unwrap_or_default()
    }

    fn last(&self) -> Duration {
        self.answered_after(usize::MAX)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reset, hung, .. } = self;
        let last = self.last().as_secs_f64();
        write!(f, "{} answered (the last after {last:.1} s), ", self.answered())?;
        write!(f, "{reset} reset, {hung} without an answer")
    }
}

fn run(topology: &Topology, scene: Scene) -> Result<Outcome> {
    let listener = listen(&topology.vm, scene.backlog)?;
    let to = listener.local_addr().context("asking where a socket listens")?;
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|threads| {
        let server = threads.spawn(|| serve(&listener, scene.busy, &over));
        let outcome = topology.client.run(|| ask_all(to, scene));
        over.store(true, Ordering::Relaxed);
        server.join().map_err(|_| anyhow!("the server panicked"))??;
        outcome
    })
}

fn listen(vm: &Netns, backlog: i32) -> Result<TcpListener> {
    let at = SocketAddr::new(address(Side::Vm, Family::V4), 0);
    vm.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("making a socket")?;
        socket.bind(&at.into()).with_context(|| format!("binding to {at}"))?;
        socket.listen(backlog).context("listening")?;
        Ok(socket.into())
    })
}

/// An application that is busy at first, and then answers all clients at once.
fn serve(listener: &TcpListener, busy: Duration, over: &AtomicBool) -> Result<()> {
    std::thread::sleep(busy);
    listener.set_nonblocking(true).context("O_NONBLOCK")?;
    std::thread::scope(|threads| {
        while !over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((client, _)) => {
                    // The client reports the result.
                    threads.spawn(move || answer(client).ok());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The client has gone again.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error).context("accepting a connection"),
            }
        }
        Ok(())
    })
}

fn answer(mut client: TcpStream) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.read_exact(&mut [0; REQUEST_BYTES])?;
    client.write_all(ANSWER)
}

/// Runs all clients at the same time, in the namespace of the calling thread.
fn ask_all(to: SocketAddr, scene: Scene) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    std::thread::scope(|threads| {
        let asking: Vec<_> =
            (0..scene.clients).map(|_| threads.spawn(move || ask(to, scene.patience()))).collect();
        for client in asking {
            match client.join().map_err(|_| anyhow!("a client panicked"))? {
                Ok(after) => outcome.answers.push(after),
                Err(error) if is_reset(&error) => outcome.reset += 1,
                Err(_) => outcome.hung += 1,
            }
        }
        outcome.answers.sort();
        Ok(outcome)
    })
}

fn is_reset(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// Sends a request; how long it took until the answer came.
fn ask(to: SocketAddr, patience: Duration) -> std::io::Result<Duration> {
    let since = Instant::now();
    let mut server = TcpStream::connect_timeout(&to, patience)?;
    server.set_nodelay(true)?;
    server.write_all(&[1; REQUEST_BYTES])?;
    // A timeout of 0 would be none.
    let left = patience.saturating_sub(since.elapsed()).max(Duration::from_millis(1));
    server.set_read_timeout(Some(left))?;
    server.read_exact(&mut [0; ANSWER.len()])?;
    Ok(since.elapsed())
}

//! Clients in a closed loop: each begins its next operation when the one before has ended.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::wait::wait_until;

use super::operation::{OPERATIONS, Request, draw, path};

/// A request that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(30);
/// Until all of the site has started.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// It asks the database.
const FIRST_PAGE: &str = "/?op=home";
const PORT: u16 = 80;
/// How often the end and Ctrl-C are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The end of a complete page.
const END: &[u8] = b"</html>\n";
/// A client whose request failed does not spin.
const AFTER_ERROR: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct Clients {
    pub threads: usize,
    /// Operations that end in this time are not counted.
    pub warm_up: Duration,
    pub duration: Duration,
}

/// An operation that was done in time.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// In [`OPERATIONS`].
    pub operation: usize,
    /// Only operations that ask for a page have it.
    pub took: Option<Duration>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub done: Vec<Done>,
    pub errors: usize,
    /// One of the errors.
    pub error: Option<String>,
}

impl Clients {
    /// Runs them all in the namespace.
    pub fn run(&self, client: &Netns, server: Ipv4Addr) -> Result<Outcome> {
        let server = SocketAddr::from((server, PORT));
        let stop = AtomicBool::new(false);
        let begin = Instant::now() + self.warm_up;
        client.run(|| {
            std::thread::scope(|scope| {
                let clients: Vec<_> =
                    (0..self.threads).map(|_| scope.spawn(|| work(server, begin, &stop))).collect();
                let end = begin + self.duration;
                while Instant::now() < end && !interrupt::interrupted() {
                    std::thread::sleep(LOOK_EVERY);
                }
                stop.store(true, Relaxed);
                let mut all = Outcome::default();
                for client in clients {
                    let one = client.join().map_err(|_| anyhow!("a client panicked"))?;
                    all.done.extend(one.done);
                    all.errors += one.errors;
                    all.error = all.error.or(one.error);
                }
                interrupt::check()?;
                Ok(all)
            })
        })
    }
}

/// Waits until the site answers with a whole page.
pub fn until_served(client: &Netns, server: Ipv4Addr) -> Result<()> {
    let server = SocketAddr::from((server, PORT));
    let never = AtomicBool::new(false);
    wait_until("the site serves a page", READY_LIMIT, || {
        client.run(|| Ok(fetch(server, FIRST_PAGE, &never).is_ok()))
    })
}

/// One client, until it is to stop. Operations count from `begin` on.
fn work(server: SocketAddr, begin: Instant, stop: &AtomicBool) -> Outcome {
    let mut random = fastrand::Rng::new();
    let mut outcome = Outcome::default();
    let mut last = path("home", &mut random);
    while !stop.load(Relaxed) {
        let operation = draw(&mut random);
        let path = match OPERATIONS[operation].request {
            Request::Page(page) => Some(path(page, &mut random)),
            Request::Back => Some(last.clone()),
            Request::None => None,
        };
        let started = Instant::now();
        let fetched = path.as_ref().map(|path| fetch(server, path, stop));
        match fetched.transpose() {
            // It was under way at the end.
            _ if stop.load(Relaxed) => break,
            Ok(_) if Instant::now() < begin => (),
            Ok(fetched) => {
                outcome.done.push(Done { operation, took: fetched.map(|()| started.elapsed()) });
            }
            Err(error) => {
                if Instant::now() >= begin {
                    outcome.errors += 1;
                    outcome.error = Some(format!("{error:#}"));
                }
                std::thread::sleep(AFTER_ERROR);
            }
        }
        last = path.unwrap_or(last);
    }
    outcome
}

/// Fetches a page over a connection of its own; ends early once it is to stop.
fn fetch(server: SocketAddr, path: &str, stop: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut stream = TcpStream::connect_timeout(&server, LIMIT).context("connect")?;
    stream.set_read_timeout(Some(LOOK_EVERY)).context("set a time limit")?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: auction\r\n\r\n");
    stream.write_all(request.as_bytes()).context("send the request")?;
    let (mut response, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        if stop.load(Relaxed) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no answer within {} s", LIMIT.as_secs());
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => response.extend(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("receive the page"),
        }
    }
    let line = response.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    ensure!(line.contains(" 200 "), "the answer is {line:?}");
    ensure!(response.ends_with(END), "the page is not complete");
    Ok(())
}

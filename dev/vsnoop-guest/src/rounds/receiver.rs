//! The receiver: asks all senders at once and takes in what they answer, every byte verified.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::Socket;

use super::stream::Stream;

/// Time between two checks of the clock and of a request to end.
const LOOK_MS: u16 = 100;
const READ_BYTES: usize = 256 * 1024;
const ENDLESS: u64 = u64::MAX;

pub struct Receiver {
    epoll: Epoll,
    connections: Vec<Connection>,
    stream: Stream,
    buffer: Vec<u8>,
    check: fn() -> Result<()>,
}

struct Connection {
    socket: Socket,
    offset: u64,
    /// Asked for and not yet there.
    left: u64,
}

/// The calling thread goes before all others of the machine, until this is dropped: answers to the
/// first requests must not keep the last ones from being sent, for no machine is that slow.
struct Priority;

impl Priority {
    fn take() -> Result<Self> {
        set_scheduler(libc::SCHED_FIFO, 2).context("put the receiver under SCHED_FIFO")?;
        Ok(Self)
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Err(error) = set_scheduler(libc::SCHED_OTHER, 0) {
            tracing::warn!("the receiver stays under SCHED_FIFO: {error}");
        }
    }
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> nix::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the call reads one sched_param, which lives on; 0 is the calling thread.
    nix::Error::result(unsafe { libc::sched_setscheduler(0, policy, &parameter) }).map(drop)
}

impl Receiver {
    /// `check` is asked several times a second; its error ends what is being done.
    pub fn new(sockets: Vec<Socket>, stream: Stream, check: fn() -> Result<()>) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
        let mut connections = Vec::with_capacity(sockets.len());
        for (number, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true).context("make the receiver's socket nonblocking")?;
            epoll
                .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))
                .context("watch the receiver's socket")?;
            connections.push(Connection { socket, offset: 0, left: 0 });
        }
        Ok(Self { epoll, connections, stream, buffer: vec![0; READ_BYTES], check })
    }

    /// Asks the first `senders` for `bytes` each; how long it took until all were there. `None`:
    /// they were not within `limit`.
    pub fn round(
        &mut self,
        senders: usize,
        bytes: u64,
        limit: Duration,
    ) -> Result<Option<Duration>> {
        let begin = Instant::now();
        {
            let _first = Priority::take()?;
            for number in 0..senders {
                self.ask(number, bytes)?;
            }
        }
        let mut missing = senders;
        while missing > 0 {
            if begin.elapsed() > limit {
                return Ok(None);
            }
            for number in self.ready()? {
                let before = self.connections[number].left;
                self.take_in(number)?;
                if number < senders && before > 0 && self.connections[number].left == 0 {
                    missing -= 1;
                }
            }
        }
        Ok(Some(begin.elapsed()))
    }

    /// A connection sends from now on for ever, beside all others.
    pub fn ask_endlessly(&mut self, number: usize) -> Result<()> {
        self.ask(number, ENDLESS)
    }

    /// Reads all connections for this time. Returns the bytes read of each.
    pub fn take_in_for(&mut self, duration: Duration) -> Result<Vec<u64>> {
        let before: Vec<_> = self.connections.iter().map(|connection| connection.offset).collect();
        let begin = Instant::now();
        while begin.elapsed() < duration {
            for number in self.ready()? {
                self.take_in(number)?;
            }
        }
        let now = self.connections.iter().map(|connection| connection.offset);
        Ok(now.zip(before).map(|(now, before)| now - before).collect())
    }

    /// The bytes that each incomplete connection still lacks.
    pub fn missing(&self) -> Vec<(usize, u64)> {
        let connections = self.connections.iter().enumerate();
        connections
            .map(|(number, connection)| (number, connection.left))
            .filter(|(_, left)| *left > 0 && *left < ENDLESS / 2)
            .collect()
    }

    fn ask(&mut self, number: usize, bytes: u64) -> Result<()> {
        let connection = &mut self.connections[number];
        let request = bytes.to_be_bytes();
        let written =
            (&connection.socket).write(&request).with_context(|| format!("ask sender {number}"))?;
        ensure!(written == request.len(), "sender {number} was asked by half a request");
        connection.left += bytes;
        Ok(())
    }

    fn ready(&self) -> Result<Vec<usize>> {
        (self.check)()?;
        let mut events = [EpollEvent::empty(); 64];
        match self.epoll.wait(&mut events, LOOK_MS) {
            Ok(count) => Ok(events[..count].iter().map(|event| event.data() as usize).collect()),
            Err(nix::Error::EINTR) => Ok(Vec::new()),
            Err(error) => Err(error).context("wait for data"),
        }
    }

    /// Reads once; an end, a wrong byte, or one too many is an error.
    fn take_in(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let length = match (&connection.socket).read(&mut self.buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("read from sender {number}")),
        };
        ensure!(length > 0, "sender {number} has closed its connection");
        ensure!(length as u64 <= connection.left, "sender {number} sends more than was asked for");
        ensure!(
            self.stream.is_at(number, connection.offset, &self.buffer[..length]),
            "a wrong byte from sender {number}, in the {length} bytes after {}",
            connection.offset
        );
        connection.offset += length as u64;
        connection.left -= length as u64;
        Ok(())
    }
}

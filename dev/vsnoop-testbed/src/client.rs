//! The sending end of a transfer, with the times that the experiments are about.
//!
//! - `connect_ms`: the handshake;
//! - `acked_ms`: from the first write until the kernel had the acknowledgement of the last byte
//!   (SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_ACK), which is when the sender may forget the data;
//! - `delivered_ms`: from the first write until the receiver's answer, which it gives when its
//!   application has read and verified every byte.
//!
//! Every wait has a limit: a connection without progress is reported as hung, and an interrupted
//! lab gives up at once.

mod socket;
mod timestamp;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use vsnoop_guest::transfer::{self, Direction, Header, Sender, Verdict};

use crate::interrupt;
use crate::net::Netns;

/// Poll interval of a waiting transfer.
const TICK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Request {
    pub server: SocketAddr,
    pub direction: Direction,
    /// The whole stream, its header included.
    pub size_bytes: u64,
    pub seed: u64,
    pub congestion_control: &'static str,
    /// The time without progress after which the transfer counts as hung.
    pub timeout: Duration,
}

/// Measurements of a finished upload.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub connect_ms: f64,
    pub acked_ms: f64,
    pub delivered_ms: f64,
    pub retransmissions: u32,
    /// Retransmissions that the receiver reported as needless (D-SACK).
    pub dsack_duplicates: u32,
}

/// How a transfer ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Every byte arrived and was right.
    Exact(Times),
    /// The receiver saw a wrong byte or an early end of the stream.
    Wrong(Verdict),
    /// The connection was reset or ended with another error, which the sender sees.
    Broken(String),
    /// It did not complete within the time limit.
    Hung,
}

/// Runs one transfer from inside the client's namespace; an error is one of the lab, not of the
/// network.
pub fn transfer(netns: &Netns, request: &Request) -> Result<Outcome> {
    netns.run(|| run(request))
}

fn run(request: &Request) -> Result<Outcome> {
    let deadline = Instant::now() + request.timeout;
    let result = match request.direction {
        Direction::Upload => upload(request, deadline),
        Direction::Download => download(request, deadline),
    };
    interrupt::check()?;
    result.or_else(|error| {
        let Some(io) = error.downcast_ref::<io::Error>() else { return Err(error) };
        match io.kind() {
            // Our own error: one of the kernel has an errno.
            ErrorKind::TimedOut if io.raw_os_error().is_none() => Ok(Outcome::Hung),
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::HostUnreachable
            | ErrorKind::TimedOut => Ok(Outcome::Broken(format!("{error:#}"))),
            _ => Err(error),
        }
    })
}

fn upload(request: &Request, deadline: Instant) -> Result<Outcome> {
    let (mut stream, connect_ms) = open(request, deadline)?;
    let mut sender = Sender::new(header(request));
    socket::keep_transmit_timestamps(&stream.inner)?;

    // The first bytes are ready before the clock starts: making them is not the network's time.
    let mut next = sender.next_chunk();
    let mut begin = None;
    while let Some((chunk, last)) = next {
        if last {
            socket::stamp_acknowledgements(&stream.inner)?;
        }
        begin.get_or_insert_with(|| (Instant::now(), SystemTime::now()));
        stream.write_all(chunk).context("send")?;
        next = sender.next_chunk();
    }
    let (begin, begin_wall) = begin.context("a stream without a byte")?;
    let verdict = Verdict::read(&mut stream).context("wait for the receiver's answer")?;
    let delivered_ms = milliseconds(begin.elapsed());
    if !matches!(verdict, Verdict::Exact { received_bytes } if received_bytes == request.size_bytes)
    {
        return Ok(Outcome::Wrong(verdict));
    }
    let acked = timestamp::of_acknowledgement(stream.inner.as_fd())?
        .context("the kernel gave no timestamp of the last byte's acknowledgement")?;
    let acked_ms = match acked.duration_since(begin_wall) {
        Ok(time) => milliseconds(time),
        Err(_) => anyhow::bail!("the clock was set back during a transfer: run again"),
    };
    let info = socket::info(&stream.inner)?;
    Ok(Outcome::Exact(Times {
        connect_ms,
        acked_ms,
        delivered_ms,
        retransmissions: info.tcpi_total_retrans,
        dsack_duplicates: info.tcpi_dsack_dups,
    }))
}

fn download(request: &Request, deadline: Instant) -> Result<Outcome> {
    let (mut stream, connect_ms) = open(request, deadline)?;
    let begin = Instant::now();
    stream.write_all(&header(request).encode()).context("send the request")?;
    let answer = Header::read(&mut stream).context("wait for the stream")?;
    let verdict = transfer::receive(answer, &mut stream, |_| ()).context("receive")?;
    let delivered_ms = milliseconds(begin.elapsed());
    stream.write_all(&verdict.encode()).context("send the verdict")?;
    match verdict {
        Verdict::Exact { received_bytes } if received_bytes == request.size_bytes => {
            Ok(Outcome::Exact(Times { connect_ms, delivered_ms, ..Times::default() }))
        }
        wrong => Ok(Outcome::Wrong(wrong)),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

fn header(request: &Request) -> Header {
    let Request { direction, size_bytes, seed, .. } = *request;
    Header { direction, size_bytes, seed }
}

fn open(request: &Request, deadline: Instant) -> Result<(Patient, f64)> {
    let begin = Instant::now();
    let left = deadline.saturating_duration_since(begin);
    let inner = socket::connect(request.server, request.congestion_control, left)
        .with_context(|| format!("connect to {}", request.server))?;
    let connect_ms = milliseconds(begin.elapsed());
    inner.set_nodelay(true).context("TCP_NODELAY")?;
    inner.set_read_timeout(Some(TICK)).context("SO_RCVTIMEO")?;
    inner.set_write_timeout(Some(TICK)).context("SO_SNDTIMEO")?;
    Ok((Patient { inner, deadline }, connect_ms))
}

/// A stream whose reads and writes wait until its deadline, and check for an interruption.
struct Patient {
    inner: TcpStream,
    deadline: Instant,
}

impl Patient {
    fn wait<T>(
        &mut self,
        mut attempt: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        // Also between bytes that trickle in.
        while !interrupt::interrupted() && Instant::now() < self.deadline {
            match attempt(&mut self.inner) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                other => return other,
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
}

impl Write for Patient {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

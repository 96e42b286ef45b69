//! One TCP connection over a link, cubic at both ends, and how fast it carries.
//!
//! The clock starts with the first write and stops when the receiver has read the last byte.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use socket2::Socket;
use vsnoop_guest::rounds::socket::{
    accept, connect, listen, tcp_socket_with, verify_congestion_control,
};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::socket::info;

use crate::peers::link::RunningCarrier;

/// The size of iperf3's writes.
const CHUNK_BYTES: usize = 128 * 1024;
/// The longest time without progress at an end.
const PATIENCE: Duration = Duration::from_secs(20);
const CONGESTION_CONTROL: &str = "cubic";

/// The content of a stream: `data`, repeated.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    pub data: &'a [u8],
    pub until: Until,
    /// Whether the receiver compares every byte. On a path without a rate that costs throughput.
    pub verify: bool,
}

impl Load<'_> {
    /// How much is sent; 0 if a time decides.
    pub fn bytes(&self) -> u64 {
        match self.until {
            Until::Bytes(bytes) => bytes,
            Until::Time(_) => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Until {
    Time(Duration),
    Bytes(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    pub bytes: u64,
    pub seconds: f64,
    pub retransmissions: u32,
}

impl Streamed {
    pub fn megabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e6
    }
}

pub fn stream(link: &RunningCarrier, load: Load) -> Result<Streamed> {
    let (listener, _) = link.ends.server.run(|| {
        listen(tcp_socket_with(CONGESTION_CONTROL)?, Ipv4Addr::UNSPECIFIED, link.listen_port())
    })?;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&listener, load));
        let sent = send(link, load);
        if sent.is_err() {
            // The client failed, so no connection will come: this ends the receiver's accept().
            let _ = listener.shutdown(Shutdown::Both);
        }
        let received = receiving.join().map_err(|_| anyhow!("the receiver panicked"))?;
        let (begin, sent_bytes, retransmissions) = sent?;
        let (end, bytes) = received?;
        ensure!(bytes == sent_bytes, "{sent_bytes} bytes were sent, {bytes} have come");
        let seconds = end.duration_since(begin).as_secs_f64();
        ensure!(bytes > 0 && seconds > 0.0, "nothing was sent");
        Ok(Streamed { bytes, seconds, retransmissions })
    })
}

/// Makes sure that a stream comes over the carrier.
pub fn try_out(link: &RunningCarrier) -> Result<()> {
    let data = b"vsnoop";
    stream(link, Load { data, until: Until::Bytes(data.len() as u64), verify: true }).map(drop)
}

/// The start time, the bytes sent, and the retransmissions.
fn send(link: &RunningCarrier, load: Load) -> Result<(Instant, u64, u32)> {
    let connected = || connect(tcp_socket_with(CONGESTION_CONTROL)?, link.connect_address());
    let socket = link.ends.client.run(connected)?;
    verify_congestion_control(&socket, CONGESTION_CONTROL)?;
    socket.set_read_timeout(Some(PATIENCE)).context("bound a socket's reads")?;
    socket.set_write_timeout(Some(PATIENCE)).context("bound a socket's writes")?;
    let chunk = chunk(load.data);
    let (begin, mut sent, mut place) = (Instant::now(), 0, 0);
    loop {
        let left = match load.until {
            Until::Time(duration) if begin.elapsed() >= duration => 0,
            Until::Time(_) => u64::MAX,
            Until::Bytes(bytes) => bytes - sent,
        };
        if left == 0 {
            break;
        }
        interrupt::check()?;
        let end = chunk.len().min(place + CHUNK_BYTES);
        let part = &chunk[place..end];
        let part = &part[..part.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        (&socket).write_all(part).context("send")?;
        sent += part.len() as u64;
        place = if end == chunk.len() { 0 } else { end };
    }
    socket.shutdown(Shutdown::Write).context("end what is sent")?;
    // The other end closes when it has everything; only then all retransmissions are counted.
    let mut nothing = [0];
    let _ = (&socket).read(&mut nothing);
    Ok((begin, sent, info(&socket)?.retransmissions))
}

fn receive(listener: &Socket, load: Load) -> Result<(Instant, u64)> {
    let expected = if load.verify { chunk(load.data) } else { Cow::Borrowed(load.data) };
    let socket = accept(listener)?;
    socket.set_read_timeout(Some(PATIENCE)).context("bound a socket's reads")?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut bytes, mut place) = (0, 0);
    loop {
        let received = (&socket).read(&mut buffer).context("receive")?;
        if received == 0 {
            return Ok((Instant::now(), bytes));
        }
        if load.verify {
            let mut rest = &buffer[..received];
            while !rest.is_empty() {
                let length = rest.len().min(expected.len() - place);
                if rest[..length] != expected[place..place + length] {
                    bail!("a wrong byte came within {length} bytes of byte {bytes}");
                }
                place = (place + length) % expected.len();
                rest = &rest[length..];
            }
        }
        bytes += received as u64;
    }
}

/// The data, repeated up to the size of a write.
fn chunk(data: &[u8]) -> Cow<'_, [u8]> {
    match CHUNK_BYTES.div_ceil(data.len().max(1)) {
        1 => Cow::Borrowed(data),
        times => Cow::Owned(data.repeat(times)),
    }
}

//! The handshake over a TCP connection. Blocks, so it is for a short-lived thread; it ends by a
//! deadline.

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

pub use vsnoop_link::handshake::DEADLINE;
use vsnoop_link::handshake::{
    Answer, CHALLENGE_BYTES, CallRefused, Challenge, Error, Hello, Machine, Outcome, Refusal,
    RefusalKind, Step,
};
use vsnoop_link::identity::{Acceptor, Initiator, PeerId};

/// How long a peer that was refused has for reading why.
const LINGER: Duration = Duration::from_millis(500);
/// Length of the header of a TLS record.
const RECORD_HEADER_BYTES: usize = 5;
/// Length of a ClientHello, most of which are its shares of keys.
const MOST_FIRST_BYTES: usize = 8 << 10;
const CHALLENGE_ANSWER: &str = "answer to our challenge";

/// A connection whose ends know each other.
#[derive(Debug)]
pub struct Established {
    /// The outcome of the handshake. Its TLS is for a connection that goes on with TLS, and may
    /// hold bytes that were received already.
    pub outcome: Outcome,
    /// Blocking, without time limits. Nothing has been read from it that belongs to what follows.
    pub stream: TcpStream,
}

/// Calls a peer over a connection that has been made to it, and says `hello`. Ends by `deadline`.
pub fn dial(
    stream: TcpStream,
    initiator: &Initiator,
    hello: Hello,
    deadline: Instant,
) -> Result<Established, Error> {
    let machine = Machine::dial(initiator, hello)?;
    // The machine of an initiator never asks.
    let nobody = |_: &PeerId, _: &Hello| Answer::Refuse(Refusal::new(RefusalKind::Other, ""));
    run_machine(stream, machine, Vec::new(), &nobody, deadline)
}

/// The accepting end: `policy` answers the peer once it is identified. Ends by `deadline`.
pub fn accept(
    stream: TcpStream,
    acceptor: &Acceptor,
    policy: &dyn Fn(&PeerId, &Hello) -> Answer,
    deadline: Instant,
) -> Result<Established, Error> {
    run_machine(stream, Machine::accept(acceptor)?, Vec::new(), policy, deadline)
}

/// Has the caller answer a challenge before [`accept`]: see [`Challenge`]. `may_go_on` is asked
/// when it has done so.
pub fn accept_challenged(
    mut stream: TcpStream,
    acceptor: &Acceptor,
    network: &str,
    may_go_on: impl FnOnce() -> Result<(), CallRefused>,
    policy: &dyn Fn(&PeerId, &Hello) -> Answer,
    deadline: Instant,
) -> Result<Established, Error> {
    let first = challenge_caller(&mut stream, network, deadline).and_then(|first| {
        may_go_on().map_err(|refused| io::Error::other(refused.to_string()))?;
        Ok(first)
    });
    let first = first.map_err(|error| connection_failed(error, None, false, CHALLENGE_ANSWER))?;
    run_machine(stream, Machine::accept(acceptor)?, first, policy, deadline)
}

/// The first record of a caller that has answered a challenge.
fn challenge_caller(
    stream: &mut TcpStream,
    network: &str,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let challenge = Challenge::new().ok_or_else(|| io::Error::other("no random numbers"))?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    write(stream, &challenge.message(), deadline)?;
    let mut first = vec![0; RECORD_HEADER_BYTES];
    read_exact(stream, &mut first, deadline)?;
    let body_bytes = usize::from(u16::from_be_bytes([first[3], first[4]]));
    if body_bytes > MOST_FIRST_BYTES {
        return Err(io::Error::other("its first record is too long"));
    }
    first.resize(RECORD_HEADER_BYTES + body_bytes, 0);
    read_exact(stream, &mut first[RECORD_HEADER_BYTES..], deadline)?;
    let mut answer = [0; CHALLENGE_BYTES];
    read_exact(stream, &mut answer, deadline)?;
    if !challenge.is_answered_by(network, &answer) {
        return Err(io::Error::other("it does not answer our challenge"));
    }
    Ok(first)
}

fn read_exact(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        have += read(stream, &mut buffer[have..], deadline)?;
    }
    Ok(())
}

/// Maps an I/O error of the connection to an error of the handshake.
fn connection_failed(
    error: io::Error,
    with: Option<PeerId>,
    proved: bool,
    waited_for: &'static str,
) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Error::TimedOut { with, proved, waited_for }
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => Error::Cut { with, proved, waited_for },
        _ => Error::Io { with, proved, error },
    }
}

/// `begun`: bytes received from the other end already.
fn run_machine(
    mut stream: TcpStream,
    mut machine: Machine,
    mut begun: Vec<u8>,
    policy: &dyn Fn(&PeerId, &Hello) -> Answer,
    deadline: Instant,
) -> Result<Established, Error> {
    let failed = |error: io::Error, machine: &Machine| {
        connection_failed(error, machine.peer().cloned(), machine.is_proved(), machine.waits_for())
    };
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
    prepared.map_err(|e| failed(e, &machine))?;
    let mut buffer = vec![0; 4096];
    loop {
        let output = machine.send();
        write(&mut stream, &output, deadline).map_err(|e| failed(e, &machine))?;
        let result = match machine.step() {
            Step::Done => break,
            Step::Answer(peer, hello) => {
                let answer = policy(peer, hello);
                machine.answer_hello(answer)
            }
            Step::Read(most) if !begun.is_empty() => {
                let bytes: Vec<u8> = begun.drain(..most.min(begun.len())).collect();
                machine.receive(&bytes)
            }
            Step::Read(most) => {
                let most = most.min(buffer.len());
                let n = read(&mut stream, &mut buffer[..most], deadline);
                let n = n.map_err(|e| failed(e, &machine))?;
                machine.receive(&buffer[..n])
            }
        };
        if let Err(e) = result {
            let _ = write(&mut stream, &machine.send(), deadline);
            if e.told() {
                linger_after_refusal(&mut stream, deadline.min(Instant::now() + LINGER));
            }
            return Err(e);
        }
    }
    let blocking = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
    blocking.map_err(|e| failed(e, &machine))?;
    finish_machine(machine, stream)
}

/// The agreed parameters, once the machine is done.
fn finish_machine(machine: Machine, stream: TcpStream) -> Result<Established, Error> {
    let (waited_for, proved) = (machine.waits_for(), machine.is_proved());
    let Some(outcome) = machine.finish() else {
        return Err(Error::Cut { with: None, proved, waited_for });
    };
    Ok(Established { outcome: outcome?, stream })
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Some bytes, at least one.
fn read(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => (),
            result => return result,
        }
    }
}

fn write(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(time_left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => (),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Closing while there is something to read sends a reset, which makes the other end lose what it
/// has not read yet: the reason. So what it still sends is thrown away until it closes.
fn linger_after_refusal(stream: &mut TcpStream, deadline: Instant) {
    let _ = stream.shutdown(Shutdown::Write);
    let mut buffer = [0; 1024];
    for _ in 0..64 {
        if read(stream, &mut buffer, deadline).is_err() {
            return;
        }
    }
}

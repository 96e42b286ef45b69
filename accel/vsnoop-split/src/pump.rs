//! Moves the bytes of one direction.

use std::io;

use crate::connection::Side;
use crate::end::Facing;

/// Most bytes of a splice.
pub const CHUNK: usize = 256 << 10;
/// Splices into the pipe in a call.
const ROUNDS: usize = 8;

/// The bytes that a direction has moved, and the reason why it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that the sink has taken.
    pub bytes: u64,
    pub waits: Waits,
}

/// The event for which a direction waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Nothing: the bound of a call is reached.
    No,
    /// The source has nothing more (EPOLLIN).
    ForSource,
    /// The sink has no room (EPOLLOUT).
    ForSink,
    /// The source has ended, and the sink was given all and a FIN.
    Over,
}

/// An end is gone.
#[derive(Debug, thiserror::Error)]
#[error("the {side:?} of a split connection is gone: {why}")]
pub struct Broken {
    pub side: Side,
    pub why: Why,
}

/// Why an end is gone.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    #[error("it has reset the connection")]
    Reset,
    #[error("it answers no more")]
    TimedOut,
    /// The kernel has another reason, its own memory, for example.
    #[error(transparent)]
    Other(io::Error),
}

impl Broken {
    pub(crate) fn new(side: Side, error: io::Error) -> Self {
        let why = match error.kind() {
            // A RST behind a FIN breaks the pipe.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Why::Reset,
            // The kernel's last timeout names the latest ICMP message, if there was one.
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Why::TimedOut,
            _ => Why::Other(error),
        };
        Self { side, why }
    }
}

/// One direction: from the source's socket through a pipe to the sink's.
pub struct Pump<'a, S: Facing> {
    pub source: &'a S,
    pub sink: &'a S,
    pub pipe: &'a S::Pipe,
    /// The end that the source faces.
    pub from: Side,
    /// The sink was given a FIN.
    pub finished: &'a mut bool,
    /// Most bytes in the pipe.
    pub chunk: usize,
}

impl<S: Facing> Pump<'_, S> {
    /// Moves what can be moved now.
    pub fn run(&mut self) -> Result<Moved, Broken> {
        self.check()?;
        let mut bytes = 0;
        for _ in 0..ROUNDS {
            if *self.finished {
                return Ok(Moved { bytes, waits: Waits::Over });
            }
            bytes += self.drain()?;
            if self.pipe_held()? > 0 {
                return Ok(Moved { bytes, waits: Waits::ForSink });
            }
            match self.fill()? {
                Some(0) => self.finish()?,
                Some(_) => {}
                None => return Ok(Moved { bytes, waits: Waits::ForSource }),
            }
        }
        bytes += self.drain()?;
        Ok(Moved { bytes, waits: Waits::No })
    }

    /// Neither end is gone.
    fn check(&self) -> Result<(), Broken> {
        for (socket, side) in [(self.source, self.from), (self.sink, !self.from)] {
            let reason = socket.reason_of_end().map_err(|error| Broken::new(side, error))?;
            if let Some(error) = reason {
                return Err(Broken::new(side, error));
            }
        }
        Ok(())
    }

    /// From the pipe to the sink. Returns how many bytes.
    fn drain(&self) -> Result<u64, Broken> {
        let mut bytes = 0;
        while self.pipe_held()? > 0 {
            match self.sink.drain(self.pipe, CHUNK) {
                Ok(count) => bytes += count as u64,
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(Broken::new(!self.from, error)),
            }
        }
        Ok(bytes)
    }

    /// From the source into the empty pipe. Returns how many bytes, 0 at the source's end, `None`
    /// if it has none now.
    fn fill(&self) -> Result<Option<usize>, Broken> {
        match self.source.fill(self.pipe, self.chunk) {
            Ok(count) => Ok(Some(count)),
            Err(error) if would_block(&error) => self.pass_urgent(),
            Err(error) => Err(Broken::new(self.from, error)),
        }
    }

    /// splice() stops before an urgent byte.
    fn pass_urgent(&self) -> Result<Option<usize>, Broken> {
        match self.source.pass_urgent(self.sink) {
            Ok(passed) => Ok(passed.then_some(1)),
            Err(error) if would_block(&error) => Ok(None),
            Err(error) => Err(Broken::new(!self.from, error)),
        }
    }

    fn finish(&mut self) -> Result<(), Broken> {
        *self.finished = true;
        self.sink.finish().map_err(|error| Broken::new(!self.from, error))
    }

    fn pipe_held(&self) -> Result<usize, Broken> {
        S::held(self.pipe).map_err(|error| Broken::new(self.from, error))
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

//! Lines on their way to a [`Destination`] that may take none for now: its reader is stuck, or
//! slow.
//!
//! A line that is not taken at once is dropped and counted. The first one starts a thread, which
//! waits until the destination takes lines again, says how many it has missed, and ends. A line
//! that is logged before says so, too. [`lost_lines`] has the number since the process began, for
//! those who look at its state.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use vsnoop_privileges::Privileges;
use vsnoop_privileges::refusals::{ALL_NAMESPACES, BPF, DESCRIPTORS, NEVER, PROGRAMS};

/// Pause before another try, where the destination has room, but not enough.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Lines that this process has lost.
static LOST: AtomicU64 = AtomicU64::new(0);

pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Takes lines, and never waits.
pub trait Destination: Send + 'static {
    /// Takes a line, or the beginning of it; fails with [`ErrorKind::WouldBlock`] while it takes
    /// none.
    fn write(&mut self, level: Level, line: &[u8]) -> io::Result<usize>;

    /// Writable once it may take lines again.
    fn writable(&self) -> io::Result<OwnedFd>;
}

/// Lines to a destination, from all threads.
pub struct Lines<D>(Arc<Mutex<State<D>>>);

impl<D> Clone for Lines<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct State<D> {
    destination: D,
    /// Makes a line of a text.
    as_line: fn(&str) -> String,
    /// Rest of a line whose beginning was taken, and its level.
    rest: (Level, Vec<u8>),
    dropped: u64,
    /// A thread waits until lines are taken again.
    is_waiting: bool,
}

impl<D: Destination> Lines<D> {
    pub fn new(destination: D, as_line: fn(&str) -> String) -> Self {
        let rest = (Level::INFO, Vec::new());
        let state = State { destination, as_line, rest, dropped: 0, is_waiting: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock_state(&self) -> MutexGuard<'_, State<D>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, level: Level, line: &[u8]) {
        let mut state = self.lock_state();
        let written = state.write_missed().and_then(|()| state.write_line(level, line));
        let is_stuck = match written {
            Ok(()) => !state.rest.1.is_empty(),
            Err(error) => {
                state.dropped += 1;
                LOST.fetch_add(1, Ordering::Relaxed);
                // A destination that has gone is tried again with the next line alone.
                error.kind() == ErrorKind::WouldBlock
            }
        };
        if is_stuck && !state.is_waiting {
            state.is_waiting = self.start_waiting(&state).is_ok();
        }
    }

    /// Without a thread the next line says what is missing.
    fn start_waiting(&self, state: &State<D>) -> io::Result<()> {
        let (lines, writable) = (self.clone(), state.destination.writable()?);
        let thread = thread::Builder::new().name("log".into());
        thread.spawn(move || lines.wait_for_room(&writable)).map(drop)
    }

    /// The thread needs no privileges, and may have been started before others were given up. Where
    /// the kernel refuses to take them away it goes on.
    fn wait_for_room(&self, writable: &OwnedFd) {
        let refused = [NEVER, &[PROGRAMS, DESCRIPTORS, ALL_NAMESPACES, BPF]].concat();
        let _ = Privileges { capabilities: Vec::new(), refused }.drop_others();
        loop {
            let mut polled = [PollFd::new(writable.as_fd(), PollFlags::POLLOUT)];
            let polled = poll(&mut polled, PollTimeout::NONE);
            let mut state = self.lock_state();
            let is_stuck = state.write_missed().is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
            if !is_stuck || polled.is_err_and(|errno| errno != nix::errno::Errno::EINTR) {
                state.is_waiting = false;
                return;
            }
            drop(state);
            thread::sleep(TRY_AGAIN);
        }
    }
}

impl<D: Destination> State<D> {
    /// Writes the rest of a line.
    fn write_rest(&mut self) -> io::Result<()> {
        let (level, rest) = &mut self.rest;
        while !rest.is_empty() {
            match self.destination.write(*level, rest) {
                Ok(0) => return Err(ErrorKind::WouldBlock.into()),
                Ok(taken) => drop(rest.drain(..taken.min(rest.len()))),
                Err(error) => {
                    // The next reader has not seen its beginning.
                    if error.kind() != ErrorKind::WouldBlock {
                        rest.clear();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Writes the rest of a line, and how many lines were dropped.
    fn write_missed(&mut self) -> io::Result<()> {
        self.write_rest()?;
        if self.dropped > 0 {
            let lines = if self.dropped == 1 { "line" } else { "lines" };
            let text = format!("the log took no lines for a while: {} {lines} lost", self.dropped);
            let line = (self.as_line)(&text);
            self.write_line(Level::WARN, line.as_bytes())?;
            self.dropped = 0;
            self.write_rest()?;
        }
        Ok(())
    }

    /// Writes a line, or its beginning and keeps the rest; fails if nothing of it is taken.
    fn write_line(&mut self, level: Level, line: &[u8]) -> io::Result<()> {
        match self.destination.write(level, line)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            taken => {
                self.rest = (level, line[taken.min(line.len())..].to_vec());
                // The next line may come late.
                match self.write_rest() {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Takes the line of one event: the layer writes it as a whole.
pub struct Line<D> {
    lines: Lines<D>,
    level: Level,
}

impl<D: Destination> Write for Line<D> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.write(self.level, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, D: Destination> MakeWriter<'a> for Lines<D> {
    type Writer = Line<D>;

    fn make_writer(&'a self) -> Line<D> {
        Line { lines: self.clone(), level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<D> {
        Line { lines: self.clone(), level: *metadata.level() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A reader of messages that is slow, and takes `at_most` bytes at a time.
    struct Slow(UnixDatagram, usize);

    impl Destination for Slow {
        fn write(&mut self, _: Level, line: &[u8]) -> io::Result<usize> {
            self.0.send(&line[..line.len().min(self.1)])
        }

        fn writable(&self) -> io::Result<OwnedFd> {
            Ok(self.0.try_clone()?.into())
        }
    }

    fn slow(at_most: usize) -> (Lines<Slow>, UnixDatagram) {
        let (ours, reader) = UnixDatagram::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set up");
        (Lines::new(Slow(ours, at_most), |text| format!("{text}\n")), reader)
    }

    fn read(reader: &UnixDatagram) -> String {
        let mut bytes = [0; 200];
        let length = reader.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn lines_that_are_not_taken_are_lost_and_said_when_others_are() {
        let (lines, reader) = slow(usize::MAX);
        for number in 0..5000 {
            lines.write(Level::INFO, format!("{number}\n").as_bytes());
        }
        let dropped = lines.lock_state().dropped;
        assert!(dropped > 0, "the socket has taken everything");
        for number in 0..5000 - dropped {
            assert_eq!(read(&reader), format!("{number}\n"));
        }
        // Nothing is logged meanwhile.
        assert_eq!(
            read(&reader),
            format!("the log took no lines for a while: {dropped} lines lost\n")
        );
        lines.write(Level::INFO, b"next\n");
        assert_eq!(read(&reader), "next\n");
    }

    #[test]
    fn a_line_that_was_taken_in_part_is_completed_first() {
        let (lines, reader) = slow(4);
        lines.write(Level::INFO, b"123456\n");
        lines.write(Level::INFO, b"ab\n");
        assert_eq!(
            (read(&reader), read(&reader), read(&reader)),
            ("1234".into(), "56\n".into(), "ab\n".into())
        );
    }

    #[test]
    fn a_reader_that_has_gone_costs_lines_and_no_thread() {
        let (lines, reader) = slow(usize::MAX);
        drop(reader);
        let before = lost_lines();
        for _ in 0..3 {
            lines.write(Level::INFO, b"a\n");
        }
        // Other tests lose some, too.
        assert!(lost_lines() >= before + 3);
        let state = lines.lock_state();
        assert_eq!((state.dropped, state.is_waiting), (3, false));
    }
}

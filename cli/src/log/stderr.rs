//! Standard error, written to without waiting, whatever it is: a pipe, a terminal, a socket of the
//! journal, a file.
//!
//! `O_NONBLOCK` belongs to the open file, which other processes share (a shell its terminal), so it
//! is not set there. A socket has a flag for each message. A pipe or a terminal is opened anew. If
//! that is not allowed, as another user's may be, `poll` says whether there is room; then another
//! writer that fills it in between could make this one wait. A file always takes lines.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::write;
use tracing::Level;

use super::lines::Destination;

/// A pipe that has room takes so much at once (pipe(7)).
const PIPE_BYTES: usize = libc::PIPE_BUF;

pub struct Stderr {
    fd: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Socket,
    /// Writes never wait: it was opened so, or it is a file.
    Ready,
    /// Writes may wait.
    Shared,
}

impl Stderr {
    /// Opens the standard error of this process.
    pub fn open() -> io::Result<Self> {
        Self::from_fd(std::io::stderr().as_fd())
    }

    fn from_fd(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
        let shared = fd.try_clone_to_owned()?;
        if kind == SFlag::S_IFSOCK {
            return Ok(Self { fd: shared, kind: Kind::Socket });
        }
        if kind != SFlag::S_IFIFO && kind != SFlag::S_IFCHR {
            return Ok(Self { fd: shared, kind: Kind::Ready });
        }
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(match open(path.as_str(), flags, Mode::empty()) {
            Ok(fd) => Self { fd, kind: Kind::Ready },
            Err(_) => Self { fd: shared, kind: Kind::Shared },
        })
    }

    fn has_room(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        Ok(poll(&mut polled, PollTimeout::ZERO)? > 0)
    }
}

impl Destination for Stderr {
    fn write(&mut self, _level: Level, line: &[u8]) -> io::Result<usize> {
        Ok(match self.kind {
            Kind::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                send(self.fd.as_raw_fd(), line, flags)?
            }
            Kind::Ready => write(&self.fd, line)?,
            Kind::Shared if self.has_room()? => {
                write(&self.fd, &line[..line.len().min(PIPE_BYTES)])?
            }
            Kind::Shared => return Err(ErrorKind::WouldBlock.into()),
        })
    }

    fn writable(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use nix::pty::openpty;
    use nix::sys::termios::{FlowArg, tcflow};
    use nix::unistd::pipe;

    use super::*;

    const LINE: &[u8] = &[b'a'; 100];

    /// Writes until it takes no more; it does not wait.
    fn fill(stderr: &mut Stderr) -> usize {
        let mut all = 0;
        for _ in 0..1_000_000 {
            match stderr.write(Level::INFO, LINE) {
                Ok(taken) => all += taken,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    return all;
                }
            }
        }
        panic!("it takes everything");
    }

    #[test]
    fn a_full_pipe_is_not_waited_for_and_stays_as_others_have_it() {
        for reopened in [true, false] {
            let (reader, writer) = pipe().expect("a pipe");
            let mut stderr = Stderr::from_fd(writer.as_fd()).expect("opened");
            assert_eq!(stderr.kind, Kind::Ready);
            if !reopened {
                let fd = writer.try_clone().expect("another descriptor");
                stderr = Stderr { fd, kind: Kind::Shared };
            }
            let all = fill(&mut stderr);
            let mut bytes = vec![0; all];
            let mut reader = File::from(reader);
            reader.read_exact(&mut bytes).expect("read");
            assert!(fill(&mut stderr) > 0, "it takes lines again");
            let flags = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETFL).expect("flags");
            assert!(!OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK));
        }
    }

    #[test]
    fn a_stuck_journal_is_not_waited_for() {
        let (_reader, writer) = UnixStream::pair().expect("a pair");
        let mut stderr = Stderr::from_fd(writer.as_fd()).expect("opened");
        assert_eq!(stderr.kind, Kind::Socket);
        assert!(fill(&mut stderr) > 0);
    }

    #[test]
    fn a_terminal_that_is_stopped_is_not_waited_for() {
        let terminal = openpty(None, None).expect("a terminal");
        let mut stderr = Stderr::from_fd(terminal.slave.as_fd()).expect("opened");
        stderr.write(Level::INFO, LINE).expect("taken");
        tcflow(&terminal.slave, FlowArg::TCOOFF).expect("stopped");
        assert_eq!(fill(&mut stderr), 0);
    }
}

//! The system's log: datagrams to /dev/log, as syslog(3) sends them. That function waits while the
//! log's reader is stuck, and this one does not.

use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::Level;

use super::journal::syslog_priority;
use super::lines::Destination;

const LOG: &str = "/dev/log";
/// Tag by which its lines are found: `journalctl -t vsnoop`.
const TAG: &str = "vsnoop";
/// The facility `daemon` (syslog(3)).
const DAEMON: u8 = 3 << 3;

pub struct Syslog {
    path: PathBuf,
    /// `None` until the first line.
    socket: Option<UnixDatagram>,
}

impl Syslog {
    pub fn new() -> Self {
        Self::at(Path::new(LOG))
    }

    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), socket: None }
    }

    fn connect_socket(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(&self.path)?;
        Ok(socket)
    }
}

impl Destination for Syslog {
    fn write(&mut self, level: Level, line: &[u8]) -> io::Result<usize> {
        let mut message = Vec::with_capacity(64 + line.len());
        let (pid, value) = (std::process::id(), DAEMON | syslog_priority(level));
        write!(message, "<{value}>{}{TAG}[{pid}]: ", format_time())?;
        message.extend_from_slice(line.trim_ascii_end());
        if let Some(socket) = &self.socket {
            match socket.send(&message) {
                Ok(_) => return Ok(line.len()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                // Another process reads the log now, at another socket of that path.
                Err(_) => self.socket = None,
            }
        }
        let socket = self.socket.insert(self.connect_socket()?);
        socket.send(&message).map(|_| line.len())
    }

    fn writable(&self) -> io::Result<OwnedFd> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(socket.try_clone()?.into())
    }
}

/// The local time as RFC 3164, section 4.1.2, has it, with a space behind; nothing if it is not
/// known.
fn format_time() -> String {
    let mut text = [0u8; 32];
    // SAFETY: all pointers are to live objects; strftime writes at most as many bytes as it is
    // told.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return String::new();
        }
        let format = c"%b %e %H:%M:%S ";
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log's socket, which goes with the test.
    struct Reader(UnixDatagram, PathBuf);

    impl Reader {
        fn new(test: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("vsnoop-log-{}-{test}", std::process::id()));
            Self(UnixDatagram::bind(&path).expect("bound"), path)
        }

        fn read(&self) -> String {
            let mut bytes = [0; 200];
            let length = self.0.recv(&mut bytes).expect("a message");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        }
    }

    impl Drop for Reader {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.1);
        }
    }

    #[test]
    fn a_message_has_priority_time_tag_and_text() {
        let reader = Reader::new("form");
        let mut log = Syslog::at(&reader.1);
        log.write(Level::ERROR, b"it ends: a\n").expect("written");
        let message = reader.read();
        let rest = message.strip_prefix("<27>").expect("the priority");
        assert_eq!(rest.as_bytes()[15], b' ', "{message}");
        assert_eq!(&rest[16..], format!("vsnoop[{}]: it ends: a", std::process::id()));
    }

    #[test]
    fn a_log_that_is_stuck_is_not_waited_for_and_a_new_one_is_found() {
        let reader = Reader::new("stuck");
        let mut log = Syslog::at(&reader.1);
        let full = (0..100_000).find_map(|_| log.write(Level::INFO, b"a\n").err());
        assert_eq!(full.expect("it takes everything").kind(), ErrorKind::WouldBlock);
        drop(reader);
        assert_eq!(log.write(Level::INFO, b"b\n").unwrap_err().kind(), ErrorKind::NotFound);
        let reader = Reader::new("stuck");
        log.write(Level::INFO, b"c\n").expect("written");
        assert!(reader.read().ends_with(": c"));
    }
}

//! A connection whose data were acknowledged to the sender while all of them are in the tap's ring,
//! and are lost if the ring is changed.
//!
//! From then on sender and VM only read: only a reset can end their wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::topology::{Family, Side, Topology, address};

/// Bytes of a write, each a frame of its own in the ring.
const WRITE_BYTES: usize = 1000;
/// Anything that lasts longer does not happen at all.
const PATIENCE: Duration = Duration::from_secs(120);

nix::ioctl_read_bad!(unacknowledged, libc::TIOCOUTQ, libc::c_int);

#[derive(Debug)]
pub struct Backlog {
    sender: TcpStream,
    receiver: TcpStream,
}

impl Backlog {
    /// Connects the client to the VM.
    pub fn connect(topology: &Topology) -> Result<Self> {
        let at = SocketAddr::new(address(Side::Vm, Family::V4), 0);
        let listener = topology.vm.run(|| Ok(TcpListener::bind(at)?))?;
        let to = listener.local_addr().context("asking where a socket listens")?;
        let sender = topology.client.run(|| Ok(TcpStream::connect(to)?))?;
        let (receiver, _) = listener.accept().context("accepting a connection")?;
        sender.set_nodelay(true).context("TCP_NODELAY")?;
        receiver.set_read_timeout(Some(PATIENCE)).context("bounding reads")?;
        Ok(Self { sender, receiver })
    }

    /// Writes `frames` frames, one after the other: each is acknowledged before the next is sent,
    /// by the VM or for it, so that none overtakes another.
    pub fn send(&mut self, frames: usize) -> Result<()> {
        for _ in 0..frames {
            self.sender.write_all(&[1; WRITE_BYTES]).context("sending")?;
            let since = Instant::now();
            while self.unacknowledged()? > 0 {
                ensure!(since.elapsed() < PATIENCE, "a frame was not acknowledged");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    fn unacknowledged(&self) -> Result<libc::c_int> {
        let mut bytes = 0;
        // SAFETY: the descriptor is an open socket, and the call writes one int, which lives on.
        unsafe { unacknowledged(self.sender.as_raw_fd(), &mut bytes) }.context("SIOCOUTQ")?;
        Ok(bytes)
    }

    /// Reads `frames` frames at the VM.
    pub fn receive(&mut self, frames: usize) -> Result<()> {
        self.receiver.read_exact(&mut vec![0; frames * WRITE_BYTES]).context("receiving")
    }

    /// Writes `bytes` bytes at once, as bulk data, and reads them at the VM.
    pub fn burst(&mut self, bytes: usize) -> Result<()> {
        let Self { sender, receiver } = self;
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| sender.write_all(&vec![1; bytes]));
            receiver.read_exact(&mut vec![0; bytes]).context("receiving a burst")?;
            match writing.join() {
                Ok(written) => written.context("sending a burst"),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Whether the sender gets a reset within this time.
    pub fn is_reset_within(&mut self, time: Duration) -> Result<bool> {
        self.sender.set_read_timeout(Some(time)).context("bounding reads")?;
        match restarted(|| self.sender.read(&mut [0])) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            other => bail!("a sender that waits for an answer got {other:?}"),
        }
    }

    /// Fails unless the sender gets a reset.
    pub fn expect_reset_of_sender(&mut self) -> Result<()> {
        ensure!(self.is_reset_within(PATIENCE)?, "the sender was not reset: it hangs");
        Ok(())
    }
}

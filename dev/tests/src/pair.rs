//! A connection from the client to the VM, for tests that look at its ends separately: the bytes
//! acknowledged to the sender while the VM does not run, and the end that got a reset.
//!
//! Every byte is verified, both ways.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, SockRef, Socket, Type};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::socket::{ConnectionInfo, info};
use vsnoop_testbed::topology::{Family, Side, Topology, address};

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);
const CHUNK_BYTES: usize = 64 * 1024;

nix::ioctl_read_bad!(unacknowledged, libc::TIOCOUTQ, libc::c_int);

#[derive(Debug)]
pub struct Pair {
    pub client: End,
    pub vm: End,
}

/// One end, and how far it is.
#[derive(Debug)]
pub struct End {
    pub socket: TcpStream,
    seed: u64,
    sent: u64,
    received: u64,
}

impl Pair {
    pub fn connect(topology: &Topology, family: Family) -> Result<Self> {
        Self::connect_with(topology, family, None)
    }

    /// Connects with a receive buffer of `buffer_bytes` at the VM.
    pub fn connect_with(
        topology: &Topology,
        family: Family,
        buffer_bytes: Option<usize>,
    ) -> Result<Self> {
        Self::between(&topology.client, &topology.vm, address(Side::Vm, family), buffer_bytes)
    }

    /// Connects from one namespace to an address of another.
    pub fn between(
        client: &Netns,
        vm: &Netns,
        at: IpAddr,
        buffer_bytes: Option<usize>,
    ) -> Result<Self> {
        let listener = vm.run(|| listen(SocketAddr::new(at, 0), buffer_bytes))?;
        let to = listener.local_addr().context("asking where a socket listens")?;
        let client = client.run(|| Ok(TcpStream::connect(to)?)).context("connecting")?;
        let (vm, _) = listener.accept().context("accepting a connection")?;
        Ok(Self { client: End::new(client, 1)?, vm: End::new(vm, 2)? })
    }
}

fn listen(at: SocketAddr, buffer_bytes: Option<usize>) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    if let Some(bytes) = buffer_bytes {
        socket.set_recv_buffer_size(bytes).context("setting a receive buffer")?;
    }
    socket.bind(&at.into()).with_context(|| format!("binding to {at}"))?;
    socket.listen(1).with_context(|| format!("listening on {at}"))?;
    Ok(socket.into())
}

impl End {
    fn new(socket: TcpStream, seed: u64) -> Result<Self> {
        socket.set_nodelay(true).context("TCP_NODELAY")?;
        socket.set_read_timeout(Some(PATIENCE)).context("bounding reads")?;
        socket.set_write_timeout(Some(PATIENCE)).context("bounding writes")?;
        Ok(Self { socket, seed, sent: 0, received: 0 })
    }

    /// Another handle of the same end: one writes while the other reads.
    pub fn twin(&self) -> Result<Self> {
        let socket = self.socket.try_clone().context("cloning a socket")?;
        Ok(Self { socket, ..*self })
    }

    /// Goes on sending where its twin has ended.
    pub fn take_over(&mut self, writer: &Self) {
        self.sent = writer.sent;
    }

    /// Goes on sending behind what its twin has sent.
    pub fn has_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// The kernel's state of the connection (`TCP_INFO`).
    pub fn info(&self) -> Result<ConnectionInfo> {
        info(&SockRef::from(&self.socket))
    }

    /// Writes the next bytes of this end's pattern.
    pub fn send(&mut self, bytes: u64) -> Result<()> {
        let end = self.sent + bytes;
        while self.sent < end {
            let length = (end - self.sent).min(CHUNK_BYTES as u64) as usize;
            let chunk: Vec<_> =
                (self.sent..).map(|at| pattern(self.seed, at)).take(length).collect();
            self.socket.write_all(&chunk).with_context(|| format!("at byte {}", self.sent))?;
            self.sent += length as u64;
        }
        Ok(())
    }

    /// Waits until all that was sent is acknowledged, by the other end or for it.
    pub fn until_acknowledged(&self) -> Result<()> {
        let since = Instant::now();
        loop {
            let bytes = self.unacknowledged_bytes()?;
            if bytes == 0 {
                return Ok(());
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "{bytes} of {} bytes are not acknowledged",
                self.sent
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Bytes that were written and are not acknowledged yet.
    pub fn unacknowledged_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the descriptor is an open socket, and the call writes one int, which lives on.
        unsafe { unacknowledged(self.socket.as_raw_fd(), &mut bytes) }.context("SIOCOUTQ")?;
        u64::try_from(bytes).context("SIOCOUTQ")
    }

    /// Reads and verifies the next bytes of the other end.
    pub fn receive(&mut self, bytes: u64) -> Result<()> {
        let end = self.received + bytes;
        let mut buffer = vec![0; CHUNK_BYTES];
        while self.received < end {
            let length = (end - self.received).min(CHUNK_BYTES as u64) as usize;
            let read = restarted(|| self.socket.read(&mut buffer[..length]));
            let read = read.with_context(|| format!("reading at byte {}", self.received))?;
            ensure!(read > 0, "end of file at byte {} of {end}", self.received);
            self.verify(&buffer[..read])?;
        }
        Ok(())
    }

    fn verify(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            // Ends are 1 and 2.
            let expected = pattern(3 - self.seed, self.received);
            ensure!(*byte == expected, "wrong byte at {}", self.received);
            self.received += 1;
        }
        Ok(())
    }

    /// Sends a FIN.
    pub fn finish(&self) -> Result<()> {
        self.socket.shutdown(Shutdown::Write).context("ending a direction")
    }

    /// Closes with a RST.
    pub fn abort(self) -> Result<()> {
        let socket = Socket::from(self.socket);
        socket.set_linger(Some(Duration::ZERO)).context("SO_LINGER")
    }

    /// Closes without telling the other end, as if this end's host were reset: it answers later
    /// segments with RST.
    pub fn forget(self) -> Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the descriptor is an open socket, and the option is an int of this size.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_REPAIR,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        ensure!(done == 0, "TCP_REPAIR: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// The other end's FIN comes next.
    pub fn expect_end(&mut self) -> Result<()> {
        let read = restarted(|| self.socket.read(&mut [0]));
        match read.context("waiting for the end of file")? {
            0 => Ok(()),
            _ => bail!("more bytes after {}", self.received),
        }
    }

    /// Reads to the end: the bytes that come, if any, are correct, and a reset ends them.
    pub fn expect_reset(&mut self) -> Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match restarted(|| self.socket.read(&mut buffer)) {
                Ok(0) => bail!("end of file after {} bytes, wanted a reset", self.received),
                Ok(read) => self.verify(&buffer[..read])?,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => {
                    return Err(error).context("no reset: an end of the connection hangs");
                }
            }
        }
    }
}

/// Eight of them tell where they belong.
fn pattern(seed: u64, at: u64) -> u8 {
    let word = (at / 8 + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).to_le_bytes()[(at % 8) as usize]
}

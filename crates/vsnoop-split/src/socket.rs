//! A socket of a split connection.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::info::Info;
use crate::option::{
    AT_MARK, INFO, MEMORY, Plain, REPAIR, SocketOption, TIMESTAMP, UNACKNOWLEDGED, UNREAD, ask,
    get, set,
};

/// Values of TCP_REPAIR.
#[derive(Clone, Copy)]
pub enum Repair {
    On = 1,
    /// Without a window probe, which the remote end would answer.
    Off = -1,
}

/// A socket that faces an end of the connection.
#[derive(Debug)]
pub struct Socket {
    pub inner: socket2::Socket,
}

impl Socket {
    pub fn new(inner: socket2::Socket) -> Self {
        Self { inner }
    }

    pub fn get<T: Plain>(&self, option: SocketOption) -> io::Result<T> {
        get(self.as_fd(), option)
    }

    pub fn set<T>(&self, option: SocketOption, value: &T) -> io::Result<()> {
        set(self.as_fd(), option, value)
    }

    pub fn repair(&self, repair: Repair) -> io::Result<()> {
        self.set(REPAIR, &(repair as libc::c_int))
    }

    /// Bytes that can be read.
    pub fn unread(&self) -> io::Result<usize> {
        ask(self.as_fd(), UNREAD)
    }

    /// Bytes that the remote end has not acknowledged, a FIN among them.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        ask(self.as_fd(), UNACKNOWLEDGED)
    }

    /// Bytes of memory behind what was received, also out of order.
    pub fn received_memory(&self) -> io::Result<u32> {
        // SK_MEMINFO_RMEM_ALLOC.
        Ok(self.get::<[u32; 9]>(MEMORY)?[0])
    }

    pub fn info(&self) -> io::Result<Info> {
        Ok(Info::new(&self.get(INFO)?))
    }

    /// Why the kernel has closed the socket, if it has.
    pub fn reason_of_end(&self) -> io::Result<Option<io::Error>> {
        let Some(error) = self.inner.take_error()? else { return Ok(None) };
        // SO_ERROR also tells of ICMP messages in spite of which the kernel goes on.
        Ok(self.info()?.state.is_closed().then_some(error))
    }

    /// TSval of a segment that is sent now, in milliseconds.
    pub fn clock(&self) -> io::Result<u32> {
        Ok(self.get::<u32>(TIMESTAMP)? & !1)
    }

    /// Reads up to `bytes` that were received, and throws them away. Returns how many there were.
    pub fn discard(&self, bytes: usize) -> io::Result<usize> {
        let mut nowhere = [MaybeUninit::uninit(); 1 << 14];
        let mut rest = bytes;
        while rest > 0 {
            let most = rest.min(nowhere.len());
            match self.inner.recv(&mut nowhere[..most]) {
                Ok(0) => break,
                Ok(count) => rest -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes - rest)
    }

    /// Passes the next byte on as urgent, if it is.
    pub fn pass_urgent(&self, sink: &Self) -> io::Result<bool> {
        if ask(self.as_fd(), AT_MARK)? == 0 {
            return Ok(false);
        }
        let mut byte = [MaybeUninit::uninit()];
        if self.inner.peek(&mut byte)? == 0 {
            return Ok(false);
        }
        // SAFETY: a byte was written there.
        sink.inner.send_out_of_band(&[unsafe { byte[0].assume_init() }])?;
        self.discard(1)?;
        Ok(true)
    }

    /// Sends a FIN behind the last byte.
    pub fn finish(&self) -> io::Result<()> {
        self.inner.shutdown(Shutdown::Write)
    }

    /// Ends the connection at once by a RST, also if another process has the descriptor, too. In
    /// repair mode without a segment.
    pub fn disconnect(&self) -> io::Result<()> {
        // SAFETY: all fields are plain integers, for which zero is a valid value; AF_UNSPEC is 0.
        let nowhere: libc::sockaddr = unsafe { zeroed() };
        let length = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: the descriptor is open; the address is live and as long as is said.
        let result = unsafe { libc::connect(self.inner.as_raw_fd(), &raw const nowhere, length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Ends the connection here without a segment.
    pub fn close_silently(self) -> io::Result<()> {
        self.repair(Repair::On)?;
        self.disconnect()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self::new(descriptor.into())
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.inner.into()
    }
}

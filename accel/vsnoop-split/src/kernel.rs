//! The kernel's sockets and pipes for split connections.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;

use crate::connection::{Connection, Settings, Side};
use crate::end::{Facing, Queue};
use crate::info::Info;
use crate::option::{
    AT_MARK, INFO, MEMORY, NOT_SENT, QUEUE_SEQ, RECEIVE_BUFFER, REPAIR_QUEUE, TIMESTAMP,
    UNACKNOWLEDGED, UNREAD, WINDOW_CLAMP, ask,
};
use crate::pipe::{Pipe, splice};
use crate::restore::{RECEIVE_QUEUE, Restore, SEND_QUEUE};
use crate::socket::{Repair, Socket, integer};

impl Facing for Socket {
    type Pipe = Pipe;

    fn restore(side: Side, connection: &Connection, settings: &Settings) -> crate::Result<Self> {
        Restore::run(side, connection, settings)
    }

    fn pipe() -> io::Result<Pipe> {
        Pipe::new()
    }

    fn held(pipe: &Pipe) -> io::Result<usize> {
        pipe.held()
    }

    fn fill(&self, pipe: &Pipe, bytes: usize) -> io::Result<usize> {
        splice(self.as_fd(), pipe.write.as_fd(), bytes)
    }

    fn drain(&self, pipe: &Pipe, bytes: usize) -> io::Result<usize> {
        splice(pipe.read.as_fd(), self.as_fd(), bytes)
    }

    fn unread(&self) -> io::Result<usize> {
        ask(self.as_fd(), UNREAD)
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        ask(self.as_fd(), UNACKNOWLEDGED)
    }

    fn received_memory(&self) -> io::Result<u32> {
        // SK_MEMINFO_RMEM_ALLOC.
        Ok(self.get::<[u32; 9]>(MEMORY)?[0])
    }

    fn info(&self) -> io::Result<Info> {
        Ok(Info::new(&self.get(INFO)?))
    }

    fn reason_of_end(&self) -> io::Result<Option<io::Error>> {
        let Some(error) = self.inner.take_error()? else { return Ok(None) };
        // SO_ERROR also tells of ICMP messages in spite of which the kernel goes on.
        Ok(self.info()?.state.is_closed().then_some(error))
    }

    fn clock(&self) -> io::Result<u32> {
        Ok(self.get::<u32>(TIMESTAMP)? & !1)
    }

    fn discard(&self, bytes: usize) -> io::Result<usize> {
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

    fn pass_urgent(&self, sink: &Self) -> io::Result<bool> {
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

    fn finish(&self) -> io::Result<()> {
        self.inner.shutdown(Shutdown::Write)
    }

    /// Only repair mode tells it.
    fn queue_seq(&self, queue: Queue) -> io::Result<u32> {
        let number = match queue {
            Queue::Received => RECEIVE_QUEUE,
            Queue::Sent => SEND_QUEUE,
        };
        self.repair(Repair::On)?;
        let seq = self.set(REPAIR_QUEUE, &number).and_then(|()| self.get(QUEUE_SEQ));
        self.repair(Repair::Off)?;
        seq
    }

    fn ask_for_window(&self) -> io::Result<()> {
        self.repair(Repair::On)?;
        self.repair(Repair::OffWithProbe)
    }

    /// The kernel doubles the memory.
    fn limit_received(&self, window: u32, memory: u32) -> io::Result<()> {
        self.set(WINDOW_CLAMP, &integer(window))?;
        self.set(RECEIVE_BUFFER, &integer(memory))
    }

    fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        self.set(NOT_SENT, &integer(bytes))
    }

    fn reset(&self) -> io::Result<()> {
        self.disconnect()
    }

    fn close_silently(&self) -> io::Result<()> {
        self.repair(Repair::On)?;
        self.disconnect()
    }
}

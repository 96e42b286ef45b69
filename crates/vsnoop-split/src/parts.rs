//! A split connection as descriptors, which another process can take up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::connection::Side;
use crate::option::{QUEUE_SEQ, REPAIR_QUEUE};
use crate::pipe::Pipe;
use crate::restore::{RECEIVE_QUEUE, SEND_QUEUE};
use crate::socket::{Repair, Socket};
use crate::split::Split;
use crate::{Error, Result};

/// Number of descriptors of a split connection.
pub const PARTS: usize = 6;

impl Split {
    /// The descriptors, to be sent to another process (SCM_RIGHTS). As long as that has them, the
    /// death of this process loses nothing, and sends no RST.
    pub fn parts(&self) -> [BorrowedFd<'_>; PARTS] {
        let (to_peer, to_vm) = (&self.to_peer, &self.to_vm);
        [
            self.vm.as_fd(),
            self.peer.as_fd(),
            to_peer.read.as_fd(),
            to_peer.write.as_fd(),
            to_vm.read.as_fd(),
            to_vm.write.as_fd(),
        ]
    }

    /// The same, given up without a segment.
    pub fn into_parts(self) -> [OwnedFd; PARTS] {
        let Self { vm, peer, to_peer, to_vm, .. } = self;
        [vm.into(), peer.into(), to_peer.read, to_peer.write, to_vm.read, to_vm.write]
    }

    /// Takes a split connection up, wherever it was left. What else is to be known of it the
    /// kernel knows: the sockets tell which FINs they were given, and which bytes both have.
    ///
    /// # Errors
    /// [`Error::Missing`] if bytes are lost between the sockets. Both ends are then sent a RST.
    pub fn from_parts(parts: [OwnedFd; PARTS]) -> Result<Self> {
        let [vm, peer, to_peer_read, to_peer_write, to_vm_read, to_vm_write] = parts;
        let mut split = Self {
            vm: vm.into(),
            peer: peer.into(),
            to_peer: Pipe { read: to_peer_read, write: to_peer_write },
            to_vm: Pipe { read: to_vm_read, write: to_vm_write },
            peer_finished: false,
            vm_finished: false,
            vm_received: 0,
            peer_received: 0,
        };
        let taken = split.take_up().unwrap_or_else(|error| Err(Error::TakeUp(error)));
        match taken {
            Ok(()) => Ok(split),
            Err(error) => {
                // Best effort: it is done, unless another process has the descriptors, too.
                let _ = split.reset();
                Err(error)
            }
        }
    }

    fn take_up(&mut self) -> io::Result<Result<()>> {
        self.peer_finished = self.peer.info()?.state.has_sent_fin();
        self.vm_finished = self.vm.info()?.state.has_sent_fin();
        let received = surplus(&self.vm, &self.peer, &self.to_peer)?;
        let Ok(received) = usize::try_from(received) else {
            return Ok(Err(Error::Missing { from: Side::Vm, bytes: received.unsigned_abs() }));
        };
        self.vm_received = received;
        let received = surplus(&self.peer, &self.vm, &self.to_vm)?;
        let Ok(received) = usize::try_from(received) else {
            return Ok(Err(Error::Missing { from: Side::Peer, bytes: received.unsigned_abs() }));
        };
        self.peer_received = received;
        Ok(Ok(()))
    }
}

/// Bytes that the sink has and that are to be read from the source: those that were in flight when
/// both were made, unless they were read. Below zero: bytes that neither socket nor pipe has.
fn surplus(source: &Socket, sink: &Socket, pipe: &Pipe) -> io::Result<i32> {
    let (Some(read), Some(written)) = (read_up_to(source)?, written_up_to(sink)?) else {
        return Ok(0);
    };
    let passed_on = read.wrapping_sub(pipe.held()? as u32);
    Ok(written.wrapping_sub(passed_on) as i32)
}

/// SEQ behind the last byte that was read. `None` if the socket is closed.
fn read_up_to(socket: &Socket) -> io::Result<Option<u32>> {
    loop {
        let (unread, state) = (socket.unread()?, socket.info()?.state);
        if state.is_closed() {
            return Ok(None);
        }
        let received = queue_seq(socket, RECEIVE_QUEUE)?;
        // Nothing arrived meanwhile.
        if (socket.unread()?, socket.info()?.state) == (unread, state) {
            let fin = u32::from(state.has_received_fin());
            return Ok(Some(received.wrapping_sub(fin).wrapping_sub(unread as u32)));
        }
    }
}

/// SEQ behind the last byte that was written. `None` if the socket is closed.
fn written_up_to(socket: &Socket) -> io::Result<Option<u32>> {
    let state = socket.info()?.state;
    if state.is_closed() {
        return Ok(None);
    }
    let fin = u32::from(state.has_sent_fin());
    Ok(Some(queue_seq(socket, SEND_QUEUE)?.wrapping_sub(fin)))
}

/// RCV.NXT, or SEQ behind all that is queued to be sent. Only repair mode tells them.
fn queue_seq(socket: &Socket, queue: libc::c_int) -> io::Result<u32> {
    socket.repair(Repair::On)?;
    let seq = socket.set(REPAIR_QUEUE, &queue).and_then(|()| socket.get(QUEUE_SEQ));
    socket.repair(Repair::Off)?;
    seq
}

//! Both sockets of a split connection, and the bytes between them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::connection::{Connection, Direction, Settings, Side};
use crate::info::Info;
use crate::option::{RECEIVE_BUFFER, WINDOW_CLAMP};
use crate::pipe::Pipe;
use crate::pump::{Broken, Moved, Pump};
use crate::restore::Restore;
use crate::socket::{Repair, Socket};
use crate::{Error, Result};

/// A split connection. Dropped, or with its process, it sends a RST to both ends.
#[derive(Debug)]
pub struct Split {
    /// The socket that faces the VM, in the peer's place.
    pub(crate) vm: Socket,
    /// The socket that faces the peer, in the VM's place.
    pub(crate) peer: Socket,
    pub(crate) to_peer: Pipe,
    pub(crate) to_vm: Pipe,
    /// The peer's socket was given the VM's FIN, and the VM's socket the peer's.
    pub(crate) peer_finished: bool,
    pub(crate) vm_finished: bool,
    /// Bytes that each socket has received when it is made, and the other has sent.
    pub(crate) vm_received: usize,
    pub(crate) peer_received: usize,
}

impl Split {
    /// Makes both sockets. They send nothing until segments reach them, or [`Self::acknowledge`],
    /// but for retransmissions after the kernel's first timeout (3 s).
    pub fn new(connection: &Connection, settings: &Settings) -> Result<Self> {
        let (to_peer, to_vm) =
            Pipe::new().and_then(|first| Ok((first, Pipe::new()?))).map_err(Error::Pipe)?;
        let vm = Restore::run(Side::Vm, connection, settings)?;
        let peer = Restore::run(Side::Peer, connection, settings).inspect_err(|_| {
            // It would send a RST.
            let _ = vm.repair(Repair::On);
        })?;
        Ok(Self {
            vm,
            peer,
            to_peer,
            to_vm,
            peer_finished: false,
            vm_finished: false,
            vm_received: connection.vm.in_flight.len(),
            peer_received: connection.peer.in_flight.len(),
        })
    }

    /// Acknowledges what was in flight, at once: once segments of the sockets reach both ends.
    pub fn acknowledge(&mut self) -> Result<(), Broken> {
        for (side, socket, received) in [
            (Side::Vm, &self.vm, &mut self.vm_received),
            (Side::Peer, &self.peer, &mut self.peer_received),
        ] {
            let count = socket.discard(*received).map_err(|error| Broken::new(side, error))?;
            *received -= count;
        }
        Ok(())
    }

    /// Moves what can be moved now, up to 2 MiB. To be called for both directions whenever
    /// edge-triggered epoll tells of either socket (EPOLLIN, EPOLLOUT, EPOLLRDHUP), and again for a
    /// direction that waits for nothing.
    /// Also passes a FIN on, and finds that an end is
    /// gone: the other is then to be reset ([`Self::reset`]).
    pub fn pump(&mut self, direction: Direction) -> Result<Moved, Broken> {
        self.acknowledge()?;
        let mut pump = match direction {
            Direction::ToPeer => Pump {
                source: &self.vm,
                sink: &self.peer,
                pipe: &self.to_peer,
                from: Side::Vm,
                finished: &mut self.peer_finished,
            },
            Direction::ToVm => Pump {
                source: &self.peer,
                sink: &self.vm,
                pipe: &self.to_vm,
                from: Side::Peer,
                finished: &mut self.vm_finished,
            },
        };
        pump.run()
    }

    /// Is every byte and every FIN that one end was acknowledged acknowledged by the other?
    ///
    /// To join, see it true, stop the segments of the sockets, see it true again, and
    /// [`Self::join`]: what arrives between the two is not acknowledged, and is sent again.
    pub fn is_drained(&self) -> io::Result<bool> {
        if self.to_peer.held()? > 0 || self.to_vm.held()? > 0 {
            return Ok(false);
        }
        let ends = [(&self.vm, self.peer_finished), (&self.peer, self.vm_finished)];
        for (socket, fin_passed_on) in ends {
            let fin_waits = socket.info()?.state.has_received_fin() && !fin_passed_on;
            // Bytes out of order have memory, and are not counted as unread.
            let waits = socket.unread()? > 0 || socket.received_memory()? > 0;
            if fin_waits || waits || socket.unacknowledged()? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Closes both sockets without a segment: the connection is the ends' own again.
    pub fn join(self) -> io::Result<()> {
        let Self { vm, peer, .. } = self;
        let vm = vm.close_silently();
        peer.close_silently().and(vm)
    }

    /// Sends a RST to both ends, but for one that is closed.
    pub fn reset(self) -> io::Result<()> {
        self.vm.disconnect().and(self.peer.disconnect())
    }

    /// Have both directions ended, and both ends acknowledged it? Dropped then, nothing is sent.
    pub fn is_over(&self) -> io::Result<bool> {
        Ok(self.vm.info()?.state.is_closed() && self.peer.info()?.state.is_closed())
    }

    /// What the kernel says of the socket that faces this end.
    pub fn info(&self, side: Side) -> io::Result<Info> {
        self.facing(side).info()
    }

    /// TSval of a segment that this socket would send now, in milliseconds.
    pub fn clock(&self, side: Side) -> io::Result<u32> {
        self.facing(side).clock()
    }

    /// Bytes that were taken from the source of a direction, and not acknowledged by its sink.
    pub fn held(&self, direction: Direction) -> io::Result<usize> {
        let pipe = match direction {
            Direction::ToPeer => &self.to_peer,
            Direction::ToVm => &self.to_vm,
        };
        let (source, sink) = (self.facing(direction.source()), self.facing(direction.sink()));
        Ok(source.unread()? + pipe.held()? + sink.unacknowledged()?)
    }

    /// Lets the VM send no more than about `bytes` beyond what the splitter has read. What it was
    /// shown before stays allowed. The kernel may forget the limit when the sizes of the VM's
    /// segments change, so it is to be said again now and then.
    pub fn limit(&self, bytes: u32) -> io::Result<()> {
        let shown = self.vm.info()?.receive_window;
        let memory = self.vm.received_memory()?;
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        self.vm.set(WINDOW_CLAMP, &bytes)?;
        // Doubled by the kernel. Room for what was shown, or bytes of it would be dropped.
        let room = libc::c_int::try_from(shown + memory / 2).unwrap_or(libc::c_int::MAX);
        self.vm.set(RECEIVE_BUFFER, &bytes.max(room))
    }

    /// The descriptor that faces this end, for epoll.
    pub fn socket(&self, side: Side) -> BorrowedFd<'_> {
        self.facing(side).as_fd()
    }

    fn facing(&self, side: Side) -> &Socket {
        match side {
            Side::Vm => &self.vm,
            Side::Peer => &self.peer,
        }
    }
}

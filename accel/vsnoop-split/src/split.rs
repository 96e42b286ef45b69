//! Both sockets of a split connection, and the bytes between them.

use std::io;

use crate::ahead::Ahead;
use crate::connection::{Connection, Direction, Settings, Side};
use crate::end::{Facing, Queue};
use crate::info::Info;
use crate::pump::{Broken, CHUNK, Moved, Pump};
use crate::socket::Socket;
use crate::{Error, Result};

/// A split connection of the kernel's sockets. Dropped, or with its process, it sends a RST to both
/// ends.
pub type Split = Pair<Socket>;

/// A split connection.
#[derive(Clone, Debug)]
pub struct Pair<S: Facing> {
    /// The socket that faces the VM, in the peer's place.
    pub(crate) vm: S,
    /// The socket that faces the peer, in the VM's place.
    pub(crate) peer: S,
    pub(crate) to_peer: S::Pipe,
    pub(crate) to_vm: S::Pipe,
    /// The peer's socket was given the VM's FIN, and the VM's socket the peer's.
    pub(crate) peer_finished: bool,
    pub(crate) vm_finished: bool,
    /// Bytes that each socket has received when it is made, and the other has sent.
    pub(crate) vm_received: usize,
    pub(crate) peer_received: usize,
    /// Most bytes in the pipe to the peer.
    pub(crate) chunk: usize,
}

/// The parts of a split connection: the socket that faces the VM, the one that faces the peer, the
/// pipe to the peer, and the one to the VM.
pub type Parts<S> = (S, S, <S as Facing>::Pipe, <S as Facing>::Pipe);

impl<S: Facing> Pair<S> {
    /// Makes both sockets. They send nothing until segments reach them, or [`Self::acknowledge`],
    /// but for retransmissions after the kernel's first timeout (3 s).
    pub fn new(connection: &Connection, settings: &Settings) -> Result<Self> {
        let (to_peer, to_vm) =
            S::pipe().and_then(|first| Ok((first, S::pipe()?))).map_err(Error::Pipe)?;
        let vm = S::restore(Side::Vm, connection, settings)?;
        let peer = S::restore(Side::Peer, connection, settings).inspect_err(|_| {
            // It would send a RST.
            let _ = vm.close_silently();
        })?;
        Ok(Self {
            vm_received: connection.vm.in_flight.len(),
            peer_received: connection.peer.in_flight.len(),
            chunk: Ahead::from_bytes(settings.receive_bytes).queued as usize,
            ..Self::made_of((vm, peer, to_peer, to_vm))
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
    /// direction that waits for nothing. Also passes a FIN on, and finds that an end is gone: the
    /// other is then to be reset ([`Self::reset`]).
    pub fn pump(&mut self, direction: Direction) -> Result<Moved, Broken> {
        self.acknowledge()?;
        let mut pump = match direction {
            Direction::ToPeer => Pump {
                source: &self.vm,
                sink: &self.peer,
                pipe: &self.to_peer,
                from: Side::Vm,
                finished: &mut self.peer_finished,
                chunk: self.chunk,
            },
            Direction::ToVm => Pump {
                source: &self.peer,
                sink: &self.vm,
                pipe: &self.to_vm,
                from: Side::Peer,
                finished: &mut self.vm_finished,
                chunk: CHUNK,
            },
        };
        pump.run()
    }

    /// Is every byte and every FIN that one end was acknowledged acknowledged by the other?
    ///
    /// To join, see it true, stop the segments of the sockets, see it true again, and
    /// [`Self::join`]: what arrives between the two is not acknowledged, and is sent again.
    pub fn is_drained(&self) -> io::Result<bool> {
        if S::held(&self.to_peer)? > 0 || S::held(&self.to_vm)? > 0 {
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

    /// Has both ends say how much room they have, in answer to a window probe: what the other end
    /// was shown last may be no room. To be followed by [`Self::join`], so that the answers reach
    /// the ends.
    pub fn ask_for_windows(&self) -> io::Result<()> {
        self.ask(Side::Vm)?;
        self.ask(Side::Peer)
    }

    /// Has this end answer, by a window probe.
    pub fn ask(&self, side: Side) -> io::Result<()> {
        self.facing(side).ask_for_window()
    }

    /// Closes both sockets without a segment: the connection is the ends' own again.
    pub fn join(self) -> io::Result<()> {
        let vm = self.vm.close_silently();
        self.peer.close_silently().and(vm)
    }

    /// Sends a RST to both ends, but for one that is closed.
    pub fn reset(self) -> io::Result<()> {
        self.vm.reset().and(self.peer.reset())
    }

    /// Have both directions ended, and both ends acknowledged it? Dropped then, nothing is sent.
    pub fn is_over(&self) -> io::Result<bool> {
        Ok(self.vm.info()?.state.is_closed() && self.peer.info()?.state.is_closed())
    }

    /// The kernel's information about the socket that faces this end.
    pub fn info(&self, side: Side) -> io::Result<Info> {
        self.facing(side).info()
    }

    /// TSval of a segment that this socket would send now, in milliseconds.
    pub fn clock(&self, side: Side) -> io::Result<u32> {
        self.facing(side).clock()
    }

    /// The pipe of a direction.
    pub fn pipe(&self, direction: Direction) -> &S::Pipe {
        match direction {
            Direction::ToPeer => &self.to_peer,
            Direction::ToVm => &self.to_vm,
        }
    }

    /// Bytes that were taken from the source of a direction, and not acknowledged by its sink.
    pub fn held(&self, direction: Direction) -> io::Result<usize> {
        let pipe = self.pipe(direction);
        let (source, sink) = (self.facing(direction.source()), self.facing(direction.sink()));
        Ok(source.unread()? + S::held(pipe)? + sink.unacknowledged()?)
    }

    /// Lets the VM be about `bytes` ahead of what the peer was sent. What the VM was shown before
    /// stays allowed. Returns whether the limit holds: if not, this is to be called again after a
    /// while.
    pub fn limit(&mut self, bytes: u32) -> io::Result<bool> {
        self.limit_to(Ahead::from_bytes(bytes))
    }

    /// Lets the VM send next to nothing more, so that what is held leaves soon.
    pub fn drain(&mut self) -> io::Result<()> {
        self.limit_to(Ahead::draining()).map(drop)
    }

    fn limit_to(&mut self, ahead: Ahead) -> io::Result<bool> {
        let Ahead { window, queued } = ahead;
        let shown = self.vm.info()?.receive_window;
        let memory = self.vm.received_memory()?;
        let unread = u32::try_from(self.vm.unread()?).unwrap_or(u32::MAX);
        // Room for what was shown, or bytes of it would be dropped.
        let room = shown.saturating_add(memory / 2);
        let is_settled = room <= window;
        // The VM may send the window beside the bytes that wait here unread. While both are more
        // than the limit, those bytes take a part of it.
        let clamp = if is_settled { window } else { window.saturating_sub(unread).max(1) };
        self.vm.limit_received(clamp, window.max(room))?;
        self.peer.limit_unsent(queued)?;
        self.chunk = queued as usize;
        Ok(is_settled)
    }

    /// Does the limit of `bytes` still hold? The kernel forgets it when the sizes of the VM's
    /// segments change.
    pub fn is_limited(&self, bytes: u32) -> io::Result<bool> {
        let window = Ahead::from_bytes(bytes).window;
        Ok(self.vm.info()?.receive_window <= window.saturating_add(window / 4))
    }

    /// Takes a split connection up, wherever it was left. What else is to be known of it the
    /// sockets know: which FINs they were given, and which bytes both have.
    ///
    /// # Errors
    /// [`Error::Missing`] if bytes are lost between the sockets. Both ends are then sent a RST.
    pub fn take_up(parts: Parts<S>) -> Result<Self> {
        let mut split = Self::made_of(parts);
        let taken = split.learn().unwrap_or_else(|error| Err(Error::TakeUp(error)));
        match taken {
            Ok(()) => Ok(split),
            Err(error) => {
                // Best effort: it is done, unless another process has the descriptors, too.
                let _ = split.reset();
                Err(error)
            }
        }
    }

    /// Nothing was in flight, no FIN was passed on, and nothing limits the pipes.
    fn made_of((vm, peer, to_peer, to_vm): Parts<S>) -> Self {
        Self {
            vm,
            peer,
            to_peer,
            to_vm,
            peer_finished: false,
            vm_finished: false,
            vm_received: 0,
            peer_received: 0,
            chunk: CHUNK,
        }
    }

    fn learn(&mut self) -> io::Result<Result<()>> {
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

    /// The socket that faces this end.
    pub fn facing(&self, side: Side) -> &S {
        match side {
            Side::Vm => &self.vm,
            Side::Peer => &self.peer,
        }
    }
}

/// Bytes that the sink has and that are to be read from the source: those that were in flight when
/// both were made, unless they were read. Below zero: bytes that neither socket nor pipe has.
fn surplus<S: Facing>(source: &S, sink: &S, pipe: &S::Pipe) -> io::Result<i32> {
    let (Some(read), Some(written)) = (read_up_to(source)?, written_up_to(sink)?) else {
        return Ok(0);
    };
    let passed_on = read.wrapping_sub(S::held(pipe)? as u32);
    Ok(written.wrapping_sub(passed_on) as i32)
}

/// SEQ behind the last byte that was read. `None` if the socket is closed.
fn read_up_to<S: Facing>(socket: &S) -> io::Result<Option<u32>> {
    loop {
        let (unread, state) = (socket.unread()?, socket.info()?.state);
        if state.is_closed() {
            return Ok(None);
        }
        let received = socket.queue_seq(Queue::Received)?;
        // Nothing arrived meanwhile.
        if (socket.unread()?, socket.info()?.state) == (unread, state) {
            let fin = u32::from(state.has_received_fin());
            return Ok(Some(received.wrapping_sub(fin).wrapping_sub(unread as u32)));
        }
    }
}

/// SEQ behind the last byte that was written. `None` if the socket is closed.
fn written_up_to<S: Facing>(socket: &S) -> io::Result<Option<u32>> {
    let state = socket.info()?.state;
    if state.is_closed() {
        return Ok(None);
    }
    let fin = u32::from(state.has_sent_fin());
    Ok(Some(socket.queue_seq(Queue::Sent)?.wrapping_sub(fin)))
}

//! A split connection as descriptors, which another process can take up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::Result;
use crate::connection::Side;
use crate::pipe::Pipe;
use crate::socket::Socket;
use crate::split::{Pair, Parts, Split};

/// Number of descriptors of a split connection.
pub const PARTS: usize = 6;

/// Makes sockets and pipes of their descriptors.
pub fn parts_of(descriptors: [OwnedFd; PARTS]) -> Parts<Socket> {
    let [vm, peer, to_peer_read, to_peer_write, to_vm_read, to_vm_write] = descriptors;
    let to_peer = Pipe { read: to_peer_read, write: to_peer_write };
    let to_vm = Pipe { read: to_vm_read, write: to_vm_write };
    (vm.into(), peer.into(), to_peer, to_vm)
}

impl Pair<Socket> {
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

    /// Gives up the sockets and pipes without a segment, and returns their descriptors.
    pub fn into_parts(self) -> [OwnedFd; PARTS] {
        let Self { vm, peer, to_peer, to_vm, .. } = self;
        [vm.into(), peer.into(), to_peer.read, to_peer.write, to_vm.read, to_vm.write]
    }

    /// Takes up what [`Self::parts`] are. See [`Self::take_up`].
    pub fn from_parts(parts: [OwnedFd; PARTS]) -> Result<Split> {
        Self::take_up(parts_of(parts))
    }

    /// The descriptor that faces this end, for epoll.
    pub fn socket(&self, side: Side) -> BorrowedFd<'_> {
        self.facing(side).as_fd()
    }
}

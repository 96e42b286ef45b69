//! The splitter's side.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_split::PARTS;

use super::message::{Incoming, Kept, Message, receive, send_forget, send_kept};

/// The keeper, as a splitter knows it. It may be killed and come again at any time.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    socket: Option<OwnedFd>,
    /// How many it can keep; `None` until it has handed over all that it has.
    room: Option<usize>,
    /// Numbers of the connections that the keeper has.
    has: HashSet<u64>,
    latest: u64,
}

impl Keeper {
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), socket: None, room: None, has: HashSet::new(), latest: 0 }
    }

    /// Makes a client that is connected by this socket.
    #[cfg(test)]
    pub fn connected(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), ..Self::new(Path::new("")) }
    }

    /// Has it handed over all that it has?
    pub fn is_ready(&self) -> bool {
        self.room.is_some()
    }

    /// A number that no other connection of this host has, nor had while it runs.
    pub fn next_id(&mut self) -> u64 {
        // Nanoseconds are more than connections.
        self.latest = monotonic_ns().unwrap_or(0).max(self.latest + 1);
        self.latest
    }

    /// Connects if need be, and takes what it hands over: what an earlier splitter has left, and
    /// after a broken connection what this one has.
    pub fn find_kept(&mut self) -> Vec<Kept> {
        let mut kept = Vec::new();
        if self.socket.is_none() {
            self.socket = connect_to(&self.path).ok();
        }
        while let Some(socket) = &self.socket {
            match receive(socket.as_fd()) {
                Ok(Incoming::Message(Message::Kept(one))) => {
                    self.has.insert(one.id);
                    kept.push(one);
                }
                Ok(Incoming::Message(Message::Ready { room })) => self.room = Some(room),
                Ok(Incoming::Message(Message::Forget(_))) => {}
                Ok(Incoming::Nothing) => break,
                Ok(Incoming::End) | Err(_) => self.lose_keeper(),
            }
        }
        kept
    }

    /// Has the connection kept. Best effort: the next look tries again.
    pub fn keep_split(&mut self, id: u64, record: &[u8], parts: [BorrowedFd; PARTS]) {
        let has_room = self.room.is_some_and(|room| self.has.len() < room);
        let Some(socket) = self.socket.as_ref().filter(|_| has_room) else { return };
        match send_kept(socket.as_fd(), id, record, parts) {
            Ok(()) => drop(self.has.insert(id)),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ETOOMANYREFS) => {}
            Err(_) => self.lose_keeper(),
        }
    }

    /// Does it keep this connection?
    pub fn has(&self, id: u64) -> bool {
        self.has.contains(&id)
    }

    /// Has all forgotten but those for which `is_live`. Best effort, as [`Self::keep_split`].
    pub fn forget_others(&mut self, is_live: impl Fn(u64) -> bool) {
        let over: Vec<u64> = self.has.iter().copied().filter(|id| !is_live(*id)).collect();
        for id in over {
            let Some(socket) = &self.socket else { return };
            match send_forget(socket.as_fd(), id) {
                Ok(()) => drop(self.has.remove(&id)),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(_) => self.lose_keeper(),
            }
        }
    }

    fn lose_keeper(&mut self) {
        (self.socket, self.room) = (None, None);
        self.has.clear();
    }
}

fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

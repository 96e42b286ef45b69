//! All senders: one thread that answers whatever their connections ask for.
//!
//! A request is a number of bytes, eight bytes in network order; the answer is as much more of the
//! connection's [`Stream`]. A connection that fails is given up: its receiver will miss it.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::Socket;

use super::stream::{CHUNK_BYTES, Stream};

pub const REQUEST_BYTES: usize = 8;
const STOP: u64 = u64::MAX;

/// They answer until this is dropped.
#[derive(Debug)]
pub struct Senders {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
    /// The sockets are those of connection `first` and those after it.
    pub fn start(first: usize, sockets: Vec<Socket>, stream: Stream) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = Arc::new(EventFd::from_flags(flags).context("make an eventfd")?);
        epoll
            .add(stop.as_ref(), EpollEvent::new(EpollFlags::EPOLLIN, STOP))
            .context("watch an eventfd")?;
        let mut connections = Vec::with_capacity(sockets.len());
        for (index, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true).context("make a sender's socket nonblocking")?;
            // Told once of each change: a connection reads and writes until it must wait.
            let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
            epoll
                .add(&socket, EpollEvent::new(interest, index as u64))
                .context("watch a sender's socket")?;
            let number = first + index;
            connections.push(Connection { number, socket, asked: Vec::new(), left: 0, offset: 0 });
        }
        let thread = std::thread::Builder::new()
            .name("senders".into())
            .spawn(move || {
                if let Err(error) = serve(&epoll, &mut connections, &stream) {
                    tracing::error!("the senders ended: {error:#}");
                }
            })
            .context("start the senders' thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        // It can only fail when the counter is full, and then the thread is awake already.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the senders' thread panicked");
        }
    }
}

fn serve(epoll: &Epoll, connections: &mut [Connection], stream: &Stream) -> Result<()> {
    let mut events = [EpollEvent::empty(); 64];
    loop {
        let ready = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => &events[..count],
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error).context("wait for requests"),
        };
        for event in ready {
            if event.data() == STOP {
                return Ok(());
            }
            let connection = &mut connections[event.data() as usize];
            if let Err(error) = connection.serve(stream) {
                tracing::debug!("sender {} ends: {error}", connection.number);
                epoll.delete(&connection.socket).context("forget a sender's socket")?;
            }
        }
    }
}

#[derive(Debug)]
struct Connection {
    number: usize,
    socket: Socket,
    /// The beginning of a request.
    asked: Vec<u8>,
    left: u64,
    offset: u64,
}

impl Connection {
    fn serve(&mut self, stream: &Stream) -> std::io::Result<()> {
        self.listen()?;
        while self.left > 0 {
            let length = self.left.min(CHUNK_BYTES as u64) as usize;
            match (&self.socket).write(stream.at(self.number, self.offset, length)) {
                Ok(written) => {
                    self.left -= written as u64;
                    self.offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn listen(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 8 * REQUEST_BYTES];
        loop {
            match (&self.socket).read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.asked.extend(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while let Some((request, rest)) = self.asked.split_first_chunk::<REQUEST_BYTES>() {
            self.left = self.left.saturating_add(u64::from_be_bytes(*request));
            self.asked = rest.to_vec();
        }
        Ok(())
    }
}

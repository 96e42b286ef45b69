//! Moves the bytes of a split connection on a thread.

use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use vsnoop_split::{Broken, Direction, Side, Split, Waits};

use crate::namespace::Namespace;

/// How it ended.
pub enum Ended {
    Stopped(Split),
    Over,
    /// Both ends were reset.
    Broken(Broken),
}

pub struct Splitter {
    thread: JoinHandle<Ended>,
    stop: Arc<EventFd>,
}

impl Splitter {
    pub fn run(namespace: &Namespace, begin: impl FnOnce() -> Split + Send + 'static) -> Self {
        let stop = Arc::new(EventFd::new().expect("an eventfd"));
        let stopped = stop.clone();
        let (begun, wait) = std::sync::mpsc::channel();
        let thread = namespace.spawn(move || {
            let split = begin();
            begun.send(()).expect("begin");
            move_bytes(split, &stopped)
        });
        // A thread that panics sends nothing.
        if wait.recv().is_err() {
            thread.join().map(|_| ()).expect("begin");
            unreachable!();
        }
        Self { thread, stop }
    }

    /// Has it stop where it is.
    pub fn stop(self) -> Ended {
        self.stop.write(1).expect("stop");
        self.wait()
    }

    /// Waits for the end of the connection.
    pub fn wait(self) -> Ended {
        self.thread.join().expect("the splitter")
    }
}

/// An event that is missed is never made good.
fn move_bytes(mut split: Split, stop: &EventFd) -> Ended {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let edges =
        EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
    for side in [Side::Vm, Side::Peer] {
        epoll.add(split.socket(side), EpollEvent::new(edges, 0)).expect("watch a socket");
    }
    epoll.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, 1)).expect("watch the end");
    loop {
        let mut events = [EpollEvent::empty(); 3];
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            waited => waited.expect("wait"),
        };
        if let Err(broken) = pump(&mut split) {
            split.reset().expect("reset");
            return Ended::Broken(broken);
        }
        if split.is_over().expect("state") {
            return Ended::Over;
        }
        if events[..count].iter().any(|event| event.data() == 1) {
            return Ended::Stopped(split);
        }
    }
}

fn pump(split: &mut Split) -> Result<(), Broken> {
    for direction in Direction::BOTH {
        while split.pump(direction)?.waits == Waits::No {}
    }
    Ok(())
}

//! Moves the bytes of a split connection on a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vsnoop_split::{Broken, Direction, Split, Waits};

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
    stop: Arc<AtomicBool>,
}

impl Splitter {
    pub fn run(namespace: &Namespace, begin: impl FnOnce() -> Split + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
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
        self.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    /// Waits for the end of the connection.
    pub fn wait(self) -> Ended {
        self.thread.join().expect("the splitter")
    }
}

fn move_bytes(mut split: Split, stop: &AtomicBool) -> Ended {
    while !stop.load(Ordering::Relaxed) {
        let mut is_busy = false;
        for direction in Direction::BOTH {
            match split.pump(direction) {
                Ok(moved) => is_busy |= moved.bytes > 0 || moved.waits == Waits::No,
                Err(broken) => {
                    split.reset().expect("reset");
                    return Ended::Broken(broken);
                }
            }
        }
        if split.is_over().expect("state") {
            return Ended::Over;
        }
        if !is_busy {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ended::Stopped(split)
}

//! Threads that always run, on the guests' core under the host's ordinary scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use super::sched;

/// They end when this is dropped.
#[derive(Debug)]
pub struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Hogs {
    pub fn start(count: u32) -> Result<Self> {
        let mut hogs = Self { stop: Arc::default(), threads: Vec::new() };
        for number in 0..count {
            let stop = Arc::clone(&hogs.stop);
            let name = format!("hog{number}");
            let thread = thread::Builder::new().name(name).spawn(move || {
                sched::as_a_guest()?;
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(())
            });
            hogs.threads.push(thread.context("start a hog")?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if let Ok(Err(error)) = thread.join() {
                tracing::warn!("a hog did not run: {error:#}");
            }
        }
    }
}

//! Memory for the hold of a port that is attached without an engine.
//!
//! The hooks keep a copy of what they acknowledge, and ask for slabs when they need them; an engine
//! would add them. Here a thread does that and nothing else: what the VM does not take is not
//! handed over, and without a heartbeat the hooks keep nothing that the VM's window or ring has no
//! room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_bpf::{HoldMaps, Port, Reserve};

use crate::figures::say;

/// Seldom enough not to be measured.
const LOOK: Duration = Duration::from_millis(5);

/// Adds slabs as the hooks want them, until this is dropped.
pub struct Growing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Growing {
    /// Starts to sample the port of an interface; `ifindex` is its index, `netns` the inode number
    /// of its network namespace.
    pub fn start(netns: u64, ifindex: u32) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let grow = move || {
            if let Err(error) = grow(netns, ifindex, &seen) {
                say(&format!("the memory of a hold does not grow: {error:#}"));
            }
        };
        let thread = std::thread::Builder::new().name("slabs".into()).spawn(grow)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            say("the thread that adds slabs panicked");
        }
    }
}

fn grow(netns: u64, ifindex: u32, stop: &AtomicBool) -> Result<()> {
    let port = Port::open(netns, ifindex).context("open the port")?;
    let mut memory = HoldMaps::open(&port)?.context("the port has no hold")?;
    memory.adopt(&Reserve::default())?;
    while !stop.load(Ordering::Relaxed) {
        memory.grow().context("add slabs")?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

//! Emulated guests that move keep their memory in a file that all their QEMUs map: QEMU 7.2
//! corrupts the memory of an emulated guest that it copies while it runs
//! (vsnoop_testbed::vm::Movable).
//!
//! libvirt does not know the capability for that. So each QEMU has one more monitor, where it waits
//! for a client before it does anything else, and [`SharedMemory`] is that client: the capability
//! is set before libvirt has it migrate.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use vsnoop_testbed::vm::{Qmp, leave_shared_memory};

const POLL: Duration = Duration::from_millis(5);

/// The client of the QEMUs that listen at a path, one after the other.
pub struct SharedMemory {
    is_over: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl SharedMemory {
    pub fn serve(path: PathBuf) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let serving = thread::spawn(move || {
            let mut served = None;
            while !told.load(Ordering::Relaxed) {
                let found = identity(&path);
                if found.is_some() && found != served && set_capability(&path).is_ok() {
                    served = found;
                }
                thread::sleep(POLL);
            }
        });
        Self { is_over, serving: Some(serving) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

/// Tells the socket of a QEMU from that of another one at the same path.
fn identity(path: &Path) -> Option<(u64, i64, i64)> {
    let found = path.metadata().ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Has this QEMU leave the guest's memory where it is when it migrates.
fn set_capability(path: &Path) -> Result<()> {
    leave_shared_memory(&mut Qmp::connect(path)?)
}

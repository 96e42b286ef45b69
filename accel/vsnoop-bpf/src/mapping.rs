//! A pinned array map, mapped into memory: words that user space and the hooks share.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::{MapCore, MapHandle};

use crate::error::{Error, Result};

/// A map's values, shared with the hooks.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it gives out pointers only, and their users share the memory with the kernel anyway.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(map: &MapHandle, dir: &Path) -> Result<Self> {
        let value = map.value_size().next_multiple_of(8) as usize;
        let len = (value * map.max_entries() as usize).next_multiple_of(4096);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Self { start, len }),
            None => Err(Error::io(format!("map the maps of {}", dir.display()))(
                std::io::Error::last_os_error(),
            )),
        }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} of {} bytes", self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by new(), and there is no reference into it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

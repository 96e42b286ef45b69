//! Descriptors of the kernel's objects.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::{Error, Result};

/// A descriptor that the kernel has just made, or its error.
pub(crate) fn owned(what: &str, fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::bpf(what)(libbpf_rs::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: the kernel has just made the descriptor, and only the caller knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

//! Socket options and their numbers in linux/tcp.h, those that libc lacks.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A socket option of TCP.
#[derive(Clone, Copy)]
pub struct TcpOption {
    pub name: &'static str,
    pub number: libc::c_int,
}

const fn tcp(name: &'static str, number: libc::c_int) -> TcpOption {
    TcpOption { name, number }
}

pub const NODELAY: TcpOption = tcp("TCP_NODELAY", libc::TCP_NODELAY);
pub const REPAIR: TcpOption = tcp("TCP_REPAIR", 19);
pub const REPAIR_QUEUE: TcpOption = tcp("TCP_REPAIR_QUEUE", 20);
pub const QUEUE_SEQ: TcpOption = tcp("TCP_QUEUE_SEQ", 21);
pub const REPAIR_OPTIONS: TcpOption = tcp("TCP_REPAIR_OPTIONS", 22);
pub const TIMESTAMP: TcpOption = tcp("TCP_TIMESTAMP", 24);
pub const REPAIR_WINDOW: TcpOption = tcp("TCP_REPAIR_WINDOW", 29);

/// Sets an option to a value of plain integers.
pub fn set<T>(
    fd: BorrowedFd,
    level: libc::c_int,
    number: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the descriptor is open; the value is live and as long as is said.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            number,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

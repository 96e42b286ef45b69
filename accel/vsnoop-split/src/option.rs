//! Socket options and requests that socket2 lacks.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::net;

/// A socket option.
#[derive(Clone, Copy)]
pub struct SocketOption {
    pub name: &'static str,
    level: libc::c_int,
    number: libc::c_int,
}

const fn option(name: &'static str, level: libc::c_int, number: libc::c_int) -> SocketOption {
    SocketOption { name, level, number }
}

const fn tcp(name: &'static str, number: u32) -> SocketOption {
    option(name, libc::IPPROTO_TCP, number as libc::c_int)
}

pub const REPAIR: SocketOption = tcp("TCP_REPAIR", net::TCP_REPAIR);
pub const REPAIR_QUEUE: SocketOption = tcp("TCP_REPAIR_QUEUE", net::TCP_REPAIR_QUEUE);
pub const QUEUE_SEQ: SocketOption = tcp("TCP_QUEUE_SEQ", net::TCP_QUEUE_SEQ);
pub const REPAIR_OPTIONS: SocketOption = tcp("TCP_REPAIR_OPTIONS", net::TCP_REPAIR_OPTIONS);
pub const REPAIR_WINDOW: SocketOption = tcp("TCP_REPAIR_WINDOW", net::TCP_REPAIR_WINDOW);
pub const TIMESTAMP: SocketOption = tcp("TCP_TIMESTAMP", net::TCP_TIMESTAMP);
pub const MAX_SEGMENT: SocketOption = tcp("TCP_MAXSEG", net::TCP_MAXSEG);
pub const WINDOW_CLAMP: SocketOption = tcp("TCP_WINDOW_CLAMP", net::TCP_WINDOW_CLAMP);
pub const NOT_SENT: SocketOption = tcp("TCP_NOTSENT_LOWAT", net::TCP_NOTSENT_LOWAT);
pub const INFO: SocketOption = tcp("TCP_INFO", net::TCP_INFO);
pub const IP_TRANSPARENT: SocketOption =
    option("IP_TRANSPARENT", libc::SOL_IP, libc::IP_TRANSPARENT);
pub const IPV6_TRANSPARENT: SocketOption =
    option("IPV6_TRANSPARENT", libc::SOL_IPV6, libc::IPV6_TRANSPARENT);
pub const SEND_BUFFER: SocketOption =
    option("SO_SNDBUFFORCE", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE);
pub const RECEIVE_BUFFER: SocketOption =
    option("SO_RCVBUFFORCE", libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
/// SO_MEMINFO of asm-generic/socket.h: nine integers, SK_MEMINFO_*.
pub const MEMORY: SocketOption = option("SO_MEMINFO", libc::SOL_SOCKET, 55);

/// Sets an option to a value of plain integers.
pub fn set<T>(fd: BorrowedFd, option: SocketOption, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is open; the value is live and as long as is said.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            option.level,
            option.number,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A type of plain integers, for which zero is a valid value.
///
/// # Safety
/// All fields of the type are integers.
pub unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for [u32; 9] {}
// SAFETY: all its fields are integers.
unsafe impl Plain for net::tcp_info {}

/// An option's value. What an older kernel does not know of it is zero.
pub fn get<T: Plain>(fd: BorrowedFd, option: SocketOption) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            option.level,
            option.number,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zero is a valid value, and so is what the kernel has written (`Plain`).
    Ok(unsafe { value.assume_init() })
}

/// A request for a number.
#[derive(Clone, Copy)]
pub struct Request(libc::c_ulong);

/// Bytes that can be read (FIONREAD; of a socket SIOCINQ).
pub const UNREAD: Request = Request(libc::FIONREAD as libc::c_ulong);
/// Bytes that are not acknowledged, a FIN among them (SIOCOUTQ).
pub const UNACKNOWLEDGED: Request = Request(libc::TIOCOUTQ as libc::c_ulong);
/// 1 if the next byte is urgent.
pub const AT_MARK: Request = Request(0x8905);

/// Asks for a number (ioctl).
pub fn ask(fd: BorrowedFd, request: Request) -> io::Result<usize> {
    let mut number: libc::c_int = 0;
    // SAFETY: the descriptor is open, and each of the requests above writes an int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request.0, &raw mut number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(number.max(0) as usize) }
}

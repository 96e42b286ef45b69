//! Which descriptors a process reads.
//!
//! The kernel does not count the readers of a tap. A process that reads one waits for it most of
//! the time, and then /proc tells for what: an epoll's fdinfo lists its descriptors, and
//! `/proc/PID/task/TID/syscall` has the system call in which a thread waits. Both keep saying so
//! while the process is stopped. A process that is busy is not recognised.
//!
//! The kernel does not tell which descriptors an io_uring reads: that a process has one is
//! all that is known ([`has_io_uring`]).

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::process::numbers_of_descriptors;
use super::vcpu::tids;

/// No more of a list of descriptors is read from the memory of another process.
const MOST: usize = 1024;
const POLLFD_BYTES: usize = size_of::<libc::pollfd>();

/// The descriptors of a process for which it waits to read.
pub fn waited_for(pid: i32) -> HashSet<i32> {
    let mut found = HashSet::new();
    for fd in numbers_of_descriptors(pid) {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        found.extend(of_epoll(&info));
    }
    for tid in tids(pid) {
        found.extend(of_thread(pid, tid));
    }
    found
}

/// Has the process an io_uring, by which it may read?
pub fn has_io_uring(pid: i32) -> bool {
    numbers_of_descriptors(pid)
        .filter_map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok())
        .any(|target| target.to_str() == Some("anon_inode:[io_uring]"))
}

/// Lines of an epoll's fdinfo: `tfd:        5 events:       19 data: ...`, in hexadecimal but for
/// the descriptor.
fn of_epoll(fdinfo: &str) -> impl Iterator<Item = i32> {
    fdinfo.lines().filter_map(|line| line.strip_prefix("tfd:")).filter_map(|rest| {
        let mut words = rest.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        (events & libc::EPOLLIN as u32 != 0).then_some(fd)
    })
}

fn of_thread(pid: i32, tid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    match call(&text) {
        Some(Call::Read { fd }) => vec![fd],
        Some(Call::Poll { at, count }) => {
            of_poll(&memory(pid, at, count.min(MOST) * POLLFD_BYTES).unwrap_or_default())
        }
        Some(Call::Select { at, count }) => {
            of_select(&memory(pid, at, count.min(MOST).div_ceil(8)).unwrap_or_default())
        }
        None => Vec::new(),
    }
}

/// A system call that waits for descriptors; `at`: an address in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Read { fd: i32 },
    Poll { at: u64, count: usize },
    Select { at: u64, count: usize },
}

/// `NUMBER 0xARGUMENT ... 0xSP 0xPC`; `running` or `-1 ...` of a thread that is in none.
fn call(text: &str) -> Option<Call> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse::<i64>().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, second) = (argument()?, argument()?);
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_preadv2 => {
            Some(Call::Read { fd: first as i32 })
        }
        libc::SYS_ppoll => Some(Call::Poll { at: first, count: second as usize }),
        libc::SYS_pselect6 => Some(Call::Select { at: second, count: first as usize }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => Some(Call::Poll { at: first, count: second as usize }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => Some(Call::Select { at: second, count: first as usize }),
        _ => None,
    }
}

fn memory(pid: i32, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut read = vec![0; bytes];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut read, at).ok()?;
    Some(read)
}

/// `bytes`: an array of pollfd.
fn of_poll(bytes: &[u8]) -> Vec<i32> {
    let entry = |entry: &[u8]| {
        let fd = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let events = i16::from_ne_bytes([entry[4], entry[5]]);
        (events & libc::POLLIN != 0).then_some(fd)
    };
    bytes.chunks_exact(POLLFD_BYTES).filter_map(entry).collect()
}

/// `bytes`: a set of descriptors, in words of the machine.
fn of_select(bytes: &[u8]) -> Vec<i32> {
    let is_in = |fd: &usize| {
        // The bits of a word are in the machine's order, and the bytes with them.
        let byte = if cfg!(target_endian = "little") { fd / 8 } else { (fd / 8) ^ 7 };
        bytes.get(byte).is_some_and(|byte| byte & (1 << (fd % 8)) != 0)
    };
    (0..bytes.len() * 8).filter(is_in).map(|fd| fd as i32).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    use super::*;

    #[test]
    fn the_call_in_which_a_thread_waits_is_read() {
        let text = format!("{} 0x5 0x7ffd 0x40 0x0 0x0 0x0 0x7ffd 0x7f10\n", libc::SYS_read);
        assert_eq!(call(&text), Some(Call::Read { fd: 5 }));
        let text = format!("{} 0x1000 0x3 0x0 0x0 0x8 0x0 0x7ffd 0x7f10\n", libc::SYS_ppoll);
        assert_eq!(call(&text), Some(Call::Poll { at: 0x1000, count: 3 }));
        let text = format!("{} 0x9 0x2000 0x0 0x0 0x0 0x0 0x7ffd 0x7f10\n", libc::SYS_pselect6);
        assert_eq!(call(&text), Some(Call::Select { at: 0x2000, count: 9 }));
        for text in ["running\n", "-1 0x7ffd 0x7f10\n", "", "202 0x1 0x80"] {
            assert_eq!(call(text), None, "{text}");
        }
    }

    #[test]
    fn lists_of_descriptors_are_searched_for_those_that_are_read() {
        let entry = |fd: i32, events: i16| {
            [&fd.to_ne_bytes()[..], &events.to_ne_bytes()[..], &[0; 2]].concat()
        };
        let list = [entry(3, libc::POLLOUT), entry(4, libc::POLLIN)].concat();
        assert_eq!(of_poll(&list), [4]);
        if cfg!(target_endian = "little") {
            assert_eq!(of_select(&[1, 2, 0, 0, 0, 0, 0, 0]), [0, 9]);
        }
        assert!(of_select(&[]).is_empty() && of_poll(&[0; 7]).is_empty());
        let info = "pos:\t0\nflags:\t02\ntfd:        7 events:       19 data: 7  pos:0 ino:1\n";
        assert_eq!(of_epoll(info).collect::<Vec<_>>(), [7]);
        let writes = "tfd:        7 events:        4 data: 7\n";
        assert_eq!(of_epoll(writes).count(), 0);
    }

    fn reads(descriptor: i32) -> bool {
        waited_for(std::process::id() as i32).contains(&descriptor)
    }

    fn until_read(descriptor: i32) {
        let since = Instant::now();
        while !reads(descriptor) {
            assert!(since.elapsed() < Duration::from_secs(60), "not recognised");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_thread_that_reads_is_recognised_and_a_descriptor_alone_is_not() {
        let (near, far) = UnixStream::pair().expect("a pair");
        // A file, which is read by read().
        let mut near = File::from(OwnedFd::from(near));
        let descriptor = near.as_raw_fd();
        assert!(!reads(descriptor));
        let reading = std::thread::spawn(move || drop(near.read(&mut [0])));
        until_read(descriptor);
        assert!(!reads(far.as_raw_fd()));
        drop(far);
        reading.join().expect("read");
    }

    #[test]
    fn a_thread_that_polls_is_recognised() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let descriptor = near.as_raw_fd();
        let polling = std::thread::spawn(move || {
            let mut polled = [PollFd::new(near.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::NONE).expect("poll")
        });
        until_read(descriptor);
        drop(far);
        polling.join().expect("polled");
    }

    #[test]
    fn the_descriptors_of_an_epoll_are_read() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
        epoll.add(&near, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("add");
        assert!(reads(near.as_raw_fd()));
        drop(epoll);
        assert!(!reads(near.as_raw_fd()));
    }

    #[test]
    fn a_process_with_an_io_uring_is_known() {
        let pid = std::process::id() as i32;
        assert!(!has_io_uring(pid));
        // struct io_uring_params, of which all is zero.
        let mut parameters = [0_u64; 15];
        // SAFETY: writes no more than the structure, which has 120 bytes.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            eprintln!("skipped: this kernel makes no io_uring: {error}");
            return;
        }
        // SAFETY: a new descriptor, owned by this value alone.
        let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        assert!(has_io_uring(pid));
        drop(ring);
        assert!(!has_io_uring(pid));
    }
}

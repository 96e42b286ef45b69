//! Does a process read a descriptor?
//!
//! The kernel does not count the readers of a tap. A process that reads one waits for it most of
//! the time, and then /proc tells for what: an epoll's fdinfo lists its descriptors, and
//! `/proc/PID/task/TID/syscall` has the system call in which a thread waits. Both keep saying so
//! while the process is stopped. A process that is busy, or waits in io_uring, is not recognised.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::process::numbers_of_descriptors;
use super::vcpu::tids;

/// No more of a list of descriptors is read from the memory of another process.
const MOST: usize = 1024;
const POLLFD_BYTES: usize = size_of::<libc::pollfd>();

/// Does this process wait for one of these descriptors of its own?
pub fn reads(pid: i32, descriptors: &[i32]) -> bool {
    let has_epoll = numbers_of_descriptors(pid)
        .filter_map(|fd| fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok())
        .any(|info| epoll_has(&info, descriptors));
    has_epoll || tids(pid).any(|tid| waits(pid, tid, descriptors))
}

/// Lines of an epoll's fdinfo: `tfd:        5 events:       19 data: ...`, in hexadecimal but for
/// the descriptor.
fn epoll_has(fdinfo: &str, descriptors: &[i32]) -> bool {
    fdinfo.lines().filter_map(|line| line.strip_prefix("tfd:")).any(|rest| {
        let mut words = rest.split_whitespace();
        let fd = words.next().and_then(|word| word.parse().ok());
        let events = words.nth(1).and_then(|word| u32::from_str_radix(word, 16).ok());
        fd.is_some_and(|fd| descriptors.contains(&fd))
            && events.is_some_and(|events| events & libc::EPOLLIN as u32 != 0)
    })
}

fn waits(pid: i32, tid: i32, descriptors: &[i32]) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    match call(&text) {
        Some(Call::Read { fd }) => descriptors.contains(&fd),
        Some(Call::Poll { at, count }) => {
            let bytes = memory(pid, at, count.min(MOST) * POLLFD_BYTES).unwrap_or_default();
            polls(&bytes, descriptors)
        }
        Some(Call::Select { at, count }) => {
            let bytes = memory(pid, at, count.min(MOST).div_ceil(8)).unwrap_or_default();
            selects(&bytes, descriptors)
        }
        None => false,
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
fn polls(bytes: &[u8], descriptors: &[i32]) -> bool {
    bytes.chunks_exact(POLLFD_BYTES).any(|entry| {
        let fd = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let events = i16::from_ne_bytes([entry[4], entry[5]]);
        descriptors.contains(&fd) && events & libc::POLLIN != 0
    })
}

/// `bytes`: a set of descriptors, in words of the machine.
fn selects(bytes: &[u8], descriptors: &[i32]) -> bool {
    descriptors.iter().any(|fd| {
        let Ok(fd) = usize::try_from(*fd) else { return false };
        // A word of the set has its bits in the machine's order, which is that of the bytes here.
        let byte = if cfg!(target_endian = "little") { fd / 8 } else { (fd / 8) ^ 7 };
        bytes.get(byte).is_some_and(|byte| byte & (1 << (fd % 8)) != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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
        assert!(polls(&list, &[4]) && !polls(&list, &[3]) && !polls(&list, &[5]));
        assert!(selects(&[0, 2, 0, 0, 0, 0, 0, 0], &[9]) || cfg!(target_endian = "big"));
        assert!(!selects(&[0, 0], &[9]) && !selects(&[0], &[-1, 900]));
        let info = "pos:\t0\nflags:\t02\ntfd:        7 events:       19 data: 7  pos:0 ino:1\n";
        assert!(epoll_has(info, &[6, 7]) && !epoll_has(info, &[1]));
        let writes = "tfd:        7 events:        4 data: 7\n";
        assert!(!epoll_has(writes, &[7]));
    }

    fn until_read(descriptor: i32) {
        let (pid, since) = (std::process::id() as i32, Instant::now());
        while !reads(pid, &[descriptor]) {
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
        let pid = std::process::id() as i32;
        assert!(!reads(pid, &[descriptor]));
        let reading = std::thread::spawn(move || drop(near.read(&mut [0])));
        until_read(descriptor);
        assert!(!reads(pid, &[far.as_raw_fd()]));
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
        let pid = std::process::id() as i32;
        let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
        epoll.add(&near, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("add");
        assert!(reads(pid, &[near.as_raw_fd()]));
        drop(epoll);
        assert!(!reads(pid, &[near.as_raw_fd()]));
    }
}

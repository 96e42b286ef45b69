//! Processes, and their descriptors of taps.
//!
//! `/proc/PID/fdinfo/FD` of a tap's descriptor has a line `iff:\tNAME`. The tap may be in another
//! network namespace than the process (management software opens it and passes the descriptor on),
//! so a copy of the descriptor is queried for its device's namespace.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::netns;

nix::ioctl_none!(tungetdevnetns, b'T', 227);

/// The search for taps reads no more descriptors of one process than this. A user who runs a
/// monitor can open as many as the kernel allows; a monitor has its taps among the first.
const DESCRIPTORS: usize = 4096;

/// A process; its start time distinguishes it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// Its start, clock ticks since boot (/proc/PID/stat).
    pub started_ticks: u64,
    /// The name of its main thread.
    pub name: String,
}

impl Process {
    pub fn from_pid(pid: i32) -> Option<Self> {
        let stat = Stat::read(&format!("/proc/{pid}/stat"))?;
        Some(Self { pid, started_ticks: stat.started_ticks, name: stat.name })
    }

    /// Does it still hold its files? A zombie does not, unless other threads are about to end: the
    /// main thread is a zombie before the last thread has closed the files.
    pub fn is_alive(&self) -> bool {
        let stat = Stat::read(&format!("/proc/{}/stat", self.pid));
        stat.is_some_and(|now| {
            now.started_ticks == self.started_ticks && (now.state != 'Z' || threads(self.pid) > 1)
        })
    }
}

/// The VM's name in the monitor's arguments: QEMU's `-name` (libvirt and Proxmox set it),
/// Firecracker's `--id`.
pub fn vm_name(pid: i32) -> Option<String> {
    vm_name_in(&fs::read(format!("/proc/{pid}/cmdline")).ok()?)
}

fn vm_name_in(arguments: &[u8]) -> Option<String> {
    let mut words = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.find(|word| matches!(word.as_ref(), "-name" | "--name" | "--id"))?;
    let value = words.next()?;
    let first = value.split(',').next()?;
    let name = first.strip_prefix("guest=").unwrap_or(first);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Number of threads of a process, main thread included.
fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The process's descriptors of taps of this name.
pub fn descriptors(pid: i32, name: &str) -> impl Iterator<Item = i32> {
    with_names(pid).filter(move |(_, found)| found == name).map(|(fd, _)| fd)
}

/// The process's descriptors of the tap of this name in this network namespace.
pub(super) fn descriptors_in(pid: i32, name: &str, netns: u64) -> Vec<i32> {
    descriptors(pid, name).filter(|fd| netns_of_tap(pid, *fd) == Some(netns)).collect()
}

/// The taps of which the process has descriptors, by name and network namespace.
pub(super) fn taps(pid: i32) -> HashMap<(String, u64), Vec<i32>> {
    let mut taps: HashMap<_, Vec<i32>> = HashMap::new();
    for (fd, name) in with_names(pid) {
        if let Some(netns) = netns_of_tap(pid, fd) {
            taps.entry((name, netns)).or_default().push(fd);
        }
    }
    taps
}

/// The process's descriptors of taps, with the taps' names.
fn with_names(pid: i32) -> impl Iterator<Item = (i32, String)> {
    numbers_of_descriptors(pid).filter_map(move |fd| Some((fd, tap_at(pid, fd)?)))
}

/// The process's first descriptors, of whatever kind.
pub(super) fn numbers_of_descriptors(pid: i32) -> impl Iterator<Item = i32> {
    first_numbers(format!("/proc/{pid}/fdinfo").as_ref())
}

/// The numbers of the first [`DESCRIPTORS`] descriptors in this directory of /proc, which the
/// kernel lists in ascending order. The rest is not listed.
fn first_numbers(directory: &Path) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(DESCRIPTORS).flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The name of the tap, if the descriptor is one's.
fn tap_at(pid: i32, fd: i32) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    tap_of(&info).map(str::to_owned)
}

/// Has the process read all packets in the rings of its tap? `None` if that is unknown.
/// `descriptors`: those of [`descriptors`], some time ago. The kernel answers a poll on a copy of
/// the descriptor. The copies are closed at once, because an open one keeps a tap alive.
pub fn rings_are_empty(pid: i32, name: &str, netns: u64, descriptors: &[i32]) -> Option<bool> {
    let mut seen = None;
    for &fd in descriptors {
        if tap_at(pid, fd).as_deref() != Some(name) {
            continue;
        }
        let tap = copy(pid, fd)?;
        if device_netns(&tap)? != netns {
            continue;
        }
        let mut polled = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).ok()?;
        let readable = polled[0].revents()?.contains(PollFlags::POLLIN);
        seen = Some(seen.unwrap_or(true) && !readable);
    }
    seen
}

/// The device that a descriptor's fdinfo names.
fn tap_of(fdinfo: &str) -> Option<&str> {
    fdinfo.lines().find_map(|line| line.strip_prefix("iff:\t")).filter(|name| !name.is_empty())
}

/// The network namespace of a tap's device; that of the process if the kernel does not report it.
fn netns_of_tap(pid: i32, fd: i32) -> Option<u64> {
    copy(pid, fd)
        .and_then(|tap| device_netns(&tap))
        .or_else(|| netns::inode_of(Path::new(&format!("/proc/{pid}/ns/net"))))
}

/// A copy of another process's descriptor.
fn copy(pid: i32, fd: i32) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok()
}

fn device_netns(tap: &OwnedFd) -> Option<u64> {
    // SAFETY: TUNGETDEVNETNS takes no argument; on another kind of file it fails.
    let namespace = unsafe { tungetdevnetns(tap.as_raw_fd()) }.ok()?;
    // SAFETY: the call returned a new descriptor, owned by this value alone.
    let namespace = File::from(unsafe { OwnedFd::from_raw_fd(namespace) });
    Some(namespace.metadata().ok()?.ino())
}

/// The fields of /proc/.../stat that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub name: String,
    /// R, S, D, T, ...
    pub state: char,
    pub started_ticks: u64,
    pub realtime_priority: u32,
    /// SCHED_OTHER, SCHED_FIFO, ... (sched.h)
    pub policy: i32,
}

impl Stat {
    pub fn read(path: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// proc_pid_stat(5); the name is in parentheses and may contain anything.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        // The first of `rest` is field 3.
        let fields: Vec<_> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name,
            state: field(3)?.chars().next()?,
            started_ticks: field(22)?.parse().ok()?,
            realtime_priority: field(40)?.parse().ok()?,
            policy: field(41)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_called_what_the_arguments_of_its_monitor_say() {
        let vm_name = |text: &str| vm_name_in(text.replace(' ', "\0").as_bytes());
        assert_eq!(vm_name("qemu -name guest=web1,debug-threads=on -m 1G"), Some("web1".into()));
        assert_eq!(vm_name("qemu -m 1G -name db"), Some("db".into()));
        assert_eq!(vm_name("firecracker --id f7 --api-sock x"), Some("f7".into()));
        assert_eq!(vm_name("qemu -m 1G"), None);
        assert_eq!(vm_name("qemu -name"), None);
    }

    #[test]
    fn the_tap_is_read_from_fdinfo() {
        let info = "pos:\t0\nflags:\t0104002\nmnt_id:\t24\nino:\t154\niff:\tvnet7\n";
        assert_eq!(tap_of(info), Some("vnet7"));
        assert_eq!(tap_of("pos:\t0\niff:\t\n"), None);
        assert_eq!(tap_of("pos:\t0\n"), None);
    }

    #[test]
    fn a_process_with_more_descriptors_takes_no_more_time() {
        let name = format!("vsnoop-descriptors-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        for number in 0..DESCRIPTORS + 9 {
            File::create(directory.join(number.to_string())).unwrap();
        }
        let found = first_numbers(&directory).count();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, DESCRIPTORS);
        let own: Vec<_> = first_numbers("/proc/self/fd".as_ref()).collect();
        assert!(own.is_sorted() && own.contains(&2), "{own:?}");
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let mut fields = vec!["0"; 50];
        fields[0] = "T";
        fields[19] = "777";
        fields[37] = "5";
        fields[38] = "2";
        let stat = Stat::parse(&format!("42 (a) b (c) {}", fields.join(" "))).unwrap();
        assert_eq!(
            stat,
            Stat {
                name: "a) b (c".into(),
                state: 'T',
                started_ticks: 777,
                realtime_priority: 5,
                policy: 2
            }
        );
    }

    #[test]
    fn the_own_process_is_alive_and_another_start_time_is_another_process() {
        let own = Process::from_pid(std::process::id() as i32).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started_ticks: own.started_ticks + 1, ..own }.is_alive());
    }
}

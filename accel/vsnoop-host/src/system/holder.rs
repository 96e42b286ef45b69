//! The process behind a tap, of all that hold it: the virtual machine monitor, or a substitute.
//!
//! Others may hold it as well: management software that opened the tap and passed it on,
//! systemd-networkd with `KeepCarrier=`, the starter of a monitor. They have the same descriptor
//! and do not read it. So the processes are compared by what is known of them ([`Evidence`]): one
//! with vCPUs, else one that waits for the tap's frames, else one with an io_uring, by which it may
//! read them, else one with the name of a monitor; the lowest process id decides between equals.

use std::collections::{HashMap, HashSet};
use std::fs;

use super::proc::ids;
use super::process::{self, Process};
use super::{reader, vcpu};

/// The first letters of the names of monitors, as /proc/PID/comm has them. What has none of these,
/// and no vCPUs, is no VM. `linux`: User Mode Linux.
const MONITORS: [&str; 12] = [
    "qemu",
    "kvm",
    "cloud-hyper",
    "firecracker",
    "crosvm",
    "runsc",
    "linux",
    "lkvm",
    "stratovirt",
    "dragonball",
    "VBoxHeadless",
    "vmware-vmx",
];

/// The kind of process behind a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behind {
    /// A VM, as far as is known.
    #[default]
    Vm,
    /// A process that is no VM: a VPN, say.
    Other,
    /// A link of vsnoop, which has made the tap.
    Link,
}

/// A process, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub process: Process,
    pub evidence: Evidence,
    /// It is a link of vsnoop, which made the tap.
    pub is_link: bool,
}

/// Evidence that a process is the one behind its tap; the greater is more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evidence {
    /// Threads with the names of vCPUs, or descriptors of KVM's VMs.
    pub has_vcpus: bool,
    /// It waits for the tap's frames, or did when it was stopped. Not asked of the only process
    /// that holds a tap, nor of one with vCPUs.
    pub reads: bool,
    /// It has an io_uring: whether it reads the tap by that is not known. Asked as `reads` is.
    pub has_io_uring: bool,
    /// It is called like a monitor.
    pub is_named: bool,
}

impl Holder {
    /// Is a VM behind the tap? False of a VPN, a bridge in user space or management software.
    pub fn is_vm(&self) -> bool {
        self.evidence.has_vcpus || self.evidence.is_named
    }

    /// The kind of process behind the tap.
    pub fn behind(&self) -> Behind {
        match (self.is_link, self.is_vm()) {
            (true, _) => Behind::Link,
            (false, true) => Behind::Vm,
            (false, false) => Behind::Other,
        }
    }

    /// Why the service leaves the tap alone; `None` of a VM's.
    pub fn why_no_vm(&self) -> Option<String> {
        let Process { pid, name, .. } = &self.process;
        match self.behind() {
            Behind::Vm => None,
            Behind::Link => Some(format!("a link of vsnoop has made it (process {pid})")),
            Behind::Other => Some(format!("{name} (process {pid}) holds it, and has no vCPUs")),
        }
    }

    /// Without what it reads.
    fn from_pid(pid: i32) -> Option<Self> {
        let process = Process::from_pid(pid)?;
        let arguments = arguments(pid);
        let evidence = Evidence {
            has_vcpus: vcpu::has_any(pid) || has_kvm(pid),
            reads: false,
            has_io_uring: false,
            is_named: is_named(&process.name, &arguments),
        };
        let is_link = is_link(&process.name, &arguments);
        Some(Self { process, evidence, is_link })
    }
}

/// `None` if there is none, or if access is denied.
pub fn of_tap(name: &str, netns: u64) -> Option<Holder> {
    let of_tap = |pid| (pid, process::descriptors_in(pid, name, netns));
    let holding = ids().map(of_tap).filter(|(_, descriptors)| !descriptors.is_empty());
    Processes::default().choose(holding.collect())
}

/// Holders of all taps, by name and network namespace: one pass for many ports.
pub fn of_all_taps() -> HashMap<(String, u64), Holder> {
    let mut holding: HashMap<_, Vec<_>> = HashMap::new();
    for pid in ids() {
        for (tap, descriptors) in process::taps(pid) {
            holding.entry(tap).or_default().push((pid, descriptors));
        }
    }
    let mut processes = Processes::default();
    let chosen = holding.into_iter();
    chosen.filter_map(|(tap, holding)| Some((tap, processes.choose(holding)?))).collect()
}

/// The process id of the link of vsnoop that has made this tap, if one has.
pub fn link_with(name: &str, netns: u64) -> Option<i32> {
    let is_link = |pid: &i32| {
        Process::from_pid(*pid).is_some_and(|process| is_link(&process.name, &arguments(*pid)))
    };
    ids().filter(is_link).find(|pid| !process::descriptors_in(*pid, name, netns).is_empty())
}

/// Processes as they were read: one may hold many taps.
#[derive(Default)]
struct Processes {
    known: HashMap<i32, Option<Holder>>,
    /// The descriptors for which each waits. To find them takes long, so it is done only for
    /// processes of which several hold a tap.
    waited_for: HashMap<i32, HashSet<i32>>,
}

impl Processes {
    /// Chooses the process behind a tap, of these with their descriptors of it.
    fn choose(&mut self, holding: Vec<(i32, Vec<i32>)>) -> Option<Holder> {
        let are_several = holding.len() > 1;
        let read_holder = |(pid, descriptors): (i32, Vec<i32>)| {
            let mut holder =
                self.known.entry(pid).or_insert_with(|| Holder::from_pid(pid)).clone()?;
            if are_several && !holder.evidence.has_vcpus {
                let waited_for =
                    self.waited_for.entry(pid).or_insert_with(|| reader::waited_for(pid));
                holder.evidence.reads = descriptors.iter().any(|fd| waited_for.contains(fd));
                holder.evidence.has_io_uring = reader::has_io_uring(pid);
            }
            Some(holder)
        };
        holding.into_iter().filter_map(read_holder).reduce(better)
    }
}

fn arguments(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// The first of equals.
fn better(first: Holder, second: Holder) -> Holder {
    if second.evidence > first.evidence { second } else { first }
}

/// Has the process made a VM of KVM?
fn has_kvm(pid: i32) -> bool {
    let of_kvm = |target: &str| {
        ["anon_inode:kvm-vm", "anon_inode:kvm-vcpu"].iter().any(|kind| target.starts_with(kind))
    };
    process::numbers_of_descriptors(pid)
        .filter_map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok())
        .any(|target| target.to_str().is_some_and(of_kvm))
}

/// By its main thread, or by the first of its arguments: a sandbox of gVisor runs /proc/self/exe.
fn is_named(name: &str, arguments: &[u8]) -> bool {
    let first = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let program = first.rsplit('/').next().unwrap_or_default();
    MONITORS.iter().any(|monitor| name.starts_with(monitor) || program.starts_with(monitor))
}

/// `vsnoop link up ...`
fn is_link(name: &str, arguments: &[u8]) -> bool {
    let words = || arguments.split(|byte| *byte == 0);
    name == "vsnoop" && words().skip(1).any(|word| word == b"link")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, evidence: Evidence) -> Holder {
        let process = Process { pid, started_ticks: 1, name: "x".into() };
        Holder { process, evidence, is_link: false }
    }

    #[test]
    fn vcpus_say_more_than_reading_and_reading_more_than_a_name() {
        let nothing = Evidence::default();
        let named = Evidence { is_named: true, ..nothing };
        let reads = Evidence { reads: true, ..nothing };
        let vcpus = Evidence { has_vcpus: true, ..nothing };
        let best = |evidences: &[Evidence]| {
            let all = evidences.iter().zip(1..).map(|(evidence, pid)| holder(pid, *evidence));
            all.reduce(better).expect("one").process.pid
        };
        assert_eq!(best(&[nothing, named, reads, vcpus]), 4);
        assert_eq!(best(&[vcpus, Evidence { is_named: true, ..reads }]), 1);
        assert_eq!(best(&[named, reads]), 2, "the starter of a monitor has its name");
        let uring = Evidence { has_io_uring: true, ..nothing };
        assert_eq!(best(&[named, nothing, uring]), 3, "who holds the tap for it has none");
        assert_eq!(best(&[uring, reads]), 2, "it may use it for something else");
        assert_eq!(best(&[nothing, named, named]), 2);
        assert_eq!(best(&[nothing, nothing]), 1, "the lowest process id");
    }

    #[test]
    fn a_vm_has_vcpus_or_the_name_of_a_monitor() {
        let has_name =
            |name: &str, arguments: &str| is_named(name, arguments.replace(' ', "\0").as_bytes());
        for (name, arguments) in [
            ("qemu-system-x86", "qemu-system-x86_64 -m 1G"),
            ("cloud-hyperviso", "cloud-hypervisor --net fd=3"),
            ("firecracker", "/firecracker --id f7"),
            ("linux", "./linux mem=64M"),
            ("linux.uml", "linux.uml mem=64M"),
            ("exe", "runsc-sandbox --root=/run boot"),
        ] {
            assert!(has_name(name, arguments), "{name}");
        }
        for (name, arguments) in [
            ("openvpn", "/usr/sbin/openvpn --config qemu.conf"),
            ("zerotier-one", "/usr/sbin/zerotier-one -U"),
            ("tincd", "tincd -n linux"),
            ("systemd-network", "/usr/lib/systemd/systemd-networkd"),
            ("vsnoop", "vsnoop link up office.toml"),
        ] {
            assert!(!has_name(name, arguments), "{name}");
        }
        let vcpus = Evidence { has_vcpus: true, ..Evidence::default() };
        assert!(holder(1, vcpus).is_vm());
        assert!(!holder(1, Evidence { reads: true, ..Evidence::default() }).is_vm());
    }

    #[test]
    fn a_link_of_vsnoop_is_known_by_its_command() {
        let is_a_link =
            |name: &str, words: &str| is_link(name, words.replace(' ', "\0").as_bytes());
        assert!(is_a_link("vsnoop", "/usr/sbin/vsnoop link up --report -- office.toml"));
        assert!(is_a_link("vsnoop", "/usr/sbin/vsnoop --netns a link up office.toml"));
        assert!(!is_a_link("vsnoop", "/usr/sbin/vsnoop engine"));
        assert!(!is_a_link("openvpn", "openvpn link"));
    }
}

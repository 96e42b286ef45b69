//! The network namespace of the sockets of split connections, one for all ports of a host.
//!
//! It is named as `ip netns add` does it: a file in /run/netns on which the namespace is mounted,
//! which keeps it alive without a process. It is complete before it has its name: the loopback
//! device is up, all that arrives is for this host, and new devices have settings that let them
//! send and receive with any address.
//!
//! Service and helper give up what making and removing it needs (decision 41). Commands do both;
//! the service makes it before it gives that up, if its configuration has a port with downloads.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{FsType, statfs};
use vsnoop_netdev::change;
use vsnoop_netdev::policy::{Family, take_all_as_local};

use super::error::{Result, Unavailable};
use super::sysctl;
use crate::error::Error;
use crate::lock::CommandLock;
use crate::system::netdev;
use crate::system::netns::{NAMED, Netns};

/// Its name.
pub const NAME: &str = "vsnoop-split";

/// New devices get the settings of `default`; the kernel takes the larger of `all` and a device's
/// own for `rp_filter`. Writing `ip_forward` resets others, so it is first.
const IPV4: [(&str, &str); 11] = [
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // The addresses of both ends are local here.
    ("ipv4/conf/default/accept_local", "1"),
    ("ipv4/conf/all/log_martians", "0"),
    ("ipv4/conf/default/log_martians", "0"),
    // What was measured of a path belongs to one connection, and stays after an idle time: the VM
    // may have been waiting for its turn.
    ("ipv4/tcp_slow_start_after_idle", "0"),
    ("ipv4/tcp_no_metrics_save", "1"),
    // Where a path swallows long segments without a word.
    ("ipv4/tcp_mtu_probing", "1"),
    // The splitter has no capability for ports below 1024, which VMs serve.
    ("ipv4/ip_unprivileged_port_start", "0"),
    // One in TIME-WAIT would be in the way of the next connection with its ports.
    ("ipv4/tcp_max_tw_buckets", "0"),
];

/// Devices have no address (1 of `addr_gen_mode`), look for no duplicates and hear no router.
const IPV6: [(&str, &str); 4] = [
    ("ipv6/conf/default/addr_gen_mode", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/autoconf", "0"),
];

/// The file that keeps it.
pub fn path() -> PathBuf {
    Path::new(NAMED).join(NAME)
}

/// The namespace, if there is one.
pub fn open() -> Result<Option<Netns>> {
    let path = path();
    if !is_mounted(&path) {
        return Ok(None);
    }
    Ok(Some(Netns::open(path.to_str().unwrap_or(NAME))?))
}

/// The namespace; it is made if there is none. The caller holds the lock of commands, which
/// keeps others from making another one.
pub fn open_or_make() -> Result<Netns> {
    if let Some(found) = open()? {
        return Ok(found);
    }
    make()?;
    open()?.ok_or_else(|| Unavailable::NoNamespace { path: path() })
}

/// Removes it. A command that was killed may have left it; a process that has it open keeps it.
pub fn remove(_lock: &CommandLock) -> Result<()> {
    let path = path();
    while is_mounted(&path) {
        umount2(&path, MntFlags::MNT_DETACH).map_err(pinning(&path))?;
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Unavailable::Pin { path, source: error })
        }
        _ => Ok(()),
    }
}

fn make() -> Result<()> {
    let path = path();
    prepare_directory().map_err(unnamed(&path))?;
    // A thread of its own: the namespace of the caller stays.
    thread::scope(|scope| scope.spawn(|| make_here(&path)).join())
        .map_err(|_| Error::ThreadDied { netns: NAME.to_owned() })?
        .inspect_err(|_| {
            // Best effort: a name without a namespace is no obstacle to the next try.
            let _ = fs::remove_file(&path);
        })
}

/// The calling thread gets a new namespace, which is given its name when it is complete.
fn make_here(path: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => Unavailable::NoNamespace { path: path.to_owned() },
        errno => Unavailable::Namespace(errno.into()),
    })?;
    set_up()?;
    // The kernel may take long over a namespace: one that is killed meanwhile leaves no file.
    let mut file = OpenOptions::new();
    file.write(true).create(true).truncate(false).mode(0o444);
    file.open(path).map_err(unnamed(path))?;
    let own = Some("/proc/thread-self/ns/net");
    let none = None::<&str>;
    mount(own, path, none, MsFlags::MS_BIND, none).map_err(pinning(path))
}

fn set_up() -> Result<()> {
    let lo = netdev::find("lo")?.map_or(1, |lo| lo.index);
    change::set_up(lo).map_err(failed("set the loopback device up"))?;
    IPV4.iter().try_for_each(|(name, value)| sysctl::write_if_there(name, value))?;
    take_all_as_local(Family::V4, lo).map_err(failed("make all addresses of IPv4 local"))?;
    if !sysctl::has_ipv6() {
        return Ok(());
    }
    IPV6.iter().try_for_each(|(name, value)| sysctl::write_if_there(name, value))?;
    take_all_as_local(Family::V6, lo).map_err(failed("make all addresses of IPv6 local"))
}

/// Makes a directory whose mounts others see, as `ip netns add` does: names that another one adds
/// later must not hide this one.
fn prepare_directory() -> io::Result<()> {
    let none = None::<&str>;
    DirBuilder::new().recursive(true).mode(0o755).create(NAMED)?;
    let share = || mount(none, NAMED, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    match share() {
        // It is no mount of its own yet.
        Err(Errno::EINVAL) => {
            mount(Some(NAMED), NAMED, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            Ok(share()?)
        }
        shared => Ok(shared?),
    }
}

fn is_mounted(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == FsType(libc::NSFS_MAGIC as _))
}

fn unnamed(path: &Path) -> impl FnOnce(io::Error) -> Unavailable {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => Unavailable::NoNamespace { path: path.to_owned() },
        _ => Unavailable::Pin { path: path.to_owned(), source },
    }
}

fn pinning(path: &Path) -> impl FnOnce(Errno) -> Unavailable {
    move |errno| unnamed(path)(errno.into())
}

fn failed(doing: &'static str) -> impl FnOnce(vsnoop_netdev::netlink::Error) -> Unavailable {
    move |source| Unavailable::SetUp { doing, source }
}

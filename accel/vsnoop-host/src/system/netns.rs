//! Code runs inside a namespace on a thread of its own, so that the caller's thread never changes
//! its namespace, and no error path can forget to return. A namespace is identified by the inode of
//! its file, unique on the host while anything refers to it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::sys::statfs::{FsType, fstatfs};

use crate::error::{Error, Result, SystemError, Unfit, unfit, usage};

/// Where `ip netns add` puts its names.
pub const NAMED: &str = "/run/netns";
const OWN: &str = "/proc/thread-self/ns/net";

/// Linux 5.14 (include/uapi/asm-generic/socket.h); the crate libc does not have it.
const SO_NETNS_COOKIE: i32 = 71;
nix::getsockopt_impl!(
    NetnsCookie,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64,
    nix::sys::socket::sockopt::GetStruct<u64>
);

/// The cookie of the network namespace in which a socket was made.
#[derive(Clone, Copy)]
struct NetnsCookie;

/// An open network namespace.
#[derive(Debug)]
pub struct Netns {
    file: File,
    /// Identifies the namespace on this host.
    pub inode: u64,
    /// Its name for messages; `None` for the caller's own.
    pub name: Option<String>,
    /// The path by which it was opened; valid while its holder exists.
    pub path: PathBuf,
}

impl Netns {
    /// The namespace that the command was started in.
    pub fn current() -> Result<Self> {
        Self::open_path(Path::new(OWN), None)
    }

    /// Opens `--netns NAME`: a name in /run/netns, a path, or the id of a process in it.
    pub fn open(name: &str) -> Result<Self> {
        let path = locate(name);
        if !path.exists() {
            return Err(unfit(
                Unfit::Other,
                format!(
                    "network namespace {name} does not exist ({} is not there); \
                 give a name that `ip netns` lists, a path, or the id of a process in it",
                    path.display()
                ),
            ));
        }
        Self::open_path(&path, Some(name.to_owned()))
    }

    /// The namespace of `--netns`, or the caller's own.
    pub fn chosen(name: Option<&str>) -> Result<Self> {
        match name {
            Some(name) => Self::open(name),
            None => Self::current(),
        }
    }

    /// Looks for the namespace with this inode: the caller's own, named ones, then those of
    /// processes.
    pub fn find(inode: u64) -> Option<Self> {
        if let Ok(own) = Self::current()
            && own.inode == inode
        {
            return Some(own);
        }
        named().chain(of_processes()).find_map(|(path, name)| {
            (inode_of(&path) == Some(inode))
                .then(|| Self::open_path(&path, Some(name)).ok())
                .flatten()
                .filter(|found| found.inode == inode)
        })
    }

    /// [`Netns::find`], with the previous path tried first. A caller that looks often keeps the
    /// path, since an open file would keep the namespace alive after its last process.
    pub fn find_again(inode: u64, path: &mut Option<PathBuf>) -> Option<Self> {
        let found = path
            .as_deref()
            .filter(|path| inode_of(path) == Some(inode))
            .and_then(|path| Self::open_path(path, None).ok())
            .filter(|found| found.inode == inode)
            .or_else(|| Self::find(inode));
        *path = found.as_ref().map(|found| found.path.clone());
        found
    }

    /// Runs `work` on a thread inside this namespace.
    pub fn run<T: Send, E: From<Error> + Send>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, E> + Send,
    ) -> std::result::Result<T, E> {
        if inode_of(Path::new(OWN)) == Some(self.inode) {
            return work();
        }
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter()?;
                    work()
                })
                .join()
                .map_err(|_| Error::ThreadDied { netns: self.label().to_owned() })?
        })
    }

    /// Moves the calling thread, and the threads that it starts later, into this namespace for
    /// good.
    pub fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            nix::Error::EPERM => unfit(
                Unfit::Privilege,
                format!("entering network namespace {} needs root (CAP_SYS_ADMIN)", self.label()),
            ),
            _ => Error::EnterNetns { netns: self.label().to_owned(), source: errno },
        })
    }

    /// Identifies the namespace until the host is booted again, also after it is gone: the kernel
    /// gives none twice.
    pub fn cookie(&self) -> Result<u64> {
        let cookie = || {
            let kind = SockType::Datagram;
            let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
            getsockopt(&socket, NetnsCookie)
        };
        self.run(|| cookie().map_err(Error::call("ask for the cookie of a network namespace")))
    }

    /// For messages.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or("of this command")
    }

    /// A port in it for messages: "vnet0", or "vnet0 (netns blue)" if it is not the caller's own.
    pub fn label_of_port(&self, port: &str) -> String {
        match &self.name {
            Some(name) => format!("{port} (netns {name})"),
            None => port.to_owned(),
        }
    }

    fn open_path(path: &Path, name: Option<String>) -> Result<Self> {
        let file = File::open(path).map_err(Error::file("open network namespace", path))?;
        let kind = fstatfs(&file).map_err(Error::file("look at", path))?;
        if kind.filesystem_type() != FsType(libc::NSFS_MAGIC as _) {
            return Err(usage(format!("{} is not a network namespace", path.display())));
        }
        let inode = file.metadata().map_err(SystemError::from)?.ino();
        Ok(Self { file, inode, name, path: path.to_owned() })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// [`Netns::label_of_port`] for the namespace with this inode; the port alone if that is gone.
pub fn label_of_port(inode: u64, port: &str) -> String {
    Netns::find(inode).map_or_else(|| port.to_owned(), |netns| netns.label_of_port(port))
}

fn locate(name: &str) -> PathBuf {
    if name.contains('/') {
        return PathBuf::from(name);
    }
    let named = Path::new(NAMED).join(name);
    if !named.exists() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return PathBuf::from(format!("/proc/{name}/ns/net"));
    }
    named
}

/// Names for people, by inode: those of /run/netns, and for namespaces that have none (pods) a
/// process.
pub fn names() -> HashMap<u64, String> {
    let mut names = HashMap::new();
    for (path, name) in named().chain(of_processes()) {
        if let Some(inode) = inode_of(&path) {
            names.entry(inode).or_insert(name);
        }
    }
    if let Some(own) = inode_of(Path::new(OWN)) {
        names.insert(own, String::new());
    }
    names
}

/// A path to every network namespace of the host, by inode.
pub fn paths() -> HashMap<u64, PathBuf> {
    let own = (PathBuf::from("/proc/self/ns/net"), String::new());
    let all = std::iter::once(own).chain(named()).chain(of_processes());
    let mut paths = HashMap::new();
    for (path, _) in all {
        if let Some(inode) = inode_of(&path) {
            paths.entry(inode).or_insert(path);
        }
    }
    paths
}

fn named() -> impl Iterator<Item = (PathBuf, String)> {
    fs::read_dir(NAMED)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
}

fn of_processes() -> impl Iterator<Item = (PathBuf, String)> {
    super::proc::ids().map(|pid| (PathBuf::from(format!("/proc/{pid}/ns/net")), pid.to_string()))
}

/// Inode of a namespace file; `None` if it cannot be read.
pub fn inode_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_a_word_is_a_name() {
        assert_eq!(locate("4711"), Path::new("/proc/4711/ns/net"));
        assert_eq!(locate("blue"), Path::new("/run/netns/blue"));
        assert_eq!(locate("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
    }

    #[test]
    fn a_file_that_is_no_namespace_is_a_usage_error() {
        let error = Netns::open("/proc/self/status").unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
    }

    #[test]
    fn a_namespace_has_one_cookie_however_it_was_opened() {
        let own = Netns::current().unwrap().cookie().unwrap();
        assert_ne!(own, 0);
        assert_eq!(Netns::open("/proc/self/ns/net").unwrap().cookie().unwrap(), own);
    }
}

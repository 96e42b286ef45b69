//! The keeper: has a duplicate of each descriptor of split connections, and does nothing else, so
//! that a splitter that ends, or is killed, loses nothing
//! (docs/decisions/0048-split-connections.md).
//!
//! One process per host, beside the splitter. It starts with it, is kept running by the helper, and
//! ends when no splitter has come for a while. It never reads or writes what it keeps, and has no
//! privileges. A splitter connects to its socket, which only root can open, is handed all that is
//! kept (`message.rs`, `store.rs`), and says what is to be kept and what is over (`client.rs`).
//!
//! | killed | then |
//! |---|---|
//! | the splitter | the sockets wait; the next splitter takes them up |
//! | the keeper | the splitter sends the next keeper the descriptors of all its connections |
//! | both | the kernel resets both ends; the next splitter finds what is left of them |

mod client;
mod message;
mod store;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::PollFlags;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, getsockopt, listen, socket,
};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use vsnoop_host::error::Unfit;
use vsnoop_host::lock;
use vsnoop_split::PARTS;

use crate::background::{self, Instance, Role};
use crate::cli;
use crate::error::unfit_error;
use crate::output::watch::Interrupt;
pub use client::Keeper;
pub use message::Kept;
use store::{Store, wait_for};

/// How long it waits for a splitter: with nothing to keep, and with connections. Then the kernel
/// resets their ends, which have waited for that time.
const LINGER: Duration = Duration::from_secs(3);
const WITHOUT_SPLITTER: Duration = Duration::from_secs(30);

/// Most connections: what a few ports have.
const MOST: u64 = 8192;
/// Descriptors of its own.
const OWN: u64 = 32;

/// The socket at which it can be reached.
pub fn socket_path() -> PathBuf {
    Path::new(lock::DIRECTORY).join("keeper.sock")
}

pub fn run_keeper(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(Role::Keeper, arguments.foreground)?;
    let Some(_instance) = Instance::take_lock(Role::Keeper)? else {
        if arguments.foreground {
            return Err(unfit_error(Unfit::Other, "another keeper works already"));
        }
        return Ok(0);
    };
    let listener = open_listener(&socket_path())?;
    let mut store = Store::new(count_room());
    tracing::info!("keeper started");
    serve_splitters(&listener, &mut store, &interrupt)?;
    if !store.is_empty() {
        tracing::warn!("the keeper ends, and has {} split connections", store.count());
    }
    let _ = fs::remove_file(socket_path());
    tracing::info!("keeper ends");
    Ok(0)
}

/// Starts the keeper. A failure is a warning only: the splitter works without one.
pub fn ensure_working() {
    if let Err(error) = background::start(Role::Keeper) {
        eprintln!(
            "vsnoop: no keeper works yet: {error:#}; until one does, a splitter that is killed \
             loses its connections"
        );
    }
}

/// Serves one splitter after the other. There is one at a time: it has a lock.
fn serve_splitters(listener: &OwnedFd, store: &mut Store, interrupt: &Interrupt) -> Result<()> {
    let mut alone = Instant::now();
    while !interrupt.is_set() {
        let patience = if store.is_empty() { LINGER } else { WITHOUT_SPLITTER };
        if alone.elapsed() > patience {
            break;
        }
        if !wait_for(listener.as_fd(), PollFlags::POLLIN).context("wait for a splitter")? {
            continue;
        }
        // It may be gone already.
        let Some(splitter) = accept_splitter(listener) else { continue };
        if let Err(errno) = store.serve_splitter(splitter.as_fd(), || interrupt.is_set()) {
            tracing::warn!("the keeper's connection to the splitter: {errno}");
        }
        alone = Instant::now();
    }
    Ok(())
}

/// Also looks whether the other end is of the same user.
fn accept_splitter(listener: &OwnedFd) -> Option<OwnedFd> {
    let accepted = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).ok()?;
    // SAFETY: a descriptor that was just opened.
    let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
    let other = getsockopt(&accepted, PeerCredentials).ok()?;
    (other.uid() == geteuid().as_raw()).then_some(accepted)
}

/// Listens at the path; what a killed keeper has left there goes.
fn open_listener(path: &Path) -> Result<OwnedFd> {
    let opened = || {
        let _ = fs::remove_file(path);
        let kind = SockType::SeqPacket;
        let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
        // For others not even for a moment.
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixAddr::new(path).and_then(|address| bind(socket.as_raw_fd(), &address));
        umask(before);
        bound?;
        listen(&socket, Backlog::new(8)?)?;
        Ok::<_, nix::Error>(socket)
    };
    opened().with_context(|| format!("listen at {}", path.display()))
}

/// How many connections fit into the descriptors that this process may have.
fn count_room() -> usize {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    (limit.saturating_sub(OWN) / PARTS as u64).min(MOST) as usize
}

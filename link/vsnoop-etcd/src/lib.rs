//! A directory in etcd, in which each host of a group keeps one entry while it lives.
//!
//! [`start_member`] runs a thread that stays connected to one of the endpoints: it keeps a lease
//! alive, writes this host's entry under it ([`Member::announce`]), reads the entries of all others
//! once, and watches them from that revision on. Changes are reported as [`Event`]s. While no
//! endpoint answers it retries, and reports that; no entry is reported as deleted because of it.
//!
//! `worker` is that thread, `connection` its requests to etcd, `messages` their form on the
//! wire (gRPC). What the entries say is not looked at here.

mod connection;
mod error;
mod messages;
mod settings;
mod text;
mod types;
mod worker;

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

pub use error::Error;
pub use settings::{Endpoint, Login, NoEndpoint, Settings, Tls};
pub use text::make_printable;
use types::Command;
pub use types::{Announcement, Change, ENTRIES, Entry, Event, IsOurs, VALUE_BYTES};

/// The running thread; dropped, it ends the lease in the background.
pub struct Member {
    commands: UnboundedSender<Command>,
    ended: mpsc::Receiver<()>,
    _thread: JoinHandle<()>,
}

/// Starts the thread. `tell` returns whether anybody still listens.
pub fn start_member(
    settings: Settings,
    tell: impl Fn(Event) -> bool + Send + 'static,
) -> io::Result<Member> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (commands, told) = unbounded_channel();
    let (end, ended) = mpsc::sync_channel(1);
    let run = move || {
        runtime.block_on(worker::Worker::new(settings, Box::new(tell), told).run());
        // A resolver that hangs is not waited for.
        runtime.shutdown_background();
        let _ = end.send(());
    };
    let thread = std::thread::Builder::new().name("etcd".into()).spawn(run)?;
    Ok(Member { commands, ended, _thread: thread })
}

impl Member {
    /// Writes this entry from now on, in the place of an earlier one.
    pub fn announce(&self, announcement: Announcement) {
        // An error means that the thread has ended: then there is no entry to write.
        let _ = self.commands.send(Command::Announce(announcement));
    }

    /// Ends the lease, so that others hear of it at once, and waits for that for a while.
    pub fn end(self, patience: Duration) {
        let _ = self.commands.send(Command::End);
        let _ = self.ended.recv_timeout(patience);
    }
}

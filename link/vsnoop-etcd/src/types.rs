//! Commands to the thread, and its events.

use std::net::IpAddr;

use crate::error::Error;

/// A longer value is not taken over, only told of.
pub const VALUE_BYTES: usize = 4096;
/// More entries than these are not read.
pub const ENTRIES: usize = 1024;

/// An entry of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Below the directory; it may be any text.
    pub name: String,
    /// `None`: it is longer than [`VALUE_BYTES`].
    pub value: Option<Vec<u8>>,
    /// When the key was made: lower is earlier.
    pub created: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Entry),
    /// The lease of the entry has come to its end: the host has ended, or is cut off from etcd.
    Expired {
        name: String,
    },
    /// The entry was deleted while its lease was still valid.
    Deleted {
        name: String,
    },
}

/// An event of the thread.
#[derive(Debug)]
pub enum Event {
    /// `local`: the address of this host by which it reaches the endpoint.
    Connected {
        endpoint: String,
        local: Option<IpAddr>,
    },
    /// All entries; `more`: there are more than [`ENTRIES`].
    Entries {
        revision: i64,
        entries: Vec<Entry>,
        more: bool,
    },
    Changed {
        revision: i64,
        changes: Vec<Change>,
    },
    /// The entry of this host is there.
    Announced,
    /// It is not, because of this; it is tried again.
    NotAnnounced {
        error: Error,
    },
    /// No endpoint answers, or none as it should; all are tried again and again.
    Away {
        endpoint: String,
        error: Error,
    },
}

/// Whether a value that is there already, under another lease, is this host's.
pub type IsOurs = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The entry of this host.
pub struct Announcement {
    pub value: Vec<u8>,
    pub is_ours: IsOurs,
}

/// A command to the thread.
pub enum Command {
    Announce(Announcement),
    End,
}

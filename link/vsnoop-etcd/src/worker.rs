//! The thread: a member of the directory, connected or on its way.
//!
//! ```text
//!          +-- any error ----------------------------------------------+
//!          v                                                           |
//!   next endpoint -> connect, log in -> lease -> announce -> read all -> watch, keep alive
//!          ^                                       (again when it fails)      |
//!          +-- waits 0.2 s to 5 s after each round of the endpoints           +-- told to end:
//!                                                                                 lease revoked
//! ```
//! A lease outlives connections: it is kept alive over the next one. The directory is read anew
//! with each connection, whatever has been compacted meanwhile.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use crate::connection::{Connection, Directory, entry_from, local_address, name_of};
use crate::error::{Error, describe_status};
use crate::messages::{DELETE, PutRequest, WatchEvent, WatchResponse};
use crate::settings::{Endpoint, Settings};
use crate::text::make_printable;
use crate::types::{Announcement, Change, Command, Event};

type Result<T> = std::result::Result<T, Error>;

/// The longest time that a call may take.
const CALL: Duration = Duration::from_secs(5);
/// The lease is kept alive so often within its time.
const BEATS: u32 = 3;
/// The pause after the first round of endpoints, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Pause before the entry is written again, after a failed write or a deletion by another client.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(1);
/// How long the end of the lease may take at the end.
const LAST_WORD: Duration = Duration::from_secs(2);

pub struct Worker {
    settings: Settings,
    tell: Box<dyn Fn(Event) -> bool + Send>,
    commands: UnboundedReceiver<Command>,
    lease: Option<i64>,
    announcement: Option<Announcement>,
    /// When the entry is to be written; `None`: it is there, or there is none.
    announce_at: Option<Instant>,
    /// Whether that the entry is not there was told.
    is_refused: bool,
    /// Endpoints that have failed one after another.
    failed: u32,
}

/// Why there is nothing more to do.
struct Ended;

impl Worker {
    pub fn new(
        settings: Settings,
        tell: Box<dyn Fn(Event) -> bool + Send>,
        commands: UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            settings,
            tell,
            commands,
            lease: None,
            announcement: None,
            announce_at: None,
            is_refused: false,
            failed: 0,
        }
    }

    /// Runs until it is told to end.
    pub async fn run(mut self) {
        // All hosts of a group would begin with the same node.
        let mut at = fastrand::usize(..self.settings.endpoints.len().max(1));
        while let Some(endpoint) = self.settings.endpoints.get(at).cloned() {
            let error = match self.serve_endpoint(&endpoint).await {
                Ok(Ended) => return,
                Err(error) => error,
            };
            self.failed += 1;
            if !(self.tell)(Event::Away { endpoint: endpoint.to_string(), error }) {
                return;
            }
            at = (at + 1) % self.settings.endpoints.len();
            if self.wait_for_retry().await.is_some() {
                return;
            }
        }
    }

    /// Waits after each round of the endpoints, longer each time.
    async fn wait_for_retry(&mut self) -> Option<Ended> {
        let endpoints = self.settings.endpoints.len() as u32;
        if !self.failed.is_multiple_of(endpoints) {
            return None;
        }
        let rounds = (self.failed / endpoints).min(16);
        let pause = LAST_PAUSE.min(FIRST_PAUSE * (1 << (rounds - 1)));
        // Hosts that have lost a node at the same time come back one after another.
        let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        loop {
            tokio::select! {
                () = sleep_until(until) => return None,
                command = self.commands.recv() => match command {
                    Some(Command::Announce(announcement)) => self.take_announcement(announcement),
                    Some(Command::End) | None => return Some(Ended),
                },
            }
        }
    }

    fn take_announcement(&mut self, announcement: Announcement) {
        self.announcement = Some(announcement);
        self.announce_at = Some(Instant::now());
    }

    /// Keeps the entry and the watch by one endpoint, until that fails or the worker is told to
    /// end.
    async fn serve_endpoint(&mut self, endpoint: &Endpoint) -> Result<Ended> {
        let patience = CALL.min(self.settings.ttl / BEATS);
        let mut connection = Connection::open(&self.settings, endpoint, patience).await?;
        self.keep_lease(&mut connection).await?;
        let local = local_address(endpoint).await;
        let directory = connection.read(&self.settings.directory).await?;
        let Directory { revision, entries, more } = directory;
        let mut watch = connection.watch_directory(&self.settings.directory, revision).await?;
        self.failed = 0;
        (self.tell)(Event::Connected { endpoint: endpoint.to_string(), local });
        (self.tell)(Event::Entries { revision, entries, more });
        // It is looked at once with each connection.
        self.announce_at = self.announcement.as_ref().map(|_| Instant::now());
        let beat = self.settings.ttl / BEATS;
        let mut beat_at = Instant::now() + beat;
        loop {
            let announce_at = self.announce_at;
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Announce(announcement)) => self.take_announcement(announcement),
                    Some(Command::End) | None => {
                        self.remove_own_entry(&mut connection).await;
                        return Ok(Ended);
                    }
                },
                got = watch.message() => self.handle_response(&mut connection, got).await?,
                () = sleep_until(beat_at) => {
                    beat_at = Instant::now() + beat;
                    self.keep_lease(&mut connection).await?;
                }
                () = sleep_until(announce_at.unwrap_or(beat_at)), if announce_at.is_some() => {
                    self.announce_member(&mut connection).await?;
                }
            }
        }
    }

    /// Keeps the lease, or takes another if that has come to its end.
    async fn keep_lease(&mut self, connection: &mut Connection) -> Result<()> {
        if let Some(lease) = self.lease
            && connection.keep_alive(lease).await?
        {
            return Ok(());
        }
        self.lease = Some(connection.grant_lease(self.settings.ttl).await?);
        self.announce_at = self.announcement.as_ref().map(|_| Instant::now());
        Ok(())
    }

    async fn remove_own_entry(&mut self, connection: &mut Connection) {
        if let Some(lease) = self.lease.take() {
            // Without an answer the lease expires after its time to live.
            let _ = tokio::time::timeout(LAST_WORD, connection.revoke_lease(lease)).await;
        }
    }

    /// Writes the entry. What is wrong with that alone leaves the connection.
    async fn announce_member(&mut self, connection: &mut Connection) -> Result<()> {
        self.announce_at = None;
        match self.write(connection).await {
            Ok(()) => {
                self.is_refused = false;
                (self.tell)(Event::Announced);
            }
            Err(error @ (Error::Refused { .. } | Error::NameTaken { .. } | Error::Contended)) => {
                // A new connection gets a new token in place of an expired one.
                if matches!(error, Error::Refused { .. }) && !self.is_refused {
                    self.is_refused = true;
                    return Err(error);
                }
                self.announce_at = Some(Instant::now() + ANNOUNCE_AGAIN);
                (self.tell)(Event::NotAnnounced { error });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn write(&self, connection: &mut Connection) -> Result<()> {
        let (Some(announcement), Some(lease)) = (&self.announcement, self.lease) else {
            return Ok(());
        };
        let key = [self.settings.directory.as_bytes(), self.settings.name.as_bytes()].concat();
        let there = connection.get(&key).await?;
        if let Some(there) = &there {
            let is_same = there.value == announcement.value && there.lease == lease;
            if is_same {
                return Ok(());
            }
            if there.lease != lease && !(announcement.is_ours)(&there.value) {
                return Err(Error::NameTaken { name: self.settings.name.clone() });
            }
        }
        let put = PutRequest { key, value: announcement.value.clone(), lease };
        let before = there.map_or(0, |there| there.mod_revision);
        if connection.put_entry(put, before).await? { Ok(()) } else { Err(Error::Contended) }
    }

    /// Takes what the watch has got.
    async fn handle_response(
        &mut self,
        connection: &mut Connection,
        got: std::result::Result<Option<WatchResponse>, tonic::Status>,
    ) -> Result<()> {
        let ended = |why| Error::Watch { why };
        let got = got.map_err(|status| ended(describe_status(&status)))?;
        let got = got.ok_or_else(|| ended("the node has closed it".into()))?;
        if got.canceled {
            // Compacted, or not allowed any more.
            return Err(ended(make_printable(&got.cancel_reason)));
        }
        let mut changes = Vec::new();
        for event in got.events {
            changes.extend(self.handle_event(connection, event).await?);
        }
        if !changes.is_empty() {
            let revision = got.header.map_or(0, |header| header.revision);
            (self.tell)(Event::Changed { revision, changes });
        }
        Ok(())
    }

    async fn handle_event(
        &mut self,
        connection: &mut Connection,
        event: WatchEvent,
    ) -> Result<Option<Change>> {
        let Some(kv) = event.kv else { return Ok(None) };
        let directory = &self.settings.directory;
        if event.kind != DELETE {
            return Ok(Some(Change::Put(entry_from(kv, directory))));
        }
        let name = name_of(&kv.key, directory);
        if name == self.settings.name && self.announcement.is_some() {
            self.announce_at = Some(Instant::now() + ANNOUNCE_AGAIN);
        }
        let lease = event.prev_kv.map_or(0, |before| before.lease);
        // An entry without a lease was written by hand, so its end is a deletion by hand.
        let is_deleted = lease == 0 || connection.has_lease(lease).await?;
        Ok(Some(if is_deleted { Change::Deleted { name } } else { Change::Expired { name } }))
    }
}

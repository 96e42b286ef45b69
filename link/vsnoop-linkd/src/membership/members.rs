//! Peers of the file, and of etcd if there is an `[etcd]`.

use std::time::Duration;

use tracing::warn;
use vsnoop_etcd::{Event, Settings};
use vsnoop_link::identity::PublicKey;

use super::link::{Membership, MembershipError};
use super::settings::SettingsError;
use crate::causes::with_causes;
use crate::config::Config;
use crate::io::wake;

/// How etcd is reached, and why not as the file says.
pub struct EtcdSettings {
    pub settings: Option<Settings>,
    pub trouble: Option<String>,
}

/// Peers of the file and of etcd.
pub struct Members {
    /// The configuration as it was read, without peers of etcd.
    pub file: Config,
    /// `None` without `[etcd]`.
    pub membership: Option<Membership>,
    /// For threads that talk to etcd.
    events: wake::Sender<Event>,
    pub told: wake::Receiver<Event>,
}

impl Members {
    pub fn start(
        config: &Config,
        etcd: Option<Settings>,
        key: PublicKey,
    ) -> Result<Self, MembershipError> {
        let (events, told) = wake::channel().map_err(MembershipError::Channel)?;
        let reached = config.etcd.as_ref().zip(etcd);
        let start = |reached| Membership::start(config, reached, key, None, events.clone());
        let membership = reached.map(start).transpose()?;
        Ok(Self { file: config.clone(), membership, events, told })
    }

    pub fn has_etcd(&self) -> bool {
        self.membership.is_some()
    }

    /// When there is something to do at last.
    pub fn next_wait(&self) -> Option<Duration> {
        self.membership.as_ref()?.next_wait()
    }

    /// Takes what the thread that talks to etcd has told.
    pub fn hear_events(&mut self, now_ns: u64) {
        let events: Vec<_> = self.told.drain().collect();
        // Events of a thread that has ended meanwhile are dropped.
        let Some(membership) = &mut self.membership else { return };
        events.into_iter().for_each(|event| membership.handle_event(event, now_ns));
    }

    /// How etcd is reached by another configuration. Where this user may not read a file, it is
    /// reached as before.
    pub fn settings(&self, file: &Config) -> Result<EtcdSettings, SettingsError> {
        let denied = match Membership::etcd_settings(file) {
            Err(error) if error.is_denied() => error,
            other => return Ok(EtcdSettings { settings: other?, trouble: None }),
        };
        let Some(membership) = &self.membership else { return Err(denied) };
        let trouble = format!("{}; etcd is reached as before", with_causes(&denied));
        warn!("{trouble}");
        let settings = Some(membership.settings.clone());
        Ok(EtcdSettings { settings, trouble: Some(trouble) })
    }

    /// Goes on by the file as it is now; what should be looked at.
    pub fn reload(
        &mut self,
        file: Config,
        settings: Option<Settings>,
        key: PublicKey,
    ) -> Result<Option<String>, MembershipError> {
        self.file = file;
        let Some((etcd, settings)) = self.file.etcd.as_ref().zip(settings) else {
            // Its thread ends the lease.
            self.membership = None;
            return Ok(None);
        };
        match &mut self.membership {
            Some(membership) if membership.settings == settings => {
                membership.reload(&self.file, etcd, key);
                let is_unknown = membership.has_unknown_key();
                Ok(is_unknown.then(|| {
                    "etcd is away, so other hosts do not know the new key of this one yet".into()
                }))
            }
            other => {
                let before = other.take().map(Membership::into_roster);
                let (reached, events) = ((etcd, settings), self.events.clone());
                *other = Some(Membership::start(&self.file, reached, key, before, events)?);
                Ok(None)
            }
        }
    }

    pub fn end(self) {
        if let Some(membership) = self.membership {
            membership.end();
        }
    }
}

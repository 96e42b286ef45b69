//! The peers that etcd adds to those of the file, and takes away.

use std::collections::HashMap;
use std::sync::Arc;

use tracing::{error, warn};

use super::Link;
use super::reload::{Prepared, ReloadError};
use crate::causes::with_causes;
use crate::config::Config;
use crate::identity::credentials::Credentials;

impl Link {
    /// Goes on with the peers of now, if they are others.
    pub(super) fn follow_members(&mut self) {
        let Some(membership) = &mut self.members.membership else { return };
        let (control, slots, now_ns) = (&self.control, &self.slots.peers, self.shared.now_ns());
        let is_up = |name: &str| slots.find(name).is_some_and(|slot| control.is_up(slot));
        let is_other = membership.take_due(now_ns, is_up);
        if membership.is_renewal_due() {
            self.control.renew_addresses();
        }
        if is_other {
            self.change_peers();
        }
    }

    fn change_peers(&mut self) {
        let Some(membership) = &self.members.membership else { return };
        let peers = membership.peers(&self.members.file);
        if peers == self.config.peers {
            return;
        }
        // Rules that were set stay.
        let compress = self.rule_set.rules.clone();
        let config = Config { peers, compress, ..self.config.clone() };
        match self.prepare_peers(config) {
            Ok(prepared) => {
                if !self.apply_reload(prepared) {
                    warn!("the threads that move frames do not answer yet");
                }
            }
            Err(error) => error!("the peers stay as they were: {}", with_causes(&error)),
        }
    }

    /// All but the peers stays as it is.
    fn prepare_peers(&self, config: Config) -> Result<Prepared, ReloadError> {
        let (identity, authority) = (Arc::clone(&self.identity), self.authority.clone());
        let credentials = Credentials::with(&config, identity, authority)?;
        let slots = self.slots.reloaded(&config);
        let divert_taps = self.shared.divert_taps.as_ref();
        let divert_taps =
            divert_taps.map(|taps| taps.reloaded(&config, &slots.peers)).transpose()?;
        let hooks = self.hooks.prepare_hooks(&config, divert_taps.as_ref(), &slots.peers)?;
        let ports = HashMap::new();
        Ok(Prepared { config, slots, lists: None, credentials, ports, divert_taps, hooks })
    }
}

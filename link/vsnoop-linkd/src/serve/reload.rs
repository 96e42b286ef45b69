//! The configuration file, read again while the link runs.
//!
//! First all that may be refused: the file is checked whole, keys and certificates are read, new
//! taps and hooks are made. Nothing of the running link has changed until then, and an error leaves
//! it so. Then the data threads get the new ports and peers ([`Shared`]); those that are in the old
//! configuration and in the new one are the same objects, with the same numbers, and notice
//! nothing. Old taps are gone before new ones join their bridges, where frames would go round.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tracing::{error, info, warn};
use vsnoop_link::forwarding::Location;

use super::{Link, PeersAndPorts};
use crate::causes::with_causes;
use crate::config::{Config, ConfigError, Divert, Place, PortConfig, PortKind};
use crate::control::{Changes, Reloaded};
use crate::divert::hooks::{DivertHook, HookError};
use crate::divert::taps::{DivertTapError, DivertTaps};
use crate::error::LinkError;
use crate::handshake::listen::listen_address;
use crate::identity::credentials::{Credentials, CredentialsError};
use crate::identity::revocation::RevocationLists;
use crate::io::device::Interface;
use crate::io::port::{LinkPort, PortError};
use crate::membership::{MembershipError, SettingsError};
use crate::peers::NewPeers;
use crate::ports::counted_port::CountedPort;
use crate::serve::setup::{open_tap, start_tap};
use crate::threads::shared::Shared;

/// How long the data threads are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why a reload fails. The link keeps the old configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "{keys} cannot change while the link runs: put back what was there, or end it and start it \
         again (`vsnoop link down {link}`, `vsnoop link up {file}`)"
    )]
    Fixed { keys: String, link: String, file: String },
    #[error(
        "[[divert]]: the file had none when the link was started, so that it has given up the \
         privileges for it; `vsnoop link down {link}` and `vsnoop link up {file}`"
    )]
    Privileges { link: String, file: String },
    #[error(
        "port {port}: no more interfaces can become ports while the link runs (the privilege for \
         that is given up); `vsnoop link down {link}` and `vsnoop link up {file}`"
    )]
    NoSocket { port: String, link: String, file: String },
    #[error(
        "port {port}: a tap of the link does not become an existing interface while the link runs, \
         nor the other way round; give the port another name"
    )]
    OtherKind { port: String },
    #[error(
        "interface {port} exists already, and the link would make it: give interface = \"{port}\" if \
         it is a VM's, or name another one; `ip link del {port}` if it is left over"
    )]
    Exists { port: String },
    #[error("there is no bridge {bridge} here: make it (`ip link add {bridge} type bridge`)")]
    NoBridge { bridge: String },
    #[error(transparent)]
    Find(#[from] vsnoop_netdev::Error),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    DivertTap(#[from] DivertTapError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Etcd(#[from] SettingsError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

type Result<T> = std::result::Result<T, ReloadError>;

/// All that a new configuration needs, made and not in use yet.
pub(super) struct Prepared {
    pub config: Config,
    pub slots: PeersAndPorts,
    /// `None`: they stay as they are.
    pub lists: Option<RevocationLists>,
    pub credentials: Credentials,
    /// By name.
    pub ports: HashMap<String, CountedPort>,
    pub divert_taps: Option<DivertTaps>,
    pub hooks: Vec<DivertHook>,
}

impl Link {
    /// For SIGHUP.
    pub(super) fn reload_and_log(&mut self) {
        if let Err(error) = self.reload() {
            error!("the configuration stays as it was: {}", with_causes(&error));
        }
    }

    /// Reads the configuration again and applies it. An error changes nothing.
    pub(super) fn reload(&mut self) -> Result<Reloaded> {
        let file = Config::read(&self.config.file)?;
        // What the file does not say is what it was at the start, whatever CPUs there are now.
        let pairs = file.pairs.or(self.config.pairs);
        let file = Config { listen: listen_address(file.listen), pairs, ..file };
        let etcd = self.members.settings(&file)?;
        let known = self.members.membership.as_ref().filter(|_| etcd.settings.is_some());
        let peers = known.map_or_else(|| file.peers.clone(), |known| known.peers(&file));
        let prepared = self.prepare_reload(Config { peers, ..file.clone() })?;
        let mut change = self.find_difference(&prepared);
        change.warnings.extend(etcd.trouble);
        let is_done = self.apply_reload(prepared);
        let key = self.identity.public_key();
        change.warnings.extend(self.members.reload(file, etcd.settings, key)?);
        if !is_done {
            let warning = "it is applied, but the threads that move frames do not answer yet; the \
                           log may say more";
            warn!("{warning}");
            change.warnings.push(warning.to_owned());
        }
        info!("the configuration {} was read again", self.config.file.display());
        Ok(change)
    }

    /// Reads the revocation lists again, and nothing else: a key or certificate that lies there for
    /// the next reload does not count yet.
    pub(super) fn read_lists_again(&mut self) {
        let (identity, authority) = (Arc::clone(&self.identity), self.authority.as_deref());
        let Credentials { identity, authority, acceptor, initiators, .. } =
            match Credentials::with_lists_again(&self.config, identity, authority) {
                Ok(credentials) => credentials,
                Err(error) => {
                    let error = with_causes(&error);
                    // It is tried again and again.
                    if self.lists_trouble.as_ref() != Some(&error) {
                        warn!("the revocation lists stay as they were: {error}");
                    }
                    self.lists_trouble = Some(error);
                    return;
                }
            };
        info!("the revocation lists were read again");
        (self.authority, self.lists_trouble) = (authority, None);
        let (config, slots, ours) = (&self.config, &self.slots.peers, identity.public_key());
        let new = NewPeers { config, slots, acceptor, initiators, ours, is_shown_anew: false };
        self.control.reload(Arc::clone(&self.shared), new);
    }

    fn prepare_reload(&mut self, config: Config) -> Result<Prepared> {
        self.check_fixed(&config)?;
        // Before the files are read: a file that is replaced meanwhile is read again.
        let lists = RevocationLists::new(&config);
        let credentials = Credentials::read_again(&config, &self.identity)?;
        let slots = self.slots.reloaded(&config);
        let ports = self.open_taps(&config)?;
        let divert_taps = self.shared.divert_taps.as_ref();
        let divert_taps =
            divert_taps.map(|taps| taps.reloaded(&config, &slots.peers)).transpose()?;
        // Last: with `when_down = "drop"` they drop packets from here on.
        let hooks = self.hooks.prepare_hooks(&config, divert_taps.as_ref(), &slots.peers)?;
        let lists = Some(lists);
        Ok(Prepared { config, slots, lists, credentials, ports, divert_taps, hooks })
    }

    /// Names what the new configuration would change and cannot.
    fn check_fixed(&self, new: &Config) -> Result<()> {
        let old = &self.config;
        let (link, file) = (old.name.clone(), old.file.display().to_string());
        let fixed = [
            ("link.name", old.name != new.name),
            ("link.network", old.network != new.network),
            ("link.listen", old.listen != new.listen),
            ("link.user", old.user != new.user),
            ("link.mtu", old.mtu_bytes != new.mtu_bytes),
            ("link.threads", old.pairs != new.pairs),
            ("link.local", old.local != new.local),
        ];
        let keys: Vec<_> =
            fixed.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect();
        if !keys.is_empty() {
            return Err(ReloadError::Fixed { keys: keys.join(", "), link, file });
        }
        if !new.diverts.is_empty() && !self.needs.diverts {
            return Err(ReloadError::Privileges { link, file });
        }
        for port in &new.ports {
            let before = old.ports.iter().find(|before| before.name == port.name);
            let is_interface = |port: &PortConfig| port.kind == PortKind::Interface;
            if before.is_some_and(|before| is_interface(before) != is_interface(port)) {
                return Err(ReloadError::OtherKind { port: port.name.clone() });
            }
            let is_made = before.is_none() && !is_interface(port);
            if is_made && vsnoop_netdev::find(&port.name)?.is_some() {
                return Err(ReloadError::Exists { port: port.name.clone() });
            }
            let PortKind::Bridge(bridge) = &port.kind else { continue };
            if before.is_some_and(|before| before.kind == port.kind) {
                continue;
            }
            let found = vsnoop_netdev::find(bridge)?;
            if found.is_none_or(|found| found.kind != "bridge") {
                return Err(ReloadError::NoBridge { bridge: bridge.clone() });
            }
        }
        Ok(())
    }

    /// Makes the taps of ports that are new. Interfaces are joined when nothing can be refused any
    /// more, so that no spare socket is lost ([`Self::take_spares`]).
    fn open_taps(&self, config: &Config) -> Result<HashMap<String, CountedPort>> {
        let (mut opened, mut spares) = (HashMap::new(), self.spares.len());
        for port in &config.ports {
            if self.slots.ports.find(&port.name).is_some() {
                continue;
            }
            if port.kind == PortKind::Interface {
                LinkPort::check_interface(&port.name)?;
                spares = spares.checked_sub(1).ok_or_else(|| ReloadError::NoSocket {
                    port: port.name.clone(),
                    link: config.name.clone(),
                    file: config.file.display().to_string(),
                })?;
            } else {
                opened.insert(port.name.clone(), open_tap(config, port)?);
            }
        }
        Ok(opened)
    }

    /// Joins the interfaces that are new.
    fn take_spares(&mut self, config: &Config, opened: &mut HashMap<String, CountedPort>) {
        for port in &config.ports {
            let is_new = self.slots.ports.find(&port.name).is_none();
            if !is_new || port.kind != PortKind::Interface {
                continue;
            }
            if let Some(spare) = self.spares.pop() {
                let joined = LinkPort::interface_with(spare, &port.name);
                opened.insert(port.name.clone(), CountedPort::new(joined));
            }
        }
    }

    /// Whether the threads that move frames have taken it.
    pub(super) fn apply_reload(&mut self, prepared: Prepared) -> bool {
        let Prepared { config, slots, lists, credentials, mut ports, divert_taps, hooks } =
            prepared;
        self.take_spares(&config, &mut ports);
        let before = std::mem::replace(&mut self.config, config);
        let config = &self.config;
        self.control.leave_peers(config);
        let shared = self.next_shared(&slots, ports, divert_taps);
        self.shared = Arc::new(shared);
        self.slots = slots;
        self.rule_set.replace_rules(config.compress.clone());

        self.send_policies();
        self.control.ports.reload(&config.ports, Arc::clone(&self.shared));
        let Credentials { identity, authority, acceptor, initiators, .. } = credentials;
        self.hooks.stop_leaving(&hooks);
        let is_done = self.hand_over();
        self.hooks.reload(hooks, Arc::clone(&self.shared));
        let ours = identity.public_key();
        self.about.key = ours.to_string();
        // Hosts that know this one by etcd are to hear of the new key first.
        let is_other = !identity.shows_same(&self.identity);
        let is_announced =
            self.members.has_etcd() && identity.public_key() != self.identity.public_key();
        let is_shown_anew = is_other && !is_announced;
        (self.identity, self.authority) = (identity, authority);
        if let Some(lists) = lists {
            (self.lists, self.lists_trouble) = (lists, None);
        }
        let new = NewPeers {
            config,
            slots: &self.slots.peers,
            acceptor,
            initiators,
            ours,
            is_shown_anew,
        };
        self.control.reload(Arc::clone(&self.shared), new);
        // From here on nothing holds the ports that were removed.
        for port in &config.ports {
            let old = before.ports.iter().find(|old| old.name == port.name);
            if let Err(error) = move_port(old, port) {
                // It is tried again each second.
                warn!("port {}: {}", port.name, with_causes(&error));
            }
        }
        self.hooks.follow_peers(|peer| self.control.takes(peer));
        is_done
    }

    /// For the present configuration, with these ports in the place of new ones.
    fn next_shared(
        &self,
        slots: &PeersAndPorts,
        mut ports: HashMap<String, CountedPort>,
        divert_taps: Option<DivertTaps>,
    ) -> Shared {
        let mut shared = Shared::clone(&self.shared);
        shared.divert_taps = divert_taps;
        for slot in slots.peers.all() {
            if self.slots.peers.name(slot) != slots.peers.name(slot) {
                shared.set_new_peer(slot);
            }
        }
        shared.ports.resize_with(slots.ports.len(), || None);
        for slot in slots.ports.all() {
            let name = slots.ports.name(slot);
            if self.slots.ports.name(slot) != name {
                shared.table.write().forget_location(Location::Port(slot));
                shared.ports[slot] = name.and_then(|name| ports.remove(name));
            }
            let Some(port) = self.config.ports.iter().find(|port| Some(port.name.as_str()) == name)
            else {
                continue;
            };
            shared.allow_sources(slot, port);
        }
        shared.own.set_calls(&self.config);
        let now_ns = shared.now_ns();
        shared.table.write().set_settings(self.config.table_settings(), now_ns);
        shared.set_relayed(&self.config, &slots.peers);
        shared
    }

    /// Gives the data threads the new ports and peers; whether all have them.
    fn hand_over(&self) -> bool {
        let (done, is_done) = mpsc::sync_channel(2 * self.threads.len());
        let threads = self.orders.order_reload(&self.shared, &done);
        (0..threads).all(|_| is_done.recv_timeout(PATIENCE).is_ok())
    }

    /// Differences of the new configuration.
    fn find_difference(&self, new: &Prepared) -> Reloaded {
        let (old, to) = (&self.config, &new.config);
        let others = [
            ("link.age", old.age != to.age),
            ("link.addresses", old.addresses != to.addresses),
            ("link.loop", old.loops != to.loops),
            ("link.stp", old.stp != to.stp),
            ("link.clamp_mss", old.clamp_mss != to.clamp_mss),
            ("link.gso", old.gso != to.gso),
            ("link.rekey", old.rekey != to.rekey),
            ("link.dead_after", old.dead_after != to.dead_after),
            ("link.key", old.key != to.key),
            ("link.cert and link.ca", old.authority != to.authority),
            ("[[compress]]", self.rule_set.rules != to.compress),
            ("[etcd]", old.etcd != to.etcd),
        ];
        let changed = others.into_iter().filter(|(_, differs)| *differs);
        let divert = |divert: &Divert| format!("{} to {}", divert.interface, divert.peer);
        let bare = |divert: &Divert| Divert { place: Place::default(), ..divert.clone() };
        let identity = &new.credentials.identity;
        let key = identity.public_key() != self.identity.public_key();
        Reloaded {
            peers: list_changes(&old.peers, &to.peers, |peer| peer.name.clone(), Clone::clone),
            ports: list_changes(&old.ports, &to.ports, |port| port.name.clone(), Clone::clone),
            diverts: list_changes(&old.diverts, &to.diverts, divert, bare),
            changed: changed.map(|(key, _)| key.to_owned()).collect(),
            key,
            certificate: !key && !identity.shows_same(&self.identity),
            warnings: new.credentials.key_trouble.iter().cloned().collect(),
            ended: self.rule_set.rules.of_set().to_vec(),
        }
    }
}

/// Puts the tap of a port where it is to be now.
fn move_port(old: Option<&PortConfig>, port: &PortConfig) -> std::result::Result<(), LinkError> {
    if port.kind == PortKind::Interface || old.is_some_and(|old| old.kind == port.kind) {
        return Ok(());
    }
    if let Some(PortKind::Bridge(bridge)) = old.map(|old| &old.kind) {
        Interface::new(&port.name).leave_bridge(bridge)?;
    }
    start_tap(port)
}

/// Items in one list only, or in both with different values.
fn list_changes<T, V: PartialEq>(
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> String,
    value: impl Fn(&T) -> V,
) -> Changes {
    let named = |all: &[T]| -> Vec<(String, V)> {
        all.iter().map(|item| (name(item), value(item))).collect()
    };
    let (old, new) = (named(old), named(new));
    let has = |all: &[(String, V)], name: &str| all.iter().any(|(other, _)| other == name);
    let mut changes = Changes::default();
    for (name, value) in &new {
        // A name may stand for several.
        let same = |(other, before): &(String, V)| other == name && before == value;
        if old.iter().any(same) {
            continue;
        }
        let list = if has(&old, name) { &mut changes.changed } else { &mut changes.added };
        if !list.contains(name) {
            list.push(name.clone());
        }
    }
    let gone = old.iter().filter(|(name, _)| !has(&new, name));
    changes.removed = gone.map(|(name, _)| name.clone()).collect();
    changes.removed.dedup();
    changes
}

//! Compares what should be attached with what is, and says what to do. No input or output.
//!
//! For each tap, by who attached it and whether the configuration wants it:
//!
//! | attached by | wanted | action |
//! |---|---|---|
//! | - | no | none |
//! | - | yes | attach; not if an operator has detached it (`detached_by_operator` of vsnoop-host) |
//! | -, but the service has attached it | yes | leave it off: another program has taken it off |
//! | a command | any | none |
//! | the service, with these settings | yes | none |
//! | the service, with other bounds, or for another table | yes | set the bounds |
//! | the service, with other settings | yes | detach; the next look attaches it anew |
//! | the service | no | detach |
//! | the service, and an operator has paused it | any | none until it is resumed |
//!
//! A port of the service whose table names QMP monitors follows its VM. "paused" is the service's
//! own pause here, beside that of an operator; of what an operator has paused, too, only this pause
//! changes:
//!
//! | VM | port | action |
//! |---|---|---|
//! | leaves, or has left | attached | pause |
//! | is here, or its table names no monitors any more | paused | resume |
//! | has left for [`GONE`] | paused | detach: nothing brings its remainder to it |
//! | unknown, and no process holds the tap | paused | detach: the next VM at the tap is a new one |
//! | unknown otherwise | any | none |
//! | has left | - | none: it is not attached |
//!
//! An attempt that failed is repeated after a pause that doubles each time. A reload forgets what
//! failed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use vsnoop_bpf::ServiceMark;
use vsnoop_host::config::port::{PortPattern, Tap};
use vsnoop_host::settings::{Mode, Settings};

/// First and longest pause before an attempt is repeated.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);

/// A VM that has left is not expected back: a snapshot to a file lets it run again sooner.
pub const GONE: Duration = Duration::from_secs(5);

/// Identifies a tap: the inode of its network namespace, and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    pub netns: u64,
    pub ifindex: u32,
}

/// A tap that there is.
#[derive(Clone, Debug)]
pub struct Present {
    pub key: PortKey,
    pub tap: Tap,
    /// It is up, and everything that conditions ask for is known.
    pub is_ready: bool,
    /// A process holds it.
    pub is_held: bool,
    pub vm: VmPlace,
    pub attachment: Option<Attachment>,
    /// An operator has detached it; does not count while it is attached.
    pub is_detached_by_operator: bool,
}

/// Where the VM of a tap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmPlace {
    /// The tap's table names no monitors.
    NotFollowed,
    /// No monitor says it.
    Unknown,
    Here,
    Leaving,
    /// It has left, and may come back; after [`GONE`] not any more.
    Gone {
        for_good: bool,
    },
}

/// Who attached a port, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    ByCommand,
    ByService {
        mark: ServiceMark,
        is_paused: bool,
        /// The service has paused it for a migration.
        is_migrating: bool,
    },
    /// The service has begun to detach it.
    Leaving,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Attach {
        key: PortKey,
        name: String,
        wanted: Wanted,
    },
    SetBounds {
        key: PortKey,
        wanted: Wanted,
    },
    /// Once the VM has acknowledged everything.
    Detach {
        key: PortKey,
    },
    /// It was taken off, not by the service, and not by a command that marks what it takes off.
    MarkDetached {
        key: PortKey,
        name: String,
    },
    /// While the VM migrates, or is saved.
    Pause {
        key: PortKey,
    },
    Resume {
        key: PortKey,
    },
}

/// Settings, and the name of the table that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub settings: Settings,
    pub table: String,
}

impl Wanted {
    /// Finds the first table all of whose conditions the tap meets.
    pub fn find_wanted(tap: &Tap, patterns: &[PortPattern]) -> Option<Self> {
        let pattern = patterns.iter().find(|pattern| pattern.matches(tap))?;
        Some(Self { settings: pattern.settings(tap), table: pattern.name.clone() })
    }

    pub fn mark(&self) -> ServiceMark {
        self.settings.mark(&self.table)
    }
}

#[derive(Debug)]
struct Failure {
    tries: u32,
    again_at: Duration,
    reason: String,
}

/// The memory of the service; all of it may be lost.
#[derive(Debug, Default)]
pub struct Reconciler {
    /// Ports of the service at the last look or since, without those that it detaches, and those
    /// that are to be left off until they are.
    attached: HashSet<PortKey>,
    /// Attempts that are going to be repeated.
    failed: HashMap<PortKey, Failure>,
}

impl Reconciler {
    /// Plans the actions. One that is not carried out comes again. `now`: since any fixed time.
    pub fn plan(
        &mut self,
        now: Duration,
        present: &[Present],
        patterns: &[PortPattern],
    ) -> Vec<Action> {
        self.forget_others(present);
        let action =
            |port: &Present| self.action(now, port, Wanted::find_wanted(&port.tap, patterns));
        present.iter().filter_map(action).collect()
    }

    /// When to look again even if nothing changes.
    pub fn again_at(&self, now: Duration) -> Option<Duration> {
        // One that is due and was not tried has a tap that is not ready: its change is an event.
        let pauses = self.failed.values().map(|failure| failure.again_at);
        pauses.filter(|again_at| *again_at > now).min()
    }

    fn action(&mut self, now: Duration, port: &Present, wanted: Option<Wanted>) -> Option<Action> {
        let key = port.key;
        let Some(attachment) = &port.attachment else {
            let name = port.tap.interface.clone();
            if wanted.is_none() || port.is_detached_by_operator {
                self.attached.remove(&key);
                self.failed.remove(&key);
                return None;
            }
            let is_due = self.is_due(key, now);
            if self.attached.contains(&key) {
                return is_due.then_some(Action::MarkDetached { key, name });
            }
            let is_gone = matches!(port.vm, VmPlace::Gone { .. });
            return wanted
                .filter(|_| port.is_ready && is_due && !is_gone)
                .map(|wanted| Action::Attach { key, name, wanted });
        };
        let action = change(port, attachment, wanted);
        let is_of_service = matches!(attachment, Attachment::ByService { .. });
        match is_of_service && !matches!(action, Some(Action::Detach { .. })) {
            true => drop(self.attached.insert(key)),
            false => drop(self.attached.remove(&key)),
        }
        match action {
            Some(Action::SetBounds { .. }) => action.filter(|_| self.is_due(key, now)),
            _ => {
                self.failed.remove(&key);
                action
            }
        }
    }

    fn is_due(&self, key: PortKey, now: Duration) -> bool {
        self.failed.get(&key).is_none_or(|failure| failure.again_at <= now)
    }

    /// The service has attached a port.
    pub fn attached(&mut self, key: PortKey) {
        self.attached.insert(key);
    }

    /// An attempt failed; is it the first?
    pub fn failed(&mut self, key: PortKey, now: Duration, reason: &str) -> bool {
        let first = Failure { tries: 0, again_at: now, reason: String::new() };
        let failure = self.failed.entry(key).or_insert(first);
        reason.clone_into(&mut failure.reason);
        let pause = RETRY_FIRST * 2u32.saturating_pow(failure.tries);
        failure.again_at = now + pause.min(RETRY_MOST);
        failure.tries = (failure.tries + 1).min(16);
        failure.tries == 1
    }

    /// Why an attempt failed that is going to be repeated.
    pub fn reason(&self, key: PortKey) -> Option<&str> {
        self.failed.get(&key).map(|failure| failure.reason.as_str())
    }

    /// Forgets failures and attaches: with the new configuration failed ports are tried again, and
    /// ports that were taken off are attached.
    pub fn reload(&mut self) {
        self.failed.clear();
        self.attached.clear();
    }

    fn forget_others(&mut self, present: &[Present]) {
        let keys: HashSet<_> = present.iter().map(|port| port.key).collect();
        self.failed.retain(|key, _| keys.contains(key));
        self.attached.retain(|key| keys.contains(key));
    }
}

/// Chooses the action for a port that is attached.
fn change(port: &Present, attachment: &Attachment, wanted: Option<Wanted>) -> Option<Action> {
    let key = port.key;
    if let Some(action) = migration(port, attachment, wanted.as_ref()) {
        return Some(action);
    }
    match (attachment, wanted) {
        (Attachment::ByCommand | Attachment::ByService { is_paused: true, .. }, _) => None,
        (Attachment::ByService { mark, .. }, Some(wanted))
            if mark.settings == wanted.mark().settings =>
        {
            (*mark != wanted.mark()).then_some(Action::SetBounds { key, wanted })
        }
        _ => Some(Action::Detach { key }),
    }
}

/// Chooses the action that a migration of the VM asks for.
fn migration(port: &Present, attachment: &Attachment, wanted: Option<&Wanted>) -> Option<Action> {
    let key = port.key;
    let Attachment::ByService { is_paused, is_migrating, .. } = attachment else {
        return None;
    };
    let is_accelerated = wanted.is_some_and(|it| it.settings.mode == Mode::Accelerate);
    match (port.vm, is_migrating) {
        (VmPlace::Leaving | VmPlace::Gone { .. }, false) => {
            is_accelerated.then_some(Action::Pause { key })
        }
        (VmPlace::Here | VmPlace::NotFollowed, true) => Some(Action::Resume { key }),
        (_, true) if *is_paused => None,
        (VmPlace::Gone { for_good: true }, true) => Some(Action::Detach { key }),
        (VmPlace::Unknown, true) if !port.is_held => Some(Action::Detach { key }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

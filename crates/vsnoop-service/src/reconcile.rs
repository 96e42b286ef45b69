//! Compares what should be attached with what is, and says what to do. No input or output.
//!
//! For each tap, by who attached it and whether the configuration wants it:
//!
//! | attached by | wanted | action |
//! |---|---|---|
//! | - | no | none |
//! | - | yes | attach; not if it was attached before: an operator has taken it off |
//! | a command | any | none |
//! | the service, with these settings | yes | none |
//! | the service, with other bounds, or for another table | yes | set the bounds |
//! | the service, with other settings | yes | detach; the next look attaches it anew |
//! | the service | no | detach |
//! | the service, and an operator has paused it | any | none until it is resumed |
//!
//! An attempt that failed is repeated after a pause that doubles each time. A reload forgets what
//! operators took off and what failed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use vsnoop_bpf::ServiceMark;
use vsnoop_host::config::port::{PortPattern, Tap};
use vsnoop_host::settings::Settings;

/// First and longest pause before an attempt is repeated.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);

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
    pub attachment: Option<Attachment>,
}

/// Who attached a port, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    ByCommand,
    ByService {
        mark: ServiceMark,
        is_paused: bool,
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
}

/// Settings, and the name of the table that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub settings: Settings,
    pub table: String,
}

impl Wanted {
    /// Of the first table all of whose conditions the tap meets.
    pub fn of(tap: &Tap, patterns: &[PortPattern]) -> Option<Self> {
        let pattern = patterns.iter().find(|pattern| pattern.matches(tap))?;
        Some(Self { settings: pattern.settings(tap), table: pattern.name.clone() })
    }

    pub fn mark(&self) -> ServiceMark {
        self.settings.mark(&self.table)
    }
}

/// What to do now, and when to look again even if nothing changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub again_at: Option<Duration>,
}

#[derive(Debug)]
struct Failure {
    tries: u32,
    again_at: Duration,
    reason: String,
}

/// What the service remembers; all of it may be lost.
#[derive(Debug, Default)]
pub struct Reconciler {
    /// Ports that were attached at the last look, by whomever.
    attached: HashSet<PortKey>,
    /// Ports that an operator has detached.
    released: HashSet<PortKey>,
    failed: HashMap<PortKey, Failure>,
}

impl Reconciler {
    /// `now`: since any fixed time.
    pub fn plan(&mut self, now: Duration, present: &[Present], patterns: &[PortPattern]) -> Plan {
        self.forget_others(present);
        let mut plan = Plan::default();
        for port in present {
            let wanted = Wanted::of(&port.tap, patterns);
            plan.actions.extend(self.action(now, port, wanted));
        }
        // One that is due and was not tried has a tap that is not ready: its change is an event.
        let pauses = self.failed.values().map(|failure| failure.again_at);
        plan.again_at = pauses.filter(|again_at| *again_at > now).min();
        plan
    }

    fn action(&mut self, now: Duration, port: &Present, wanted: Option<Wanted>) -> Option<Action> {
        let key = port.key;
        let Some(attachment) = &port.attachment else {
            if self.attached.remove(&key) {
                self.released.insert(key);
            }
            let is_due = self.failed.get(&key).is_none_or(|failure| failure.again_at <= now);
            let name = port.tap.interface.clone();
            return wanted
                .filter(|_| port.is_ready && is_due && !self.released.contains(&key))
                .map(|wanted| Action::Attach { key, name, wanted });
        };
        self.attached.insert(key);
        self.released.remove(&key);
        self.failed.remove(&key);
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

    /// The service itself has detached it: it may be attached again.
    pub fn detached(&mut self, key: PortKey) {
        self.attached.remove(&key);
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

    /// Forgets what operators took off: a reload asks for what the configuration says.
    pub fn reload(&mut self) {
        // What an operator took off since the last look is not known yet.
        self.attached.clear();
        self.released.clear();
        self.failed.clear();
    }

    fn forget_others(&mut self, present: &[Present]) {
        let keys: HashSet<_> = present.iter().map(|port| port.key).collect();
        self.attached.retain(|key| keys.contains(key));
        self.released.retain(|key| keys.contains(key));
        self.failed.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests;

//! The name and state of a port in tables and in JSON.

use std::collections::HashMap;

use serde::Serialize;
use vsnoop_host::ports::{Attached, PausedBy};

/// The first fields of every JSON object about an attached port.
#[derive(Clone, Debug, Serialize)]
pub struct PortIdentity {
    pub port: String,
    pub ifindex: u32,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Argument of `--netns` for that namespace; null in the command's own, or if it has no name.
    pub netns_name: Option<String>,
    /// "active", "paused", "observing", "gone", or in `status` also "blocked": its qdisc is another
    /// one than noqueue.
    pub state: &'static str,
    pub paused_by: Option<PausedBy>,
}

impl PortIdentity {
    /// `names` as made by [`vsnoop_host::system::netns::names`].
    pub fn from_attached(attached: &Attached, names: &HashMap<u64, String>) -> Self {
        Self {
            port: attached.name.clone(),
            ifindex: attached.meta.ifindex,
            netns: attached.meta.netns,
            netns_name: names.get(&attached.meta.netns).filter(|name| !name.is_empty()).cloned(),
            state: attached.condition(),
            paused_by: attached.paused_by(),
        }
    }

    /// The namespace for a table: "-" is the command's own.
    pub fn netns_label(&self) -> &str {
        self.netns_name.as_deref().unwrap_or("-")
    }
}

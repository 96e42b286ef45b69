//! Where vsnoop is attached during a migration, and whether it is paused before.

use anyhow::{Context, Result};

use crate::experiment::rounds::Named;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub name: &'static str,
    pub at_source: bool,
    pub at_target: bool,
    /// `vsnoop pause` at the source, before QEMU gets its command.
    pub pause: bool,
    /// The service at both hosts follows QEMU, and no command is given by hand.
    pub service: bool,
}

/// Neither attached nor paused.
const OFF: Configuration =
    Configuration { name: "off", at_source: false, at_target: false, pause: false, service: false };

const ALL: [Configuration; 7] = [
    OFF,
    Configuration { name: "target", at_target: true, ..OFF },
    Configuration { name: "source-pause", at_source: true, pause: true, ..OFF },
    Configuration { name: "both-pause", at_source: true, at_target: true, pause: true, ..OFF },
    Configuration { name: "service", at_source: true, at_target: true, service: true, ..OFF },
    Configuration { name: "source", at_source: true, ..OFF },
    Configuration { name: "both", at_source: true, at_target: true, ..OFF },
];

impl Named for Configuration {
    fn name(self) -> &'static str {
        self.name
    }
}

impl Configuration {
    pub fn find(name: &str) -> Result<Self> {
        let found = ALL.into_iter().find(|one| one.name == name);
        found.with_context(|| format!("there is no configuration {name:?}"))
    }
}

//! A link is one process, `vsnoop link up --foreground` or the same in the background; every other
//! command talks to it through its control socket. `up` starts it and waits for its report;
//! `process` runs before the link itself, with the checks of `checks`, so that nothing is created
//! in part.

mod ask;
mod checks;
mod document;
mod down;
mod file;
mod keygen;
mod notify;
mod process;
mod reload;
mod report;
mod set;
mod status;
mod table;
mod up;

use anyhow::Result;

use crate::cli::{self, Cli, LinkAction};

pub fn run(cli: &Cli, arguments: &cli::LinkArguments) -> Result<u8> {
    let action = &arguments.action;
    if !matches!(action, LinkAction::Keygen(_)) {
        ask::require_root()?;
    }
    if let Some(name) = link_to_ask(action) {
        ask::require_netns(cli, name)?;
    }
    match action {
        LinkAction::Keygen(arguments) => keygen::run(cli, arguments),
        LinkAction::Up(arguments) if arguments.foreground || arguments.report => {
            process::run(cli, arguments)
        }
        LinkAction::Up(arguments) => up::run(cli, arguments),
        LinkAction::Reload(arguments) => reload::run(cli, arguments),
        LinkAction::Down(arguments) => down::run(cli, arguments),
        LinkAction::Status(arguments) => status::run(cli, arguments),
        LinkAction::Set(arguments) => set::run(cli, arguments),
    }
}

/// The link that the action is about, if it must be up.
fn link_to_ask(action: &LinkAction) -> Option<&str> {
    match action {
        LinkAction::Keygen(_) | LinkAction::Up(_) => None,
        LinkAction::Reload(reload) => Some(&reload.name),
        LinkAction::Down(down) => Some(&down.name),
        LinkAction::Status(status) => status.name.as_deref(),
        LinkAction::Set(set) => Some(&set.name),
    }
}

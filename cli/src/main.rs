//! The `vsnoop` command: accelerates TCP to the VMs of this host (docs/reference/command.md).
//!
//! Attachments are in the kernel (pinned links and maps), so every command is a short-lived
//! process. Only a small helper runs while a port is attached (`helper`), the engine while a port
//! has a hold (`engine`), splitter and keeper while a port has downloads (`splitter`, `keeper`).
//! `command` has a module per command, `output` tables and JSON; accel/vsnoop-host knows the host
//! and its ports.

mod background;
mod bounds;
mod chosen;
mod cli;
mod command;
mod counters;
mod doctor;
#[cfg(test)]
mod document;
mod drain;
mod engine;
mod error;
mod helper;
mod identity;
mod keeper;
#[cfg(feature = "link")]
mod link_error;
mod log;
#[cfg(test)]
mod longest;
mod output;
mod service;
mod sockets;
mod splitter;
mod tables;
mod top;

use std::process::ExitCode;

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use cli::{Cli, Command};
use output::report::{self, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    allow_descriptors();
    match run_command(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let failure = Failure::from_error(&error, cli.netns.as_deref());
            log::print_error(&failure.message);
            let code = failure.exit_code;
            if cli.json {
                report::print_failure(failure);
            }
            ExitCode::from(code)
        }
    }
}

/// Raises the soft limit on descriptors to the hard one: the engine has some 12 for each port, a
/// link a few for each session, and the usual soft limit is 1024, for the sake of `select()`, which
/// nothing here calls.
fn allow_descriptors() {
    // Every process may do that. If one may not, too few descriptors are an error where they are
    // opened.
    let _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
}

/// Prints an error of the arguments as clap does, or help and version.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().skip(1).any(|argument| argument == "--json");
    if wants_json && error.use_stderr() {
        report::print_failure(Failure::report_usage(&first_paragraph(&error.to_string())));
    }
    error.exit()
}

/// Joins the first paragraph to one line: which argument, and which values are allowed, may stand
/// on lines of their own. The tip and the usage follow.
fn first_paragraph(text: &str) -> String {
    let lines = text.trim_start_matches("error: ").lines().map(str::trim);
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn run_command(cli: &Cli) -> anyhow::Result<u8> {
    if let Command::Status(_)
    | Command::Stats(_)
    | Command::Flows(_)
    | Command::Top(_)
    | Command::Incast(_)
    | Command::Pause(_) = &cli.command
    {
        helper::restart_if_needed();
    }
    match &cli.command {
        Command::Attach(arguments) => command::attach::run(cli, arguments),
        Command::Set(arguments) => command::set::run(cli, arguments),
        Command::Detach(arguments) => command::detach::run(cli, arguments),
        Command::Pause(arguments) => command::pause::pause_ports(cli, arguments),
        Command::Resume(arguments) => command::pause::resume_ports(cli, arguments),
        Command::Status(arguments) => command::status::run(cli, arguments),
        Command::Flows(arguments) => command::flows::run(cli, arguments),
        Command::Stats(arguments) => command::stats::run(cli, arguments),
        Command::Top(arguments) => command::top::run(cli, arguments),
        Command::Incast(arguments) => command::incast::run(cli, arguments),
        #[cfg(feature = "link")]
        Command::Link(arguments) => command::link::run(cli, arguments),
        Command::Helper(arguments) => {
            background::run_role(background::Role::Helper, arguments, helper::run_helper)
        }
        Command::Engine(arguments) => {
            background::run_role(background::Role::Engine, arguments, engine::run_engine)
        }
        Command::Splitter(arguments) => {
            background::run_role(background::Role::Splitter, arguments, splitter::run_splitter)
        }
        Command::Keeper(arguments) => {
            background::run_role(background::Role::Keeper, arguments, keeper::run_keeper)
        }
        Command::Prepare(_) => command::run::prepare_host(cli),
        Command::Doctor(arguments) => command::doctor::run(cli, arguments),
        Command::Observe(arguments) => command::observe::run(cli, arguments),
        Command::Run(_) => command::run::run(cli),
        Command::Reload(_) => command::reload::run(cli),
        Command::Check(arguments) => command::check::run(cli, arguments),
        Command::Off(_) => command::off::run(cli),
        Command::Man(arguments) => command::manual::write_pages(&arguments.dir),
        Command::Completions(arguments) => command::manual::print_completions(arguments.shell),
    }
}

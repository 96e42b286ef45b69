//! A running link: threads, ports, sockets, files, control. What it carries and decides is
//! vsnoop-link, which is free of input and output.
//!
//! ```text
//! ports --> [egress] --orders--+                +--orders-- [ingress] --> ports
//!              |               |                |               ^
//!              v               +-- [control] ---+               |
//!           network               ^  |   ^                   network
//!                          events |  |   | commands, signals
//!                                    +-- short-lived threads: handshakes
//! ```
//! [`egress`] and [`ingress`] move frames; each owns what it needs, so that nothing on a frame's
//! way is waited for but the forwarding table. While there is little to do one thread does both
//! ([`threads`]). [`control_thread`] keeps the peers' sessions; it runs on the thread that called
//! [`run`], beside the control socket and the signals. [`setup`] builds all that, [`serve`] waits
//! and answers. [`establish`] makes sessions. [`divert`] is the second way into the link, past
//! ports and table. [`privileges`] ends what is not needed after the setup.
//! `membership` has the peers that announce themselves in etcd; a thread of its own talks to that.

mod bridge;
mod callers;
mod causes;
mod clock;
mod complaints;
mod compression_policy;
pub mod config;
pub mod control;
mod control_thread;
mod counted_port;
mod counts;
mod cpu;
pub mod credentials;
mod divert;
mod egress;
mod error;
mod establish;
mod event;
mod fault;
mod frame;
mod handshake_threads;
mod ingress;
mod io;
pub mod key_file;
mod layer_2;
mod listen;
mod log;
mod membership;
mod orders;
mod own;
mod pairs;
mod ports;
pub mod privileges;
mod race;
mod relay;
mod revocation;
mod serve;
mod setup;
mod shared;
mod slots;
mod stats;
mod status;
pub mod tcp_handshake;
mod tcp_path;
mod threads;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub use self::causes::{BoxedError, with_causes};
use self::config::Config;
use self::control::Server;
pub use self::error::LinkError;
pub use self::listen::listen_address;
pub use self::log::Log;
pub use self::membership::{Membership, SettingsError};
use self::serve::Link;

/// Runs a link until it is told to end, by [`control::Request::Down`] or by SIGTERM or SIGINT.
/// SIGHUP has it read its configuration again. `ready` is called when it is up: it has its name,
/// its ports and its sockets. Called before the process has other threads.
pub fn run(config: Config, ready: impl FnOnce(), log: &Log<'_>) -> Result<(), LinkError> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().map_err(LinkError::call("block signals"))?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(LinkError::call("make a signalfd"))?;
    let mut server = Server::bind(&config.name)?;
    let mut link = Link::build(config)?;
    let poll = link.poll(&server, &signals)?;
    ready();
    link.serve(&poll, &mut server, &signals, log)?;
    link.end();
    Ok(())
}

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
//! [`egress`] and [`ingress`] move frames; each owns what it needs, so that a frame waits for
//! nothing but the forwarding table. While there is little to do one thread does both.
//!
//! | room | subject |
//! |---|---|
//! | [`egress`], [`ingress`] | frames from ports to peers, and from peers to ports |
//! | [`frames`] | a frame in memory, and how its flow is compressed |
//! | [`threads`] | pairs of data threads, what they share, orders, events, frames between them |
//! | [`ports`] | taps and interfaces that come and go, bridges, loops |
//! | [`divert`] | diverted packets, which pass ports and table by |
//! | [`peers`] | the control thread, which keeps the sessions of all peers |
//! | [`handshake`] | calls to peers and from them, up to a session |
//! | [`identity`] | this host's key, certificate and revocation lists |
//! | [`membership`] | peers that announce themselves in etcd |
//! | [`serve`] | setup, the loop of the control thread, reload, status |
//! | [`control`] | the control socket and its messages |
//! | [`config`] | the configuration file |
//! | [`privileges`] | what is given up after the setup |
//! | [`counters`] | counters of frames and of CPU time |
//! | [`io`] | sockets, taps, epoll, wake-ups |

mod causes;
pub mod config;
pub mod control;
mod counters;
mod divert;
mod egress;
mod error;
mod frames;
pub mod handshake;
pub mod identity;
mod ingress;
mod io;
mod log;
mod membership;
mod peers;
mod ports;
pub mod privileges;
mod serve;
mod threads;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub use self::causes::{BoxedError, with_causes};
use self::config::Config;
use self::control::Server;
pub use self::error::LinkError;
pub use self::handshake::listen::listen_address;
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

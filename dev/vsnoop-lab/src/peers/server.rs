//! The limit: the server of the guests, on the host itself.
//!
//! It is this program in another role, so that both ends of a transfer are the same as with a guest
//! and only the machine between them is missing.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use vsnoop_guest::server::{self, Counts};
use vsnoop_guest::transfer;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{HOST, Stage};

use super::Daemon;

/// The word that gives `vsnoop-lab` that role.
pub const COMMAND: &str = "serve";

#[derive(Debug)]
pub struct Server {
    _daemon: Daemon,
}

impl Server {
    pub fn start(session: &mut Session, stage: &Stage) -> Result<Self> {
        let program = std::env::current_exe().context("find this executable")?;
        let mut command = stage.host().command(program);
        command.arg(COMMAND);
        let log = session.scratch().join("server.log");
        let daemon = Daemon::start(command, stage.host(), &[transfer::PORT], &log)?;
        session.note_process(daemon.pid())?;
        Ok(Self { _daemon: daemon })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((HOST, transfer::PORT))
    }
}

/// Serves until the process is killed.
pub fn serve() -> Result<()> {
    server::start(Arc::new(Counts::default()))?;
    loop {
        std::thread::park();
    }
}

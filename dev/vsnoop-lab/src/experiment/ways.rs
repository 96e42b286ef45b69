//! Where a client connects to in each configuration: to a machine, to its tuned device, or to a
//! peer on the host.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::transfer::Direction;
use vsnoop_testbed::client::{self, Outcome, Request, Times};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{Stage, vm_address};

use super::configuration::Configuration;
use crate::peers::proxy::Proxy;
use crate::peers::server::Server;
use crate::results::{ACKED, CONNECT, DELIVERED, RETRANSMISSIONS, Sample};

/// The time limit of a transfer: five machines at full load sometimes take a minute for 10 MB.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The longest wait for the last segments of a connection whose bytes have all arrived.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The peers of a stage. They must end before the namespaces that they are in: drop this before
/// the stage.
#[derive(Debug)]
pub struct Ways {
    /// Where the machines' server listens.
    port: u16,
    proxy: Option<Proxy>,
    host: Option<Server>,
}

/// Where a client connects to, and the tap that its bytes pass.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    pub server: SocketAddr,
    pub tap: &'a str,
}

/// A measurement of one transfer.
impl From<Times> for Sample {
    fn from(times: Times) -> Self {
        Self::with([
            (CONNECT, times.connect_ms),
            (ACKED, times.acked_ms),
            (DELIVERED, times.delivered_ms),
            (RETRANSMISSIONS, f64::from(times.retransmissions)),
            ("dsack_duplicates", f64::from(times.dsack_duplicates)),
        ])
    }
}

impl Way<'_> {
    /// Sends `size_bytes` in a connection of its own; an error if not all of them arrive.
    pub fn upload(
        &self,
        client: &Netns,
        size_bytes: u64,
        congestion_control: &'static str,
    ) -> Result<Times> {
        let request = Request {
            server: self.server,
            direction: Direction::Upload,
            size_bytes,
            seed: fastrand::u64(..),
            congestion_control,
            timeout: TIMEOUT,
        };
        match client::transfer(client, &request)? {
            Outcome::Exact(times) => Ok(times),
            Outcome::Wrong(verdict) => bail!("the server did not get what was sent: {verdict:?}"),
            Outcome::Broken(error) => bail!("the connection broke: {error}"),
            Outcome::Hung => bail!("nothing came of the transfer within {} s", TIMEOUT.as_secs()),
        }
    }
}

impl Ways {
    /// Starts the peers that the configurations need.
    pub fn open(
        session: &mut Session,
        stage: &Stage,
        configurations: &[Configuration],
        port: u16,
    ) -> Result<Self> {
        let needs = |configuration| configurations.contains(&configuration);
        let proxy = match needs(Configuration::Proxy) {
            true => Some(Proxy::start(session, stage, port).context("start the proxy")?),
            false => None,
        };
        let host = match needs(Configuration::Host) {
            true => Some(Server::start(session, stage).context("start the server on the host")?),
            false => None,
        };
        Ok(Self { port, proxy, host })
    }

    pub fn way<'a>(
        &self,
        stage: &'a Stage,
        configuration: Configuration,
        machine: usize,
    ) -> Result<Way<'a>> {
        let server = match configuration {
            Configuration::Proxy => {
                self.proxy.as_ref().context("there is no proxy")?.address(machine)
            }
            Configuration::Host => {
                self.host.as_ref().context("there is no server on the host")?.address()
            }
            other => (vm_address(machine, other.is_tuned()), self.port).into(),
        };
        Ok(Way { server, tap: configuration.tap(stage, machine)? })
    }
}

/// Waits until all connections have ended on both sides, so that no old segment meets the next
/// one.
pub fn settle(stage: &Stage) -> Result<()> {
    let deadline = Instant::now() + END_TIMEOUT;
    while stage.client().has_connections()? || stage.host().has_connections()? {
        interrupt::check()?;
        ensure!(
            Instant::now() < deadline,
            "all bytes had arrived, but the connection did not end within {} s",
            END_TIMEOUT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

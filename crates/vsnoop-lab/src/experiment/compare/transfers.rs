//! Transfers on one stage, each set up and undone as its configuration asks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_guest::transfer::Direction;
use vsnoop_testbed::client::{self, Outcome, Request, Times};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::Stage;
use vsnoop_testbed::stage::path::PathOptions;

use crate::experiment::configuration::Configuration;
use crate::experiment::path_check::check_path;
use crate::peers::proxy::Proxy;
use crate::peers::server::Server;
use crate::results::{Cell, Ending, Sample};

const PAUSE_MS: std::ops::Range<u64> = 5..100;
/// The time limit of a transfer: five machines at full load sometimes take a minute for 10 MB.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The longest wait for the last segments of a connection whose bytes have all arrived.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const WARM_UP_BYTES: u64 = 10_000;

pub struct Transfers {
    // Fields are dropped in this order: peers end before the namespaces that they are in.
    proxy: Option<Proxy>,
    server: Option<Server>,
    stage: Stage,
    configurations: Vec<Configuration>,
    cell: Cell,
    /// The client's.
    congestion_control: &'static str,
}

impl Transfers {
    /// Takes a stage whose machines are loaded, and starts the peers that the configurations need.
    pub fn new(
        session: &mut Session,
        stage: Stage,
        configurations: &[Configuration],
        congestion_control: &'static str,
    ) -> Result<Self> {
        let needs = |configuration| configurations.contains(&configuration);
        let proxy = if needs(Configuration::Proxy) {
            Some(Proxy::start(session, &stage).context("start the proxy")?)
        } else {
            None
        };
        let server = if needs(Configuration::Host) {
            Some(Server::start(session, &stage).context("start the server on the host")?)
        } else {
            None
        };
        let configurations = configurations.to_vec();
        let cell = Cell::default();
        Ok(Self { proxy, server, stage, configurations, cell, congestion_control })
    }

    /// Sets up the path of a cell, measures it, and transfers some bytes in each configuration, so
    /// that neighbours are resolved. Returns the measured round trips, as text.
    pub fn enter(&mut self, cell: Cell) -> Result<String> {
        let rtt = Duration::from_secs_f64(cell.path_rtt_ms / 1e3);
        self.stage.set_path(&PathOptions {
            rtt,
            segment_loss: cell.path_loss_percent / 100.0,
            link: cell.path_link,
        })?;
        let measured = check_path(&self.stage, rtt)?;
        self.cell = cell;
        for machine in 0..self.stage.vm_count() {
            for &configuration in &self.configurations {
                let (server, _) = self.way(configuration, machine)?;
                self.transfer(server, WARM_UP_BYTES).context("the first transfer of a cell")?;
            }
        }
        self.settle()?;
        Ok(format!("ping p50 {:.2} ms, p90 {:.2} ms", measured.p50_ms, measured.p90_ms))
    }

    /// Prints a warning if the path's own queue lost frames in this cell.
    pub fn leave(&self) {
        let overflows = self.stage.path_overflows();
        if overflows > 0 {
            eprintln!("{}: the path's own queue was full and lost {overflows} frames", self.cell);
        }
    }

    /// One transfer of round `round`.
    pub fn measure(
        &self,
        configuration: Configuration,
        size_bytes: u64,
        round: usize,
    ) -> Result<Sample> {
        let machine = round % self.stage.vm_count();
        let (server, tap) = self.way(configuration, machine)?;
        configuration.set_up(&self.stage, machine)?;
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
        let drops_before = self.stage.counts_of(tap)?.drops;
        let times = self.transfer(server, size_bytes).with_context(|| format!("VM {machine}"))?;
        let tap_drops = self.stage.counts_of(tap)?.drops - drops_before;
        self.settle()?;
        configuration.undo(&self.stage, machine)?;
        Ok(Sample {
            configuration: configuration.name().to_owned(),
            size_bytes,
            cell: self.cell,
            ending: Ending::Exact,
            connect_ms: Some(times.connect_ms),
            acked_ms: Some(times.acked_ms),
            delivered_ms: Some(times.delivered_ms),
            retransmissions: times.retransmissions,
            dsack_duplicates: times.dsack_duplicates,
            tap_drops,
            vm: machine,
            ..Sample::default()
        })
    }

    /// The address that the client connects to, and the tap that its bytes pass.
    fn way(&self, configuration: Configuration, machine: usize) -> Result<(SocketAddr, &str)> {
        let plain = self.stage.tap(machine);
        Ok(match configuration {
            Configuration::Off
            | Configuration::AheadZero
            | Configuration::Vsnoop
            | Configuration::Priority => (self.stage.server(machine), plain),
            Configuration::Tuned => {
                (self.stage.tuned_server(machine), self.stage.tuned_tap(machine)?)
            }
            Configuration::Proxy => {
                (self.proxy.as_ref().context("there is no proxy")?.address(machine), plain)
            }
            Configuration::Host => {
                (self.server.as_ref().context("there is no server on the host")?.address(), plain)
            }
        })
    }

    fn transfer(&self, server: SocketAddr, size_bytes: u64) -> Result<Times> {
        let request = Request {
            server,
            direction: Direction::Upload,
            size_bytes,
            seed: fastrand::u64(..),
            congestion_control: self.congestion_control,
            timeout: TIMEOUT,
        };
        match client::transfer(self.stage.client(), &request)? {
            Outcome::Exact(times) => Ok(times),
            Outcome::Wrong(verdict) => bail!("the server did not get what was sent: {verdict:?}"),
            Outcome::Broken(error) => bail!("the connection broke: {error}"),
            Outcome::Hung => bail!("nothing came of the transfer within {} s", TIMEOUT.as_secs()),
        }
    }

    /// Waits until the connection has ended on both sides, so that its last segments do not meet
    /// the next one.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + END_TIMEOUT;
        let open = |netns: &Netns| netns.has_connections();
        while open(self.stage.client())? || open(self.stage.host())? {
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
}

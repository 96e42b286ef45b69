//! Split connections (docs/guide/downloads.md) of a VM's stand-in that sends as much as it may,
//! over a path of a relay. The stand-in is never late, and counts as late all the same.
//!
//! ```text
//! [client]--path of 50 Mb/s--[host with the attached tap]--[VM's stand-in, which sends]
//! ```

pub mod pause;
pub mod prompt;
pub mod sender;
pub mod small;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::Port;
use vsnoop_bpf::split::SplitPort;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::relay::{Bottleneck, Direction, Faults};
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, TopologyOptions, address};
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::wait::wait_until;

use crate::stage::PREFIX;

const RATE_MBIT: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(60);
/// The VM counts as late for the whole measurement.
const FOR_EVER_NS: u64 = u64::MAX / 2;

/// A path of the grid.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub rtt_ms: u64,
    pub loss: f64,
    pub reorder: f64,
    /// Length of the queue, in bandwidth-delay products.
    pub queue: f64,
}

impl Path {
    pub const fn new(rtt_ms: u64) -> Self {
        Self { rtt_ms, loss: 0.0, reorder: 0.0, queue: 1.0 }
    }

    pub fn lay(&self, topology: &Topology) {
        self.lay_with(topology, RATE_MBIT);
    }

    pub fn lay_with(&self, topology: &Topology, rate_mbit: u64) {
        const LEAST_QUEUE: u64 = 4 * 1514;
        let delay = Duration::from_millis(self.rtt_ms) / 2;
        let bdp = rate_mbit * 125 * self.rtt_ms;
        let queue = ((bdp as f64 * self.queue) as u64).max(LEAST_QUEUE);
        let to_client = Faults {
            delay,
            segment_loss: self.loss,
            reorder: self.reorder,
            reorder_by: delay,
            bottleneck: Some(Bottleneck::new(rate_mbit, queue)),
            ..Faults::default()
        };
        topology.set_network_faults(Side::Client, to_client);
        topology.set_network_faults(Side::Vm, Faults { delay, ..Faults::default() });
    }
}

/// The network, and a port with downloads.
pub struct Rig {
    topology: Topology,
    vsnoop: Vsnoop,
    split: SplitPort,
    congestion_control: String,
}

impl Rig {
    /// Measures in a network of its own.
    pub fn measure(measure: impl FnOnce(&Self) -> Result<Vec<Figure>>) -> Result<Vec<Figure>> {
        let (topology, vsnoop) = Self::network()?;
        let split = Self::attach(&topology, &vsnoop)?;
        // That of the sockets of split connections.
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        let congestion_control = std::fs::read_to_string(path).context(path)?.trim().to_owned();
        let rig = Self { topology, vsnoop, split, congestion_control };
        let figures = measure(&rig);
        rig.vsnoop.detach(PORT)?;
        figures
    }

    fn network() -> Result<(Topology, Vsnoop)> {
        let options =
            TopologyOptions { prefix: PREFIX.into(), network: true, ..TopologyOptions::default() };
        let topology = Topology::build(&options)?;
        for side in [Side::Client, Side::Vm] {
            topology.netns(side).set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        }
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        Ok((topology, vsnoop))
    }

    /// With downloads, for a VM that counts as late.
    fn attach(topology: &Topology, vsnoop: &Vsnoop) -> Result<SplitPort> {
        vsnoop.attach_with(PORT, &["--downloads", "on", "--hold", "64M"])?;
        let host = &topology.host;
        let index = host.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
        let split = SplitPort::open(&Port::open(host.inode()?, index)?)?;
        wait_until("the splitter works", PATIENCE, || Ok(split.counters().is_on == 1))?;
        split.extend_late(0, FOR_EVER_NS);
        Ok(split)
    }

    /// Payload that entered the path to the client.
    fn entered(&self) -> u64 {
        let relay = self.topology.network().map(|it| it.counters(Direction::RightToLeft));
        relay.map_or(0, |counters| counters.payload_bytes)
    }

    /// From the client to the VM's stand-in, which sends from then on.
    pub fn connect(&self, is_split: bool) -> Result<Connection> {
        self.split.turn_on(is_split);
        let at = SocketAddr::new(address(Side::Vm, Family::V4), 0);
        let listener = self.topology.vm.run(|| Ok(TcpListener::bind(at)?))?;
        let to = listener.local_addr()?;
        let client = self.topology.client.run(|| Ok(TcpStream::connect(to)?))?;
        let (vm, _) = listener.accept().context("accept")?;
        client.set_read_timeout(Some(Duration::from_millis(50)))?;
        use_congestion_control(&vm, &self.congestion_control)?;
        let sending = thread::spawn(move || send(vm));
        Ok(Connection { client, sending })
    }
}

pub struct Connection {
    client: TcpStream,
    sending: thread::JoinHandle<()>,
}

impl Connection {
    /// Bytes that arrive within this time.
    pub fn receive(&self, time: Duration) -> Result<u64> {
        let (began, mut received) = (Instant::now(), 0);
        let mut buffer = vec![0; 256 << 10];
        while began.elapsed() < time {
            match (&self.client).read(&mut buffer) {
                Ok(count) => received += count as u64,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("receive"),
            }
        }
        Ok(received)
    }

    /// With a RST: what is on its way is not waited for.
    pub fn end(self) -> Result<()> {
        nix::sys::socket::setsockopt(
            &self.client,
            nix::sys::socket::sockopt::Linger,
            &nix::libc::linger { l_onoff: 1, l_linger: 0 },
        )?;
        drop(self.client);
        self.sending.join().ok().context("the sender panicked")
    }
}

/// Until the other end has enough.
fn send(mut vm: TcpStream) {
    let chunk = vec![7; 64 << 10];
    while vm.write_all(&chunk).is_ok() {}
}

fn use_congestion_control(socket: &TcpStream, name: &str) -> Result<()> {
    nix::sys::socket::setsockopt(
        socket,
        nix::sys::socket::sockopt::TcpCongestion,
        &std::ffi::OsString::from(name),
    )
    .with_context(|| format!("use {name}"))
}

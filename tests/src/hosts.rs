//! Some hosts on one network, each with a bridge, a link and VMs.
//!
//! ```text
//! [VM: vm]--[bridge br0]--[vsl-..: the link's tap]   link   [uplink]--[bridge of the network]
//! ```
//!
//! The network between two hosts can be a [`Relay`] instead, which harms what passes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_testbed::net::{Net, Netns, Offloads, TapOptions};
use vsnoop_testbed::relay::{Counters, Direction, Faults, Relay, RelayOptions};
use vsnoop_testbed::workspace;

use crate::PREFIX;

/// Until all peers are up, or a host is down.
const PATIENCE: Duration = Duration::from_secs(120);
/// Until a link that was told to end is killed.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Port of links. Each test has a network of its own.
pub const PORT: u16 = 7946;

/// Options of a network.
#[derive(Clone, Debug)]
pub struct Plan {
    pub hosts: usize,
    pub vms_per_host: usize,
    pub transport: &'static str,
    /// A relay joins the hosts, of which there are two.
    pub relayed: bool,
    pub outside: Outside,
}

impl Default for Plan {
    fn default() -> Self {
        let outside = Outside::V4;
        Self { hosts: 2, vms_per_host: 1, transport: "udp", relayed: false, outside }
    }
}

/// Address family by which hosts reach each other, and at which links listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// IPv4, on IPv4 sockets.
    V4,
    /// IPv4, where links listen by default: on IPv6 sockets that take both.
    V4ByDefault,
    /// IPv6, where links listen by default.
    V6,
}

impl Outside {
    pub fn address(self, host: usize) -> IpAddr {
        match self {
            Self::V4 | Self::V4ByDefault => outer(host),
            Self::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1 + host as u16).into(),
        }
    }

    /// Length of the prefix of its network.
    pub fn prefix_length(self) -> u8 {
        if self == Self::V6 { 64 } else { 24 }
    }

    /// A line of `[link]`.
    fn listen(self) -> String {
        match self {
            Self::V4 => format!("listen = \"0.0.0.0:{PORT}\"\n"),
            Self::V4ByDefault | Self::V6 => String::new(),
        }
    }
}

/// The network exists until this is dropped. The relay is declared first, to end before its
/// namespaces.
pub struct Network {
    relay: Option<Relay>,
    pub hosts: Vec<Host>,
    plan: Plan,
    directory: PathBuf,
    middle: Netns,
    pub net: Net,
}

pub struct Host {
    number: usize,
    name: String,
    pub netns: Netns,
    pub vms: Vec<Netns>,
    config: PathBuf,
    pub link: Option<Child>,
    program: PathBuf,
}

/// A network, its directory, and what joins its hosts: a bridge, `net`.
pub fn ground() -> Result<(Net, PathBuf, Netns)> {
    let net = Net::new(PREFIX);
    let directory = std::env::temp_dir().join(net.name("links"));
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    let middle = net.host("m")?;
    middle.bridge("net")?;
    Ok((net, directory, middle))
}

/// Starts all links, and waits until each has all its peers.
pub fn start_all(hosts: &mut [Host]) -> Result<()> {
    for host in &mut *hosts {
        host.start()?;
    }
    hosts.iter().try_for_each(Host::until_all_up)
}

impl Network {
    /// Builds it, and waits until every link has all its peers.
    pub fn up(plan: Plan) -> Result<Self> {
        let mut network = Self::build(plan)?;
        start_all(&mut network.hosts)?;
        Ok(network)
    }

    /// Builds it; links are configured and not started.
    pub fn build(plan: Plan) -> Result<Self> {
        let (net, directory, middle) = ground()?;
        let namespaces = (0..plan.hosts).map(|number| net.host(&format!("h{number}")));
        let namespaces = namespaces.collect::<Result<Vec<_>>>()?;
        let relay = match &namespaces[..] {
            [left, right] if plan.relayed => {
                // Packets as a network sees them.
                let taps = TapOptions { offloads: Offloads::CHECKSUM, ..TapOptions::default() };
                Some(left.relay("uplink", right, "uplink", &taps, &RelayOptions::default())?)
            }
            _ if plan.relayed => bail!("a relay is between two hosts"),
            _ => None,
        };
        let mut hosts = Vec::new();
        for (number, netns) in namespaces.into_iter().enumerate() {
            if !plan.relayed {
                middle.veth_port("net", &format!("to{number}"), &netns, "uplink")?;
            }
            let outside = (plan.outside.address(number), plan.outside.prefix_length());
            netns.up_with("uplink", &[outside])?;
            netns.bridge("br0")?;
            let mut vms = Vec::new();
            for vm in 0..plan.vms_per_host {
                let guest = net.host(&format!("v{number}{vm}"))?;
                netns.veth_port("br0", &format!("vm{vm}"), &guest, "eth0")?;
                let (v4, v6) = (inner_v4(number, vm), inner_v6(number, vm));
                guest.up_with("eth0", &[(v4, 24), (v6, 64)])?;
                vms.push(guest);
            }
            // Names of links are the host's, not the namespace's.
            let name = net.name(&number.to_string());
            let config = directory.join(format!("{number}.toml"));
            hosts.push(Host::new(number, name, netns, vms, config)?);
        }
        let network = Self { relay, hosts, plan, directory, middle, net };
        network.configure()?;
        Ok(network)
    }

    /// Sets the relay's faults, both ways.
    pub fn set_faults(&self, faults: &Faults) {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            self.relay.iter().for_each(|relay| relay.set_faults(direction, faults.clone()));
        }
    }

    /// Counters of the relay, each way.
    pub fn counters(&self) -> Vec<Counters> {
        let both = [Direction::LeftToRight, Direction::RightToLeft];
        self.relay
            .iter()
            .flat_map(|relay| both.map(|direction| relay.counters(direction)))
            .collect()
    }

    /// Packets that the relay has thrown away.
    pub fn lost(&self) -> u64 {
        self.counters().iter().map(|counters| counters.lost).sum()
    }

    /// A stranger on the hosts' network, with so many addresses.
    pub fn stranger(&self, addresses: u8) -> Result<Netns> {
        let netns = self.net.host("x")?;
        self.middle.veth_port("net", "tox", &netns, "uplink")?;
        let addresses: Vec<_> = (0..addresses).map(|number| (stranger(number), 24)).collect();
        netns.up_with("uplink", &addresses)?;
        Ok(netns)
    }

    /// The line to a host takes this rate from now on, and has a queue of 64 MB.
    pub fn slow_down(&self, host: usize, rate: &str) -> Result<()> {
        self.middle.tc(&format!(
            "qdisc add dev to{host} root tbf rate {rate} burst 16kb limit {}",
            64 << 20
        ))?;
        Ok(())
    }

    /// Bytes that stand in the queue of [`slow_down`](Self::slow_down).
    pub fn standing_bytes(&self, host: usize) -> Result<u64> {
        let shown = self.middle.tc(&format!("-s -j qdisc show dev to{host}"))?;
        let queues: Value = serde_json::from_str(&shown).context("reading what tc shows")?;
        queues[0]["backlog"].as_u64().with_context(|| format!("no backlog in {shown}"))
    }

    /// Sets the MTU of the hosts' network between them; their own interfaces are set by host.
    pub fn set_outer_mtu(&self, mtu_bytes: usize) -> Result<()> {
        for host in &self.hosts {
            self.middle.set_mtu(&format!("to{}", host.number), mtu_bytes)?;
            host.netns.set_mtu("uplink", mtu_bytes)?;
        }
        self.middle.set_mtu("net", mtu_bytes)
    }

    /// The host does not call this peer any more, but is called.
    pub fn let_wait(&self, host: usize, peer: usize) -> Result<()> {
        let line = format!("address = \"{}:{PORT}\"\n", outer(peer));
        self.edit_config(host, |text| text.replace(&line, ""))
    }

    /// A file of its own, gone with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Changes the configuration of a host, before its link is started.
    pub fn edit_config(&self, host: usize, edit: impl Fn(&str) -> String) -> Result<()> {
        let file = &self.hosts[host].config;
        let text = std::fs::read_to_string(file).context("reading a configuration")?;
        std::fs::write(file, edit(&text)).context("writing a configuration")
    }

    pub fn key_file(&self, host: usize) -> PathBuf {
        self.directory.join(format!("{host}.key"))
    }

    fn configure(&self) -> Result<()> {
        let keys = (0..self.hosts.len())
            .map(|host| keygen(&self.key_file(host)))
            .collect::<Result<Vec<_>>>()?;
        for host in &self.hosts {
            let peers: String = (0..self.hosts.len())
                .filter(|peer| *peer != host.number)
                .map(|peer| {
                    format!(
                        "[[peer]]\nname = \"h{peer}\"\nkey = \"{}\"\naddress = \"{}\"\n\
                         transport = \"{}\"\n",
                        keys[peer],
                        SocketAddr::new(self.plan.outside.address(peer), PORT),
                        self.plan.transport,
                    )
                })
                .collect();
            let text = format!(
                "[link]\nname = \"{}\"\nnetwork = \"test\"\n{}key = \"{}\"\n[[port]]\n\
                 bridge = \"br0\"\nname = \"vsl0\"\n{peers}",
                host.name,
                self.plan.outside.listen(),
                self.key_file(host.number).display(),
            );
            host.configure(&text)?;
        }
        Ok(())
    }

    /// Lets sessions be replaced this often.
    pub fn rekey_every(&self, time: &str) -> Result<()> {
        let line = format!("[link]\nrekey = \"{time}\"\n");
        (0..self.hosts.len())
            .try_for_each(|host| self.edit_config(host, |text| text.replacen("[link]\n", &line, 1)))
    }

    /// Gives a host another key than its peers know.
    pub fn change_key(&self, host: usize) -> Result<()> {
        let file = self.key_file(host);
        std::fs::remove_file(&file).context("removing a key")?;
        keygen(&file).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // All of them before the first is waited for.
        self.hosts.iter().for_each(Host::tell_to_end);
        for host in &mut self.hosts {
            host.end();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Host {
    /// One whose link is called `name`, and not configured yet.
    pub fn new(
        number: usize,
        name: String,
        netns: Netns,
        vms: Vec<Netns>,
        config: PathBuf,
    ) -> Result<Self> {
        let program = workspace::vsnoop_command()?;
        Ok(Self { number, name, netns, vms, config, link: None, program })
    }

    /// The link is as this text says from its next start on.
    pub fn configure(&self, text: &str) -> Result<()> {
        std::fs::write(&self.config, text)
            .with_context(|| format!("writing {}", self.config.display()))
    }

    pub fn start(&mut self) -> Result<()> {
        let log = std::fs::File::create(self.log()).context("making a log")?;
        let child = self
            .netns
            .command(&self.program)
            .args(["link", "up", "--foreground"])
            .arg(&self.config)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log)
            .spawn()
            .context("starting a link")?;
        self.link = Some(child);
        let since = Instant::now();
        while self.status().is_err() {
            let ended = self.link.as_mut().is_some_and(|link| !matches!(link.try_wait(), Ok(None)));
            if ended || since.elapsed() > PATIENCE {
                bail!("the link of {} does not come up: {}", self.name, self.words());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills the link, which sends no close message then.
    pub fn kill(&mut self) {
        if let Some(mut link) = self.link.take() {
            // It may have ended already.
            let _ = link.kill();
            let _ = link.wait();
        }
    }

    fn tell_to_end(&self) {
        if let Some(link) = &self.link {
            // It may have ended, but nobody has waited for it, so nobody else has its id.
            let _ = kill(Pid::from_raw(link.id() as i32), Signal::SIGTERM);
        }
    }

    /// Ends the link as an operator does, so that nothing is left; kills it if it does not end.
    pub fn end(&mut self) {
        self.tell_to_end();
        let since = Instant::now();
        while let Some(link) = &mut self.link
            && matches!(link.try_wait(), Ok(None))
            && since.elapsed() < END_PATIENCE
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    fn log(&self) -> PathBuf {
        self.config.with_extension("log")
    }

    /// The log of the link.
    pub fn words(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// `vsnoop link ...` here.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        checked(self.netns.command(&self.program).arg("link").args(arguments))
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The link's part of `vsnoop link status --json`.
    pub fn status(&self) -> Result<Value> {
        let text = self.command(&["status", &self.name, "--json"])?;
        let all: Value = serde_json::from_str(&text).context("the status is no JSON")?;
        all["links"][0]
            .as_object()
            .map(|link| Value::Object(link.clone()))
            .with_context(|| format!("no link in {text}"))
    }

    /// A number in `/proc/PID/status` of the link, such as `VmRSS` (KiB) or `Threads`.
    pub fn in_proc_status(&self, key: &str) -> Result<u64> {
        let pid = self.link.as_ref().context("no link runs")?.id();
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .context("asking how a link's process is")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no {key} in the status of process {pid}"))
    }

    /// Files and sockets that the link has open.
    pub fn descriptors(&self) -> Result<u64> {
        let pid = self.link.as_ref().context("no link runs")?.id();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        Ok(files.context("listing what a link has open")?.count() as u64)
    }

    pub fn peer(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        let peers = status["peers"].as_array().context("no peers in the status")?;
        peers.iter().find(|peer| peer["name"] == name).cloned().context("no such peer")
    }

    pub fn until_all_up(&self) -> Result<()> {
        self.until("all peers are up", |status| {
            let peers = status["peers"].as_array();
            peers.is_some_and(|peers| peers.iter().all(|peer| peer["state"] == "up"))
        })
    }

    /// Waits until the status is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            let status = self.status()?;
            if wanted(&status) {
                return Ok(());
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "{what}: not at {} after {PATIENCE:?}: {}\n{}",
                self.name,
                status["peers"],
                self.words()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Makes a key in a new file; the public one.
pub fn keygen(file: &Path) -> Result<String> {
    let program = workspace::vsnoop_command()?;
    let made = checked(Command::new(program).args(["link", "keygen"]).arg(file))?;
    Ok(made.trim().to_owned())
}

fn checked(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().context("running vsnoop")?;
    ensure!(
        output.status.success(),
        "{:?} failed: {}",
        command.get_args(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn outer(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 1 + host as u8).into()
}

/// See [`Network::stranger`].
pub fn stranger(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 200 + number).into()
}

pub fn inner_v4(host: usize, vm: usize) -> IpAddr {
    Ipv4Addr::new(10, 88, 0, 1 + (10 * host + vm) as u8).into()
}

pub fn inner_v6(host: usize, vm: usize) -> IpAddr {
    Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, 1 + (10 * host + vm) as u16).into()
}

/// The file of a link's control socket, to see that it is gone.
pub fn socket(name: &str) -> PathBuf {
    Path::new("/run/vsnoop/link").join(format!("{name}.sock"))
}

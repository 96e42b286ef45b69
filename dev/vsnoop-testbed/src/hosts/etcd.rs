//! Nodes of etcd on the hosts' network: the packaged program, each in a namespace of its own.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::addresses::etcd_node;
use super::network::Network;
use super::plan::UPLINK;
use crate::net::{Netns, check};
use crate::wait::wait_until;

/// For nodes to find each other, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const CLIENTS: u16 = 2379;
const NODES: u16 = 2380;

/// Files in PEM by which nodes and clients know each other.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    pub ca: PathBuf,
    /// Certificate and key of all nodes.
    pub node: (PathBuf, PathBuf),
    /// Certificate and key of `etcdctl`.
    pub client: (PathBuf, PathBuf),
}

#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub tls: Option<EtcdTls>,
    /// More arguments of each node.
    pub arguments: &'static [&'static str],
    /// User and password of `etcdctl`, once there are users.
    pub user: Option<String>,
}

#[derive(Debug)]
struct Node {
    name: String,
    address: IpAddr,
    netns: Netns,
    process: Option<Child>,
}

/// A cluster; its processes end when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    nodes: Vec<Node>,
    directory: PathBuf,
    pub options: EtcdOptions,
}

impl Network {
    /// Starts an etcd cluster of `nodes` beside the hosts.
    pub fn etcd(&self, nodes: usize, options: EtcdOptions) -> Result<Etcd> {
        let node = |number: usize| -> Result<Node> {
            let (name, address) = (format!("e{number}"), etcd_node(number));
            let netns = self.net.host(&name)?;
            self.connect(&format!("toe{number}"), &netns)?;
            netns.up_with(UPLINK, &[(address, 24)])?;
            Ok(Node { name, address, netns, process: None })
        };
        let directory = self.file("etcd");
        fs::create_dir_all(&directory).context("making a directory for etcd")?;
        let nodes = (0..nodes).map(node).collect::<Result<_>>()?;
        let mut etcd = Etcd { nodes, directory, options };
        etcd.start_all()?;
        Ok(etcd)
    }
}

impl Network {
    /// Configures a host with this etcd and without peers; `more`: lines of `[etcd]`.
    pub fn announce(&self, host: usize, etcd: &Etcd, more: &str) -> Result<()> {
        let (endpoints, transport) = (etcd.endpoints(), self.plan.transport);
        self.edit_config(host, |text| {
            let own = text.split("[[peer]]").next().unwrap_or_default();
            format!(
                "{own}[etcd]\nendpoints = {endpoints}\nname = \"h{host}\"\n{more}\n\
                 [etcd.peer]\ntransport = \"{transport}\"\n"
            )
        })
    }
}

impl Etcd {
    fn scheme(&self) -> &'static str {
        if self.options.tls.is_some() { "https" } else { "http" }
    }

    fn client_url(&self, node: usize) -> String {
        format!("{}://{}:{CLIENTS}", self.scheme(), self.nodes[node].address)
    }

    pub fn address(&self, node: usize) -> IpAddr {
        self.nodes[node].address
    }

    /// For `[etcd]` in the configuration of a link.
    pub fn endpoints(&self) -> String {
        let all: Vec<_> = (0..self.nodes.len()).map(|node| self.client_url(node)).collect();
        format!("{all:?}")
    }

    /// Starts the nodes that do not run, and waits until all serve.
    pub fn start_all(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        (0..self.nodes.len()).try_for_each(|node| self.until_healthy(node))
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let peers = |node: &Node| format!("{}=http://{}:{NODES}", node.name, node.address);
        let cluster: Vec<_> = self.nodes.iter().map(peers).collect();
        let clients = self.client_url(number);
        let node = &self.nodes[number];
        if node.process.is_some() {
            return Ok(());
        }
        let log = fs::File::create(self.directory.join(format!("{}.log", node.name)))?;
        let of_node = format!("http://{}:{NODES}", node.address);
        let mut command = node.netns.command("etcd");
        command.args(["--name", &node.name, "--data-dir"]).arg(self.directory.join(&node.name));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &of_node, "--initial-advertise-peer-urls", &of_node]);
        command.args(["--initial-cluster", &cluster.join(",")]);
        // A busy machine does not answer within the default.
        command.args(["--heartbeat-interval", "200", "--election-timeout", "2000"]);
        if let Some(tls) = &self.options.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            command.arg("--cert-file").arg(&tls.node.0).arg("--key-file").arg(&tls.node.1);
        }
        let process = command
            .args(self.options.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting etcd (package etcd-server)")?;
        self.nodes[number].process = Some(process);
        Ok(())
    }

    fn until_healthy(&self, node: usize) -> Result<()> {
        let name = &self.nodes[node].name;
        wait_until(&format!("node {name} of etcd serves"), PATIENCE, || {
            Ok(self.control_at(node, &["get", "vsnoop-test"]).is_ok())
        })
        .with_context(|| fs::read_to_string(self.directory.join(format!("{name}.log"))).unwrap())
    }

    /// Kills a node; its data stays.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        let Some(mut process) = self.nodes[node].process.take() else { return Ok(()) };
        kill(Pid::from_raw(process.id() as i32), Signal::SIGKILL).context("killing a node")?;
        process.wait().map(drop).context("waiting for a node")
    }

    pub fn kill_all(&mut self) -> Result<()> {
        (0..self.nodes.len()).try_for_each(|node| self.kill(node))
    }

    /// The node that leads now.
    pub fn leader(&self) -> Result<usize> {
        let asked = |node: usize| -> Result<bool> {
            let text = self.control_at(node, &["endpoint", "status", "-w", "json"])?;
            let all: Value = serde_json::from_str(&text).context("reading a status of etcd")?;
            let status = &all[0]["Status"];
            Ok(status["leader"].is_u64() && status["leader"] == status["header"]["member_id"])
        };
        let running = (0..self.nodes.len()).filter(|node| self.nodes[*node].process.is_some());
        let mut leaders = running.filter(|node| asked(*node).unwrap_or(false));
        leaders.next().context("no node of etcd leads")
    }

    /// `etcdctl` at the first node that runs.
    pub fn control(&self, arguments: &[&str]) -> Result<String> {
        let node = self.nodes.iter().position(|node| node.process.is_some());
        self.control_at(node.context("no node of etcd runs")?, arguments)
    }

    fn control_at(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let mut command = self.nodes[node].netns.command("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &self.client_url(node), "--command-timeout", "10s"]);
        if let Some(tls) = &self.options.tls {
            let file = |name: &str, file: &Path| format!("--{name}={}", file.display());
            command.arg(file("cacert", &tls.ca));
            command.arg(file("cert", &tls.client.0)).arg(file("key", &tls.client.1));
        }
        if let Some(user) = &self.options.user {
            command.args(["--user", user]);
        }
        check(command.args(arguments))
    }

    /// Compacts the history, as a busy cluster does: a watch from an earlier revision fails.
    pub fn compact(&self) -> Result<()> {
        let text = self.control(&["endpoint", "status", "-w", "json"])?;
        let all: Value = serde_json::from_str(&text).context("reading a status of etcd")?;
        let revision = all[0]["Status"]["header"]["revision"].to_string();
        ensure!(revision != "null", "no revision in {text}");
        self.control(&["compaction", &revision]).map(drop)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Err(error) = self.kill_all() {
            tracing::warn!("a node of etcd is left: {error:#}");
        }
    }
}

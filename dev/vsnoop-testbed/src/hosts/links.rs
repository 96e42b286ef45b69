//! The links of a network's hosts.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::addresses::{PORT, net_v4, net_v6, outer};
use super::config::{divert, keygen, link_table, peer_table};
use super::host::start_all;
use super::network::Network;
use super::plan::Plan;

impl Network {
    /// Builds it, and waits until every link has all its peers.
    pub fn up(plan: Plan) -> Result<Self> {
        let mut network = Self::configured(plan)?;
        start_all(&mut network.hosts)?;
        Ok(network)
    }

    /// Builds it; links are configured and not started.
    pub fn configured(plan: Plan) -> Result<Self> {
        let network = Self::build(plan)?;
        network.configure()?;
        Ok(network)
    }

    /// Makes keys, and configures each host's link with all others as its peers.
    fn configure(&self) -> Result<()> {
        let directory = self.file("");
        fs::create_dir_all(&directory)
            .with_context(|| format!("making {}", directory.display()))?;
        let keys = self.hosts.iter().map(|host| keygen(&self.key_file(host.number())));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        self.hosts
            .iter()
            .try_for_each(|host| host.configure(&self.configuration(host.number(), &keys)))
    }

    fn configuration(&self, host: usize, keys: &[String]) -> String {
        let plan = &self.plan;
        let others = || (0..plan.hosts).filter(|other| *other != host);
        let name = self.hosts[host].name();
        let link = link_table(name, "test", plan.outside.listen(), &self.key_file(host))
            + &plan.dead_after_line();
        let peers: String = others()
            .map(|peer| {
                let address = SocketAddr::new(plan.outside.address(peer), PORT);
                peer_table(&format!("h{peer}"), &keys[peer], address, plan.transport)
            })
            .collect();
        if !plan.is_routed() {
            let port = "[[port]]\nbridge = \"br0\"\nname = \"vsl0\"\n";
            return [&link, plan.link, "\n", port, &peers, plan.more].concat();
        }
        let diverts = (plan.diverts)(host).unwrap_or_else(|| {
            others().map(|peer| divert(peer, &[net_v4(peer), net_v6(peer)])).collect()
        });
        let local = (plan.local)(host)
            .unwrap_or_else(|| format!("[\"{}\", \"{}\"]", net_v4(host), net_v6(host)));
        let local = if local == "[]" { String::new() } else { format!("local = {local}\n") };
        [&link, &local, plan.link, "\n", &peers, &diverts, plan.more].concat()
    }

    pub fn key_file(&self, host: usize) -> PathBuf {
        self.file(&format!("{host}.key"))
    }

    /// The configuration of a host.
    pub fn config(&self, host: usize) -> Result<String> {
        fs::read_to_string(&self.hosts[host].config).context("reading a configuration")
    }

    /// Changes the configuration of a host, before its link is started.
    pub fn edit_config(&self, host: usize, edit: impl Fn(&str) -> String) -> Result<()> {
        self.hosts[host].configure(&edit(&self.config(host)?))
    }

    /// The host no longer calls this peer; the peer calls it.
    pub fn let_wait(&self, host: usize, peer: usize) -> Result<()> {
        let line = format!("address = \"{}:{PORT}\"\n", outer(peer));
        self.edit_config(host, |text| text.replace(&line, ""))
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
        fs::remove_file(&file).context("removing a key")?;
        keygen(&file).map(drop)
    }
}

//! The names of a network's namespaces, and how they begin.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use super::Netns;

/// A network to be built: [`Net::host`] makes its namespaces, their methods what is in them and
/// between them.
///
/// ```no_run
/// # use vsnoop_testbed::net::{Net, Netns, TapOptions};
/// # use vsnoop_testbed::relay::RelayOptions;
/// # fn build() -> anyhow::Result<()> {
/// let net = Net::new("vst-");
/// let (host, vm, client) = (net.host("host")?, net.host("vm")?, net.host("client")?);
/// host.bridge("br0")?;
/// host.veth_port("br0", "uplink", &client, "eth0")?;
/// let (taps, options) = (TapOptions::default(), RelayOptions::default());
/// let _device = host.relay("tap0", &vm, "eth0", &taps, &options)?;
/// host.add_port("br0", "tap0")?;
/// client.up_with("eth0", &[("10.0.0.1".parse()?, 24)])?;
/// vm.up_with("eth0", &[("10.0.0.2".parse()?, 24)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Net {
    prefix: String,
}

impl Net {
    /// `prefix` belongs to the caller: [`remove_stale`](super::remove_stale) finds by it what a
    /// crashed run left behind. Networks of the same prefix have different names.
    pub fn new(prefix: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { prefix: format!("{prefix}{}-{number}-", std::process::id()) }
    }

    /// The name of a namespace of this network, or of another thing that only this network has.
    pub fn name(&self, role: &str) -> String {
        format!("{}{role}", self.prefix)
    }

    /// A namespace whose TCP remembers nothing of earlier connections, and whose IPv6 addresses
    /// work at once.
    pub fn host(&self, role: &str) -> Result<Netns> {
        let netns = Netns::create(&self.name(role))?;
        for (key, value) in [
            ("net.ipv4.tcp_no_metrics_save", "1"),
            ("net.ipv6.conf.default.accept_dad", "0"),
            ("net.ipv6.conf.default.router_solicitations", "0"),
        ] {
            netns.set_sysctl(key, value)?;
        }
        Ok(netns)
    }

    /// Like [`Net::host`], without IPv6: the host itself sends nothing.
    pub fn silent_host(&self, role: &str) -> Result<Netns> {
        let netns = self.host(role)?;
        netns.set_sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        Ok(netns)
    }
}

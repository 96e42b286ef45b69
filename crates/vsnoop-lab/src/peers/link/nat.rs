//! A guest behind a user's process that ends its connections and opens others (VNET's *NAT*).

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, packaged};

const DEVICE: &str = "tap0";

pub static SLIRP: Carrier = Carrier {
    name: "nat",
    about: "NAT by a user's process: slirp4netns, MTU 65520 towards its guest",
    kind: Kind::Between,
    start: slirp,
};

fn slirp(site: &mut Site) -> Result<Ends> {
    let program = packaged("slirp4netns", "slirp4netns")?;
    let guest = site.hosts.namespace("nat")?;
    let address: Ipv4Addr = HostSide::B.address();
    // slirp4netns sends the guests' echo requests from ping sockets, which only groups in this
    // range may open.
    site.host(HostSide::A).set_sysctl("net.ipv4.ping_group_range", "0 2147483647")?;
    let mut command = site.command(HostSide::A, program);
    command.args(["--configure", "--mtu=65520", "--netns-type=path"]);
    command.arg(Path::new("/run/netns").join(guest.name())).arg(DEVICE);
    site.start(HostSide::A, command, &[])?;
    site.until("route through slirp4netns", || {
        Ok(guest.ip("route show default")?.contains(DEVICE))
    })?;
    Ok(Ends {
        client: guest,
        server: site.host(HostSide::B).clone(),
        address,
        devices: None,
        forwarded_from: None,
    })
}

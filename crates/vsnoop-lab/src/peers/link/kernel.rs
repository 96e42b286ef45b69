//! Carriers without a process: the bare path, a bridge, and VXLAN (RFC 7348).

use anyhow::{Context, Result};

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::Site;

pub static BARE: Carrier = Carrier {
    name: "bare",
    about: "the path between the hosts itself (VNET's *physical*)",
    kind: Kind::Kernel,
    start: |site| {
        if site.hosts.is_relayed() {
            return Ok(Ends {
                client: site.host(HostSide::A).clone(),
                server: site.host(HostSide::B).clone(),
                address: HostSide::B.address(),
                devices: None,
                forwarded_from: None,
            });
        }
        // A veth of its own, whose offloads may be switched off without the others' path.
        let [a, b] = HostSide::BOTH.map(|side| site.device(side));
        site.host(HostSide::A).veth(&a, site.host(HostSide::B), &b)?;
        site.tunnel()
    },
};

pub static BRIDGED: Carrier = Carrier {
    name: "bridged",
    about: "guests on bridges of the hosts, no tunnel",
    kind: Kind::Kernel,
    start: |site| {
        Ok(Ends {
            client: site.guest(HostSide::A).clone(),
            server: site.guest(HostSide::B).clone(),
            address: HostSide::B.guest_address(),
            devices: None,
            forwarded_from: None,
        })
    },
};

pub static VXLAN: Carrier = Carrier {
    name: "vxlan",
    about: "VXLAN of the kernel, no encryption",
    kind: Kind::Kernel,
    start: vxlan,
};

fn vxlan(site: &mut Site) -> Result<Ends> {
    for side in HostSide::BOTH {
        let (name, port, id) = (site.device(side), site.port(), site.number());
        let (local, remote) = (side.address(), side.other().address());
        site.host(side)
            .ip(&format!(
                "link add {name} type vxlan id {id} local {local} remote {remote} dstport {port} \
                 dev {}",
                site.hosts.outer_device()
            ))
            .context("make a VXLAN device (CONFIG_VXLAN)")?;
    }
    site.tunnel()
}

//! VpnCloud: a tap over UDP.

use anyhow::Result;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, built};

pub static PLAIN: Carrier = Carrier {
    name: "vpncloud-plain",
    about: "VpnCloud 2.3, tap, `--algorithm plain`",
    kind: Kind::Plain,
    start: |site| start(site, "plain"),
};

pub static SEALED: Carrier = Carrier {
    name: "vpncloud",
    about: "VpnCloud 2.3, tap, AES-128-GCM",
    kind: Kind::Sealed,
    start: |site| start(site, "aes128"),
};

fn start(site: &mut Site, algorithm: &str) -> Result<Ends> {
    let program = built("vpncloud")?;
    let port = site.port();
    for side in HostSide::BOTH {
        let mut command = site.command(side, &program);
        command.args(["--type", "tap", "--password", "lab", "--algorithm", algorithm]);
        command.args(["--device", &site.device(side)]);
        command.args(["--listen", &format!("{}:{port}", side.address())]);
        command.args(["--peer", &format!("{}:{port}", side.other().address())]);
        command.args(["--no-auto-claim", "--no-port-forwarding"]);
        site.start(side, command, &[])?;
    }
    site.tunnel()
}

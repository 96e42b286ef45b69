//! VTun: a tap over TCP.

use anyhow::Result;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, packaged};

pub static PLAIN: Carrier = Carrier {
    name: "vtun",
    about: "VTun 3, `type ether`, `proto tcp`, no encryption",
    kind: Kind::Plain,
    start: |site| start(site, "no"),
};

pub static BBR: Carrier = Carrier {
    name: "vtun-bbr",
    about: "the same over bbr, which an operator would have to set for the whole host",
    kind: Kind::Plain,
    start: |site| {
        site.set_congestion_control("bbr")?;
        let ends = start(site, "no");
        site.set_congestion_control("cubic")?;
        ends
    },
};

pub static ZLIB: Carrier = Carrier {
    name: "vtun-zlib",
    about: "VTun with `compress zlib:1`",
    kind: Kind::Plain,
    start: |site| start(site, "zlib:1"),
};

fn start(site: &mut Site, compress: &str) -> Result<Ends> {
    let program = packaged("vtund", "vtun")?;
    let (port, number) = (site.port(), site.number());
    for side in [HostSide::B, HostSide::A] {
        // Sessions are locked by their names, on the whole machine.
        let text = format!(
            "options {{ port {port}; timeout 60; syslog daemon; }}\n\
             vslab{number} {{\n passwd lab;\n type ether;\n proto tcp;\n device {};\n \
             compress {compress};\n encrypt no;\n keepalive yes;\n stat no;\n speed 0;\n}}\n",
            site.device(side)
        );
        let file = site.write(&format!("{}.conf", side.name()), &text)?;
        let mut command = site.command(side, &program);
        command.arg("-n").arg("-f").arg(file).args(["-P", &port.to_string()]);
        if side == HostSide::B {
            command.arg("-s");
            site.start(side, command, &[port])?;
        } else {
            command.arg(format!("vslab{number}")).arg(side.other().address().to_string());
            site.start(side, command, &[])?;
        }
    }
    site.tunnel()
}

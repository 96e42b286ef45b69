//! vsnoop's own link, as an operator would set it up: keys, a file for each end, `vsnoop link up`.

use std::net::SocketAddr;

use anyhow::Result;
use vsnoop_testbed::hosts::{all_up, keygen, link_table, peer_table, status};
use vsnoop_testbed::workspace;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::Site;

macro_rules! carrier {
    ($name:literal, $about:literal, $transport:literal, $more:literal) => {
        Carrier {
            name: $name,
            about: $about,
            kind: Kind::Own,
            start: |site| start(site, $transport, $more),
        }
    };
}

pub static UDP_PLAIN: Carrier =
    carrier!("vsnoop-udp-plain", "`transport = \"udp-plain\"`", "udp-plain", "");
pub static UDP: Carrier = carrier!("vsnoop-udp", "`transport = \"udp\"`", "udp", "");
pub static TLS: Carrier =
    carrier!("vsnoop-tls", "`transport = \"tls\"` (VNET with SSL)", "tls", "");
pub static UDP_AUTO: Carrier = carrier!(
    "vsnoop-udp-auto",
    "udp, `method = \"auto\"`",
    "udp",
    "\n[[compress]]\nmethod = \"auto\"\n"
);
pub static TLS_AUTO: Carrier = carrier!(
    "vsnoop-tls-auto",
    "tls, `method = \"auto\"`",
    "tls",
    "\n[[compress]]\nmethod = \"auto\"\n"
);
pub static TLS_DICTIONARY: Carrier = carrier!(
    "vsnoop-tls-dictionary",
    "tls, `method = \"auto\"`, `dictionary = \"128M\"`",
    "tls",
    "\n[[compress]]\nmethod = \"auto\"\ndictionary = \"128M\"\n"
);
pub static UDP_LZ4: Carrier = carrier!(
    "vsnoop-udp-lz4",
    "udp, `method = \"lz4\"`",
    "udp",
    "\n[[compress]]\nmethod = \"lz4\"\n"
);
pub static TLS_LZ4: Carrier = carrier!(
    "vsnoop-tls-lz4",
    "tls, `method = \"lz4\"`",
    "tls",
    "\n[[compress]]\nmethod = \"lz4\"\n"
);

fn start(site: &mut Site, transport: &str, more: &str) -> Result<Ends> {
    let program = workspace::vsnoop_command()?;
    let port = site.port();
    let key_file = |site: &Site, side: HostSide| site.path(&format!("{}.key", side.name()));
    let keys = [keygen(&key_file(site, HostSide::A))?, keygen(&key_file(site, HostSide::B))?];
    let name = |site: &Site, side: HostSide| format!("lab{}-{}", site.number(), side.name());
    for side in HostSide::BOTH {
        let other = side.other();
        let [own_address, address] =
            [side, other].map(|side| SocketAddr::new(side.address().into(), port));
        let network = format!("lab{}", site.number());
        let text = [
            &link_table(&name(site, side), &network, Some(own_address), &key_file(site, side)),
            &format!("[[port]]\ntap = \"{}\"\n", site.device(side)),
            &peer_table(other.name(), &keys[other as usize], address, transport),
            more,
        ];
        let file = site.write(&format!("{}.toml", side.name()), &text.concat())?;
        let mut command = site.command(side, &program);
        command.args(["link", "up"]).arg(file).arg("--foreground");
        site.start(side, command, &[])?;
    }
    let ends = site.tunnel()?;
    for side in HostSide::BOTH {
        let name = name(site, side);
        let host = site.host(side).clone();
        site.until("link that is up", || {
            // `vsnoop link status` fails until the link has its control socket.
            Ok(status(&host, &name).is_ok_and(|status| all_up(&status)))
        })?;
    }
    Ok(ends)
}

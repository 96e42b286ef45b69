//! vsnoop's own link, as an operator would set it up: keys, a file for each end, `vsnoop link up`.

use anyhow::{Context, Result};
use serde_json::Value;
use vsnoop_testbed::hosts::Side;
use vsnoop_testbed::net::checked;
use vsnoop_testbed::workspace;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
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
pub static TCP_PLAIN: Carrier = carrier!(
    "vsnoop-tcp-plain",
    "`transport = \"tcp-plain\"` (VNET without encryption)",
    "tcp-plain",
    ""
);
pub static UDP: Carrier = carrier!("vsnoop-udp", "`transport = \"udp\"`", "udp", "");
pub static TLS: Carrier =
    carrier!("vsnoop-tls", "`transport = \"tls\"` (VNET with SSL)", "tls", "");
pub static TCP: Carrier = carrier!("vsnoop-tcp", "`transport = \"tcp\"`", "tcp", "");
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
    let text = program.to_string_lossy().into_owned();
    let port = site.port();
    let key = |site: &Site, side: Side| {
        let file = site.path(&format!("{}.key", side.name()));
        let public = checked(&text, ["link", "keygen", &file.to_string_lossy()])?;
        anyhow::Ok(public.trim().lines().last().unwrap_or_default().to_owned())
    };
    let keys = [key(site, Side::A)?, key(site, Side::B)?];
    let name = |site: &Site, side: Side| format!("lab{}-{}", site.number(), side.name());
    for side in Side::BOTH {
        let other = side.other();
        let file = site.write(
            &format!("{}.toml", side.name()),
            &format!(
                "[link]\nname = \"{}\"\nnetwork = \"lab{}\"\nlisten = \"{}:{port}\"\nkey = \"{}\"\n\n\
                 [[port]]\ntap = \"{}\"\n\n[[peer]]\nname = \"{}\"\nkey = \"{}\"\n\
                 address = \"{}:{port}\"\ntransport = \"{transport}\"\n{more}",
                name(site, side),
                site.number(),
                side.address(),
                site.path(&format!("{}.key", side.name())).display(),
                site.device(side),
                other.name(),
                keys[other as usize],
                other.address()
            ),
        )?;
        let mut command = site.command(side, &program);
        command.args(["link", "up"]).arg(file).arg("--foreground");
        site.start(side, command, &[])?;
    }
    let ends = site.tunnel()?;
    for side in Side::BOTH {
        let name = name(site, side);
        let host = site.host(side).clone();
        site.until("link that is up", || {
            let output = host.command(&program).args(["link", "status", "--json"]).output();
            let output = output.context("run vsnoop link status")?;
            // Until its control socket is there, the command has nobody to ask.
            let status: Option<Value> = serde_json::from_slice(&output.stdout).ok();
            Ok(status.is_some_and(|status| is_up(&status, &name)))
        })?;
    }
    Ok(ends)
}

/// Whether the link of this name says that all its peers are up.
fn is_up(status: &Value, name: &str) -> bool {
    let links = status.get("links").or(Some(status)).and_then(Value::as_array);
    let link = links.into_iter().flatten().find(|link| link["name"] == name);
    link.and_then(|link| link["peers"].as_array())
        .is_some_and(|peers| !peers.is_empty() && peers.iter().all(|peer| peer["state"] == "up"))
}

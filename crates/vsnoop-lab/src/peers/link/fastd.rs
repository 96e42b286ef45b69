//! fastd: a tap over UDP.

use anyhow::{Context, Result};
use vsnoop_testbed::net::checked;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, packaged};

pub static PLAIN: Carrier = Carrier {
    name: "fastd-plain",
    about: "fastd 22, tap, method `null`",
    kind: Kind::Plain,
    start: |site| start(site, "null"),
};

pub static SEALED: Carrier = Carrier {
    name: "fastd",
    about: "fastd 22, tap, method `salsa2012+umac`",
    kind: Kind::Sealed,
    start: |site| start(site, "salsa2012+umac"),
};

/// fastd's documentation advises this MTU for paths of 1500 bytes: its datagrams are not
/// fragmented.
const MTU_BYTES: usize = 1426;

fn start(site: &mut Site, method: &str) -> Result<Ends> {
    let program = packaged("fastd", "fastd")?;
    let port = site.port();
    let keys = [keys(&program)?, keys(&program)?];
    // Only one end calls the other: handshakes that cross each other may leave the ends with
    // different sessions.
    for side in [HostSide::B, HostSide::A] {
        let remote = match side {
            HostSide::A => format!("remote {}:{port};", side.other().address()),
            HostSide::B => String::new(),
        };
        let text = format!(
            "mode tap;\nmtu {MTU_BYTES};\ninterface \"{}\";\nmethod \"{method}\";\nbind {}:{port};\n\
             secret \"{}\";\npeer \"other\" {{ key \"{}\"; {remote} }}\n",
            site.device(side),
            side.address(),
            keys[side as usize].secret,
            keys[side.other() as usize].public,
        );
        let file = site.write(&format!("{}.conf", side.name()), &text)?;
        let mut command = site.command(side, &program);
        command.arg("--config").arg(file);
        site.start(side, command, &[])?;
        // If the peer does not listen yet, fastd repeats its call later than the lab's timeout.
        let host = site.host(side);
        site.until("socket", || host.has_datagrams_at(port))?;
    }
    site.tunnel()
}

struct Keys {
    secret: String,
    public: String,
}

/// Lines such as `Secret: 8897...`.
fn keys(program: &std::path::Path) -> Result<Keys> {
    let text = checked(program, ["--generate-key"])?;
    let find = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        Ok::<_, anyhow::Error>(line.context("fastd made no keys")?.trim().to_owned())
    };
    Ok(Keys { secret: find("Secret:")?, public: find("Public:")? })
}

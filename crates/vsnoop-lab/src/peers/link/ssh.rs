//! OpenSSH: a tap (`-w`, VNET's *SSH*), or a forwarded port with compression, which is not
//! transparent.

use std::path::PathBuf;

use anyhow::{Context, Result};
use vsnoop_testbed::net::checked;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{FORWARD, SERVER, Site, packaged};

pub static TAP: Carrier = Carrier {
    name: "ssh",
    about: "OpenSSH, `-w`, `Tunnel=ethernet`, aes128-gcm",
    kind: Kind::Sealed,
    start: tap,
};

pub static COMPRESSED: Carrier = Carrier {
    name: "ssh-compressed",
    about: "a port that `ssh -C -L` forwards; not transparent",
    kind: Kind::Sealed,
    start: forward,
};

fn tap(site: &mut Site) -> Result<Ends> {
    let number = site.number();
    let device = format!("tap{number}");
    let key = serve(site)?;
    let mut command = client(site, &key)?;
    command.args(["-o", "Tunnel=ethernet", "-w", &format!("{number}:{number}")]);
    command.arg(format!("root@{}", HostSide::B.address()));
    site.start(HostSide::A, command, &[])?;
    site.tunnel_of([device.clone(), device])
}

fn forward(site: &mut Site) -> Result<Ends> {
    let (from, to) = (site.port() + FORWARD, site.port() + SERVER);
    let key = serve(site)?;
    let mut command = client(site, &key)?;
    command.args(["-C", "-L", &format!("127.0.0.1:{from}:127.0.0.1:{to}")]);
    command.arg(format!("root@{}", HostSide::B.address()));
    site.start(HostSide::A, command, &[from])?;
    Ok(Ends {
        client: site.host(HostSide::A).clone(),
        server: site.host(HostSide::B).clone(),
        address: HostSide::B.address(),
        devices: None,
        forwarded_from: Some(from),
    })
}

/// Starts a server for root on the second host, and returns the key that opens it.
fn serve(site: &mut Site) -> Result<PathBuf> {
    let program = packaged("sshd", "openssh-server")?;
    packaged("ssh-keygen", "openssh-client")?;
    std::fs::create_dir_all("/run/sshd").context("create /run/sshd")?;
    for name in ["host", "user"] {
        let file = site.path(name);
        let file = file.to_string_lossy();
        checked("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", &file])?;
    }
    let (host, public) = (site.path("host"), site.path("user.pub"));
    let text = format!(
        "Port {}\nListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPermitRootLogin prohibit-password\nPermitTunnel yes\nPasswordAuthentication no\n",
        site.port(),
        HostSide::B.address(),
        host.display(),
        public.display()
    );
    let file = site.write("sshd.conf", &text)?;
    let mut command = site.command(HostSide::B, program);
    command.arg("-D").arg("-e").arg("-f").arg(file);
    let port = site.port();
    site.start(HostSide::B, command, &[port])?;
    Ok(site.path("user"))
}

fn client(site: &Site, key: &std::path::Path) -> Result<std::process::Command> {
    let program = packaged("ssh", "openssh-client")?;
    let mut command = site.command(HostSide::A, program);
    command.args(["-F", "none", "-N", "-T", "-c", "aes128-gcm@openssh.com"]);
    command.args(["-p", &site.port().to_string(), "-i"]).arg(key);
    for option in [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
    ] {
        command.args(["-o", option]);
    }
    Ok(command)
}

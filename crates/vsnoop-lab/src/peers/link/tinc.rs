//! tinc 1.0 as a switch: a tap over UDP.

use anyhow::Result;
use vsnoop_testbed::net::checked;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, packaged};

pub static PLAIN: Carrier = Carrier {
    name: "tinc-plain",
    about: "tinc 1.0, `Mode = switch`, `Cipher = none`, `Digest = none`",
    kind: Kind::Plain,
    start: |site| start(site, "none", "none"),
};

pub static SEALED: Carrier = Carrier {
    name: "tinc",
    about: "tinc 1.0, `Mode = switch`, AES-128-CBC and SHA-256",
    kind: Kind::Sealed,
    start: |site| start(site, "aes-128-cbc", "sha256"),
};

fn start(site: &mut Site, cipher: &str, digest: &str) -> Result<Ends> {
    let program = packaged("tincd", "tinc")?;
    let port = site.port();
    for side in HostSide::BOTH {
        // Each has a directory, with the hosts' descriptions in both.
        let dir = side.name();
        let key = checked("openssl", ["genrsa", "-traditional", "2048"])?;
        let key = site.write(&format!("{dir}/rsa_key.priv"), &key)?;
        let public =
            checked("openssl", ["rsa", "-in", &key.to_string_lossy(), "-RSAPublicKey_out"])?;
        let text = format!(
            "Address = {}\nPort = {port}\nCipher = {cipher}\nDigest = {digest}\n{public}",
            side.address()
        );
        for directory in HostSide::BOTH {
            site.write(&format!("{}/hosts/{dir}", directory.name()), &text)?;
        }
        let connect = if side == HostSide::A { "ConnectTo = b\n" } else { "" };
        site.write(
            &format!("{dir}/tinc.conf"),
            &format!(
                "Name = {dir}\nMode = switch\nInterface = {}\nAddressFamily = ipv4\n\
                 BindToAddress = {}\n{connect}",
                site.device(side),
                side.address()
            ),
        )?;
    }
    for side in [HostSide::B, HostSide::A] {
        let mut command = site.command(side, &program);
        command.arg("-c").arg(site.path(side.name())).arg("-D");
        command.arg(format!("--pidfile={}", site.path(&format!("{}.pid", side.name())).display()));
        let listening = [port];
        site.start(side, command, if side == HostSide::B { &listening } else { &[] })?;
    }
    site.tunnel()
}

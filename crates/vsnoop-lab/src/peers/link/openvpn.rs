//! OpenVPN: a tap over UDP or TCP, AES-128-GCM, both sides known by the fingerprints of their
//! certificates.

use anyhow::{Context, Result};
use vsnoop_testbed::net::checked;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, packaged};

pub static UDP: Carrier = Carrier {
    name: "openvpn-udp",
    about: "OpenVPN 2.6, tap over UDP, AES-128-GCM",
    kind: Kind::Sealed,
    start: |site| start(site, ["udp", "udp"], &[]),
};

pub static TCP: Carrier = Carrier {
    name: "openvpn-tcp",
    about: "OpenVPN 2.6, tap over TCP, AES-128-GCM",
    kind: Kind::Sealed,
    start: |site| start(site, ["tcp-client", "tcp-server"], &[]),
};

pub static LZ4: Carrier = Carrier {
    name: "openvpn-lz4",
    about: "OpenVPN over UDP with `compress lz4`",
    kind: Kind::Sealed,
    start: |site| start(site, ["udp", "udp"], &["--compress", "lz4", "--allow-compression", "yes"]),
};

fn start(site: &mut Site, protocols: [&str; 2], more: &[&str]) -> Result<Ends> {
    let program = packaged("openvpn", "openvpn")?;
    let prints = [certificate(site, HostSide::A)?, certificate(site, HostSide::B)?];
    let port = site.port().to_string();
    for side in [HostSide::B, HostSide::A] {
        let protocol = protocols[side as usize];
        let mut command = site.command(side, &program);
        let (local, remote) = (side.address().to_string(), side.other().address().to_string());
        command.args(["--dev", &site.device(side), "--dev-type", "tap"]);
        command.args(["--proto", protocol, "--local", &local, "--port", &port]);
        command.args(["--peer-fingerprint", &prints[side.other() as usize]]);
        command.args(["--cert", &format!("{}.crt", side.name())]);
        command.args(["--key", &format!("{}.key", side.name())]);
        command.args(["--data-ciphers", "AES-128-GCM", "--cipher", "AES-128-GCM"]);
        command.args(["--connect-retry", "1", "--verb", "1"]);
        if side == HostSide::A {
            command.args(["--remote", &remote, "--tls-client"]);
        } else {
            command.args(["--tls-server", "--dh", "none"]);
            if protocol == "udp" {
                command.args(["--remote", &remote]);
            }
        }
        command.args(more);
        site.start(side, command, &[])?;
    }
    site.tunnel()
}

/// Makes a key and a certificate, and returns the fingerprint of that.
fn certificate(site: &Site, side: HostSide) -> Result<String> {
    let path = |extension: &str| site.path(&format!("{}.{extension}", side.name()));
    let (key, certificate) = (path("key"), path("crt"));
    let (key, certificate) = (key.to_string_lossy(), certificate.to_string_lossy());
    checked(
        "openssl",
        [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "30",
            "-subj",
            &format!("/CN={}", side.name()),
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
    )?;
    let text =
        checked("openssl", ["x509", "-in", &certificate, "-noout", "-fingerprint", "-sha256"])?;
    let (_, print) = text.trim().split_once('=').context("openssl printed no fingerprint")?;
    Ok(print.to_owned())
}

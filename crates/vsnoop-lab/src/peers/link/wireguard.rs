//! WireGuard, which carries IP packets and no frames: in user space (wireguard-go), and in the
//! kernel.
//!
//! wireguard-go is configured through its socket, in the words of WireGuard's cross-platform
//! interface; the kernel's by `wg`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::net::check;

use super::carrier::{Carrier, Kind};
use super::ends::Ends;
use super::side::HostSide;
use super::site::{Site, built};

const SOCKETS: &str = "/var/run/wireguard";

pub static GO: Carrier = Carrier {
    name: "wireguard-go",
    about: "wireguard-go (newest), layer 3, ChaCha20-Poly1305",
    kind: Kind::Sealed,
    start,
};

pub static KERNEL: Carrier = Carrier {
    name: "wireguard",
    about: "WireGuard of the kernel, layer 3, ChaCha20-Poly1305",
    kind: Kind::Kernel,
    start: start_kernel,
};

fn start_kernel(site: &mut Site) -> Result<Ends> {
    let (keys, port) = ([keys()?, keys()?], site.port());
    for side in HostSide::BOTH {
        let (device, host, other) = (site.device(side), site.host(side), side.other());
        host.ip(&format!("link add {device} type wireguard"))
            .context("make a WireGuard device (CONFIG_WIREGUARD)")?;
        let private = base64(&keys[side as usize].private)?;
        let public = base64(&keys[other as usize].public)?;
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = {port}\n[Peer]\nPublicKey = \
             {public}\nEndpoint = {}:{port}\nAllowedIPs = 0.0.0.0/0\n",
            other.address()
        );
        let file = site.write(&format!("{}.conf", side.name()), &text)?;
        check(host.command("wg").args(["setconf", &device]).arg(file))
            .context("configure WireGuard (wireguard-tools)")?;
    }
    site.tunnel()
}

fn start(site: &mut Site) -> Result<Ends> {
    let program = built("wireguard-go")?;
    let keys = [keys()?, keys()?];
    let port = site.port();
    for side in HostSide::BOTH {
        let device = site.device(side);
        let mut command = site.command(side, &program);
        command.arg("-f").arg(&device);
        command.env("WG_PROCESS_FOREGROUND", "1");
        site.start(side, command, &[])?;
        let socket = Path::new(SOCKETS).join(format!("{device}.sock"));
        site.until("socket of wireguard-go", || Ok(UnixStream::connect(&socket).is_ok()))?;
        configure(
            socket,
            &format!(
                "set=1\nprivate_key={}\nlisten_port={port}\npublic_key={}\nendpoint={}:{port}\n\
                 allowed_ip=0.0.0.0/0\n\n",
                keys[side as usize].private,
                keys[side.other() as usize].public,
                side.other().address()
            ),
        )?;
    }
    site.tunnel()
}

fn configure(socket: PathBuf, text: &str) -> Result<()> {
    let mut stream =
        UnixStream::connect(&socket).with_context(|| format!("connect to {}", socket.display()))?;
    stream.write_all(text.as_bytes()).context("configure wireguard-go")?;
    stream.shutdown(Shutdown::Write).context("configure wireguard-go")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read the answer of wireguard-go")?;
    ensure!(answer.contains("errno=0"), "wireguard-go refuses its configuration: {answer}");
    Ok(())
}

/// In hexadecimal digits.
struct Keys {
    private: String,
    public: String,
}

/// The bytes of hexadecimal digits, as `wg` reads keys.
fn base64(digits: &str) -> Result<String> {
    let byte = |at: usize| {
        let pair = digits.get(at..at + 2).context("half a byte of a key")?;
        u8::from_str_radix(pair, 16).context("read a key")
    };
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Result<Vec<_>>>()?;
    let text = openssl(&["base64", "-A"], &bytes)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Keys of X25519; openssl's DER of either ends with the 32 bytes of the key itself.
fn keys() -> Result<Keys> {
    let pem = openssl(&["genpkey", "-algorithm", "X25519"], b"")?;
    let private = openssl(&["pkey", "-outform", "DER"], &pem)?;
    let public = openssl(&["pkey", "-pubout", "-outform", "DER"], &pem)?;
    let key = |der: &[u8]| {
        let bytes = der.last_chunk::<32>().context("openssl printed no key")?;
        anyhow::Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    Ok(Keys { private: key(&private)?, public: key(&public)? })
}

fn openssl(arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    use std::process::Stdio;
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("start openssl")?;
    // A key is far smaller than a pipe's buffer; the pipe closes with its end.
    child.stdin.take().context("openssl has no input")?.write_all(input).context("feed openssl")?;
    let output = child.wait_with_output().context("wait for openssl")?;
    ensure!(output.status.success(), "{command:?} failed ({})", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_base64_has_the_bytes_of_its_digits() {
        assert_eq!(base64("00ff10").unwrap(), "AP8Q");
        assert!(base64("0g").is_err());
    }
}

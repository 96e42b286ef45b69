//! wireguard-go: WireGuard in user space, which carries IP packets and no frames.
//!
//! It is configured through its socket, in the words of WireGuard's cross-platform interface.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

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

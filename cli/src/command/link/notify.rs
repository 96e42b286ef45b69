//! Notifies systemd that a service of Type=notify is up (sd_notify(3)): sends a datagram to the
//! socket in NOTIFY_SOCKET. Does nothing without that variable.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context, Result};

pub fn notify_ready() -> Result<()> {
    match std::env::var("NOTIFY_SOCKET") {
        Ok(name) if !name.is_empty() => send_ready(&name).with_context(|| format!("notify {name}")),
        _ => Ok(()),
    }
}

fn send_ready(name: &str) -> std::io::Result<()> {
    // '@' is the zero byte of an abstract name.
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_arrives_at_an_abstract_name() {
        let name = format!("vsnoop-notify-{}", std::process::id());
        let socket =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send_ready(&format!("@{name}")).unwrap();
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"READY=1");
    }
}

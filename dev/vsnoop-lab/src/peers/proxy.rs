//! A peer: HAProxy on the host, which ends the client's connections and opens others to the
//! machines.
//!
//! It listens on the host's own address, one port for each machine, so that clients have to know of
//! it (a transparent proxy would need rules and routes, and costs no less). What is done to its
//! favour: it runs on the host's core, moves 64 KB at a time, and its sockets may buffer as much as
//! the hold does; its connections to the machines use the client's congestion control, as the
//! default of the host's namespace. The client's handshake is with the proxy, which answers at once
//! and then shakes hands with the machine: compare `total_ms`.

use std::fmt::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{HOST, Stage, vm_address};

use super::Daemon;

const FIRST_PORT: u16 = 6000;
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes that a connection may buffer on each side: as much as a hold of 16 MiB.
const SOCKET_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub struct Proxy {
    _daemon: Daemon,
}

impl Proxy {
    /// Before the servers of the machines, which listen at this port.
    pub fn start(session: &mut Session, stage: &Stage, port: u16) -> Result<Self> {
        let program = installed("haproxy", "haproxy")?;
        let host = stage.host();
        for key in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            host.set_sysctl(key, &with_maximum(&host.sysctl(key)?, SOCKET_BYTES)?)?;
        }
        let servers: Vec<_> = (0..stage.vm_count())
            .map(|index| SocketAddr::from((vm_address(index, false), port)))
            .collect();
        let scratch = session.scratch();
        let file = scratch.join("haproxy.cfg");
        std::fs::write(&file, configuration(&servers))
            .with_context(|| format!("write {}", file.display()))?;
        let mut command = host.command(program);
        // In the foreground.
        command.arg("-db").arg("-f").arg(&file);
        let ports: Vec<_> = (0..servers.len()).map(own_port).collect();
        let log = scratch.join("haproxy.log");
        let daemon = Daemon::start(command, host, &ports, &log)?;
        session.note_process(daemon.pid())?;
        Ok(Self { _daemon: daemon })
    }

    /// Address at which it listens for this machine.
    pub fn address(&self, index: usize) -> SocketAddr {
        SocketAddr::from((HOST, own_port(index)))
    }
}

/// Where it listens for this machine.
fn own_port(index: usize) -> u16 {
    FIRST_PORT + index as u16
}

fn configuration(servers: &[SocketAddr]) -> String {
    let mut text = format!(
        "global\n    nbthread 1\n    maxconn 1000\n    tune.bufsize {BUFFER_BYTES}\n\n\
         defaults\n    mode tcp\n    timeout connect 60s\n    timeout client 120s\n    \
         timeout server 120s\n"
    );
    for (index, server) in servers.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\nlisten vm{index}\n    bind {HOST}:{}\n    server vm{index} {server}",
            own_port(index)
        );
    }
    text
}

/// `MINIMUM DEFAULT MAXIMUM` of a kernel setting, with another maximum.
fn with_maximum(setting: &str, maximum_bytes: usize) -> Result<String> {
    let mut words: Vec<_> = setting.split_whitespace().collect();
    let maximum = maximum_bytes.to_string();
    *words.get_mut(2).with_context(|| format!("{setting:?} is no range of buffers"))? = &maximum;
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_port_of_its_own() {
        let servers = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 1).into()];
        let text = configuration(&servers);
        assert!(text.contains("bind 10.77.0.2:6000\n    server vm0 10.0.0.1:1\n"), "{text}");
        assert!(text.contains("bind 10.77.0.2:6001\n    server vm1 10.0.0.2:1\n"), "{text}");
    }

    #[test]
    fn only_the_maximum_of_a_range_changes() {
        assert_eq!(with_maximum("4096\t131072\t6291456", 7).ok().as_deref(), Some("4096 131072 7"));
        assert!(with_maximum("4096", 7).is_err());
    }
}

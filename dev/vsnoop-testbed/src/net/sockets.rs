//! The sockets of a namespace over IPv4, from `/proc/net/tcp` and `/proc/net/udp`.

use anyhow::{Context, Result};

use super::Netns;

/// Values of the `st` column (linux/tcp_states.h).
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    local_port: u16,
    state: u8,
}

impl Netns {
    /// Whether a socket listens on this TCP port, on any IPv4 address.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let sockets = self.sockets("tcp")?;
        Ok(sockets.iter().any(|socket| socket.state == LISTEN && socket.local_port == port))
    }

    /// Whether a TCP connection over IPv4 still has something to send or to wait for.
    pub fn has_connections(&self) -> Result<bool> {
        let sockets = self.sockets("tcp")?;
        Ok(sockets.iter().any(|socket| ![LISTEN, TIME_WAIT].contains(&socket.state)))
    }

    /// Whether a UDP socket has this port, at any IPv4 address.
    pub fn has_datagrams_at(&self, port: u16) -> Result<bool> {
        Ok(self.sockets("udp")?.iter().any(|socket| socket.local_port == port))
    }

    fn sockets(&self, protocol: &str) -> Result<Vec<Socket>> {
        // The thread's own, for it is the thread that entered the namespace.
        let path = format!("/proc/thread-self/net/{protocol}");
        let text = self.run(|| std::fs::read_to_string(&path).with_context(|| path.clone()))?;
        Ok(parse(&text))
    }
}

/// After a header, lines such as `0: 0100007F:1389 00000000:0000 0A ...`.
fn parse(text: &str) -> Vec<Socket> {
    let socket = |line: &str| {
        let mut fields = line.split_whitespace();
        let (_, port) = fields.nth(1)?.split_once(':')?;
        Some(Socket {
            local_port: u16::from_str_radix(port, 16).ok()?,
            state: u8::from_str_radix(fields.nth(1)?, 16).ok()?,
        })
    };
    text.lines().skip(1).filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_and_state_of_each_socket_are_found() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                    \x20  0: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000\n\
                    \x20  1: 01004D0A:C001 0A004D0A:1389 06 00000000:00000000 03:000017\n";
        let socket = |local_port, state| Socket { local_port, state };
        assert_eq!(parse(text), [socket(5001, LISTEN), socket(0xc001, TIME_WAIT)]);
    }
}

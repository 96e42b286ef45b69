//! Round trips by ICMP echo, which the kernel of the other end answers at once.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddrV4};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_packet::checksum;

use super::Netns;
use crate::interrupt;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const PATIENCE: Duration = Duration::from_secs(2);
/// The gap between two requests, random so that they do not fall into step with periodic work.
const PAUSE_MS: std::ops::Range<u64> = 5..20;

impl Netns {
    /// The round trips of `count` echoes to an address of IPv4, in their order; an echo without
    /// answer is left out.
    pub fn ping(&self, to: impl Into<IpAddr>, count: u16) -> Result<Vec<Duration>> {
        self.ping_with_gaps(to, count, PAUSE_MS)
    }

    /// Like [`Netns::ping`], with a random pause from `gap_ms` after each answer.
    pub fn ping_with_gaps(
        &self,
        to: impl Into<IpAddr>,
        count: u16,
        gap_ms: Range<u64>,
    ) -> Result<Vec<Duration>> {
        let (to, mut times) = (to.into(), Vec::new());
        self.echo(to, count, gap_ms, PATIENCE, |_, time| {
            times.extend(time);
            Ok(())
        })?;
        ensure!(!times.is_empty(), "{to} answers none of {count} echo requests");
        Ok(times)
    }

    /// Fails with the first of `count` echoes that is not answered within `patience`.
    pub fn ping_each(&self, to: impl Into<IpAddr>, count: u16, patience: Duration) -> Result<()> {
        let to = to.into();
        self.echo(to, count, PAUSE_MS, patience, |number, time| {
            ensure!(time.is_some(), "{to} does not answer echo {number} within {patience:?}");
            Ok(())
        })
    }

    /// Sends `count` echoes, and tells the round trip of each, `None` after `patience`.
    fn echo(
        &self,
        to: IpAddr,
        count: u16,
        gap_ms: Range<u64>,
        patience: Duration,
        mut tell: impl FnMut(u16, Option<Duration>) -> Result<()> + Send,
    ) -> Result<()> {
        let IpAddr::V4(to) = to else { bail!("echoes need an address of IPv4") };
        self.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))
                .context("open a socket for ICMP (needs root)")?;
            socket.connect(&SocketAddrV4::new(to, 0).into()).context("connect it")?;
            for number in 0..count {
                let time = ask(&socket, number, patience).with_context(|| format!("ping {to}"))?;
                tell(number, time)?;
                interrupt::check()?;
                std::thread::sleep(Duration::from_millis(fastrand::u64(gap_ms.clone())));
            }
            Ok(())
        })
    }
}

fn ask(socket: &Socket, number: u16, patience: Duration) -> io::Result<Option<Duration>> {
    let id = std::process::id() as u16;
    let begin = Instant::now();
    socket.send(&message(ECHO_REQUEST, id, number))?;
    let expected = message(ECHO_REPLY, id, number);
    while let Some(left) = patience.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        let mut packet = [0; 128];
        match interrupt::restarted(|| (&*socket).read(&mut packet)) {
            Ok(length) if payload(&packet[..length]) == Some(&expected) => {
                return Ok(Some(begin.elapsed()));
            }
            // An answer to another program.
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Type, code, checksum, identifier, number (RFC 792).
fn message(kind: u8, id: u16, number: u16) -> [u8; 8] {
    let ([a, b], [c, d]) = (id.to_be_bytes(), number.to_be_bytes());
    let mut message = [kind, 0, 0, 0, a, b, c, d];
    let checksum = !checksum::sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// An echo request that [`echo_number`] recognises.
pub fn echo_request(id: u16, number: u16) -> [u8; 8] {
    message(ECHO_REQUEST, id, number)
}

/// The number of the request that this IPv4 packet answers, if that was one with this identifier.
pub fn echo_number(packet: &[u8], id: u16) -> Option<u16> {
    let reply: [u8; 8] = payload(packet)?.get(..8)?.try_into().ok()?;
    let [kind, _, _, _, id_high, id_low, high, low] = reply;
    let ours = kind == ECHO_REPLY && u16::from_be_bytes([id_high, id_low]) == id;
    ours.then_some(u16::from_be_bytes([high, low]))
}

/// The payload of an IPv4 packet.
fn payload(packet: &[u8]) -> Option<&[u8]> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    packet.get(header..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_message_and_its_checksum_add_up_to_all_ones() {
        for (kind, id, number) in [(8, 0, 0), (8, 0xffff, 0xffff), (0, 0xf7ff, 1)] {
            let bytes = message(kind, id, number);
            let words = bytes.chunks(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
            let sum: u32 = words.map(u32::from).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{bytes:x?}");
        }
    }
    #[test]
    fn an_answer_is_known_by_its_identifier() {
        let mut packet = vec![0x45; 20];
        packet.extend(message(ECHO_REPLY, 7, 300));
        assert_eq!(echo_number(&packet, 7), Some(300));
        assert_eq!(echo_number(&packet, 8), None);
        assert_eq!(echo_number(&packet[..27], 7), None, "cut short");
        packet[20] = ECHO_REQUEST;
        assert_eq!(echo_number(&packet, 7), None, "a question");
    }
}

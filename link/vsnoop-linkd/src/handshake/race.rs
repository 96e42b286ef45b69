//! Calling a name that has several addresses: Happy Eyeballs (RFC 8305).
//!
//! An attempt begins with each address in turn, a moment after the one before or as soon as that
//! has failed, while the earlier ones go on. The first connection that is made is taken, and all
//! other attempts end. So an address at which nothing answers costs a moment. Addresses come in the
//! resolver's order (RFC 6724), families alternating (section 4). The resolver answers for both
//! families at once; nothing is raced there.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, Type};

/// Connection Attempt Delay (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);
/// Timeout of a connection attempt to one address.
pub const CONNECT: Duration = Duration::from_secs(3);
/// Most addresses of a name that are tried: a DNS server may answer with any number.
const MOST: usize = 16;

struct Attempt {
    address: SocketAddr,
    socket: Socket,
    until: Instant,
}

/// Connects to the first of these addresses that answers, in segments of at most `mss_bytes`; or
/// says why the last one failed, `None` without addresses. `failed`: one that was taken before, and
/// came to nothing; those after it are tried first.
pub fn race_addresses(
    addresses: &[SocketAddr],
    mss_bytes: u32,
    failed: Option<SocketAddr>,
) -> Result<TcpStream, Option<(SocketAddr, io::Error)>> {
    let mut waiting: VecDeque<_> = alternate_families(addresses).into();
    if let Some(at) = waiting.iter().position(|address| Some(*address) == failed) {
        waiting.rotate_left(at + 1);
    }
    let (mut attempts, mut last) = (Vec::<Attempt>::new(), None);
    let mut next_at = Instant::now();
    loop {
        if attempts.is_empty() || Instant::now() >= next_at {
            let Some(address) = waiting.pop_front() else {
                if attempts.is_empty() {
                    return Err(last);
                }
                next_at = Instant::now() + CONNECT;
                continue;
            };
            match begin_attempt(address, mss_bytes) {
                Ok(attempt) => attempts.push(attempt),
                Err(error) => last = Some((address, error)),
            }
            next_at = Instant::now() + STAGGER;
            continue;
        }
        let first_end = attempts.iter().map(|attempt| attempt.until).min();
        let wake_at = first_end.map_or(next_at, |end| end.min(next_at));
        let is_ready = match wait_for_attempts(&attempts, wake_at) {
            Ok(ready) => ready,
            Err(error) => return Err(Some((attempts[0].address, error))),
        };
        let mut still = Vec::new();
        for (attempt, is_ready) in attempts.drain(..).zip(is_ready) {
            let Attempt { address, socket, until } = attempt;
            let failed = if is_ready {
                match socket.take_error().and_then(|error| error.map_or(Ok(()), Err)) {
                    Ok(()) => match socket.set_nonblocking(false) {
                        Ok(()) => return Ok(socket.into()),
                        Err(error) => error,
                    },
                    Err(error) => error,
                }
            } else if Instant::now() >= until {
                io::ErrorKind::TimedOut.into()
            } else {
                still.push(Attempt { address, socket, until });
                continue;
            };
            last = Some((address, failed));
            // The next one begins at once.
            next_at = Instant::now();
        }
        attempts = still;
    }
}

/// For a handshake, in segments that every path takes: on one that swallows longer packets and says
/// nothing, TCP would send the first flight again and again. Both ends keep to what the SYN says.
fn begin_attempt(address: SocketAddr, mss_bytes: u32) -> io::Result<Attempt> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_tcp_mss(mss_bytes)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(Attempt { address, socket, until: Instant::now() + CONNECT }),
    }
}

/// Which of the attempts have ended, one way or the other, by a time.
fn wait_for_attempts(attempts: &[Attempt], until: Instant) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = attempts
        .iter()
        .map(|attempt| PollFd::new(attempt.socket.as_fd(), PollFlags::POLLOUT))
        .collect();
    // Rounded up: it would return too early otherwise, again and again.
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect())
}

/// Each once; after the first of one family the first of the other, and so on.
fn alternate_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_of_first = |address: &SocketAddr| {
        Some(address.is_ipv4()) == addresses.first().map(SocketAddr::is_ipv4)
    };
    let (first, other): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_of_first);
    let (mut first, mut other) = (first.into_iter(), other.into_iter());
    let mut all: Vec<SocketAddr> = Vec::new();
    loop {
        let pair = [first.next(), other.next()];
        if pair == [None, None] {
            return all;
        }
        for address in pair.into_iter().flatten() {
            if all.len() < MOST && !all.contains(&address) {
                all.push(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn families_alternate_and_addresses_are_bounded() {
        let v4 = |last| SocketAddr::from(([192, 0, 2, last], 1));
        let v6 = |last| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, last], 1));
        let given = [v6(1), v6(2), v6(3), v4(1), v6(1), v4(2)];
        assert_eq!(alternate_families(&given), [v6(1), v4(1), v6(2), v4(2), v6(3)]);
        assert_eq!(alternate_families(&(0..99).map(v4).collect::<Vec<_>>()).len(), MOST);
        assert_eq!(alternate_families(&[]), []);
    }

    #[test]
    fn one_that_refuses_costs_nothing_and_the_last_reason_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let live = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // This process may not get a CPU for longer than that, but not each time.
        let is_at_once = |_| {
            let since = Instant::now();
            let stream = race_addresses(&[closed, live], 1220, None).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), live);
            since.elapsed() < STAGGER
        };
        assert!((0..8).any(is_at_once), "it waits {STAGGER:?}");
        let (address, error) = race_addresses(&[closed], 1220, None).unwrap_err().unwrap();
        assert_eq!((address, error.kind()), (closed, io::ErrorKind::ConnectionRefused));
        assert!(race_addresses(&[], 1220, None).unwrap_err().is_none());
    }

    #[test]
    fn one_that_came_to_nothing_is_tried_last() {
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let all = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let taken = |failed| {
            race_addresses(&all, 1220, failed).unwrap().peer_addr().expect("it is connected")
        };
        assert_eq!(taken(None), all[0]);
        assert_eq!(taken(Some(all[0])), all[1]);
        assert_eq!(taken(Some(all[2])), all[0]);
    }
}

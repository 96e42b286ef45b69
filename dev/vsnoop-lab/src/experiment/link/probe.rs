//! ICMP echoes at random intervals. A request does not wait for the reply to the one before.
//!
//! The time of a reply is the kernel's receive timestamp, so that the delay until a busy CPU wakes
//! the thread does not count as one of the path.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use vsnoop_testbed::net::{Netns, echo_number, echo_request};

/// Replies that arrive later than this after the last request count as lost.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Default)]
pub struct Echoes {
    pub round_trips_ms: Vec<f64>,
    pub lost: u32,
}

/// Sends echo requests to `to`, at intervals in milliseconds drawn from `gap_ms`, as long as `more`
/// is true of the number of requests that were sent.
pub fn echoes(
    netns: &Netns,
    to: Ipv4Addr,
    gap_ms: Range<u64>,
    more: impl Fn(usize) -> bool + Sync,
) -> Result<Echoes> {
    netns.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))
            .context("open a socket for ICMP (needs root)")?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("ask for timestamps")?;
        socket.connect(&SocketAddrV4::new(to, 0).into()).context("connect it")?;
        let id = fastrand::u16(..);
        // Send times of unanswered echoes, on the kernel's clock.
        let mut waiting: Vec<Option<Duration>> = Vec::new();
        let mut echoes = Echoes::default();
        let mut next = Instant::now();
        let mut last = next;
        loop {
            let asked = waiting.len();
            let now = Instant::now();
            let left = if asked < usize::from(u16::MAX) && more(asked) {
                if now >= next {
                    waiting.push(Some(clock()));
                    // If the path has no room, the echo is lost.
                    let _ = socket.send(&echo_request(id, asked as u16));
                    last = now;
                    next = now + Duration::from_millis(fastrand::u64(gap_ms.clone()));
                }
                next.saturating_duration_since(now)
            } else if waiting.iter().any(Option::is_some) && last.elapsed() < PATIENCE {
                Duration::from_millis(20)
            } else {
                break;
            };
            socket.set_read_timeout(Some(left.max(Duration::from_micros(100))))?;
            let Some((number, at)) = answer(&socket, id)? else { continue };
            if let Some(sent) = waiting.get_mut(usize::from(number)).and_then(Option::take) {
                let time = at.saturating_sub(sent);
                echoes.round_trips_ms.push(time.as_secs_f64() * 1e3);
            }
        }
        echoes.lost = waiting.iter().flatten().count() as u32;
        Ok(echoes)
    })
}

/// The sequence number and receive time of a reply to this program's echoes, if there is one.
fn answer(socket: &Socket, id: u16) -> Result<Option<(u16, Duration)>> {
    let mut packet = [0; 256];
    let mut parts = [IoSliceMut::new(&mut packet)];
    let mut space = nix::cmsg_space!(libc::timespec);
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
    let (length, at) = match message {
        Ok(message) => {
            let stamp =
                message.cmsgs().context("read a timestamp")?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                });
            (message.bytes, stamp.unwrap_or_else(clock))
        }
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
        Err(error) => return Err(error).context("receive an echo"),
    };
    Ok(echo_number(packet.get(..length).unwrap_or_default(), id).map(|number| (number, at)))
}

/// The clock of the kernel's timestamps.
fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

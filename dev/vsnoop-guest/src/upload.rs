//! The sending end of a transfer, in a guest: for experiments whose sender is a VM, too.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_guest::control::Uploaded;
use vsnoop_guest::tcp_counts::TcpCounts;
use vsnoop_guest::transfer::{Direction, Header, Sender, Verdict};

/// Shorter than the host's patience with a command.
const TIMEOUT: Duration = Duration::from_secs(25);
const POLL: Duration = Duration::from_millis(1);

/// Sends `size_bytes` of the pattern of `seed` in a connection of its own (the kernel's default
/// congestion control). An error if it breaks, takes longer than 25 s, or a byte was wrong.
pub fn upload(server: SocketAddr, size_bytes: u64, seed: u64) -> Result<Uploaded> {
    let repeated_before = TcpCounts::read()?.retransmissions;
    let begin = Instant::now();
    let deadline = begin + TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)
        .with_context(|| format!("connect to {server}"))?;
    let connect = begin.elapsed();
    stream.set_nodelay(true).context("TCP_NODELAY")?;
    stream.set_read_timeout(Some(TIMEOUT)).context("SO_RCVTIMEO")?;
    stream.set_write_timeout(Some(TIMEOUT)).context("SO_SNDTIMEO")?;

    let begin = Instant::now();
    let header = Header { direction: Direction::Upload, size_bytes, seed };
    Sender::new(header).send(&mut stream).context("send")?;
    while unacknowledged_bytes(&stream)? > 0 {
        ensure!(Instant::now() < deadline, "not acknowledged within {} s", TIMEOUT.as_secs());
        thread::sleep(POLL);
    }
    let acked = begin.elapsed();
    let verdict = Verdict::read(&mut stream).context("wait for the receiver's answer")?;
    let delivered = begin.elapsed();
    ensure!(
        verdict == Verdict::Exact { received_bytes: size_bytes },
        "the server did not get what was sent: {verdict:?}"
    );
    let retransmissions = TcpCounts::read()?.retransmissions - repeated_before;
    Ok(Uploaded { connect, acked, delivered, retransmissions })
}

/// Sent or not.
fn unacknowledged_bytes(stream: &TcpStream) -> Result<i32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives on.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    nix::Error::result(result).context("SIOCOUTQ")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use vsnoop_guest::transfer::receive;

    use super::*;

    /// A receiver of one upload that answers with `verdict`, or with what it finds.
    fn server(verdict: Option<Verdict>) -> SocketAddr {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let header = Header::read(&mut stream).unwrap();
            let found = receive(header, &mut stream, |_| ()).unwrap();
            stream.write_all(&verdict.unwrap_or(found).encode()).unwrap();
        });
        address
    }

    #[test]
    fn an_upload_ends_when_the_receiver_has_verified_every_byte() {
        let times = upload(server(None), 300_000, 7).unwrap();
        assert!(times.acked <= times.delivered, "{times:?}");
        let wrong = Verdict::Mismatch { offset_bytes: 3 };
        let error = upload(server(Some(wrong)), 300_000, 7).unwrap_err();
        assert!(error.to_string().contains("Mismatch"), "{error:#}");
    }
}

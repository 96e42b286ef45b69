//! The kernel's measurements of a TCP connection.

use std::mem::{MaybeUninit, offset_of};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use linux_raw_sys::net::tcp_info;

/// A connection as its sender sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// `tcpi_bytes_acked`
    pub acked_bytes: u64,
    /// Bytes delivered per second, as far as the sender kept the path busy (`tcpi_delivery_rate`).
    pub rate_bytes_per_s: u64,
    pub in_flight_packets: u32,
    /// Smoothed (`tcpi_rtt`).
    pub round_trip_us: u32,
    /// The shortest recent round trip (`tcpi_min_rtt`).
    pub least_round_trip_us: u32,
}

impl Sending {
    pub fn read(socket: &TcpStream) -> Option<Self> {
        let info = read_info(socket, offset_of!(tcp_info, tcpi_delivery_rate) + size_of::<u64>())?;
        Some(Self {
            acked_bytes: info.tcpi_bytes_acked,
            rate_bytes_per_s: info.tcpi_delivery_rate,
            in_flight_packets: info.tcpi_unacked,
            round_trip_us: info.tcpi_rtt,
            least_round_trip_us: info.tcpi_min_rtt,
        })
    }
}

/// The shortest round trip that was seen (`tcpi_min_rtt`).
pub fn round_trip(socket: &TcpStream) -> Option<Duration> {
    let info = read_info(socket, offset_of!(tcp_info, tcpi_min_rtt) + size_of::<u32>())?;
    // All ones: none was measured yet.
    (info.tcpi_min_rtt != u32::MAX).then(|| Duration::from_micros(info.tcpi_min_rtt.into()))
}

/// `None` if the kernel's structure is shorter than this.
fn read_info(socket: &TcpStream, needed_bytes: usize) -> Option<tcp_info> {
    let mut info = MaybeUninit::<tcp_info>::zeroed();
    let mut length = size_of::<tcp_info>() as u32;
    // SAFETY: info is live and as long as length says.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if got != 0 || (length as usize) < needed_bytes {
        return None;
    }
    // SAFETY: all zeroes is a valid tcp_info, and the kernel filled in its beginning.
    Some(unsafe { info.assume_init() })
}

//! The kernel's information about a socket (TCP_INFO).

use std::time::Duration;

use linux_raw_sys::net::tcp_info;

/// TCP_INFINITE_SSTHRESH of net/tcp.h.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// State of a socket, RFC 9293.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    /// Also TIME-WAIT: the kernel keeps it apart from the descriptor.
    Closed,
}

impl State {
    /// `number`: of enum tcp_state in linux/tcp.h.
    fn new(number: u8) -> Self {
        match number {
            1..=3 => Self::Established,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => Self::Closed,
        }
    }

    pub fn is_closed(self) -> bool {
        self == Self::Closed
    }

    /// Has a FIN been sent?
    pub fn has_sent_fin(self) -> bool {
        !matches!(self, Self::Established | Self::CloseWait)
    }

    /// Was a FIN received?
    pub fn has_received_fin(self) -> bool {
        !matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
}

/// A socket's state and figures.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub state: State,
    /// Smoothed round trip, and its mean deviation; zero before the first.
    pub round_trip: Duration,
    pub round_trip_deviation: Duration,
    pub retransmission_timeout: Duration,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Bytes of a segment.
    pub mss: u32,
    /// Segments in flight.
    pub in_flight: u32,
    /// Segments sent again, ever.
    pub retransmissions: u32,
    /// Retransmission timeouts in a row.
    pub timeouts: u8,
    /// Probes of the remote end's window in a row, without an answer.
    pub probes: u8,
    /// Payload, retransmissions included.
    pub bytes_sent: u64,
    pub bytes_retransmitted: u64,
    pub bytes_acknowledged: u64,
    pub bytes_received: u64,
    /// Written and not yet sent.
    pub bytes_not_sent: u32,
    /// Has it found out what the path carries (RFC 5681, section 3.1: it has left slow start)?
    pub knows_path: bool,
    /// Bytes per second, as the last ACKs tell.
    pub delivery_rate: u64,
    /// Since the last ACK of the remote end.
    pub since_last_ack: Duration,
    /// The remote end's receive window, and the socket's own, in bytes.
    pub send_window: u32,
    pub receive_window: u32,
}

impl Info {
    pub(crate) fn new(info: &tcp_info) -> Self {
        let microseconds = |count: u32| Duration::from_micros(u64::from(count));
        Self {
            state: State::new(info.tcpi_state),
            round_trip: microseconds(info.tcpi_rtt),
            round_trip_deviation: microseconds(info.tcpi_rttvar),
            retransmission_timeout: microseconds(info.tcpi_rto),
            congestion_window: info.tcpi_snd_cwnd,
            mss: info.tcpi_snd_mss,
            in_flight: info.tcpi_unacked,
            retransmissions: info.tcpi_total_retrans,
            timeouts: info.tcpi_retransmits,
            probes: info.tcpi_probes,
            bytes_sent: info.tcpi_bytes_sent,
            bytes_retransmitted: info.tcpi_bytes_retrans,
            bytes_acknowledged: info.tcpi_bytes_acked,
            bytes_received: info.tcpi_bytes_received,
            bytes_not_sent: info.tcpi_notsent_bytes,
            knows_path: info.tcpi_snd_ssthresh < INFINITE_SSTHRESH,
            delivery_rate: info.tcpi_delivery_rate,
            since_last_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
            send_window: info.tcpi_snd_wnd,
            receive_window: info.tcpi_rcv_wnd,
        }
    }
}

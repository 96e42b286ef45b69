//! How long the segments of a peer's data connections may be, as its sessions over TCP have shown.
//!
//! A path may swallow long packets and say nothing (RFC 2923), for a tunnel on the way, say. The
//! kernel's TCP then sends the same long segment again and again (unless the host has set
//! `net.ipv4.tcp_mtu_probing`). Handshakes of control connections are in segments that every path
//! takes. So the path is to blame if data connections get no answer while the control connection
//! does, and if a session falls silent whose peer has lived on, in the same process. Data
//! connections have short segments then, too, for a time that doubles each time when longer ones
//! have failed again. A line that was cut for a while looks the same, and costs no more than that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The minimum MTU of IPv6, less the headers of IPv6 and TCP.
pub const SHORT_MSS_BYTES: u32 = 1280 - 40 - 20;
/// How long segments stay short: at first, and at most.
const FIRST: Duration = Duration::from_secs(600);
const LAST: Duration = Duration::from_secs(86_400);

/// The path to one peer. No lock is held for long.
#[derive(Debug, Default)]
pub struct TcpPath(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when segments are short, and for how long.
    short: Option<(Instant, Duration)>,
    /// The peer's process in the last session, which fell silent.
    silent: Option<u64>,
}

impl TcpPath {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session with this process of the peer fell silent.
    pub fn fell_silent(&self, instance: u64) {
        self.lock_state().silent = Some(instance);
    }

    /// The peer has answered by a control connection, from this process. Whether its data
    /// connections are to have short segments from now on, which they had not before.
    pub fn note_answered(&self, instance: u64, now: Instant) -> bool {
        let mut state = self.lock_state();
        state.silent.take() == Some(instance) && state.shorten_segments(now)
    }

    /// The peer has answered by a control connection, and not by data connections. Whether they are
    /// to have short segments from now on, which they had not before.
    pub fn data_unanswered(&self, now: Instant) -> bool {
        self.lock_state().shorten_segments(now)
    }

    /// The most bytes of a segment; `None`: as the kernel has it.
    pub fn mss_bytes(&self, now: Instant) -> Option<u32> {
        self.lock_state().is_short(now).then_some(SHORT_MSS_BYTES)
    }
}

impl State {
    fn is_short(&self, now: Instant) -> bool {
        self.short.is_some_and(|(since, time)| now.duration_since(since) < time)
    }

    fn shorten_segments(&mut self, now: Instant) -> bool {
        if self.is_short(now) {
            return false;
        }
        let time = match self.short {
            Some((since, time)) if now.duration_since(since) < time + LAST => LAST.min(2 * time),
            _ => FIRST,
        };
        self.short = Some((now, time));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn segments_are_short_while_the_peer_lives_on_and_its_data_does_not_come() {
        let (path, start) = (TcpPath::default(), Instant::now());
        assert!(!path.note_answered(7, start));
        path.fell_silent(7);
        assert!(!path.note_answered(8, start), "it was started anew");
        assert!(!path.note_answered(7, start), "that is known");
        assert_eq!(path.mss_bytes(start), None);
        path.fell_silent(7);
        assert!(path.note_answered(7, start));
        assert_eq!(path.mss_bytes(start), Some(SHORT_MSS_BYTES));
        // Short segments have failed, too: it is not their length.
        path.fell_silent(7);
        assert!(!path.note_answered(7, start + MINUTE) && !path.data_unanswered(start + MINUTE));
        assert_eq!(path.mss_bytes(start + 10 * MINUTE), None);
    }

    #[test]
    fn a_path_that_swallows_long_segments_is_tried_less_and_less_often() {
        let (path, mut now, mut minutes) = (TcpPath::default(), Instant::now(), Vec::new());
        for _ in 0..9 {
            assert!(path.data_unanswered(now));
            let since = now;
            while path.mss_bytes(now).is_some() {
                now += 10 * MINUTE;
            }
            minutes.push((now - since).as_secs() / 60);
            // New keys come once an hour.
            now += 60 * MINUTE;
        }
        assert_eq!(minutes, [10, 20, 40, 80, 160, 320, 640, 1280, 1440]);
    }
}

//! How far a VM may be ahead of its peer, and where the bytes wait: unread in the socket that faces
//! the VM, in the pipe, and unsent in the socket that faces the peer.

/// Most bytes of the last two places. More waits in the first one, whose window it fills.
const MOST_QUEUED: u32 = 256 << 10;
/// Less would cost a wake-up for a few segments.
const LEAST_QUEUED: u32 = 16 << 10;

/// The parts of what a VM may be ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Receive window of the socket that faces the VM.
    pub window: u32,
    /// Most bytes in the pipe, and as many unsent.
    pub queued: u32,
}

impl Ahead {
    /// In all about `bytes`.
    pub fn from_bytes(bytes: u32) -> Self {
        let queued = (bytes / 4).clamp(LEAST_QUEUED, MOST_QUEUED);
        Self { window: bytes.saturating_sub(2 * queued).max(LEAST_QUEUED), queued }
    }

    /// Next to nothing more, and what waits leaves as soon as it can.
    pub fn draining() -> Self {
        Self { window: LEAST_QUEUED, queued: MOST_QUEUED }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole() {
        for (bytes, window, queued) in [
            (4 << 20, (4 << 20) - (512 << 10), 256 << 10),
            (1 << 20, 512 << 10, 256 << 10),
            (128 << 10, 64 << 10, 32 << 10),
            (0, 16 << 10, 16 << 10),
        ] {
            assert_eq!(Ahead::from_bytes(bytes), Ahead { window, queued }, "{bytes}");
        }
    }
}

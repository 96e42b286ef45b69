//! Faults of sending, reported to the control thread.

/// A fault of a session while sending.
#[derive(Debug)]
pub enum Fault {
    /// A connection ended.
    Broken(String),
    /// The host refused a datagram for its length.
    TooLong { bytes: usize },
}

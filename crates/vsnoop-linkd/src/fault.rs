//! What the control thread is told of sending.

/// What goes wrong with a session while sending.
#[derive(Debug)]
pub enum Fault {
    /// A connection ended.
    Broken(String),
    /// The host refused a datagram for its length.
    TooLong { bytes: usize },
}

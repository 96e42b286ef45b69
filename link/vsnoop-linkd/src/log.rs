//! The log of this process, which its caller has set up.

use crate::causes::BoxedError;
use crate::control::LogLevel;

pub struct Log<'a> {
    /// Logs from another level on.
    pub set_level: &'a dyn Fn(LogLevel) -> Result<(), BoxedError>,
    /// How many lines it has lost.
    pub lines_lost: fn() -> u64,
}

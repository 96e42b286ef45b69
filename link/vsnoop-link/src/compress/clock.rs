//! The clock that measures the cost of coding.

/// Tells what coding takes: nanoseconds since whenever. CPU time of the thread is best: a time
/// slice that another program has taken is no cost of a codec.
pub type CodingClock = Box<dyn FnMut() -> u64 + Send>;

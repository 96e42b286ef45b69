//! Counters of frames and of CPU time.

pub mod counts;
pub mod cpu;
pub mod stats;

//! Experiments on real VMs, on networks of `vsnoop-testbed`.
//!
//! [`experiment`] holds the experiments, [`peers`] what vsnoop is compared with, [`results`] their
//! files.

pub mod experiment;
pub mod peers;
pub mod results;

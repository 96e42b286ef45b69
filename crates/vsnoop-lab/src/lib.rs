//! Experiments on real VMs, on networks of `vsnoop-testbed`.
//!
//! [`experiment`] holds the experiments, [`peers`] what vsnoop is compared with, [`results`] their
//! files, [`page`] puts them together for a browser; [`usage`] says what processes use.

pub mod experiment;
pub mod page;
pub mod peers;
pub mod results;
pub mod usage;

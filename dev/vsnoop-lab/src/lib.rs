//! Experiments on real VMs, on networks of `vsnoop-testbed`.
//!
//! [`experiment`] holds the experiments, [`peers`] what vsnoop is compared with, [`results`] their
//! files, [`report`] what is made of them, [`page`] puts it together for a browser.

pub mod experiment;
pub mod page;
pub mod peers;
pub mod report;
pub mod results;

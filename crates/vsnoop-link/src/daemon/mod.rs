//! The running link: threads, ports, sockets, control.

pub mod config;
pub mod control;

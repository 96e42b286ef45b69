//! The running link: threads, ports, sockets, control.

pub mod divert;

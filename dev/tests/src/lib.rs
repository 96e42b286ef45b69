//! Code that several test programs of this directory share.
//!
//! [`case`] is a network, its faults and streams through it, [`attached`] the port of it with
//! vsnoop, [`pair`] one connection; [`background`] is the helper and the engine, [`late`]
//! says when a transfer has hung.

pub mod attached;
pub mod background;
pub mod case;
pub mod late;
pub mod pair;

/// Prefix of the names of all namespaces of these programs.
pub const PREFIX: &str = "vst-";

//! The programs of accel/bpf/ on simulated hosts, between simulated TCPs.
//!
//! [`kernel::SimulatedPort`] runs the programs themselves: accel/bpf/*.bpf.c is compiled whole for
//! this machine, with maps and helpers of [`maps`] and native/kernel.c. Nothing here is part of the
//! product.
#![allow(missing_docs, reason = "for tests only")]

mod away;
mod bytes;
pub mod cases;
pub mod checks;
pub mod downloads;
mod follow;
pub mod frame;
pub mod guest;
pub mod helper;
pub mod host;
pub mod kernel;
pub mod layout;
pub mod maps;
mod native;
pub mod scenario;
pub mod schedule;
pub mod search;
pub mod storm;
mod too_big;
mod torn;
pub mod wire;
pub mod world;

pub use native::{Device, Program};

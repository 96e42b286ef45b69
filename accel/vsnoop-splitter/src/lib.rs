//! Decisions of the splitter about the split connections of a port: which are split and when, how
//! far their VMs may be ahead, when they are joined, and which are reset.
//!
//! They reach their surroundings by the traits [`Hooks`] and [`Keeper`], and sockets by
//! [`Facing`](vsnoop_split::Facing). The process `vsnoop splitter` implements them with pinned maps
//! and the kernel's sockets; vsnoop-world with simulated ones, so that simulations run the same
//! code. Times are CLOCK_MONOTONIC in nanoseconds.
//!
//! - `flights`: copies of what VMs have in flight;
//! - `plan`: whether a connection can be split now, and with which numbers;
//! - `connection`: a split connection, until it is joined or over;
//! - `port`: all of a port, and what they share;
//! - `record`: what the next splitter has to know.

mod connection;
mod flights;
mod hooks;
mod plan;
mod port;
mod record;

pub use connection::{Amount, Connected, Numbers, Progress};
pub use hooks::{Hooks, Keeper};
pub use plan::Refusal;
pub use port::{RESET_AFTER_NS, SplitterPort};
pub use record::{Left, PortKey, Received, Record};

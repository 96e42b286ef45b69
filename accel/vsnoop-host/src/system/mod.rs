//! Queries about the host: network namespaces, devices and their queue disciplines, the processes
//! behind taps and the time that their vCPUs wait for a CPU, the clock, the memory and the control
//! groups. Nothing here
//! depends on early acknowledgement.

pub mod bridge;
pub mod cgroup;
pub mod clock;
pub mod foreign;
pub mod headroom;
pub mod holder;
pub mod kernel;
pub mod memory;
pub mod netdev;
pub mod netns;
pub mod offload;
mod proc;
pub mod process;
pub mod qdisc;
mod reader;
pub mod session;
pub mod traffic;
pub mod vcpu;

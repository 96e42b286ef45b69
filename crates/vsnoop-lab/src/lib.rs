//! Experiments on real VMs, in parts that the `vsnoop-lab` command and the VM tests share.
//!
//! - [`guest`] makes the kernel and initramfs that machines boot, [`vm`] runs them;
//! - [`stage`] puts machines and a client into a network of their own, [`testbed`] is what such
//!   networks are made of;
//! - [`client`] transfers and measures, [`vsnoop`] is the command under test, [`peers`] are what it
//!   is compared with;
//! - [`session`] keeps runs apart and clears up after them, [`interrupt`] is Ctrl-C;
//! - [`experiment`] holds the experiments, [`results`] their files.

pub mod client;
pub mod experiment;
pub mod guest;
pub mod interrupt;
pub mod peers;
pub mod results;
pub mod session;
pub mod stage;
pub mod testbed;
pub mod vm;
pub mod vsnoop;
pub mod workspace;

//! Small networks on one machine, of namespaces, taps, relays and virtual machines, for tests,
//! experiments and benchmarks.
//!
//! - [`net`] owns namespaces and the devices in them; [`relay`] moves frames between two taps and
//!   does to them what networks and guests do;
//! - [`topology`] puts a client, a bridge and a VM's stand-in together; [`fan_in`] puts many
//!   senders before a VM, behind a [`switch`] with a shallow buffer, which may mark; [`hosts`]
//!   joins hosts with VMs and links;
//! - [`stream`] sends byte streams through and verifies every byte, [`bulk`] measures how much goes
//!   through, [`socket`] and [`capture`] tell what TCP did;
//! - [`guest`] makes the kernel and initramfs that machines boot, [`vm`] runs them, [`stage`] puts
//!   machines and a client into a network of their own, [`client`] transfers and measures;
//! - [`vsnoop`] is the command under test, [`workspace`] knows where it is and whether it is older
//!   than its sources;
//! - [`session`] keeps runs apart and clears up after them, [`interrupt`] is Ctrl-C, [`wait`] waits
//!   for events.

pub mod bulk;
pub mod capture;
pub mod client;
pub mod fan_in;
pub mod guest;
pub mod hosts;
pub mod interrupt;
pub mod net;
pub mod relay;
pub mod session;
pub mod socket;
pub mod stage;
pub mod stream;
pub mod switch;
pub mod topology;
pub mod vm;
pub mod vsnoop;
pub mod wait;
pub mod workspace;

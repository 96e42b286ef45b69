//! Small networks on one machine, of namespaces, taps, relays and virtual machines, for tests,
//! experiments and benchmarks.
//!
//! - [`net`] owns namespaces and makes the devices in them and between them, a line for each;
//!   [`relay`] moves frames between two taps and does to them what networks and guests do;
//! - [`topology`], [`fan_in`] with its [`switch`], [`hosts`] and [`stage`] are the networks, see
//!   below;
//! - [`stream`] sends byte streams through and verifies every byte, [`bulk`] measures how much goes
//!   through, [`socket`] and [`capture`] tell what TCP did;
//! - [`guest`] makes what machines boot: kernel, initramfs, and root file systems of packages;
//!   [`vm`] runs them, [`client`] transfers and measures, [`contained`] runs other programs;
//! - [`vsnoop`] is the command under test, perhaps in a [`place`] apart from the host's,
//!   [`workspace`] knows where it is and whether it is older than its sources;
//! - [`session`] keeps runs apart and clears up after them, `lock` waits for the other run,
//!   [`interrupt`] is Ctrl-C, [`wait`] waits for events, [`mod@soak`] says how much to do.
//!
//! There are four networks. Each is made in one place, by calls of [`net`]; its users give options
//! and no devices.
//!
//! - [`topology::Topology`] (`TopologyOptions`): a client, a host with a bridge and an attached
//!   tap, a namespace as the VM. Tests netns, faults and command; bench.
//! - [`fan_in::FanIn`] (`FanInOptions`): many senders behind a [`switch`] with a shallow buffer,
//!   which may mark; a namespace or a machine as the VM. Tests netns (fan_in); lab (incast).
//! - [`hosts::Network`] (`hosts::Plan`): hosts joined by a bridge, a veth or a relay, each with VMs
//!   and perhaps a link. Tests links, netns (divert) and vm (link); lab (link); bench (slow_peer).
//! - [`stage::Stage`] (`StageOptions`, `PathOptions`): machines on a bridge, and a client behind a
//!   path that changes. Tests vm; lab; bench (idle_guest, proxy).
//!
//! [`leg::Leg`] is what a VM forwards to, in any of them (tests vm; bench, router);
//! [`user_mode::UserModeGuest`] is a guest that is a process (test uml).
//!
//! A test adds its own parts of such a network (a VM in a VLAN, a second bridge) by [`net`], too.
//! Some tests of the command and of the bench need a single namespace with a tap or a bridge:
//! `TapHost`, `Bridge` and `LinkHost` in cli/tests/command.

pub mod bulk;
pub mod capture;
pub mod client;
pub mod contained;
pub mod fan_in;
pub mod guest;
pub mod hosts;
pub mod interrupt;
pub mod leg;
mod lock;
pub mod net;
pub mod part;
pub mod place;
pub mod process;
pub mod raw_vm;
pub mod relay;
pub mod session;
pub mod soak;
pub mod socket;
pub mod stage;
pub mod stream;
pub mod switch;
pub mod topology;
pub mod user_mode;
pub mod vm;
pub mod vsnoop;
pub mod wait;
pub mod workspace;

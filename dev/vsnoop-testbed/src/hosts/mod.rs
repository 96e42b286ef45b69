//! Hosts on one network, each with VMs and perhaps a link; VMs are network namespaces.
//!
//! ```text
//! [VM: eth0]--+                            host namespace
//!             +--[br0, or no bridge] ... [uplink] <--- path ---> the other hosts
//! [VM: eth0]--+
//! ```
//!
//! A [`Plan`] says what the path is, how VMs are connected to their host, and whether they reach
//! each other without a link. Links are configured by [`Network::configured`] and started by
//! [`Network::up`]; [`Network::build`] makes a network without any.

mod addresses;
mod config;
mod etcd;
mod host;
mod links;
mod nat;
mod network;
mod plan;

pub use addresses::{
    Outside, PORT, inner_v4, inner_v6, net_v4, net_v6, outer, router_v4, unknown_source, vm_v4,
    vm_v6,
};
pub use config::{TAP, divert, keygen, link_table, peer_table};
pub use etcd::{Etcd, EtcdOptions, EtcdTls};
pub use host::{Host, all_up, fill_pipe, socket, start_all, status};
pub use nat::Nat;
pub use network::{Network, connect_routed};
pub use plan::{Layout, Path, Plan};

//! The kernel's information about the sockets of split connections, for `flows` and `top`.
//!
//! sock_diag answers in the sockets' network namespace: neither the splitter nor its state is in
//! the way (docs/decisions/0048-split-connections.md).

use std::collections::HashMap;
use std::net::SocketAddr;

use serde::Serialize;
use vsnoop_bpf::types::flow_key;
use vsnoop_host::error::{Error, with_causes};
use vsnoop_host::flow_key::socket;
use vsnoop_host::split::{TapId, namespace};
use vsnoop_split::{Diagnosed, diagnose};

/// The mode of a split connection, in tables and JSON.
pub const SPLIT: &str = "split";

/// Bytes of a split connection that are here, and how they leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SplitFlow {
    /// Bytes that the host has acknowledged to one end and the other end has not yet; null if the
    /// sockets cannot be seen.
    pub held_to_peer_bytes: Option<u64>,
    pub held_to_vm_bytes: Option<u64>,
    /// The socket that sends to the peer what the VM has sent, and the one that sends to the VM.
    pub to_peer: Option<Sending>,
    pub to_vm: Option<Sending>,
}

/// How a socket sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sending {
    pub congestion_control: String,
    /// Smoothed; 0 before the first.
    pub round_trip_ns: u64,
    pub round_trip_deviation_ns: u64,
    pub retransmission_timeout_ns: u64,
    /// Segments of `mss` bytes.
    pub congestion_window: u32,
    pub mss: u32,
    pub in_flight: u32,
    /// Segments, and their bytes, that were sent again.
    pub retransmissions: u32,
    pub retransmitted_bytes: u64,
    /// Rate of delivery by the latest ACKs.
    pub delivery_bits_per_second: u64,
    /// Receive window of the end that it faces.
    pub window_bytes: u32,
}

/// The sockets of all split connections.
#[derive(Default)]
pub struct Sockets {
    /// By the device that they are bound to, their own address, and the other one.
    by_ends: HashMap<(u32, SocketAddr, SocketAddr), Diagnosed>,
    /// Devices in their network namespace, by name.
    devices: HashMap<String, u32>,
}

impl Sockets {
    /// None, if they cannot be read: what else is known of a connection is shown all the same.
    pub fn read() -> Self {
        Self::try_read().unwrap_or_else(|error| {
            tracing::debug!("the sockets of split connections: {}", with_causes(&*error));
            Self::default()
        })
    }

    fn try_read() -> Result<Self, Box<dyn std::error::Error>> {
        let Some(netns) = namespace::open()? else { return Ok(Self::default()) };
        let (found, devices) = netns.run(|| {
            let devices = nix::net::if_::if_nameindex().map(|all| {
                let device = |one: &nix::net::if_::Interface| {
                    (one.name().to_string_lossy().into_owned(), one.index())
                };
                all.iter().map(device).collect()
            });
            Ok::<_, Error>((diagnose(), devices))
        })?;
        let key = |one: Diagnosed| ((one.ifindex, one.local, one.remote), one);
        Ok(Self { by_ends: found?.into_iter().map(key).collect(), devices: devices? })
    }

    /// Finds the sockets of a connection of this tap.
    pub fn find_flow(&self, tap: TapId, key: &flow_key) -> SplitFlow {
        let Some(device) = self.devices.get(&tap.far_name()) else { return SplitFlow::default() };
        let vm = socket(key.vm_addr, key.vm_port);
        let peer = socket(key.sender_addr, key.sender_port);
        // Each has the address of the other end.
        let faces_peer = self.by_ends.get(&(*device, vm, peer));
        let faces_vm = self.by_ends.get(&(*device, peer, vm));
        let held = |source: Option<&Diagnosed>, sink: Option<&Diagnosed>| {
            let (taken, given) = (source?.info.bytes_received, sink?.info.bytes_acknowledged);
            Some(taken.saturating_sub(given))
        };
        SplitFlow {
            held_to_peer_bytes: held(faces_vm, faces_peer),
            held_to_vm_bytes: held(faces_peer, faces_vm),
            to_peer: faces_peer.map(Sending::from_diagnosed),
            to_vm: faces_vm.map(Sending::from_diagnosed),
        }
    }
}

impl Sending {
    fn from_diagnosed(socket: &Diagnosed) -> Self {
        let info = &socket.info;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            congestion_control: socket.congestion_control.clone(),
            round_trip_ns: ns(info.round_trip),
            round_trip_deviation_ns: ns(info.round_trip_deviation),
            retransmission_timeout_ns: ns(info.retransmission_timeout),
            congestion_window: info.congestion_window,
            mss: info.mss,
            in_flight: info.in_flight,
            retransmissions: info.retransmissions,
            retransmitted_bytes: info.bytes_retransmitted,
            delivery_bits_per_second: info.delivery_rate.saturating_mul(8),
            window_bytes: info.send_window,
        }
    }
}

/// The key by which split connections are found: without the VM's MAC address.
pub fn split_key(key: &flow_key) -> flow_key {
    flow_key { vm_mac: [0; 6], ..*key }
}

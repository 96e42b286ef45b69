//! What a carrier of datagrams has to do.

use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use vsnoop_lab::testbed::net::Tap;

use super::load::{Load, Meter};

/// A way to carry datagrams from one socket to another.
pub trait Carrier: Sync {
    /// Whether it wants sockets that are connected to each other.
    fn connected(&self) -> bool {
        false
    }

    /// Whether each end keeps to a core of its own.
    fn pinned(&self) -> bool {
        true
    }

    /// Sends what `load` says until it is done, or the meter says stop.
    fn send(&self, socket: UdpSocket, load: Load, meter: &Meter) -> Result<()>;

    /// Receives until the meter says that the sender has ended.
    fn receive(&self, socket: UdpSocket, meter: &Meter) -> Result<()>;

    /// Carries the frames of a tap, both ways, until it is told to stop. One of the two ends dials.
    fn bridge(&self, socket: UdpSocket, tap: Tap, dials: bool, stop: &AtomicBool) -> Result<()>;
}

//! The ports of a link: interfaces that come and go, bridges, and faults at layer 2.

pub mod bridge;
pub mod counted_port;
pub mod layer_2;
pub mod own_packets;
pub mod state;

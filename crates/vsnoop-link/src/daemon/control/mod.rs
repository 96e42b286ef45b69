//! Talking to a running link: a Unix socket, one JSON line each way per connection.

mod message;

pub use message::{
    Carried, ClassStatus, Cpu, DivertStatus, Learned, PeerState, PeerStatus, PortStatus, Problem,
    Request, Response, Set, Status, Traffic,
};

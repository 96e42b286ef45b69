//! The system calls under a link: ports, UDP with segmentation offload, wake-ups.

pub mod device;
pub mod inbox;
mod nonblocking;
pub mod packet_socket;
pub mod poll;
pub mod port;
pub mod tcp;
pub mod udp;
pub mod udp_port;
pub mod wake;

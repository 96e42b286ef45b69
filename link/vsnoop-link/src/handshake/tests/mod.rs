//! Whole handshakes: in memory, and over loopback where the sockets matter.

mod agreement;
mod hostile;
mod trust;

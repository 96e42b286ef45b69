//! The running link: threads, ports, sockets, control.

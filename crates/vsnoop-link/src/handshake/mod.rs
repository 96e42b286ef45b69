//! The mutual TLS 1.3 handshake and what the two ends agree on in it.

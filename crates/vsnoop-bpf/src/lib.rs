//! vsnoop-bpf

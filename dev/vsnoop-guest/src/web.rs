//! A web server in the guest: what host and guest know of it.

/// The server's program.
pub const PROGRAM: &str = "/bin/nginx";
pub const CONFIGURATION: &str = "/etc/nginx.conf";
pub const PORT: u16 = 80;
/// The directory that is served, and where PUT writes.
pub const ROOT: &str = "/srv";
/// A file that is there, for GET.
pub const PAGE: &str = "page";
pub const PAGE_BYTES: u64 = 1000;

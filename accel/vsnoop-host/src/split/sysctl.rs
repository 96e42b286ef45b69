//! Settings in /proc/sys/net of the calling thread's network namespace.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{Result, Unavailable};

const NET: &str = "/proc/sys/net";

/// Does the namespace have IPv6?
pub fn has_ipv6() -> bool {
    Path::new(NET).join("ipv6/conf").exists()
}

/// Writes a setting.
pub fn write(name: &str, value: &'static str) -> Result<()> {
    let path = PathBuf::from(NET).join(name);
    fs::write(&path, value).map_err(|source| Unavailable::Sysctl { path, value, source })
}

/// Writes a setting that not every kernel has.
pub fn write_if_there(name: &str, value: &'static str) -> Result<()> {
    match write(name, value) {
        Err(Unavailable::Sysctl { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

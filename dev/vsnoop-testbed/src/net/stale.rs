//! Removal of namespaces that a crashed run left behind.
//!
//! Deleting the name is enough: without it and without processes inside, the kernel takes the
//! namespace down with all its devices. (Processes that a crashed run left inside keep it alive;
//! code that starts such processes gives them a parent-death signal.)

use std::path::Path;

use anyhow::{Context, Result};

use super::change_names;

/// Deletes namespaces of [`Net`](super::Net)s with this prefix whose process is gone. Returns their
/// names.
pub fn remove_stale(prefix: &str) -> Result<Vec<String>> {
    let is_stale = |name: &str| {
        name.strip_prefix(prefix)
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok())
            .is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    let entries = match std::fs::read_dir("/run/netns") {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("listing /run/netns"),
    };
    let mut removed = Vec::new();
    for entry in entries {
        let name = entry.context("listing /run/netns")?.file_name();
        let Some(name) = name.to_str().filter(|name| is_stale(name)) else { continue };
        change_names("del", name)?;
        removed.push(name.to_owned());
    }
    Ok(removed)
}

//! Reads the ports that a command was asked for, while other commands detach some.

use anyhow::Result;
use vsnoop_bpf::Error;
use vsnoop_host::ports::{self, Attached};

/// Reads each port that the arguments select ([`ports::chosen`]). A port that is detached meanwhile
/// is left out, or is an error if it was named.
pub fn read_each<T>(
    names: &[String],
    netns: Option<&str>,
    read: impl Fn(&Attached) -> Result<T>,
) -> Result<Vec<T>> {
    let gone = |name| Err(Error::NotAttached(name).into());
    let read = |attached: Attached| match read(&attached) {
        Err(_) if !attached.port.is_there() => (!names.is_empty()).then(|| gone(attached.name)),
        found => Some(found),
    };
    ports::chosen(names, netns)?.ports.into_iter().filter_map(read).collect()
}

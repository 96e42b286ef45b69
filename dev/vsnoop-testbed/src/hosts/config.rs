//! Configurations of links (docs/guide/links/configuration.md).

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use crate::net::checked;
use crate::workspace;

/// The tap of a host's VM in [`Plan::routed`](super::Plan::routed).
pub const TAP: &str = "tap0";

/// Makes a key in a new file, and returns the public one.
pub fn keygen(file: &Path) -> Result<String> {
    let program = workspace::vsnoop_command()?;
    let public = checked(program, [OsStr::new("link"), OsStr::new("keygen"), file.as_os_str()])?;
    Ok(public.trim().to_owned())
}

/// The table `[link]`, to which lines may be added; without `listen` the link listens by default.
pub fn link_table(name: &str, network: &str, listen: Option<SocketAddr>, key: &Path) -> String {
    let listen = listen.map_or(String::new(), |at| format!("listen = \"{at}\"\n"));
    let key = key.display();
    format!("[link]\nname = \"{name}\"\nnetwork = \"{network}\"\n{listen}key = \"{key}\"\n")
}

/// A table `[[peer]]`, to which lines may be added.
pub fn peer_table(name: &str, key: &str, address: SocketAddr, transport: &str) -> String {
    format!(
        "[[peer]]\nname = \"{name}\"\nkey = \"{key}\"\naddress = \"{address}\"\n\
         transport = \"{transport}\"\n"
    )
}

/// A `[[divert]]` of what the VM behind [`TAP`] sends to these prefixes.
pub fn divert(peer: usize, prefixes: &[String]) -> String {
    format!("[[divert]]\ninterface = \"{TAP}\"\npeer = \"h{peer}\"\nprefix = {prefixes:?}\n")
}

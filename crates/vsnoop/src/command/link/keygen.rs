//! `vsnoop link keygen`: this host's private key, and the public key that its peers pin.

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::error::Unfit;
use vsnoop_linkd::key_file;

use crate::cli::{self, Cli};
use crate::error::unfit;
use crate::output::watch::print;

#[derive(Serialize)]
struct KeygenDocument {
    file: String,
    public_key: String,
}

pub fn run(cli: &Cli, arguments: &cli::LinkKeygen) -> Result<u8> {
    let file = &arguments.file;
    let public = if arguments.show { key_file::public(file) } else { key_file::keygen(file) };
    // As `link up` says of the same files.
    let public =
        public.map_err(|error| unfit(Unfit::Other, format!("{:#}", anyhow::Error::new(error))))?;
    let (file, public_key) = (file.display().to_string(), public.to_string());
    if cli.json {
        print(&serde_json::to_string(&KeygenDocument { file, public_key })?)?;
    } else {
        // No other output, for scripts.
        print(&public_key)?;
    }
    Ok(0)
}

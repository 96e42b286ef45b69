//! `vsnoop link keygen`: this host's private key, and the public key that its peers pin.

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::error::Unfit;
use vsnoop_linkd::identity::key_file;

use crate::cli::{self, Cli};
use crate::error::unfit_error;
use crate::output::watch::print_text;

#[derive(Serialize)]
struct KeygenDocument {
    file: String,
    public_key: String,
}

pub fn run(cli: &Cli, arguments: &cli::LinkKeygen) -> Result<u8> {
    let file = &arguments.file;
    let public = if arguments.show {
        key_file::read_public_key(file)
    } else {
        key_file::write_new_key(file)
    };
    // As `link up` says of the same files.
    let public = public
        .map_err(|error| unfit_error(Unfit::Other, format!("{:#}", anyhow::Error::new(error))))?;
    let (file, public_key) = (file.display().to_string(), public.to_string());
    if cli.json {
        print_text(&serde_json::to_string(&KeygenDocument { file, public_key })?)?;
    } else {
        // No other output, for scripts.
        print_text(&public_key)?;
    }
    Ok(0)
}

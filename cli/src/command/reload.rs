//! `vsnoop reload`: has the service read its configuration again.

use anyhow::{Result, bail};
use serde::Serialize;
use vsnoop_host::error::Unfit;
use vsnoop_host::units;
use vsnoop_service::control::{self, Request, Response};

use crate::cli::Cli;
use crate::error::{unfit_error, usage_error};
use crate::output::fold::fold_text;
use crate::output::watch::print_text;
use crate::service::NOT_RUNNING;

#[derive(Serialize)]
struct ReloadDocument {
    result: &'static str,
    tables: Vec<String>,
}

pub fn run(cli: &Cli) -> Result<u8> {
    let tables = match control::ask(Request::Reload)? {
        None => return Err(unfit_error(Unfit::Other, NOT_RUNNING)),
        Some(Response::Reloaded { tables }) => tables,
        Some(Response::Refused { reason }) => {
            return Err(usage_error(format!("the service goes on as it was: {reason}")));
        }
        Some(Response::Status(_)) => bail!("the service gave an answer to something else"),
    };
    if cli.json {
        print_text(&serde_json::to_string(&ReloadDocument { result: "reloaded", tables })?)?;
    } else {
        let count = units::plural(tables.len() as u64, "table");
        let names = if tables.is_empty() { "all taps are observed" } else { &tables.join(", ") };
        print_text(&fold_text(&format!("the service has reloaded: {count} [[port]]: {names}")))?;
    }
    Ok(0)
}

//! `vsnoop check`: reads a configuration as `vsnoop run` would, and changes nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::config::port::PortPattern;
use vsnoop_host::config::{Config, FILE};
use vsnoop_host::system::netns::Netns;
use vsnoop_service::control::FailedPort;

use crate::cli::{self, Cli};
use crate::output::fold::fold_text;
use crate::output::watch::print_text;
use crate::tables;

const GOOD: &str = "good";
/// No file was named, and [`FILE`] is not there.
const ABSENT: &str = "absent";

#[derive(Serialize)]
struct CheckDocument {
    file: PathBuf,
    result: &'static str,
    tables: Vec<Table>,
    /// Where the service answers Prometheus; null: nowhere.
    metrics: Option<SocketAddr>,
    /// Taps that meet a table, and that the service would leave alone.
    no_vms: Vec<FailedPort>,
}

/// A table `[[port]]`.
#[derive(Serialize)]
struct Table {
    name: String,
    line: usize,
}

pub fn run(cli: &Cli, arguments: &cli::Check) -> Result<u8> {
    let chosen = arguments.file.as_deref().or(cli.config.as_deref());
    let config = Config::read(chosen)?;
    let file = chosen.unwrap_or(Path::new(FILE));
    let result = if config.is_there { GOOD } else { ABSENT };
    let table = |port: &PortPattern| Table { name: port.name.clone(), line: port.place.line };
    let tables = config.ports.iter().map(table).collect();
    let (file, metrics) = (file.to_owned(), config.metrics);
    // A good file is good also where taps cannot be looked at.
    let no_vms = Netns::chosen(cli.netns.as_deref())
        .ok()
        .and_then(|netns| vsnoop_service::no_vms_of(&netns, &config.ports).ok())
        .unwrap_or_default();
    let document = CheckDocument { file, result, tables, metrics, no_vms };
    if cli.json {
        print_text(&serde_json::to_string(&document)?)?;
    } else {
        print_text(&fold_text(&render_text(&document)))?;
    }
    Ok(0)
}

fn render_text(document: &CheckDocument) -> String {
    let file = document.file.display();
    if document.result == ABSENT {
        return format!("there is no {file}: all taps are observed, none accelerated");
    }
    let names: Vec<_> = document.tables.iter().map(|table| table.name.as_str()).collect();
    let mut lines = vec![format!("{file} is good; {}", tables::render_table(&names))];
    lines.extend(
        document
            .no_vms
            .iter()
            .map(|tap| format!("{}: the service would leave it alone: {}", tap.port, tap.reason)),
    );
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_is_named_with_its_tables() {
        let mut document = CheckDocument {
            file: "/f.toml".into(),
            result: GOOD,
            tables: Vec::new(),
            metrics: None,
            no_vms: Vec::new(),
        };
        assert!(render_text(&document).contains("all taps are observed"));
        document.result = ABSENT;
        assert_eq!(
            render_text(&document),
            "there is no /f.toml: all taps are observed, none accelerated"
        );
        document.result = GOOD;
        document.tables = vec![Table { name: "web".into(), line: 3 }];
        assert_eq!(render_text(&document), "/f.toml is good; 1 table [[port]]: web");
        let reason = "a VPN".to_owned();
        document.no_vms = vec![FailedPort { port: "tun0".into(), netns: 1, reason }];
        assert!(render_text(&document).ends_with("tun0: the service would leave it alone: a VPN"));
    }
}

//! docs/command.md and docs/operations.md have every key of the host's configuration, and its
//! default.

use std::collections::BTreeSet;
use std::path::Path;

use vsnoop_bpf::TableLimits;
use vsnoop_host::config::port::Tap;
use vsnoop_host::config::{Config, metrics};
use vsnoop_host::incast::setting::DEFAULT_BUFFER;
use vsnoop_host::settings::Mode;
use vsnoop_upkeep::settings::SILENCE_MS;

use super::{allowed, quoted, rows, text};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("f"), text).map_err(|error| error.to_string())
}

fn keys(header: &str) -> BTreeSet<String> {
    let error = parse(&format!("{header}\nno_such_key = 1\n"));
    allowed(&error.expect_err("an unknown key"))
}

#[test]
fn every_key_of_the_host_is_in_the_example_with_its_default() {
    let text = text("command.md");
    let section = text.split("\n## The configuration\n").nth(1).expect("a section");
    let example = section.split("```toml\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    for name in ["hold", "incast", "metrics"] {
        let table = example.split(&format!("[{name}]")).nth(1).expect("a table");
        let lines = table.lines().skip(1).take_while(|line| !line.is_empty());
        let shown = lines.filter_map(|line| line.split_whitespace().next());
        let shown: BTreeSet<_> = shown.map(str::to_owned).collect();
        assert_eq!(shown, keys(&format!("[{name}]")), "docs/command.md: [{name}]");
    }
    let config = parse(example).expect("a good configuration");
    assert_eq!(config.silence_ms, SILENCE_MS, "docs/command.md: hold.silence");
    assert_eq!(config.metrics, Some(metrics::LISTEN), "docs/command.md: metrics.listen");
    let buffer = format!("default: {}K", DEFAULT_BUFFER >> 10);
    assert!(example.contains(&buffer), "docs/command.md: incast.buffer: {buffer}");
}

fn is_accelerate(mode: Mode) -> bool {
    mode == Mode::Accelerate
}

#[test]
fn every_key_of_a_port_is_in_a_table_with_its_default() {
    let text = text("operations.md");
    let mut shown = BTreeSet::new();
    let with_defaults = rows(&text, "| key | default | meaning |");
    for row in rows(&text, "| key | meaning |").iter().chain(&with_defaults) {
        for key in quoted(row[0]) {
            assert!(shown.insert(key.clone()), "docs/operations.md has {key} twice");
        }
    }
    assert_eq!(shown, keys("[[port]]"), "docs/operations.md");
    let config = parse("[[port]]\n").expect("a table without keys");
    let table = &config.ports[0];
    let default = table.settings(&Tap::default());
    // A canary chooses by name.
    let taps = (0..100).map(|n| Tap { interface: format!("vnet{n}"), ..Tap::default() });
    let are_all_accelerated = taps.map(|tap| table.settings(&tap).mode).all(is_accelerate);
    let max_flows = TableLimits::default().max_flows.to_string();
    let defaults = [
        ("mode", "\"accelerate\"", is_accelerate(default.mode)),
        ("canary", "\"100%\"", are_all_accelerated),
        ("passive", "true", default.passive),
        ("max_flows", max_flows.as_str(), default.max_flows.to_string() == max_flows),
        ("incast", "none", default.incast.is_none()),
    ];
    for (key, value, is_so) in defaults {
        let key = format!("`{key}`");
        let row = with_defaults.iter().find(|row| row[0] == key).expect("a row");
        let said = row[1].trim_matches('`');
        assert!(is_so && said == value, "docs/operations.md: the default of {key} is {value}");
    }
}

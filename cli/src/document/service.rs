//! docs/reference/configuration.md has every key of the host's configuration, its default
//! and its range.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use vsnoop_bpf::TableLimits;
use vsnoop_hold::initial_policy::SILENCE_MS;
use vsnoop_host::config::port::Tap;
use vsnoop_host::config::{Config, metrics};
use vsnoop_host::incast::configured::Defaults;
use vsnoop_host::incast::setting::DEFAULT_BUFFER;
use vsnoop_host::settings::{Incast, Mode};

use super::{allowed, quoted, rows, text};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("f"), text).map_err(|error| error.to_string())
}

fn keys(header: &str) -> BTreeSet<String> {
    let error = parse(&format!("{header}\nno_such_key = 1\n"));
    allowed(&error.expect_err("an unknown key"))
}

fn is_accelerate(mode: Mode) -> bool {
    mode == Mode::Accelerate
}

/// The text of docs/reference/configuration.md about a key, after its value.
struct Said {
    table: &'static str,
    key: &'static str,
    default: &'static str,
    /// The words, and values at both ends of the range and beyond them.
    range: Option<(&'static str, &'static [&'static str], &'static [&'static str])>,
}

const SAID: [Said; 6] = [
    Said {
        table: "hold",
        key: "total",
        default: "default: a fourth of the host's",
        range: Some(("256K or more", &["\"256K\"", "262144"], &["\"255K\"", "262143", "0"])),
    },
    Said {
        table: "hold",
        key: "silence",
        default: "default: 300",
        range: Some(("1 to 86400", &["1", "86400"], &["0", "86401"])),
    },
    Said {
        table: "incast",
        key: "rate",
        default: "default: link",
        range: Some(("1M to 400G", &["\"1M\"", "\"400G\""], &["\"999K\"", "\"401G\""])),
    },
    Said {
        table: "incast",
        key: "buffer",
        default: "default: 64K",
        range: Some(("16K to 256M", &["\"16K\"", "\"256M\""], &["16383", "\"257M\""])),
    },
    Said {
        table: "incast",
        key: "uplink",
        default: "default: the port of the tap's bridge that is no tap",
        range: None,
    },
    Said { table: "metrics", key: "listen", default: "the default", range: None },
];

/// The first example of docs/reference/configuration.md's section.
fn example() -> String {
    let text = text("reference/configuration.md");
    let section = text.split("\n## The file\n").nth(1).expect("a section");
    let example = section.split("```toml\n").nth(1).expect("an example");
    example.split("```").next().expect("its end").to_owned()
}

/// The lines of a table of the example, by key.
fn lines<'a>(example: &'a str, table: &str) -> BTreeMap<&'a str, &'a str> {
    let table = example.split(&format!("[{table}]")).nth(1).expect("a table");
    let lines = table.lines().skip(1).take_while(|line| !line.is_empty());
    lines.filter_map(|line| Some((line.split_whitespace().next()?, line))).collect()
}

#[test]
fn every_key_of_the_host_is_in_the_example_with_its_default_and_range() {
    let example = example();
    for name in ["hold", "incast", "metrics"] {
        let shown: BTreeSet<_> = lines(&example, name).into_keys().map(str::to_owned).collect();
        assert_eq!(shown, keys(&format!("[{name}]")), "docs/reference/configuration.md: [{name}]");
        let said = SAID.iter().filter(|said| said.table == name).map(|said| said.key.to_owned());
        assert_eq!(shown, said.collect(), "what is said of [{name}]");
    }
    for Said { table, key, default, range } in &SAID {
        let line = lines(&example, table)[key];
        assert!(
            line.contains(default),
            "docs/reference/configuration.md: {table}.{key}: {default:?}"
        );
        let Some((words, within, beyond)) = range else { continue };
        assert!(line.contains(words), "docs/reference/configuration.md: {table}.{key}: {words:?}");
        let set = |value: &str| parse(&format!("[{table}]\n{key} = {value}\n"));
        for value in *within {
            assert!(set(value).is_ok(), "{table}.{key} = {value}");
        }
        for value in *beyond {
            assert!(set(value).is_err(), "{table}.{key} = {value}");
        }
    }
}

/// [`SAID`] has the words; this, what they mean.
#[test]
fn the_defaults_of_the_host_are_as_the_example_has_them() {
    let none = parse("").expect("an empty file");
    assert_eq!(none.total_bytes(64 << 30), 16 << 30, "hold.total: a fourth");
    assert_eq!((none.silence_ms, SILENCE_MS), (300_000, 300_000), "hold.silence");
    assert_eq!(DEFAULT_BUFFER, 64 << 10, "incast.buffer");
    assert_eq!(none.incast, Defaults::default(), "incast: as `attach` has it");
    assert_eq!(none.metrics, Some(metrics::LISTEN), "metrics.listen");
    let shown = parse(&example()).expect("a good configuration");
    assert_eq!((shown.silence_ms, shown.metrics), (none.silence_ms, none.metrics));
}

#[test]
fn every_key_of_a_port_is_in_a_table_with_its_default() {
    let text = text("reference/configuration.md");
    let mut shown = BTreeSet::new();
    let with_defaults = rows(&text, "| key | default | meaning |");
    for row in rows(&text, "| key | meaning |").iter().chain(&with_defaults) {
        for key in quoted(row[0]) {
            assert!(shown.insert(key.clone()), "docs/reference/configuration.md has {key} twice");
        }
    }
    assert_eq!(shown, keys("[[port]]"), "docs/reference/configuration.md");
    let config = parse("[[port]]\n").expect("a table without keys");
    let table = &config.ports[0];
    let default = table.settings(&Tap::default());
    // A canary chooses by name.
    let taps = (0..100).map(|n| Tap { interface: format!("vnet{n}"), ..Tap::default() });
    let are_all_accelerated = taps.map(|tap| table.settings(&tap).mode).all(is_accelerate);
    let with_incast = parse("[[port]]\nincast = true\n").expect("incast");
    let incast = with_incast.ports[0].settings(&Tap::default()).incast;
    let max_flows = TableLimits::default().max_flows.to_string();
    let is_max_flows = default.max_flows.to_string() == max_flows;
    let defaults = [
        ("`mode`", "`\"accelerate\"`", is_accelerate(default.mode)),
        ("`canary`", "`\"100%\"`", are_all_accelerated),
        ("`hold`", "a share of the host's", default.hold.is_none()),
        ("`ahead`", "as far as the hold allows", default.ahead.is_none()),
        ("`passive`", "`true`", default.passive),
        ("`downloads`", "`false`", !default.downloads),
        ("`congestion_control`", "`\"default\"`", default.congestion_control.name().is_none()),
        ("`max_flows`", max_flows.as_str(), is_max_flows),
        ("`incast`", "none", default.incast.is_none()),
        ("`uplink`, `incast_buffer`", "as `attach`", incast == Some(Incast::default())),
        ("`allow_port`, `deny_port`", "", default.port_rules.is_empty()),
        ("`allow`, `deny`", "", default.prefix_rules.is_empty()),
        ("`qmp`", "none", table.qmp().is_empty()),
    ];
    let known = defaults.iter().map(|(key, said, _)| (*key, *said));
    let said = with_defaults.iter().map(|row| (row[0], row[1]));
    assert_eq!(
        said.collect::<Vec<_>>(),
        known.collect::<Vec<_>>(),
        "docs/reference/configuration.md"
    );
    for (key, value, is_so) in defaults {
        assert!(is_so, "docs/reference/configuration.md: the default of {key} is not {value:?}");
    }
}

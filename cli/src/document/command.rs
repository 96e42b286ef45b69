//! docs/reference/command.md has a heading for each command, and the table of its options as clap
//! has them. With `VSNOOP_WRITE=1` the test writes the tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::cli::Cli;

const END: &str = "<!-- end -->";

/// The commands that are not hidden, `attach` or `link up`, with their own options; the empty name
/// has the options of all commands.
fn commands() -> BTreeMap<String, Vec<Arg>> {
    fn add(command: &Command, name: &str, all: &mut BTreeMap<String, Vec<Arg>>) {
        let shown = command.get_arguments().filter(|option| !option.is_hide_set());
        let options: Vec<_> = shown.filter(|option| option.get_long().is_some()).cloned().collect();
        if !options.is_empty() || !command.has_subcommands() {
            all.insert(name.to_owned(), options);
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            add(sub, format!("{name} {}", sub.get_name()).trim_start(), all);
        }
    }
    let mut all = BTreeMap::new();
    add(&Cli::command(), "", &mut all);
    all
}

/// A row: the option, its default, its meaning.
fn row(option: &Arg) -> String {
    let long = option.get_long().unwrap_or_default();
    let name = option.get_value_names().and_then(|names| names.first());
    let name = name.map_or_else(|| option.get_id().as_str().to_uppercase(), ToString::to_string);
    let is_optional = option.get_num_args().is_some_and(|count| count.min_values() == 0);
    let value = match (option.get_action(), is_optional) {
        (ArgAction::Set | ArgAction::Append, true) => format!(" [{name}]"),
        (ArgAction::Set | ArgAction::Append, false) => format!(" {name}"),
        _ => String::new(),
    };
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    // What clap does not know by itself stands at the end: `[default: ...]`.
    let (meaning, said) = match help.split_once(" [default") {
        Some((meaning, said)) => (meaning, said.trim_start_matches(':').trim_end_matches(']')),
        None => (help.as_str(), ""),
    };
    let values = option.get_default_values().iter().map(|value| value.to_string_lossy());
    let default = values.collect::<Vec<_>>().join(",") + said.trim();
    let cell = |text: &str| text.replace('|', "\\|");
    format!("| `--{long}{}` | {} | {} |\n", cell(&value), cell(&default), cell(&linked(meaning)))
}

/// With links from docs/reference/ instead of paths below docs/.
fn linked(text: &str) -> String {
    let mut parts = text.split("docs/");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, rest) = part.split_once(".md").unwrap_or((part, ""));
        let name = path.rsplit('/').next().unwrap_or_default();
        let to = path.strip_prefix("reference/").map_or(format!("../{path}"), str::to_owned);
        let _ = write!(text, "[{name}.md]({to}.md){rest}");
    }
    text
}

fn table(options: &[Arg]) -> String {
    let rows: String = options.iter().map(row).collect();
    format!("| option | default | meaning |\n|---|---|---|\n{rows}")
}

/// The document with the tables of these commands made anew.
fn with_tables(text: &str, commands: &BTreeMap<String, Vec<Arg>>) -> String {
    let tables = commands.iter().filter(|(_, options)| !options.is_empty());
    tables.fold(text.to_owned(), |text, (name, options)| {
        let begin = format!("<!-- options of {} -->", format!("vsnoop {name}").trim_end());
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{begin} has no {END}"));
        format!("{before}{begin}\n{}{END}{after}", table(options))
    })
}

#[test]
fn the_document_has_every_command_and_its_options_as_they_are_defined() {
    let text = super::text("reference/command.md");
    let commands = commands();
    assert!(commands.len() > 15, "{:?}", commands.keys());
    for name in commands.keys().filter(|name| !name.is_empty()) {
        let heading = |line: &str| {
            let calls = line.split('`').filter_map(|call| call.strip_prefix("vsnoop "));
            let mut rests = calls.filter_map(|call| call.strip_prefix(name.as_str()));
            line.starts_with("### ") && rests.any(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        assert!(
            text.lines().any(heading),
            "docs/reference/command.md has no heading of vsnoop {name}"
        );
    }
    let wanted = with_tables(&text, &commands);
    if std::env::var_os("VSNOOP_WRITE").is_some() {
        fs::write(super::path("reference/command.md"), &wanted)
            .expect("docs/reference/command.md can be written");
        return;
    }
    let other = text.lines().zip(wanted.lines()).find(|(is, wanted)| is != wanted);
    assert!(
        text == wanted,
        "docs/reference/command.md is not as the options are defined, first at {other:?}; mended by: \
         VSNOOP_WRITE=1 cargo test --release -p vsnoop --bin vsnoop -- the_document_has"
    );
}

#[test]
fn a_row_has_value_default_and_meaning() {
    let option = |long: &str| {
        let all = commands().remove("attach").expect("attach");
        row(all.iter().find(|option| option.get_long() == Some(long)).expect("an option"))
    };
    assert!(option("max-flows").starts_with("| `--max-flows N` | 4096 | Connections on record"));
    let incast = option("incast");
    assert!(incast.starts_with("| `--incast [RATE]` |  | Shape"), "{incast}");
    assert!(incast.contains("([incast.md](../guide/incast.md))"), "{incast}");
    let uplink = option("uplink");
    assert!(uplink.starts_with("| `--uplink IFACE` | as configured, or the port"), "{uplink}");
}

//! Each crate of the workspace may depend on some others: an arrow that is not in the table of
//! docs/decisions/0023-crates.md fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;
use vsnoop_checks::{crates, part_of};

/// The decision, with the table.
const DECISION: &str = include_str!("../../../docs/decisions/0023-crates.md");

/// Allowed imports of a crate; its tests may import [`FOR_TESTS`] as well.
struct Row {
    name: String,
    imports: Vec<String>,
}

/// The decision's table. From the ground up: a crate imports only those whose rows come before its
/// own.
fn rows() -> Vec<Row> {
    let rows: Vec<Row> = DECISION.lines().filter_map(row).collect();
    assert!(rows.len() > 10, "the decision has no table with a row \"| `vsnoop...` | imports |\"");
    rows
}

/// The row of a line such as "| `vsnoop-hold` | flow, packet |"; what follows a semicolon or a
/// name is for readers.
fn row(line: &str) -> Option<Row> {
    let mut cells = line.strip_prefix("| `vsnoop")?.split('|').map(str::trim);
    let name = cells.next()?.split('`').next()?;
    let imports = cells.next()?.split(';').next()?.split(", ").filter(|name| *name != "nothing");
    let imports = imports.map(|name| format!("vsnoop-{name}")).collect();
    Some(Row { name: format!("vsnoop{name}"), imports })
}

/// Crates that tests of any layer may import: what they drive and measure the
/// product with.
const FOR_TESTS: [&str; 2] = ["vsnoop-packet", "vsnoop-testbed"];

/// Tests of the product as a whole.  Their crate is above all that they drive.
const PRODUCT_TESTS: [&str; 2] = ["vsnoop", "vsnoop-tests"];

/// Input and output: what a crate that decides does not depend on, so that it can do none.
const IO: [&str; 9] = [
    "libbpf-rs",
    "libbpf-sys",
    "libc",
    "linux-raw-sys",
    "netlink-sys",
    "nix",
    "rustix",
    "signal-hook",
    "socket2",
];

/// Lists items of std that clippy forbids in a crate that decides: its clippy.toml links to it.
const NO_IO: &str = "shared/clippy-no-io.toml";

/// Crates that decide.
const DECIDE: [&str; 5] =
    ["vsnoop-config", "vsnoop-flow", "vsnoop-hold", "vsnoop-link", "vsnoop-packet"];

/// Programs that have a command line; libraries have none.
const COMMANDS: [&str; 4] = ["vsnoop", "vsnoop-bench", "vsnoop-lab", "vsnoop-sim"];

/// Libraries of the product: their errors are types, which a caller can tell apart.
const LIBRARIES: [&str; 15] = [
    "vsnoop-bpf",
    "vsnoop-config",
    "vsnoop-divert",
    "vsnoop-etcd",
    "vsnoop-flow",
    "vsnoop-hold",
    "vsnoop-host",
    "vsnoop-link",
    "vsnoop-linkd",
    "vsnoop-metrics",
    "vsnoop-netdev",
    "vsnoop-packet",
    "vsnoop-privileges",
    "vsnoop-split",
    "vsnoop-service",
];

struct Manifest {
    name: String,
    directory: PathBuf,
    /// The crate and its build script import these.
    imports: BTreeSet<String>,
    /// The crate alone imports these.
    code_imports: BTreeSet<String>,
    /// Its tests import these.
    test_imports: BTreeSet<String>,
}

impl Manifest {
    fn read(directory: &Path) -> Self {
        let file = directory.join("Cargo.toml");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let table: Table = text.parse().unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let names = |key: &str| -> BTreeSet<String> {
            let found = table.get(key).and_then(toml::Value::as_table);
            found.into_iter().flat_map(|table| table.keys().cloned()).collect()
        };
        let name = table["package"]["name"].as_str().expect("a name").to_owned();
        let code_imports = names("dependencies");
        let imports = code_imports.union(&names("build-dependencies")).cloned().collect();
        let test_imports = names("dev-dependencies");
        Self { name, directory: directory.to_owned(), imports, code_imports, test_imports }
    }

    /// Those of the workspace.
    fn ours(names: &BTreeSet<String>) -> impl Iterator<Item = &str> {
        names.iter().map(String::as_str).filter(|name| name.starts_with("vsnoop"))
    }
}

fn manifests() -> Vec<Manifest> {
    crates().iter().map(|directory| Manifest::read(directory)).collect()
}

#[test]
fn a_crate_imports_only_what_its_layer_may() {
    let (mut wrong, rows) = (Vec::new(), rows());
    for Manifest { name, imports, test_imports, .. } in &manifests() {
        let Some(row) = rows.iter().find(|row| row.name == *name) else {
            wrong.push(format!("{name} has no row in this table"));
            continue;
        };
        let may = |import: &&str| row.imports.iter().any(|name| name == import);
        let may_test = |import: &&str| {
            let is_product = PRODUCT_TESTS.contains(&name.as_str()) || import == name;
            may(import) || is_product || FOR_TESTS.contains(import)
        };
        wrong.extend(
            Manifest::ours(imports)
                .filter(|import| !may(import))
                .chain(Manifest::ours(test_imports).filter(|import| !may_test(import)))
                .map(|import| format!("{name} -> {import}")),
        );
    }
    assert!(wrong.is_empty(), "not in docs/decisions/0023-crates.md:\n{}", wrong.join("\n"));
}

#[test]
fn a_product_imports_nothing_of_the_other_and_nothing_that_does_not_ship() {
    let manifests = manifests();
    let part = |name: &str| {
        let found = manifests.iter().find(|manifest| manifest.name == name);
        part_of(&found.unwrap_or_else(|| panic!("{name} has no Cargo.toml")).directory)
    };
    for Manifest { name, imports, .. } in &manifests {
        let may: &[&str] = match part(name) {
            "shared" => &["shared"],
            "accel" => &["accel", "shared"],
            "link" => &["link", "shared"],
            "cli" => &["accel", "link", "shared"],
            _ => continue,
        };
        let wrong: Vec<_> =
            Manifest::ours(imports).filter(|import| !may.contains(&part(import))).collect();
        assert!(wrong.is_empty(), "{name}, of {}, imports {wrong:?}", part(name));
    }
}

#[test]
fn the_table_has_no_unused_arrow() {
    let rows = rows();
    for Manifest { name, imports, .. } in &manifests() {
        let row = rows.iter().find(|row| row.name == *name).expect("a row");
        let unused: Vec<_> = row.imports.iter().filter(|name| !imports.contains(*name)).collect();
        assert!(unused.is_empty(), "{name} does not import {unused:?}");
    }
}

#[test]
fn the_table_has_no_circle() {
    let rows = rows();
    for (at, row) in rows.iter().enumerate() {
        let is_before = |import: &&String| rows[..at].iter().any(|other| other.name == **import);
        let later: Vec<_> = row.imports.iter().filter(|import| !is_before(import)).collect();
        assert!(later.is_empty(), "{} imports what comes after it: {later:?}", row.name);
    }
}

#[test]
fn what_decides_can_do_no_input_or_output() {
    for Manifest { name, directory, imports, .. } in &manifests() {
        if DECIDE.contains(&name.as_str()) {
            let found: Vec<_> = IO.iter().filter(|io| imports.contains(**io)).collect();
            assert!(found.is_empty(), "{name} depends on {found:?}");
            let clippy = directory.join("clippy.toml");
            let found = clippy.canonicalize().unwrap_or_default();
            assert!(found.ends_with(NO_IO), "{} is not {NO_IO}", clippy.display());
        }
    }
}

#[test]
fn a_library_has_no_command_line() {
    for Manifest { name, imports, .. } in &manifests() {
        assert!(COMMANDS.contains(&name.as_str()) || !imports.contains("clap"), "{name} has clap");
    }
}

#[test]
fn a_library_has_errors_of_its_own() {
    for Manifest { name, code_imports, .. } in &manifests() {
        let is_library = LIBRARIES.contains(&name.as_str());
        assert!(
            !is_library || !code_imports.contains("anyhow"),
            "{name} has anyhow: its errors are enums, with thiserror"
        );
    }
}

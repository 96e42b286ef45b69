//! docs/guide/links/configuration.md has every key of a link's configuration, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use vsnoop_host::error::with_causes;
use vsnoop_linkd::config::Config;

use super::{allowed, quoted, rows, text};

fn keys(table: &str) -> BTreeSet<String> {
    let first = if table == "[link]" { "" } else { "[link]\n" };
    let wrong = format!("{first}{table}\nno_such_key = 1\n");
    allowed(&with_causes(&Config::parse(Path::new("f"), &wrong).expect_err("an unknown key")))
}

#[test]
fn every_key_is_in_a_table_and_no_other() {
    let text = text("guide/links/configuration.md");
    for table in ["[link]", "[[port]]", "[[peer]]", "[etcd]", "[[compress]]", "[[divert]]"] {
        let rows = rows(&text, &format!("| `{table}`"));
        assert!(!rows.is_empty(), "docs/guide/links/configuration.md has no table of {table}");
        let keys = keys(table);
        let first = rows.iter().flat_map(|row| quoted(row[0]));
        let unknown: Vec<_> = first.filter(|key| !keys.contains(key)).collect();
        assert!(
            unknown.is_empty(),
            "docs/guide/links/configuration.md: {table} has no {unknown:?}"
        );
        let mut said: BTreeSet<_> = rows.iter().flatten().flat_map(|cell| quoted(cell)).collect();
        if text.contains("\n`[etcd.peer]` has ") {
            said.insert("peer".to_owned());
        }
        let missing: Vec<_> = keys.difference(&said).collect();
        assert!(
            missing.is_empty(),
            "docs/guide/links/configuration.md does not say {missing:?} of {table}"
        );
    }
}

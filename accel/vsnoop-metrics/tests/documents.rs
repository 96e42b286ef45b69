//! The document has the metrics as they are defined; dashboard and alerts use no others. With
//! `VSNOOP_WRITE=1` the test writes the document.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vsnoop_metrics::document;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

#[test]
fn the_document_has_the_tables_of_the_definitions() {
    let path = file("docs/reference/metrics.md");
    let text = fs::read_to_string(&path).expect("docs/reference/metrics.md");
    let wanted = document::with_tables(&text);
    if std::env::var_os("VSNOOP_WRITE").is_some() {
        fs::write(&path, &wanted).expect("docs/reference/metrics.md can be written");
        return;
    }
    let other = text.lines().zip(wanted.lines()).find(|(is, wanted)| is != wanted);
    assert!(
        text == wanted,
        "docs/reference/metrics.md is not as the definitions say, first at {other:?}; mended by: \
         VSNOOP_WRITE=1 cargo test --release -p vsnoop-metrics --test documents"
    );
}

const DASHBOARD: &str = "deploy/grafana/vsnoop.json";
const RULES: &str = "deploy/prometheus/vsnoop.rules.yml";
const RULES_TEST: &str = "deploy/prometheus/vsnoop.rules.test.yml";

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names of metrics in a text.
fn used(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("vsnoop_")).collect()
}

#[test]
fn dashboard_and_alerts_use_only_metrics_that_there_are() {
    let names = document::names();
    for name in [DASHBOARD, RULES, RULES_TEST] {
        let text = text(name);
        let used = used(&text);
        assert!(used.len() > 10, "{name} has only {used:?}");
        let missing: Vec<_> =
            used.iter().filter(|used| !names.iter().any(|name| name == **used)).collect();
        assert!(missing.is_empty(), "{name} asks for what is not there: {missing:?}");
    }
}

#[test]
fn the_dashboard_is_a_document_whose_panels_have_expressions() {
    let dashboard: serde_json::Value = serde_json::from_str(&text(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "an id stands twice: {panel}");
        let targets = panel["targets"].as_array().expect("targets");
        let has_expression = |target: &serde_json::Value| {
            target["expr"].as_str().is_some_and(|expression| expression.contains("vsnoop_"))
        };
        assert!(!targets.is_empty() && targets.iter().all(has_expression), "{panel}");
    }
}

#[test]
fn every_alert_says_what_to_do_and_is_tested() {
    let (rules, document) = (text(RULES), text("docs/guide/alerts.md"));
    let tests = text(RULES_TEST);
    let alerts: Vec<_> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in &alerts {
        let heading = format!("### {alert}\n");
        assert!(document.contains(&heading), "docs/guide/alerts.md has no {alert}");
        let runbook = format!("docs/guide/alerts.md#{}\"", alert.to_lowercase());
        assert!(rules.contains(&runbook), "{alert} does not lead to {runbook}");
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{RULES_TEST} has no {alert}");
    }
    let sections = document.lines().filter(|line| line.starts_with("### Vsnoop")).count();
    assert_eq!(sections, alerts.len(), "docs/guide/alerts.md has other alerts than {RULES}");
}

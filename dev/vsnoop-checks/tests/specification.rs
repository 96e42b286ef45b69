//! scripts/specification.sh: a name that leads to no test fails, and is printed with its row.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use vsnoop_checks::root;

/// Names of one test of the command and one of this crate, which the script must find.
const GOOD: [&str; 2] = [
    "vsnoop/unit::helper::reader_loss::tests::a_vm_is_gone_after_3_s_without_a_reader",
    "vsnoop-checks/specification::names_that_lead_to_tests_pass",
];

/// A specification with a row for each name.
struct Specification(PathBuf);

impl Specification {
    fn new(test: &str, names: &[&str]) -> Self {
        let file = format!("vsnoop-specification-{test}-{}.md", std::process::id());
        let rows = names.iter().enumerate();
        let rows = rows.map(|(row, name)| format!("| T{row} | a promise | `{name}` |\n"));
        let path = std::env::temp_dir().join(file);
        fs::write(&path, rows.collect::<String>()).expect("a temporary file");
        Self(path)
    }

    /// Whether the script passes it, and what it prints.
    fn check(&self) -> (bool, String) {
        let mut script = Command::new("sh");
        script.arg(root().join("scripts/specification.sh")).arg(&self.0);
        let output = script.output().expect("sh runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Specification {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn names_that_lead_to_tests_pass() {
    let (passes, text) = Specification::new("good", &GOOD).check();
    assert!(passes, "{text}");
}

#[test]
fn each_name_that_leads_to_no_test_fails() {
    let wrong = [
        // The module had this name once.
        "vsnoop/unit::helper::desertion::tests::a_vm_is_gone_after_3_s_without_a_reader",
        // The module is in another one.
        "vsnoop/unit::reader_loss::tests::a_vm_is_gone_after_3_s_without_a_reader",
        "vsnoop/unit::keeper::reader_loss::tests::a_vm_is_gone_after_3_s_without_a_reader",
        // Test, program and crate that do not exist.
        "vsnoop/unit::helper::reader_loss::tests::a_vm_is_never_gone",
        "vsnoop-checks/specifications::names_that_lead_to_tests_pass",
        "vsnoop-chess/specification::names_that_lead_to_tests_pass",
        "vsnoop-tests/links::hostile::carrier_pigeon::nothing_changed_or_made_up_is_believed_by_*",
    ];
    let (passes, text) = Specification::new("wrong", &[&GOOD[..], &wrong].concat()).check();
    let found = text.lines().filter(|line| line.contains("the sources have no"));
    let wanted: Vec<_> = wrong
        .iter()
        .zip(GOOD.len()..)
        .map(|(name, row)| format!("T{row}: the sources have no {name}"))
        .collect();
    assert!(!passes, "{text}");
    assert_eq!(found.collect::<Vec<_>>(), wanted);
}

#[test]
fn a_row_without_a_name_and_a_file_without_rows_fail() {
    let specification = Specification::new("none", &[]);
    let (passes, text) = specification.check();
    assert!(!passes, "{text}");
    fs::write(&specification.0, "| T1 | a promise | by nothing |\n").expect("a temporary file");
    let (passes, text) = specification.check();
    assert!(!passes && text.contains("T1: the sources have no test or figure"), "{text}");
}

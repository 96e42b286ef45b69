//! The package, the program, the archive and the changelog have one version.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

/// Lines of what a release is for its users.
const CHANGELOG_LINES: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn version() -> String {
    let manifest: Table = text("Cargo.toml").parse().expect("a manifest");
    manifest["workspace"]["package"]["version"].as_str().expect("a version").to_owned()
}

#[test]
fn scripts_find_the_version_of_the_workspace() {
    let manifest = text("Cargo.toml");
    // Their `sed` reads the first line that begins so.
    let first = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    assert_eq!(first, Some(format!("{}\"", version()).as_str()));
    for script in ["scripts/deb.sh", "scripts/tarball.sh", "scripts/image.sh"] {
        let reads = r#"$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)"#;
        assert!(text(script).contains(reads), "{script} has a version from elsewhere");
    }
}

/// `--version`, metrics and manual pages have the version of the crates that make them.
#[test]
fn crates_have_the_version_of_the_workspace() {
    assert_eq!(env!("CARGO_PKG_VERSION"), version());
    let lock: Table = text("Cargo.lock").parse().expect("a lock file");
    for package in lock["package"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        if name == "vsnoop" || name.starts_with("vsnoop-") {
            assert_eq!(package["version"].as_str(), Some(version().as_str()), "{name}");
        }
    }
}

#[test]
fn the_changelog_begins_with_the_version_and_is_short() {
    let changelog = text("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## "));
    assert_eq!(newest, Some(version().as_str()), "the newest heading of CHANGELOG.md");
    let lines = changelog.lines().count();
    assert!(lines <= CHANGELOG_LINES, "CHANGELOG.md has {lines} lines");
}

#[test]
fn the_manifest_and_the_known_issues_name_the_version() {
    for name in [
        "deploy/kubernetes/daemonset.yaml",
        "docs/reference/known-issues.md",
        "docs/reference/support.md",
    ] {
        assert!(text(name).contains(&version()), "{name} names another version");
    }
}

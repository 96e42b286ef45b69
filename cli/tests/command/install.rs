//! `make install`: the command, its manual pages, the documents that these name, and completions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::workspace;

use crate::sandbox::list;

/// The private /run of the tests, in which nothing else has this name.
const DESTDIR: &str = "/run/vsnoop-install";

pub fn trials() -> Vec<Trial> {
    trials![install_puts_command_pages_and_completions_in_place]
}

fn install_puts_command_pages_and_completions_in_place() -> Result<()> {
    // Builds nothing: `cargo test` has.
    run(Command::new("make")
        .args(["--old-file=build", "install"])
        .arg(format!("DESTDIR={DESTDIR}"))
        .current_dir(workspace::root()?))?;
    let usr = Path::new(DESTDIR).join("usr/local");
    let said = run(Command::new(usr.join("sbin/vsnoop")).arg("--version"))?;
    let version = concat!("vsnoop ", env!("CARGO_PKG_VERSION"), " ");
    ensure!(said.starts_with(version), "--version says {said:?}");
    for page in ["vsnoop.8", "vsnoop-attach.8", "vsnoop-link-up.8"] {
        let page = usr.join("share/man/man8").join(page);
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        ensure!(text.contains(".TH"), "{} is no manual page", page.display());
    }
    names_only_installed_documents(&usr.join("share"))?;
    links_only_to_installed_files(&usr.join("share/doc/vsnoop"))?;
    let configuration = usr.join("share/doc/vsnoop/deploy/vsnoop.toml");
    run(Command::new(usr.join("sbin/vsnoop")).arg("check").arg(configuration))?;
    for (file, part) in [
        ("zsh/site-functions/_vsnoop", "#compdef vsnoop"),
        ("fish/vendor_completions.d/vsnoop.fish", "complete -c vsnoop"),
    ] {
        let text = fs::read_to_string(usr.join("share").join(file)).context(file)?;
        ensure!(text.contains(part), "{file}: {text}");
    }
    let bash = usr.join("share/bash-completion/completions/vsnoop");
    run(Command::new("bash").arg("-n").arg(&bash))?;
    let complete = "source \"$0\"; COMP_WORDS=(vsnoop att); COMP_CWORD=1; \
        _vsnoop vsnoop att vsnoop; echo \"${COMPREPLY[@]}\"";
    let offered = run(Command::new("bash").arg("-c").arg(complete).arg(&bash))?;
    ensure!(offered.trim() == "attach", "bash completes `att` with {offered:?}");
    fs::remove_dir_all(DESTDIR)?;
    Ok(())
}

fn names_only_installed_documents(share: &Path) -> Result<()> {
    let mut named = 0;
    for page in fs::read_dir(share.join("man/man8"))? {
        let text = fs::read_to_string(page?.path())?.replace("\\-", "-");
        for (at, _) in text.match_indices("docs/") {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.');
            let end = text[at..].find(|c| !is_part(c)).map_or(text.len(), |length| at + length);
            let name = text[at..end].trim_end_matches('.');
            ensure!(share.join("doc/vsnoop").join(name).exists(), "{name} is not installed");
            named += 1;
        }
    }
    ensure!(named > 0, "no manual page names a document");
    Ok(())
}

/// All documents: no source tree is beside them.
fn links_only_to_installed_files(documents: &Path) -> Result<()> {
    let mut links = 0;
    let is_document = |file: &&PathBuf| file.extension().is_some_and(|kind| kind == "md");
    for file in list(documents).iter().filter(is_document) {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| name.to_string())?;
        for (at, before) in text.match_indices("](") {
            let rest = &text[at + before.len()..];
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let there = file.parent().context("a file")?.join(target);
            ensure!(there.exists(), "{name} links to {target}, which is not installed");
            links += 1;
        }
    }
    ensure!(links > 0, "no document links to another one");
    Ok(())
}

/// Output of a command, which must succeed.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

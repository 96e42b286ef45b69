//! `vsnoop link reload`: has a link read its configuration file again.

use anyhow::{Result, bail};
use serde::Serialize;
use vsnoop_linkd::control::{self, Changes, Reloaded, Request, Response};

use crate::cli::{self, Cli};
use crate::error::usage_error;
use crate::output::fold::fold_text;
use crate::output::watch::print_text;

#[derive(Serialize)]
struct ReloadDocument<'a> {
    link: &'a str,
    result: &'static str,
    #[serde(flatten)]
    reloaded: &'a Reloaded,
}

pub fn run(cli: &Cli, arguments: &cli::LinkReload) -> Result<u8> {
    let link = &arguments.name;
    let reloaded = match control::ask_link(link, &Request::Reload)? {
        Response::Reloaded(reloaded) => reloaded,
        Response::Refused { reason } => {
            return Err(usage_error(format!("link {link} goes on as it was: {reason}")));
        }
        _ => bail!("link {link} gave an answer to something else"),
    };
    for warning in &reloaded.warnings {
        eprintln!("vsnoop: {warning}");
    }
    if cli.json {
        let document = ReloadDocument { link, result: "reloaded", reloaded: &reloaded };
        print_text(&serde_json::to_string(&document)?)?;
    } else {
        print_text(&fold_text(&render_changes(link, &reloaded)))?;
    }
    Ok(0)
}

/// "link office: reloaded; peers added: c; ports removed: vsl1; changed: [[compress]]"
fn render_changes(link: &str, reloaded: &Reloaded) -> String {
    let Reloaded { peers, ports, diverts, changed, key, certificate, ended, .. } = reloaded;
    let mut parts = vec![format!("link {link}: reloaded")];
    for (kind, Changes { added, changed, removed }) in
        [("peers", peers), ("ports", ports), ("diversions", diverts)]
    {
        let lists = [("added", added), ("changed", changed), ("removed", removed)];
        let some = lists.into_iter().filter(|(_, names)| !names.is_empty());
        parts.extend(some.map(|(what, names)| format!("{kind} {what}: {}", names.join(", "))));
    }
    if !changed.is_empty() {
        parts.push(format!("changed: {}", changed.join(", ")));
    }
    if *key {
        parts.push("this host has another key now".to_owned());
    }
    if *certificate {
        parts.push("this host has another certificate now".to_owned());
    }
    if !ended.is_empty() {
        let rules = ended.iter().map(|rule| format!("{} ({})", rule.selector, rule.method));
        parts.push(format!("rules of `set` that ended: {}", rules.collect::<Vec<_>>().join("; ")));
    }
    if parts.len() == 1 {
        parts.push("the configuration has not changed".to_owned());
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reload_has_changed_is_said() {
        let mut reloaded = Reloaded::default();
        assert!(render_changes("office", &reloaded).ends_with("the configuration has not changed"));
        reloaded.peers.added = vec!["c".into(), "d".into()];
        reloaded.ports.removed = vec!["vsl1".into()];
        reloaded.changed = vec!["link.rekey".into()];
        let said = "link office: reloaded; peers added: c, d; ports removed: vsl1; \
                    changed: link.rekey";
        assert_eq!(render_changes("office", &reloaded), said);
        let renewed = Reloaded { certificate: true, ..Reloaded::default() };
        let said = "link office: reloaded; this host has another certificate now";
        assert_eq!(render_changes("office", &renewed), said);
    }
}

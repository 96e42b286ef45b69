//! `vsnoop link set`: changes which traffic is compressed, and how, or what is logged, while
//! packets flow.

use anyhow::{Result, bail};
use serde::Serialize;
use vsnoop_host::units;
use vsnoop_linkd::config::{Compress, Method, RuleChange, Selector};
use vsnoop_linkd::control::{self, LogLevel, Request, Response, Set};

use super::ask::tell_link;
use crate::cli::{self, Cli};
use crate::error::usage_error;
use crate::output::fold::fold_text;
use crate::output::watch::print_text;

/// Most rules in the text; JSON has all.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct SetDocument<'a> {
    link: &'a str,
    result: &'static str,
    #[serde(flatten)]
    set: &'a Set,
    #[serde(flatten)]
    outcome: &'a RuleChange,
}

#[derive(Serialize)]
struct Logging<'a> {
    link: &'a str,
    result: &'static str,
    log: LogLevel,
}

pub fn run(cli: &Cli, arguments: &cli::LinkSet) -> Result<u8> {
    match (arguments.log, arguments.compress) {
        (Some(level), _) => set_log(cli, &arguments.name, level)?,
        (None, Some(method)) => set_compression(cli, arguments, method)?,
        (None, None) => return Err(usage_error("give --compress or --log")),
    }
    Ok(0)
}

fn set_log(cli: &Cli, name: &str, level: LogLevel) -> Result<()> {
    tell_link(name, &Request::Log { level })?;
    if cli.json {
        print_text(&serde_json::to_string(&Logging { link: name, result: "set", log: level })?)
    } else {
        print_text(&format!("link {name}: the log begins at level {level}"))
    }
}

fn set_compression(cli: &Cli, arguments: &cli::LinkSet, method: Method) -> Result<()> {
    if arguments.dictionary.is_some() && matches!(method, Method::Off | Method::Lz4) {
        return Err(usage_error("--dictionary goes with the methods zstd and auto"));
    }
    let set = Set {
        selector: Selector {
            peer: arguments.peer.clone(),
            port: arguments.port.clone(),
            vm: arguments.vm,
            prefixes: arguments.prefix.iter().map(ipnet::IpNet::trunc).collect(),
        },
        method,
        dictionary_bytes: arguments.dictionary,
    };
    let answer = control::ask_link(&arguments.name, &Request::Set(set.clone()))?;
    let outcome = read_answer(&arguments.name, answer)?;
    if cli.json {
        print_text(&serde_json::to_string(&SetDocument {
            link: &arguments.name,
            result: "set",
            set: &set,
            outcome: &outcome,
        })?)?;
    } else {
        print_text(&fold_text(&render_outcome(&arguments.name, &set, &outcome)))?;
    }
    Ok(())
}

fn read_answer(name: &str, answer: Response) -> Result<RuleChange> {
    match answer {
        Response::Set(outcome) => Ok(outcome),
        // A link of an older version, which does not report what it has replaced.
        Response::Done => Ok(RuleChange::default()),
        Response::Refused { reason } => Err(usage_error(reason)),
        Response::Status(_) | Response::Reloaded(_) => {
            bail!("link {name} gave an answer to something else")
        }
    }
}

/// A line on the rule, and one on the rules that it has replaced.
fn render_outcome(name: &str, set: &Set, outcome: &RuleChange) -> String {
    let dictionary = set.dictionary_bytes.map_or(String::new(), |bytes| {
        format!(" with a dictionary of {}", units::bytes(bytes.into()))
    });
    let mut lines =
        vec![format!("link {name}: compression of {} is {}{dictionary}", set.selector, set.method)];
    if !outcome.replaced.is_empty() {
        lines.push(format!(
            "in the place of what was set before: {}",
            list_rules(&outcome.replaced)
        ));
    }
    lines.join("\n")
}

/// "peer b (lz4); prefix 10.0.0.0/8 (zstd); and 3 more"
fn list_rules(rules: &[Compress]) -> String {
    let shown = rules.iter().take(SHOWN);
    let mut parts: Vec<_> =
        shown.map(|rule| format!("{} ({})", rule.selector, rule.method)).collect();
    if rules.len() > SHOWN {
        parts.push(format!("and {} more", rules.len() - SHOWN));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_an_older_version_that_says_no_more_than_done_has_set_the_rule() {
        let answer = serde_json::from_str(r#"{"response":"done"}"#).unwrap();
        assert_eq!(read_answer("office", answer).unwrap(), RuleChange::default());
        let refused = Response::Refused { reason: "the list is full".into() };
        assert!(
            read_answer("office", refused).unwrap_err().to_string().contains("the list is full")
        );
    }

    #[test]
    fn what_a_rule_has_replaced_is_said_and_a_long_list_is_cut() {
        let rule = |prefix: String| Compress {
            selector: Selector { prefixes: vec![prefix.parse().unwrap()], ..Selector::default() },
            method: Method::Lz4,
            owner: None,
            dictionary_bytes: None,
        };
        let rules = |count: usize| (0..count).map(|n| rule(format!("10.{n}.0.0/16"))).collect();
        let set =
            Set { selector: Selector::default(), method: Method::Off, dictionary_bytes: None };
        let said = |replaced| {
            let outcome = RuleChange { replaced: rules(replaced) };
            render_outcome("office", &set, &outcome).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(said(0), ["link office: compression of all is off"]);
        let told = said(1);
        assert_eq!(told[1], "in the place of what was set before: prefix 10.0.0.0/16 (lz4)");
        let told = said(SHOWN + 3);
        assert!(told.len() == 2 && told[1].ends_with("(lz4); and 3 more"), "{told:?}");
    }
}

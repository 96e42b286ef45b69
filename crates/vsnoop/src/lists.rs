//! The operator's allow and deny lists, as rules for the BPF maps.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use crate::cli::Lists;
use crate::error::usage;

/// Size of the BPF maps.
const ROOM: usize = 1024;

/// Port number and whether it is allowed. A number in both lists is a contradiction.
pub fn port_rules(lists: &Lists) -> Result<Vec<(u16, bool)>> {
    let mut rules = rules(&lists.allow_port, &lists.deny_port);
    bounded(&rules, "port numbers")?;
    rules.sort_unstable();
    rules.dedup();
    match rules.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(usage(format!("port number {} is both allowed and denied", pair[0].0))),
        None => Ok(rules),
    }
}

/// Prefix, its length, and whether it is allowed.
pub fn prefix_rules(lists: &Lists) -> Result<Vec<(IpAddr, u8, bool)>> {
    let mut rules = rules(&lists.allow, &lists.deny);
    bounded(&rules, "prefixes")?;
    for (prefix, _) in &mut rules {
        *prefix = IpNet::trunc(prefix);
    }
    rules.sort_unstable();
    rules.dedup();
    match rules.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(usage(format!("prefix {} is both allowed and denied", pair[0].0))),
        None => Ok(rules
            .into_iter()
            .map(|(prefix, allowed)| (prefix.addr(), prefix.prefix_len(), allowed))
            .collect()),
    }
}

fn rules<T: Copy>(allowed: &[T], denied: &[T]) -> Vec<(T, bool)> {
    let allowed = allowed.iter().map(|&what| (what, true));
    allowed.chain(denied.iter().map(|&what| (what, false))).collect()
}

fn bounded<T>(rules: &[T], what: &str) -> Result<()> {
    if rules.len() <= ROOM {
        return Ok(());
    }
    Err(usage(format!("{} {what} are too many, at most {ROOM} are possible per port", rules.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        Lists { allow_port: vec![], deny_port: vec![], allow: vec![], deny: vec![] }
    }

    #[test]
    fn a_contradiction_is_refused_also_when_host_bits_hide_it() {
        let ports = Lists { allow_port: vec![80], deny_port: vec![22, 80], ..lists() };
        assert!(port_rules(&ports).unwrap_err().to_string().contains("80"));
        let prefixes = Lists {
            allow: vec!["10.1.0.0/8".parse().unwrap()],
            deny: vec!["10.0.0.0/8".parse().unwrap()],
            ..lists()
        };
        assert!(prefix_rules(&prefixes).is_err());
    }

    #[test]
    fn repetitions_are_one_rule_and_more_than_the_map_holds_is_refused() {
        let twice = Lists { deny_port: vec![22, 22], ..lists() };
        assert_eq!(port_rules(&twice).unwrap(), [(22, false)]);
        let many = Lists { allow_port: (1..=1025).collect(), ..lists() };
        assert!(port_rules(&many).is_err());
    }

    #[test]
    fn a_port_has_1024_prefixes_and_no_more() {
        let prefix = |i: u32| IpNet::new(IpAddr::from((10 << 24 | i).to_be_bytes()), 32).unwrap();
        let both = |count: u32| Lists {
            allow: (0..count / 2).map(prefix).collect(),
            deny: (count / 2..count).map(prefix).collect(),
            ..lists()
        };
        assert_eq!(prefix_rules(&both(1024)).unwrap().len(), 1024);
        let error = prefix_rules(&both(1025)).unwrap_err().to_string();
        assert!(error.contains("1025 prefixes are too many, at most 1024"), "{error}");
    }
}

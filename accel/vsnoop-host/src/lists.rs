//! The operator's allow and deny lists, as rules for the BPF maps.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::{Result, usage};

/// Size of the BPF maps.
const ROOM: usize = 1024;

/// Which connections are accelerated. Once something is allowed, what is not named is denied.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    pub allow_port: &'a [u16],
    pub deny_port: &'a [u16],
    pub allow: &'a [IpNet],
    pub deny: &'a [IpNet],
}

/// Port number and whether it is allowed. A number in both lists is a contradiction.
pub fn port_rules(lists: Lists<'_>) -> Result<Vec<(u16, bool)>> {
    let mut rules = rules(lists.allow_port, lists.deny_port);
    bounded(&rules, "port numbers")?;
    rules.sort_unstable();
    rules.dedup();
    match rules.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(usage(format!("port number {} is both allowed and denied", pair[0].0))),
        None => Ok(rules),
    }
}

/// Prefix, its length, and whether it is allowed.
pub fn prefix_rules(lists: Lists<'_>) -> Result<Vec<(IpAddr, u8, bool)>> {
    let mut rules = rules(lists.allow, lists.deny);
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

    const NONE: Lists<'_> = Lists { allow_port: &[], deny_port: &[], allow: &[], deny: &[] };

    #[test]
    fn a_contradiction_is_refused_also_when_host_bits_hide_it() {
        let ports = Lists { allow_port: &[80], deny_port: &[22, 80], ..NONE };
        assert!(port_rules(ports).unwrap_err().to_string().contains("80"));
        let (allow, deny) = (["10.1.0.0/8".parse().unwrap()], ["10.0.0.0/8".parse().unwrap()]);
        assert!(prefix_rules(Lists { allow: &allow, deny: &deny, ..NONE }).is_err());
    }

    #[test]
    fn repetitions_are_one_rule_and_more_than_the_map_holds_is_refused() {
        assert_eq!(port_rules(Lists { deny_port: &[22, 22], ..NONE }).unwrap(), [(22, false)]);
        let many: Vec<u16> = (1..=1025).collect();
        assert!(port_rules(Lists { allow_port: &many, ..NONE }).is_err());
    }

    #[test]
    fn a_port_has_1024_prefixes_and_no_more() {
        let prefix = |i: u32| IpNet::new(IpAddr::from((10 << 24 | i).to_be_bytes()), 32).unwrap();
        let both = |count: u32| {
            let allow: Vec<_> = (0..count / 2).map(prefix).collect();
            let deny: Vec<_> = (count / 2..count).map(prefix).collect();
            prefix_rules(Lists { allow: &allow, deny: &deny, ..NONE })
        };
        assert_eq!(both(1024).unwrap().len(), 1024);
        let error = both(1025).unwrap_err().to_string();
        assert!(error.contains("1025 prefixes are too many, at most 1024"), "{error}");
    }
}

//! Which prefix is whose, when there are several tables: the longest that contains an address
//! counts.

use std::net::IpAddr;

use ipnet::IpNet;
use vsnoop_divert::{Action, Rule};

use crate::config::{Config, WhenDown};
use crate::threads::slots::Slots;
use vsnoop_link::slots::PeerSlot;

/// The rules of the hook of table `index`.
///
/// Every table has a hook of its own, and the first that diverts a packet has it. So each leaves
/// alone what a longer prefix of another table of the same interface takes, and what is of this
/// host.
pub fn of_table(config: &Config, index: usize) -> Vec<Rule> {
    let Some(table) = config.diverts.get(index) else { return Vec::new() };
    let action = match table.when_down {
        WhenDown::Pass => Action::DivertOrPass,
        WhenDown::Drop => Action::DivertOrDrop,
    };
    let mut rules: Vec<_> =
        table.prefixes.iter().map(|prefix| Rule { prefix: *prefix, action }).collect();
    let others = config.diverts.iter().enumerate();
    let others = others.filter(|(at, other)| *at != index && other.interface == table.interface);
    let others = others.flat_map(|(_, other)| &other.prefixes).chain(&config.local);
    for prefix in others {
        let within = table.prefixes.iter().any(|own| own.contains(prefix));
        if within && rules.iter().all(|rule| rule.prefix != *prefix) {
            rules.push(Rule { prefix: *prefix, action: Action::Never });
        }
    }
    rules
}

/// The routes of one interface's divert tap: prefixes with their peers, the longest first. One
/// whose peer is not known (`None`) is not another's for that.
#[derive(Clone, Debug, Default)]
pub struct Routes(Vec<(IpNet, Option<PeerSlot>)>);

impl Routes {
    pub fn new(config: &Config, interface: &str, peers: &Slots<PeerSlot>) -> Self {
        let tables = config.diverts.iter().filter(|divert| divert.interface == interface);
        let mut routes: Vec<_> = tables
            .map(|divert| (divert, peers.find(&divert.peer)))
            .flat_map(|(divert, peer)| divert.prefixes.iter().map(move |prefix| (*prefix, peer)))
            .collect();
        routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        Self(routes)
    }

    /// The peer behind which an address is.
    pub fn peer_of(&self, to: IpAddr) -> Option<PeerSlot> {
        self.0.iter().find(|(prefix, _)| prefix.contains(&to))?.1
    }
}

/// The `prefixes` that a peer that accepts `takes` does not accept as a whole.
pub fn not_taken(prefixes: &[IpNet], takes: &[IpNet]) -> Vec<IpNet> {
    let is_taken = |prefix: &&IpNet| takes.iter().any(|taken| taken.contains(*prefix));
    prefixes.iter().filter(|prefix| !is_taken(prefix)).copied().collect()
}

/// Why a table diverts nothing whose peer does not take `missing`, to be said of the whole table.
pub fn why_none(missing: &[IpNet]) -> String {
    let (are, them) = if missing.len() == 1 { ("is", "it") } else { ("are", "them") };
    format!("{} {are} not in its link.local; add {them} there", list_prefixes(missing))
}

/// Why the peer does not take `prefix`, to be said of that alone.
pub fn why_not(prefix: &IpNet, missing: &[IpNet]) -> String {
    if missing.contains(prefix) {
        return why_none(&[*prefix]);
    }
    let (are, them) = if missing.len() == 1 { ("is", "it") } else { ("are", "them") };
    format!(
        "it is to take the whole [[divert]], of which {} {are} not in its link.local; add {them} there, or \
         give {prefix} a [[divert]] of its own",
        list_prefixes(missing)
    )
}

fn list_prefixes(prefixes: &[IpNet]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Keys that no peer has.
    const PEERS: &str = "[[peer]]\nname = \"b\"\nkey = \"YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=\"\n\
                         [[peer]]\nname = \"c\"\nkey = \"Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2M=\"\n";

    fn config() -> Config {
        let text = format!(
            "[link]\nlocal = [\"10.1.0.0/16\", \"fd00:1::/32\"]\n{PEERS}\
             [[divert]]\ninterface = \"t\"\npeer = \"b\"\nprefix = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
             [[divert]]\ninterface = \"t\"\npeer = \"c\"\nprefix = \"10.3.0.0/16\"\nwhen_down = \"drop\"\n\
             [[divert]]\ninterface = \"u\"\npeer = \"c\"\nprefix = \"10.4.0.0/16\"\n",
        );
        Config::parse(Path::new("/etc/vsnoop/link/x.toml"), &text).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_hook_leaves_alone_what_a_longer_prefix_or_this_host_has() {
        let rules = of_table(&config(), 0);
        let mut never: Vec<_> = rules
            .iter()
            .filter(|rule| rule.action == Action::Never)
            .map(|rule| rule.prefix.to_string())
            .collect();
        never.sort();
        assert_eq!(never, ["10.1.0.0/16", "10.3.0.0/16", "fd00:1::/32"]);
        assert_eq!(rules.len(), 5, "what another interface has is nothing to this one: {rules:?}");
        let drops = Rule { prefix: net("10.3.0.0/16"), action: Action::DivertOrDrop };
        assert_eq!(of_table(&config(), 1), [drops]);
    }

    #[test]
    fn the_peer_of_the_longest_prefix_has_the_packet() {
        let slots = Slots::new(config().peers.iter().map(|peer| &peer.name));
        let routes = Routes::new(&config(), "t", &slots);
        let peer = |to: &str| routes.peer_of(to.parse().unwrap());
        assert_eq!(peer("10.2.0.1"), Some(PeerSlot(0)));
        assert_eq!(peer("10.3.0.1"), Some(PeerSlot(1)));
        assert_eq!(peer("fd00:5::1"), Some(PeerSlot(0)));
        assert_eq!(peer("192.0.2.1"), None);
        assert_eq!(Routes::new(&config(), "u", &slots).peer_of("10.2.0.1".parse().unwrap()), None);
    }

    #[test]
    fn what_is_of_an_unknown_peer_is_no_other_peers() {
        let routes = Routes::new(&config(), "t", &Slots::new([&"b".to_owned()]));
        let peer = |to: &str| routes.peer_of(to.parse().unwrap());
        assert_eq!((peer("10.2.0.1"), peer("10.3.0.1")), (Some(PeerSlot(0)), None));
    }

    #[test]
    fn a_prefix_is_taken_whole_or_not() {
        let wanted = [net("10.2.0.0/16"), net("fd00:2::/32")];
        assert_eq!(not_taken(&wanted, &[net("10.0.0.0/8"), net("fd00:2::/32")]), []);
        assert_eq!(not_taken(&wanted, &[net("10.2.0.0/17"), net("::/0")]), wanted[..1]);
        assert_eq!(not_taken(&wanted, &[net("10.0.0.0/8")]), wanted[1..]);
        assert_eq!(not_taken(&wanted, &[]), wanted);
    }

    #[test]
    fn each_prefix_has_the_reason_that_is_its_own() {
        let [missing, also, taken] = [net("10.2.0.0/16"), net("10.3.0.0/16"), net("10.4.0.0/16")];
        let both = [missing, also];
        assert_eq!(why_not(&missing, &both), "10.2.0.0/16 is not in its link.local; add it there");
        assert_eq!(why_not(&also, &both), "10.3.0.0/16 is not in its link.local; add it there");
        let reason = why_not(&taken, &both);
        assert!(reason.contains("of which 10.2.0.0/16, 10.3.0.0/16 are not"), "{reason}");
        assert!(reason.contains("give 10.4.0.0/16 a [[divert]] of its own"), "{reason}");
        let all = why_none(&both);
        assert!(all.starts_with("10.2.0.0/16, 10.3.0.0/16 are not"), "{all}");
    }
}

//! Which locations have members of a multicast group: IGMP and MLD snooping as RFC 4541 recommends.
//!
//! A VLAN is snooped while a querier is known, because only then do hosts report their groups again
//! and again; from its first query on hosts have their time to report. Otherwise multicast is
//! flooded. A location to which an address has moved gets all until the next query: the VM has
//! joined its groups elsewhere. So does a peer that has come up: the last query, and reports since,
//! may not have passed.
//!
//! | frames of a snooped VLAN | go to |
//! |---|---|
//! | data to a group | its members, and where a querier is |
//! | reports | peers, and where a querier is |
//! | all others, those to groups of the link alone (224.0.0.0/24, ff02::/16) among them | all |
//!
//! Reports do not go to other ports: a host that hears another's keeps its own back (RFC 2236),
//! and its location would not be known. Each peer must get them, because it has a table of its own.
//!
//! A location with more groups than it may have gets all data, so that nothing is lost by the
//! bound.

use std::collections::HashMap;

use super::location::{LearnedAddress, Location, Scope};
use super::mac::Mac;
use super::membership::{Change, Family, MembershipMessage};

const SECOND_NS: u64 = 1_000_000_000;
/// Group Membership Interval with the usual query interval of 125 s: RFC 9776, section 8.4.
const MEMBER_NS: u64 = 260 * SECOND_NS;
/// Time for the reports to a query to come, beside what the query itself gives.
const REPORTS_NS: u64 = SECOND_NS;
/// Until the next query and the reports to it: Query Interval and Query Response Interval, sections
/// 8.2 and 8.3.
const NEXT_QUERY_NS: u64 = 135 * SECOND_NS;
/// Other Querier Present Interval: section 8.5.
const QUERIER_NS: u64 = 255 * SECOND_NS;
/// Time after a member has left in which other members behind the same location answer the querier
/// (Last Member Query Time, section 8.8, and some delay on the way).
const LEAVING_NS: u64 = 3 * SECOND_NS;
/// Groups of one location.
const GROUPS: usize = 1024;

#[derive(Debug)]
struct Member {
    location: Location,
    until_ns: u64,
}

#[derive(Debug, Default)]
pub struct Groups {
    members: HashMap<(u16, Mac), Vec<Member>>,
    /// By VLAN.
    queriers: HashMap<(u16, Family), Queriers>,
    /// Groups in `members`, by location.
    counts: HashMap<Location, usize>,
    /// Locations that get all data, until when: they have joined more than [`GROUPS`], or a VM has
    /// moved there.
    get_all: Vec<Member>,
    /// When old entries were removed.
    cleaned_ns: u64,
}

#[derive(Debug)]
struct Queriers {
    at: Vec<Member>,
    /// When the reports to the first query have come.
    reported_ns: u64,
}

impl Groups {
    /// Where a frame to a group goes that is no membership message.
    pub fn find_scope(&self, vlan: u16, group: Mac, now_ns: u64) -> Scope {
        let Some(family) = Family::of_reported(group) else { return Scope::All };
        let queriers = self.list_queriers(vlan, family, now_ns);
        if queriers.is_empty() {
            return Scope::All;
        }
        let members = self.members.get(&(vlan, group)).into_iter().flatten();
        let others = members.chain(&self.get_all).filter(|member| member.until_ns > now_ns);
        Scope::Members(queriers.into_iter().chain(others.map(|member| member.location)).collect())
    }

    /// Where a membership message goes.
    pub fn scope_of_message(&self, vlan: u16, message: &MembershipMessage, now_ns: u64) -> Scope {
        let MembershipMessage::Report(family, _) = message else { return Scope::All };
        let queriers = self.list_queriers(vlan, *family, now_ns);
        if queriers.is_empty() { Scope::All } else { Scope::MembersAndPeers(queriers) }
    }

    /// Where queriers are; none before all hosts have had their time to report.
    fn list_queriers(&self, vlan: u16, family: Family, now_ns: u64) -> Vec<Location> {
        let known = self.queriers.get(&(vlan, family));
        let known = known.filter(|known| known.reported_ns <= now_ns);
        let present = known.into_iter().flat_map(|known| &known.at);
        let present = present.filter(|querier| querier.until_ns > now_ns);
        present.map(|querier| querier.location).collect()
    }

    /// VMs at this location may be members that have not reported here: an address has moved to
    /// it, or it was not reached before.
    pub fn note_arrival(&mut self, to: Location, now_ns: u64) {
        if !self.queriers.is_empty() {
            set_member(&mut self.get_all, to, now_ns + NEXT_QUERY_NS);
        }
    }

    /// Learns from a message that came from a location.
    pub fn note_message(
        &mut self,
        vlan: u16,
        from: Location,
        message: &MembershipMessage,
        now_ns: u64,
    ) {
        match message {
            MembershipMessage::GeneralQuery(family, response_ns) => {
                self.remove_old(now_ns);
                let reported_ns = now_ns.saturating_add(*response_ns).saturating_add(REPORTS_NS);
                let first = || Queriers { at: Vec::new(), reported_ns };
                let known = self.queriers.entry((vlan, *family)).or_insert_with(first);
                if known.at.iter().all(|querier| querier.until_ns <= now_ns) {
                    *known = first();
                }
                set_member(&mut known.at, from, now_ns + QUERIER_NS);
            }
            MembershipMessage::GroupQuery => {}
            MembershipMessage::Report(_, changes) => {
                for (group, change) in changes {
                    match change {
                        Change::Join => self.join_group((vlan, *group), from, now_ns),
                        Change::Leave => self.leave_group((vlan, *group), from, now_ns),
                    }
                }
            }
        }
    }

    fn join_group(&mut self, group: (u16, Mac), from: Location, now_ns: u64) {
        let is_known = self.members.get(&group).is_some_and(|all| has_member(all, from));
        if !is_known {
            if self.counts.get(&from).is_some_and(|count| *count >= GROUPS) {
                return set_member(&mut self.get_all, from, now_ns + MEMBER_NS);
            }
            *self.counts.entry(from).or_default() += 1;
        }
        set_member(self.members.entry(group).or_default(), from, now_ns + MEMBER_NS);
    }

    fn leave_group(&mut self, group: (u16, Mac), from: Location, now_ns: u64) {
        for member in self.members.get_mut(&group).into_iter().flatten() {
            if member.location == from {
                member.until_ns = member.until_ns.min(now_ns + LEAVING_NS);
            }
        }
    }

    /// Removes all that is known of a location.
    pub fn forget_location(&mut self, location: Location) {
        self.retain_members(|member| member.location != location);
    }

    fn remove_old(&mut self, now_ns: u64) {
        if now_ns >= self.cleaned_ns.saturating_add(SECOND_NS) {
            self.cleaned_ns = now_ns;
            self.retain_members(|member| member.until_ns > now_ns);
        }
    }

    fn retain_members(&mut self, stays: impl Fn(&Member) -> bool) {
        self.get_all.retain(&stays);
        self.queriers.retain(|_, known| {
            known.at.retain(&stays);
            !known.at.is_empty()
        });
        self.members.retain(|_, all| {
            all.retain(&stays);
            !all.is_empty()
        });
        self.counts.clear();
        for member in self.members.values().flatten() {
            *self.counts.entry(member.location).or_default() += 1;
        }
    }

    /// Every group at each location with members of it, in no order; the group of all hosts where
    /// a querier is, in VLANs that are snooped.
    pub fn entries(&self, now_ns: u64) -> impl Iterator<Item = LearnedAddress> {
        let members = self.members.iter().map(|(group, all)| (*group, all, MEMBER_NS));
        let queriers = self.queriers.iter().filter(move |(_, known)| known.reported_ns <= now_ns);
        let queriers = queriers
            .map(|((vlan, family), known)| ((*vlan, family.all_hosts()), &known.at, QUERIER_NS));
        members.chain(queriers).flat_map(move |((vlan, mac), all, lifetime_ns)| {
            let present = all.iter().filter(move |member| member.until_ns > now_ns);
            present.map(move |member| LearnedAddress {
                vlan,
                mac,
                location: member.location,
                age_ns: (now_ns + lifetime_ns).saturating_sub(member.until_ns),
                contested: false,
            })
        })
    }
}

fn has_member(all: &[Member], location: Location) -> bool {
    all.iter().any(|member| member.location == location)
}

/// Makes a location a member until then, or for longer if it is already.
fn set_member(all: &mut Vec<Member>, location: Location, until_ns: u64) {
    match all.iter_mut().find(|member| member.location == location) {
        Some(member) => member.until_ns = member.until_ns.max(until_ns),
        None => all.push(Member { location, until_ns }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{PeerSlot, PortSlot};

    const GROUP: Mac = Mac([1, 0, 0x5e, 1, 2, 3]);
    const OTHER: Mac = Mac([1, 0, 0x5e, 1, 2, 4]);
    const A: Location = Location::Port(PortSlot(0));
    const B: Location = Location::Port(PortSlot(1));
    const PEER: Location = Location::Peer(PeerSlot(0));
    const RESPONSE_NS: u64 = 10 * SECOND_NS;
    const QUERY: MembershipMessage = MembershipMessage::GeneralQuery(Family::V4, RESPONSE_NS);
    /// All have reported to a query at 0.
    const READY: u64 = RESPONSE_NS + REPORTS_NS;

    fn report(group: Mac, change: Change) -> MembershipMessage {
        MembershipMessage::Report(Family::V4, vec![(group, change)])
    }

    fn join(group: Mac) -> MembershipMessage {
        report(group, Change::Join)
    }

    #[test]
    fn without_a_querier_all_is_flooded() {
        let mut groups = Groups::default();
        groups.note_message(0, A, &join(GROUP), 0);
        assert_eq!(groups.find_scope(0, GROUP, 1), Scope::All);
        assert_eq!(groups.scope_of_message(0, &join(GROUP), 1), Scope::All);
        groups.note_message(0, B, &QUERY, 1);
        assert_eq!(
            groups.find_scope(0, GROUP, READY),
            Scope::All,
            "hosts may not have reported yet"
        );
        groups.note_message(0, B, &QUERY, READY);
        assert_eq!(groups.find_scope(0, GROUP, 1 + READY), Scope::Members(vec![B, A]));
        assert_eq!(groups.find_scope(0, GROUP, READY + QUERIER_NS), Scope::All, "it is silent");
        groups.note_message(0, B, &QUERY, 2 * QUERIER_NS);
        assert_eq!(groups.find_scope(0, GROUP, 2 * QUERIER_NS + 1), Scope::All, "as at first");
    }

    #[test]
    fn a_move_to_a_location_beyond_the_bound_takes_nothing_from_it() {
        let mut groups = Groups::default();
        groups.note_message(0, PEER, &QUERY, 0);
        for number in 0..=GROUPS as u16 {
            let [high, low] = number.to_be_bytes();
            groups.note_message(0, A, &join(Mac([1, 0, 0x5e, 9, high, low])), READY);
        }
        groups.note_arrival(A, READY);
        let later = READY + MEMBER_NS - 1;
        groups.note_message(0, PEER, &QUERY, later - QUERIER_NS);
        assert_eq!(groups.find_scope(0, GROUP, later - 1), Scope::Members(vec![PEER, A]));
    }

    #[test]
    fn a_location_that_an_address_moves_to_gets_all_until_the_next_query() {
        let mut groups = Groups::default();
        groups.note_message(0, PEER, &QUERY, 0);
        groups.note_arrival(B, READY);
        assert_eq!(groups.find_scope(0, GROUP, READY), Scope::Members(vec![PEER, B]));
        let later = READY + NEXT_QUERY_NS;
        assert_eq!(groups.find_scope(0, GROUP, later), Scope::Members(vec![PEER]));
    }

    #[test]
    fn data_go_to_members_and_reports_to_peers_and_queriers() {
        let mut groups = Groups::default();
        groups.note_message(0, PEER, &QUERY, 0);
        assert_eq!(groups.find_scope(0, GROUP, READY), Scope::Members(vec![PEER]));
        groups.note_message(0, A, &join(GROUP), 1);
        assert_eq!(groups.find_scope(0, GROUP, READY), Scope::Members(vec![PEER, A]));
        assert_eq!(groups.find_scope(0, OTHER, READY), Scope::Members(vec![PEER]));
        assert_eq!(groups.find_scope(7, GROUP, READY), Scope::All, "another VLAN");
        let ipv6 = Mac([0x33, 0x33, 0, 2, 0, 3]);
        assert_eq!(groups.find_scope(0, ipv6, READY), Scope::All, "no querier of MLD");
        for link_local in [[1, 0, 0x5e, 0, 0, 251], [0xff; 6], [0x33, 0x33, 0xff, 1, 2, 3]] {
            assert_eq!(groups.find_scope(0, Mac(link_local), READY), Scope::All);
        }
        let scope = groups.scope_of_message(0, &join(GROUP), READY);
        assert_eq!(scope, Scope::MembersAndPeers(vec![PEER]));
        assert_eq!(groups.scope_of_message(0, &QUERY, READY), Scope::All);
        assert!(scope.includes(Location::Peer(PeerSlot(9))) && !scope.includes(B));
    }

    #[test]
    fn memberships_end() {
        let mut groups = Groups::default();
        groups.note_message(0, PEER, &QUERY, 0);
        groups.note_message(0, A, &join(GROUP), 0);
        groups.note_message(0, B, &join(GROUP), 0);
        groups.note_message(0, A, &report(GROUP, Change::Leave), READY);
        let soon = READY + LEAVING_NS;
        assert_eq!(groups.find_scope(0, GROUP, soon - 1), Scope::Members(vec![PEER, A, B]));
        assert_eq!(groups.find_scope(0, GROUP, soon), Scope::Members(vec![PEER, B]));
        groups.note_message(0, PEER, &QUERY, 200 * SECOND_NS);
        assert_eq!(groups.find_scope(0, GROUP, MEMBER_NS), Scope::Members(vec![PEER]));
        // A member that stays reports again.
        groups.note_message(0, A, &report(GROUP, Change::Leave), MEMBER_NS);
        groups.note_message(0, A, &join(GROUP), MEMBER_NS + 1);
        let later = MEMBER_NS + 2 * LEAVING_NS;
        assert_eq!(groups.find_scope(0, GROUP, later), Scope::Members(vec![PEER, A]));
        groups.forget_location(A);
        assert_eq!(groups.find_scope(0, GROUP, later), Scope::Members(vec![PEER]));
    }

    #[test]
    fn a_location_beyond_the_bound_gets_all_and_takes_no_more_memory() {
        let mut groups = Groups::default();
        groups.note_message(0, PEER, &QUERY, 0);
        for number in 0..2 * GROUPS as u16 {
            let [high, low] = number.to_be_bytes();
            groups.note_message(0, A, &join(Mac([1, 0, 0x5e, 9, high, low])), 0);
        }
        assert_eq!(groups.members.len(), GROUPS);
        assert_eq!(groups.find_scope(0, GROUP, READY), Scope::Members(vec![PEER, A]));
        groups.note_message(0, B, &join(GROUP), 0);
        assert_eq!(groups.find_scope(0, GROUP, READY), Scope::Members(vec![PEER, B, A]));
        // The next query finds the old ones.
        groups.note_message(0, PEER, &QUERY, QUERIER_NS - 1);
        groups.note_message(0, PEER, &QUERY, MEMBER_NS);
        assert_eq!(groups.members.len(), 0);
        assert_eq!(groups.find_scope(0, GROUP, MEMBER_NS + 1), Scope::Members(vec![PEER]));
    }
}

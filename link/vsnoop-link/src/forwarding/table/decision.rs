//! Where a frame goes, and how much of what is copied a source may send.

use super::entry::{AddressKey, LearnedEntry, SECOND_NS, Whereabouts};
use super::{SourceState, Table};
use crate::forwarding::frame_addresses::FrameAddresses;
use crate::forwarding::location::{DropReason, ForwardingDecision, Location, Scope};
use crate::forwarding::membership::MembershipMessage;
use crate::rate::RateLimit;

/// Copies that a doubtful source may have at once.
pub(super) const COPIES_BURST: u64 = 10;
/// Flood rate of a port, in multiples of the rate of one address.
const FLOODS_OF_PORT: u64 = 4;
/// Frames that an address may flood whatever others of its port do: ARP and DHCP.
const ASSURED: RateLimit = RateLimit::per_second(10, 10);
/// The time since its first frame after which an address has that rate.
pub(super) const ASSURED_AFTER_NS: u64 = 10 * SECOND_NS;
/// Bytes of a frame that count as one: a frame of the usual MTU. A super-packet counts as its
/// segments.
pub(super) const FLOOD_BYTES: usize = 1514;

impl Table {
    /// Where a frame goes. `source` is what [`Self::confirm`] or [`Self::learn`] said of it.
    pub fn decide(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        source: SourceState,
        now_ns: u64,
    ) -> ForwardingDecision {
        if addresses.destination.is_control() {
            return self.decide_control(addresses, from, now_ns);
        }
        let known = if addresses.destination.is_group() {
            None
        } else {
            self.ask_for_address(addresses, from, now_ns)
        };
        let is_known = known.is_some();
        let to = known.unwrap_or(Whereabouts::Anywhere);
        if let Whereabouts::At(to) = to {
            return self.to_one(from, to);
        }
        if source == SourceState::Doubtful && !self.may_copy(addresses, now_ns) {
            return ForwardingDecision::Drop(DropReason::Loop);
        }
        match to {
            Whereabouts::Either(a, b) => self.to_either(from, a, b),
            // Its owner must not lose traffic because others use its address.
            _ if is_known => self.to_crowded(addresses, from, source, now_ns),
            _ => {
                let group = addresses.destination;
                let scope = match addresses.is_stacked {
                    // Membership is known for the outer VLAN tag only.
                    true => Scope::All,
                    false => self.groups.find_scope(addresses.vlan, group, now_ns),
                };
                ForwardingDecision::Flood(self.bound_flood(scope, addresses, from, source, now_ns))
            }
        }
    }

    /// Where a frame for the next bridge goes (IEEE 802.1Q, table 8-1): nowhere, but for BPDUs.
    pub fn decide_control(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        now_ns: u64,
    ) -> ForwardingDecision {
        if !self.settings.passes_bpdus || !addresses.destination.is_spanning_tree() {
            return ForwardingDecision::Drop(DropReason::Control);
        }
        let scope = self.bound_flood(Scope::All, addresses, from, SourceState::Settled, now_ns);
        ForwardingDecision::Flood(scope)
    }

    /// Where the destination is, which may answer.
    fn ask_for_address(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        now_ns: u64,
    ) -> Option<Whereabouts> {
        let (whereabouts, known) =
            self.find_entry(addresses.vlan, addresses.destination, now_ns)?;
        if let Some(known) = known.filter(|known| known.location != from) {
            known.note_question();
        }
        Some(whereabouts)
    }

    /// Where a membership message goes, which is learned from too. `source`: as for
    /// [`Self::decide`].
    pub fn decide_membership(
        &mut self,
        message: &MembershipMessage,
        addresses: &FrameAddresses,
        from: Location,
        source: SourceState,
        now_ns: u64,
    ) -> ForwardingDecision {
        if source == SourceState::Doubtful && !self.may_copy(addresses, now_ns) {
            return ForwardingDecision::Drop(DropReason::Loop);
        }
        let scope = self.groups.scope_of_message(addresses.vlan, message, now_ns);
        let scope = self.bound_flood(scope, addresses, from, source, now_ns);
        // Members behind peers that do not get a query do not report.
        if scope != Scope::Ports {
            self.groups.note_message(addresses.vlan, from, message, now_ns);
        }
        ForwardingDecision::Flood(scope)
    }

    /// The scope of a frame, without peers if its source may not flood so much.
    fn bound_flood(
        &self,
        scope: Scope,
        addresses: &FrameAddresses,
        from: Location,
        source: SourceState,
        now_ns: u64,
    ) -> Scope {
        let is_copied = matches!(from, Location::Port(_)) || self.is_relayed(from);
        let is_free = self.settings.floods_per_second == 0 || matches!(scope, Scope::Members(_));
        if !is_copied || is_free || self.may_flood(addresses, from, source, now_ns) {
            scope
        } else {
            Scope::Ports
        }
    }

    /// Takes a frame from what its source may flood; `false` if nothing is left.
    fn may_flood(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        source: SourceState,
        now_ns: u64,
    ) -> bool {
        let count = addresses.bytes.div_ceil(FLOOD_BYTES).max(1) as u64;
        let per_s = self.settings.floods_per_second;
        let own = RateLimit::per_second(per_s, per_s);
        let of_port = FLOODS_OF_PORT * per_s;
        let of_port = RateLimit::per_second(of_port, of_port);
        let key = AddressKey { mac: addresses.source, vlan: addresses.vlan };
        // The rate is the owner's. That of a doubtful source is [`Self::may_copy`]'s.
        let entry = self.known.get(&key).filter(|_| source == SourceState::Settled);
        if entry.is_some_and(|entry| !entry.floods.allows(own, now_ns)) {
            return false;
        }
        let port = self.locations.get(&from);
        if port.is_none_or(|port| port.floods.allows(of_port, now_ns)) {
            port.inspect(|port| port.floods.charge(count, of_port, now_ns));
        } else {
            let is_settled = |entry: &&LearnedEntry| {
                entry.is_known_for(ASSURED_AFTER_NS, now_ns)
                    && entry.assured.allows(ASSURED, now_ns)
            };
            let Some(entry) = entry.filter(is_settled) else { return false };
            entry.assured.charge(count, ASSURED, now_ns);
        }
        entry.inspect(|entry| entry.floods.charge(count, own, now_ns));
        true
    }

    /// A frame to an address that more than two locations use. Those that use it cannot have more
    /// copied than others flood, and the location that used it first gets all of them.
    fn to_crowded(
        &self,
        addresses: &FrameAddresses,
        from: Location,
        source: SourceState,
        now_ns: u64,
    ) -> ForwardingDecision {
        let scope = self.bound_flood(Scope::All, addresses, from, source, now_ns);
        let key = AddressKey { mac: addresses.destination, vlan: addresses.vlan };
        match self.known.get(&key) {
            Some(LearnedEntry { location, contest: Some(contest), .. })
                if scope == Scope::Ports =>
            {
                self.to_either(from, *location, contest.rival)
            }
            _ => ForwardingDecision::Flood(scope),
        }
    }

    fn to_either(&self, from: Location, a: Location, b: Location) -> ForwardingDecision {
        match (self.reaches(from, a), self.reaches(from, b)) {
            (true, true) => ForwardingDecision::Both(a, b),
            (reaches, _) => self.to_one(from, if reaches { a } else { b }),
        }
    }

    fn to_one(&self, from: Location, to: Location) -> ForwardingDecision {
        if to == from {
            ForwardingDecision::Drop(DropReason::SameLocation)
        } else if !self.reaches(from, to) {
            ForwardingDecision::Drop(DropReason::SplitHorizon)
        } else {
            ForwardingDecision::To(to)
        }
    }

    /// Takes one copy from what a doubtful source may have; `false` if nothing is left.
    fn may_copy(&self, addresses: &FrameAddresses, now_ns: u64) -> bool {
        let key = AddressKey { mac: addresses.source, vlan: addresses.vlan };
        let contest = self.known.get(&key).and_then(|known| known.contest.as_ref());
        let Some(contest) = contest else { return true };
        let per_s = self.settings.copies_per_second;
        contest.copies.take(RateLimit::per_second(per_s, COPIES_BURST), now_ns)
    }
}

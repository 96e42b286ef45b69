//! Faults at layer 2, looked for each second: a table of addresses that is full, an address
//! that is fixed to a port and used elsewhere, a loop.
//!
//! All of it is shown by `status` as long as it lasts, and logged when it begins. Where the
//! configuration says so, the port that closes a loop is stopped for [`STOP_NS`]. Several links may
//! see the same loop: each waits for a time of its own, so that one of them stops a port and the
//! others see no loop any more.

use std::collections::HashMap;

use tracing::{info, warn};

use crate::config::LoopPolicy;
use crate::control::Problem;
use crate::threads::shared::Shared;
use vsnoop_link::forwarding::{FixedElsewhere, Location, Loop, Mac, Room};
use vsnoop_link::slots::{PeerSlot, PortSlot};

const SECOND_NS: u64 = 1_000_000_000;
/// Between two looks.
const LOOK_NS: u64 = SECOND_NS;
/// How long something is shown after it was seen last.
const SHOWN_NS: u64 = 60 * SECOND_NS;
/// Time in which one problem is logged once.
const QUIET_NS: u64 = 600 * SECOND_NS;
/// Different things that are logged in that time.
const MOST_SAID: usize = 64;
/// Problems of a kind that are shown.
const MOST_SHOWN: usize = 16;
/// The longest time that a loop is left to other links.
const PATIENCE_NS: u64 = 15 * SECOND_NS;
/// Frames of a loop that is there come back all the time.
const PRESENT_NS: u64 = 2 * SECOND_NS;
/// How long a port is stopped.
const STOP_NS: u64 = 300 * SECOND_NS;

/// The subject of a problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Subject {
    Full,
    Fixed(Mac),
    Loop(Location, Location),
}

/// A port that closes a loop.
struct StoppedPort {
    slot: PortSlot,
    found: Loop,
    until_ns: u64,
}

pub struct Layer2 {
    policy: LoopPolicy,
    looked_ns: u64,
    /// [`Room::displaced`] at the last look, and when it has grown last.
    displaced: u64,
    full_ns: Option<u64>,
    stopped: Vec<StoppedPort>,
    /// How long a loop is left to others.
    patience_ns: u64,
    problems: Vec<(Subject, Problem)>,
    /// When it was logged.
    said: HashMap<Subject, u64>,
}

impl Layer2 {
    pub fn new(policy: LoopPolicy) -> Self {
        Self {
            policy,
            looked_ns: 0,
            displaced: 0,
            full_ns: None,
            stopped: Vec::new(),
            patience_ns: fastrand::u64(..PATIENCE_NS),
            problems: Vec::new(),
            said: HashMap::new(),
        }
    }

    pub fn set_policy(&mut self, policy: LoopPolicy) {
        self.policy = policy;
    }

    /// The problems of the last look.
    pub fn list_problems(&self) -> impl Iterator<Item = Problem> {
        self.problems.iter().map(|(_, problem)| problem.clone())
    }

    /// Looks, if that is due. `peer` knows the names of peers.
    pub fn follow_table<'a>(
        &mut self,
        shared: &Shared,
        peer: impl Fn(PeerSlot) -> Option<&'a str>,
    ) {
        let now_ns = shared.now_ns();
        if now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        let name = |at: Location| match at {
            Location::Port(slot) => {
                let port = shared.find_port(slot).map_or("?", |port| port.name());
                format!("port {port}")
            }
            Location::Peer(slot) => format!("peer {}", peer(slot).unwrap_or("?")),
        };
        let mut loops = shared.table.find_loops(now_ns);
        // Frames go round in both directions.
        loops.sort_by_key(|found| (subject(found), found.since_ns));
        loops.dedup_by_key(|found| subject(found));
        self.start_again(shared, now_ns);
        if self.policy == LoopPolicy::Block {
            self.stop_ports(shared, &loops, now_ns);
        }
        let room = shared.table.read().count_room();
        if room.displaced > self.displaced {
            self.full_ns = Some(now_ns);
        }
        self.displaced = room.displaced;
        let since_ns = now_ns.saturating_sub(SHOWN_NS);
        let is_full = self.full_ns.is_some_and(|full_ns| full_ns >= since_ns);
        let full = is_full.then(|| (Subject::Full, describe_full(&room, name)));
        let mut elsewhere: Vec<_> = shared.table.read().fixed_elsewhere(since_ns).collect();
        elsewhere.sort_by_key(|found| found.mac);
        let fixed = elsewhere.iter().take(MOST_SHOWN);
        let fixed = fixed.map(|found| (Subject::Fixed(found.mac), fixed_elsewhere(found, name)));
        let here =
            |port: &StoppedPort| (subject(&port.found), describe_stopped(port, now_ns, name));
        let is_open = |found: &&Loop| self.stopped.iter().all(|port| !port.is_of(found));
        let open = loops.iter().filter(is_open).take(MOST_SHOWN);
        let open = open.map(|found| (subject(found), loop_found(found, self.policy, name)));
        let problems = full.into_iter().chain(fixed);
        let problems = problems.chain(self.stopped.iter().map(here)).chain(open).collect();
        self.problems = problems;
        self.log_new(now_ns);
    }

    /// Stops ports that close a loop.
    fn stop_ports(&mut self, shared: &Shared, loops: &[Loop], now_ns: u64) {
        for found in loops {
            let lasts_ns = found.last_ns.saturating_sub(found.since_ns);
            let is_there = now_ns.saturating_sub(found.last_ns) <= PRESENT_NS;
            let Some(slot) = port_of(found) else { continue };
            let Some(port) = shared.find_port(slot).filter(|port| !port.is_stopped()) else {
                continue;
            };
            if is_there && lasts_ns >= self.patience_ns {
                port.set_stopped(true);
                let until_ns = now_ns + STOP_NS;
                self.stopped.push(StoppedPort { slot, found: *found, until_ns });
                // The next one is left to others for another time.
                self.patience_ns = fastrand::u64(..PATIENCE_NS);
            }
        }
    }

    /// Ports carry frames again after a while, or by another configuration.
    fn start_again(&mut self, shared: &Shared, now_ns: u64) {
        let blocks = self.policy == LoopPolicy::Block;
        self.stopped.retain(|stopped| {
            let Some(port) = shared.find_port(stopped.slot) else { return false };
            // One that is not stopped is another port, in its place.
            let stays = blocks && now_ns < stopped.until_ns && port.is_stopped();
            if !stays && port.is_stopped() {
                port.set_stopped(false);
                info!("port {} carries frames again", port.name());
            }
            stays
        });
    }

    /// Logs what has begun.
    fn log_new(&mut self, now_ns: u64) {
        self.said.retain(|_, said_ns| now_ns.saturating_sub(*said_ns) < QUIET_NS);
        for (subject, Problem { what, remedy }) in &self.problems {
            if self.said.len() < MOST_SAID && !self.said.contains_key(subject) {
                self.said.insert(*subject, now_ns);
                warn!("{what}: {remedy}");
            }
        }
    }
}

impl StoppedPort {
    fn is_of(&self, found: &Loop) -> bool {
        subject(&self.found) == subject(found)
    }
}

fn subject(found: &Loop) -> Subject {
    Subject::Loop(found.first.min(found.back), found.first.max(found.back))
}

/// The port by which a loop is ended: the one where frames come back, or else the one that they
/// came from first. There is none if it is closed by two peers.
fn port_of(found: &Loop) -> Option<PortSlot> {
    let port = |at| match at {
        Location::Port(slot) => Some(slot),
        Location::Peer(_) => None,
    };
    port(found.back).or_else(|| port(found.first))
}

fn describe_full(room: &Room, name: impl Fn(Location) -> String) -> Problem {
    let most = match room.most {
        Some((location, count)) => format!(", {count} of them at {}", name(location)),
        None => String::new(),
    };
    Problem {
        what: format!("the table of addresses is full: {}{most}", room.addresses),
        remedy: "frames to those that gave way go to all; if there are so many raise `addresses` \
                 in [link], else bound the VM that invents them by `mac` or `addresses` of its \
                 [[port]]"
            .to_owned(),
    }
}

fn fixed_elsewhere(found: &FixedElsewhere, name: impl Fn(Location) -> String) -> Problem {
    let FixedElsewhere { mac, fixed, used } = *found;
    Problem {
        what: format!(
            "{mac} is fixed to {}, and frames from it come from {}",
            name(fixed),
            name(used)
        ),
        remedy: "they are dropped; if the VM has moved, move its `mac`, too, to the port of its \
                 new host"
            .to_owned(),
    }
}

fn loop_found(found: &Loop, policy: LoopPolicy, name: impl Fn(Location) -> String) -> Problem {
    let (first, back) = (name(found.first), name(found.back));
    let what = format!("a loop: frames of {first} come back by {back}, {} so far", found.frames);
    let remedy = match (policy, port_of(found)) {
        (LoopPolicy::Block, Some(_)) => "a port is stopped soon, unless another link does so first",
        _ => "take away the second path at layer 2, or let spanning tree find it (`stp`, `loop`)",
    };
    Problem { what, remedy: remedy.to_owned() }
}

fn describe_stopped(port: &StoppedPort, now_ns: u64, name: impl Fn(Location) -> String) -> Problem {
    let StoppedPort { slot, found, until_ns } = port;
    let left_s = until_ns.saturating_sub(now_ns) / SECOND_NS;
    let (first, back) = (name(found.first), name(found.back));
    Problem {
        what: format!(
            "{} is stopped, because frames of {first} came back by {back}",
            name(Location::Port(*slot))
        ),
        remedy: format!("take away the second path at layer 2; it is tried again in {left_s} s"),
    }
}

//! Grants without a packet: opens windows of waiting connections that incast control has closed
//! (flow/incast.h).
//!
//! A connection in the grant queue waits for an ACK with its grant. The ACK does not come if no
//! packet passes its port while credit is left: the outstanding credit of other connections has
//! expired, or was returned at another port. Finished connections wait until there is credit for
//! all that are silent. When incast control is turned off, all windows are the VMs' own again, and
//! their senders must get an ACK.
//!
//! Each port has queues of waiting connections in the kernel. A round takes a few from their heads,
//! never the whole table of connections, so that its work does not grow with the number of
//! connections of a VM.

use vsnoop_flow::types::{flow, flow_key};

use crate::segment::{EndSegment, frame};

/// Interval of rounds, and the interval while connections are queued.
const PERIOD_NS: u64 = 10_000_000;
const HURRY_NS: u64 = 2_000_000;
/// Interval for finished connections.
const FINISHED_PERIOD_NS: u64 = 100_000_000;
/// Most grants of one port in one round: some 0.1 ms of the helper's time.
pub const PORT_GRANTS: usize = 16;

/// Result of offering a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// No connection can take one now.
    None,
    /// A connection took it; its sender was sent an ACK.
    Sent,
    /// The connections that were tried could not take it; others may.
    Retry,
}

/// The connections of a port that wait for incast control to open their windows.
pub trait GrantQueue {
    /// Why an access failed.
    type Error;

    /// Connections in the grant queue.
    fn queued(&self) -> u32;
    /// Finished connections with a closed window.
    fn finished(&self) -> u32;
    /// Grants to waiting connections since the port was attached, by hooks too.
    fn grants(&self) -> u32;
    /// The next connection: the head of the grant queue or, if that is empty, the first finished
    /// one.
    fn head(&mut self) -> Result<Option<flow_key>, Self::Error>;
    /// Grants the next connection a window, if there is credit. `segment`: a frame of the VM
    /// without payload, with the connection's IP version and VLAN tags; the hooks write the ACK
    /// over it.
    fn grant_next(&mut self, segment: &[u8]) -> Result<Granted, Self::Error>;
}

/// The rounds of one port.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// Connections were queued in the last round; number of grants at that time.
    waited: bool,
    grants: u32,
    served_finished_ns: u64,
    /// The last round made the most grants allowed.
    has_more: bool,
}

impl Rounds {
    /// `now_ns`: CLOCK_MONOTONIC, here and below.
    pub fn new(now_ns: u64) -> Self {
        Self { waited: false, grants: 0, served_finished_ns: now_ns, has_more: false }
    }

    /// Time to the next round.
    pub fn period_ns(&self) -> u64 {
        if self.waited || self.has_more { HURRY_NS } else { PERIOD_NS }
    }

    /// Grants windows as far as there is credit, if connections were queued in the last round too
    /// and no grant was made since; sometimes to finished connections. `grant` makes at most as
    /// many grants as `most`. Returns the number of offered grants.
    pub fn serve<Q: GrantQueue>(
        &mut self,
        queue: &mut Q,
        most: usize,
        now_ns: u64,
        grant: impl FnOnce(&mut Q, usize) -> usize,
    ) -> usize {
        let (waits, finished) = (queue.queued() > 0, queue.finished() > 0);
        let stands_still = self.waited && waits && queue.grants() == self.grants;
        let is_time =
            finished && now_ns.saturating_sub(self.served_finished_ns) > FINISHED_PERIOD_NS;
        if is_time {
            self.served_finished_ns = now_ns;
        }
        let mut offered = 0;
        if stands_still || is_time || (self.has_more && (waits || finished)) {
            offered = grant(queue, most);
        }
        self.has_more = offered > 0 && offered == most;
        (self.waited, self.grants) = (waits, queue.grants());
        offered
    }
}

/// Offers grants to the connections of a queue, one after the other. Returns how many, at most
/// `most`.
pub fn grant<Q: GrantQueue>(queue: &mut Q, most: usize) -> Result<usize, Q::Error> {
    for offered in 0..most {
        let Some(key) = queue.head()? else { return Ok(offered) };
        // Only the packet's form matters: the hooks choose the connection.
        let segment = frame(&key, &flow::default(), EndSegment::ResetSender);
        if queue.grant_next(&segment)? == Granted::None {
            return Ok(offered);
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A VM that has filled its table, so that any number of connections waits, and credit for all.
    #[derive(Default)]
    struct Flood {
        heads: usize,
        granted: u32,
        sent: bool,
    }

    impl GrantQueue for Flood {
        type Error = std::convert::Infallible;

        fn queued(&self) -> u32 {
            65_536
        }

        fn finished(&self) -> u32 {
            65_536
        }

        fn grants(&self) -> u32 {
            self.granted
        }

        fn head(&mut self) -> Result<Option<flow_key>, Self::Error> {
            self.heads += 1;
            Ok(Some(flow_key::default()))
        }

        fn grant_next(&mut self, _segment: &[u8]) -> Result<Granted, Self::Error> {
            self.granted += u32::from(self.sent);
            Ok(if self.sent { Granted::Sent } else { Granted::Retry })
        }
    }

    #[test]
    fn a_round_does_little_however_many_connections_wait() {
        for sent in [true, false] {
            let mut queue = Flood { sent, ..Flood::default() };
            let mut rounds = Rounds::new(0);
            let (mut now, mut offers) = (0, 0);
            for _ in 0..1000 {
                let before = queue.heads;
                let offered = rounds.serve(&mut queue, PORT_GRANTS, now, |queue, most| {
                    let Ok(offered) = grant(queue, most);
                    offered
                });
                assert!(offered <= PORT_GRANTS && queue.heads - before <= PORT_GRANTS);
                assert!(rounds.period_ns() >= HURRY_NS);
                now += rounds.period_ns();
                offers += usize::from(offered > 0);
            }
            assert!(offers > 500, "only {offers} rounds granted, to {} ms", now / MS);
        }
    }
}

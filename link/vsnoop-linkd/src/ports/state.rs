//! State of the ports, checked each second, and when one has failed.
//!
//! An interface that exists without the link goes down and up, and a VM's tap is deleted and made
//! anew with the VM: then the packet socket joins the new one, the same descriptor, so that the
//! data threads need not know. A tap of the link's own, once deleted, is made with the next start
//! of the link only; while it is there it is kept in its bridge ([`bridge`]). What is wrong is
//! logged when it changes, never by frame.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vsnoop_netdev as netdev;

use crate::causes::with_causes;
use crate::config::{self, PortKind};
use crate::egress::Order;
use crate::io::device::Interface;
use crate::io::packet_socket::JoinError;
use crate::io::port::LinkPort;
use crate::ports::bridge;
use crate::ports::counted_port::CountedPort;
use crate::threads::orders::Orders;
use crate::threads::shared::Shared;
use crate::threads::slots::BySlot;
use vsnoop_link::slots::PortSlot;

/// Interval between checks of the ports.
const LOOK: Duration = Duration::from_secs(1);

pub struct Ports {
    shared: Arc<Shared>,
    orders: Orders,
    /// `None`: the port was removed.
    states: BySlot<PortSlot, Option<PortState>>,
    /// The bridges of all ports; no two ports have the same.
    bridges: Vec<String>,
    looked: Instant,
}

/// Why a port has no interface.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("there is no interface {name}; it is joined again when it is back")]
    Interface { name: String },
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("the link's tap was deleted; start the link again")]
    Tap,
    /// This host, or this process, is short of something.
    #[error("whether it is there cannot be seen")]
    Unseen(#[source] netdev::Error),
}

struct PortState {
    /// Index of the interface when it was seen first.
    first_index: Option<u32>,
    /// The bridge in which a tap has to be.
    bridge: Option<String>,
    /// Whether the interface is there, and up.
    is_there: bool,
    seen: Sight,
    failure: Option<PortFailure>,
}

/// Result of a check of a port.
#[derive(Debug, PartialEq, Eq)]
struct Sight {
    /// Whether it carries frames.
    carries: bool,
    /// Why it does not, or how it differs from its configuration.
    reason: Option<String>,
}

impl Sight {
    const WELL: Self = Self { carries: true, reason: None };

    fn broken(reason: impl Into<String>) -> Self {
        Self { carries: false, reason: Some(reason.into()) }
    }
}

/// Why a port is not read, although its interface is there and up.
struct PortFailure {
    error: io::Error,
    /// Whether it is read again, and has not failed again yet.
    is_tried: bool,
}

impl Ports {
    /// `configured`: one for each port of `shared`.
    pub fn new(configured: &[config::PortConfig], shared: Arc<Shared>, orders: Orders) -> Self {
        let (states, bridges) = (BySlot::default(), Vec::new());
        let none = Arc::clone(&shared);
        let mut ports = Self { shared: none, orders, states, bridges, looked: Instant::now() };
        ports.reload(configured, shared);
        ports
    }

    /// Goes on with these ports; those that stay keep their state.
    pub fn reload(&mut self, configured: &[config::PortConfig], shared: Arc<Shared>) {
        let mut before = std::mem::take(&mut self.states);
        let mut state = |slot: PortSlot, found: &CountedPort| {
            let configured = configured.iter().find(|port| port.name == found.name())?;
            let bridge = match &configured.kind {
                PortKind::Bridge(bridge) => Some(bridge.clone()),
                PortKind::Tap | PortKind::Interface => None,
            };
            let is_same =
                self.shared.find_port(slot).is_some_and(|old| Arc::ptr_eq(&old.port, &found.port));
            match before.get_mut(slot).and_then(Option::take).filter(|_| is_same) {
                Some(state) => Some(PortState { bridge, ..state }),
                None => Some(PortState::new(found.name(), bridge)),
            }
        };
        let ports = shared.ports.iter();
        self.states = ports.map(|(slot, port)| state(slot, port.as_ref()?)).collect();
        self.bridges =
            self.states.values().flatten().filter_map(|state| state.bridge.clone()).collect();
        self.shared = shared;
    }

    /// Whether a port carries frames.
    pub fn carries(&self, port: PortSlot) -> bool {
        self.state(port).is_some_and(|state| state.seen.carries)
    }

    /// Why a port carries no frames, or how it differs from its configuration.
    pub fn reason(&self, port: PortSlot) -> Option<&str> {
        self.state(port)?.seen.reason.as_deref()
    }

    fn state(&self, port: PortSlot) -> Option<&PortState> {
        self.states.get(port)?.as_ref()
    }

    /// A read of a port has failed.
    pub fn note_failed(&mut self, port: PortSlot, error: io::Error) {
        let state = self.states.get_mut(port).and_then(Option::as_mut);
        let Some((found, state)) = self.shared.find_port(port).zip(state) else {
            return;
        };
        if !found.port.is_of_state(&error) {
            state.failure = Some(PortFailure { error, is_tried: false });
        }
        self.check_all();
    }

    /// Checks all ports, if a check is due.
    pub fn follow_devices(&mut self) {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.check_all();
            for (port, state) in self.states.iter_mut() {
                let Some(state) = state.as_mut().filter(|state| state.is_there) else { continue };
                state.retry_reading(|| self.orders.each_egress(|| Order::Watch { port }));
            }
            if self.shared.all_ports().any(|(_, found)| found.port.is_interface()) {
                self.shared.own.refresh_addresses();
            }
        }
    }

    /// Checks all ports, and repairs what can be repaired.
    pub fn check_all(&mut self) {
        for (found, state) in self.shared.ports.values().zip(self.states.values_mut()) {
            let (Some(CountedPort { port, .. }), Some(state)) = (found, state) else { continue };
            let name = port.name();
            let (seen, repaired) = state.see_device(port, &self.bridges);
            if let Some(repaired) = repaired {
                info!("port {name}: {repaired}");
            }
            if seen == state.seen {
                continue;
            }
            match &seen.reason {
                Some(reason) if seen.carries => warn!("port {name}: {reason}"),
                Some(reason) => warn!("port {name} carries no frames: {reason}"),
                None if state.seen.carries => info!("port {name} is as configured again"),
                None => info!("port {name} carries frames again"),
            }
            state.seen = seen;
        }
    }
}

impl PortState {
    /// The state of a port that was just opened.
    fn new(name: &str, bridge: Option<String>) -> Self {
        let first_index = index_of(name).unwrap_or_default();
        Self { first_index, bridge, is_there: true, seen: Sight::WELL, failure: None }
    }

    /// State of the port, and what was repaired. `bridges`: those of all ports.
    fn see_device(&mut self, port: &LinkPort, bridges: &[String]) -> (Sight, Option<String>) {
        let name = port.name();
        let was_there = std::mem::take(&mut self.is_there);
        let is_new = match self.find_device(port) {
            Ok(is_new) => is_new,
            // It carries frames as before.
            Err(error @ Missing::Unseen(_)) => {
                self.is_there = was_there;
                let reason = Some(with_causes(&error));
                return (Sight { carries: self.seen.carries, reason }, None);
            }
            Err(error) => return (Sight::broken(with_causes(&error)), None),
        };
        let mut mended = is_new.then(|| "the interface was made anew, and is joined".to_owned());
        // Before the check whether the tap is up: a tap that is down stays in its bridge, too.
        let mut seen = Sight::WELL;
        if let Some(bridge) = &self.bridge {
            let standing = bridge::check_tap(name, bridge, bridges);
            if standing.is_put_back {
                mended =
                    Some(format!("its tap was in no bridge, and is put back into bridge {bridge}"));
            }
            seen = Sight { carries: standing.carries, reason: standing.reason };
        }
        // One that is there and does not say more is as it was.
        self.is_there = Interface::new(name).is_up().unwrap_or(was_there);
        if !self.is_there {
            seen = Sight::broken(format!("it is down: `ip link set {name} up`"));
        } else if let Some(failure) = &self.failure {
            seen = Sight::broken(format!("reading it fails: {}", failure.error));
        }
        (seen, mended)
    }

    /// Whether the interface of the port is another one than before, which is joined; else why
    /// there is none.
    fn find_device(&mut self, port: &LinkPort) -> Result<bool, Missing> {
        let name = port.name();
        match (port, index_of(name).map_err(Missing::Unseen)?) {
            (LinkPort::Interface(_), None) => Err(Missing::Interface { name: name.to_owned() }),
            (LinkPort::Interface(socket), Some(index)) if socket.index() != index => {
                socket.join_device(index)?;
                // Earlier failures belong to the deleted interface.
                self.failure.iter_mut().for_each(|failure| failure.is_tried = false);
                Ok(true)
            }
            (LinkPort::Tap(_), None) => Err(Missing::Tap),
            (LinkPort::Tap(_), Some(index)) if *self.first_index.get_or_insert(index) != index => {
                Err(Missing::Tap)
            }
            _ => Ok(false),
        }
    }

    /// Has a port read again that has failed, and believes that it works when it has not failed
    /// since.
    fn retry_reading(&mut self, read_again: impl FnOnce() -> bool) {
        match &mut self.failure {
            Some(failure) if failure.is_tried => self.failure = None,
            Some(failure) => failure.is_tried = read_again(),
            None => {}
        }
    }
}

/// `None`: there is no such interface. (if_nametoindex(3) does not tell that from a lack of
/// descriptors.)
fn index_of(name: &str) -> Result<Option<u32>, netdev::Error> {
    Ok(netdev::find(name)?.map(|device| device.index))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use vsnoop_privileges::testing::in_children;

    use super::*;

    #[test]
    fn an_interface_that_cannot_be_looked_for_is_not_taken_for_deleted() {
        let name =
            "ports::state::tests::an_interface_that_cannot_be_looked_for_is_not_taken_for_deleted";
        assert_eq!(index_of("no-such-device").expect("seen"), None);
        in_children(name, &[""], |_| {
            let open = || File::open("/dev/null").ok();
            let _all: Vec<_> = std::iter::from_fn(open).collect();
            let error = with_causes(&index_of("lo").expect_err("not seen"));
            assert!(error.contains("Too many open files"), "{error}");
        });
    }

    #[test]
    fn a_port_that_fails_again_and_again_is_tried_again_and_again() {
        let failure = || Some(PortFailure { error: io::ErrorKind::Other.into(), is_tried: false });
        let mut state = PortState {
            first_index: None,
            bridge: None,
            is_there: true,
            seen: Sight::WELL,
            failure: failure(),
        };
        let mut tries = 0;
        let mut pass = |state: &mut PortState| {
            state.retry_reading(|| {
                tries += 1;
                true
            });
        };
        for _ in 0..3 {
            pass(&mut state);
            assert!(state.failure.is_some(), "it may fail again");
            state.failure = failure();
        }
        pass(&mut state);
        pass(&mut state);
        assert!(state.failure.is_none());
        assert_eq!(tries, 4);
    }
}

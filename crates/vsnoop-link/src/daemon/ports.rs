//! How the ports are: looked at each second, and when one has failed.
//!
//! An interface that exists without the link goes down and up, and a VM's tap is deleted and made anew with
//! the VM: then the packet socket joins the new one, the same descriptor, so that the data threads need not
//! know. A tap of the link's own, once deleted, is made with the next start of the link only. What is wrong
//! is logged when it changes, never by frame.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::egress::Order;
use super::io::device::Device;
use super::io::port::Port;
use super::io::wake;
use super::shared::Shared;

/// How often ports are looked at.
const LOOK: Duration = Duration::from_secs(1);

pub struct Ports {
    shared: Arc<Shared>,
    egress: wake::Sender<Order>,
    states: Vec<State>,
    looked: Instant,
}

struct State {
    /// Of the interface when the link began.
    first_index: Option<u32>,
    /// It is, and is up.
    is_there: bool,
    /// Why it carries no frames.
    reason: Option<String>,
    failure: Option<Failure>,
}

/// Why a port is not read, although its interface is there and up.
struct Failure {
    error: io::Error,
    /// It is read again, and has not failed again yet.
    is_tried: bool,
}

impl Ports {
    pub fn new(shared: Arc<Shared>, egress: wake::Sender<Order>) -> Self {
        let state = |(port, _): &(Port, _)| State {
            first_index: index_of(port.name()),
            is_there: true,
            reason: None,
            failure: None,
        };
        let states = shared.ports.iter().map(state).collect();
        Self { shared, egress, states, looked: Instant::now() }
    }

    /// Why a port carries no frames; `None`: it does.
    pub fn reason(&self, port: usize) -> Option<&str> {
        self.states.get(port)?.reason.as_deref()
    }

    /// A read of a port has failed.
    pub fn failed(&mut self, port: usize, error: io::Error) {
        let Some(((found, _), state)) = self.shared.ports.get(port).zip(self.states.get_mut(port))
        else {
            return;
        };
        if !found.is_of_state(&error) {
            state.failure = Some(Failure { error, is_tried: false });
        }
        self.look();
    }

    /// Looks at all of them, now and then.
    pub fn follow(&mut self) {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.look();
            for (port, state) in self.states.iter_mut().enumerate().filter(|(_, s)| s.is_there) {
                state.retry(|| self.egress.send(Order::Watch { port }));
            }
            if self.shared.ports.iter().any(|(port, _)| port.is_interface()) {
                self.shared.own.look();
            }
        }
    }

    /// Looks at all of them.
    pub fn look(&mut self) {
        for ((port, _), state) in self.shared.ports.iter().zip(&mut self.states) {
            let seen = state.see(port);
            state.is_there = seen.is_ok();
            let (reason, is_new) = match seen {
                Ok(is_new) => {
                    let failure = state.failure.as_ref();
                    (failure.map(|failure| format!("reading it fails: {}", failure.error)), is_new)
                }
                Err(reason) => (Some(reason), false),
            };
            if !is_new && reason == state.reason {
                continue;
            }
            let name = port.name();
            match &reason {
                Some(reason) => warn!("port {name} carries no frames: {reason}"),
                None if is_new => info!("port {name}: the interface was made anew, and is joined"),
                None => info!("port {name} carries frames again"),
            }
            state.reason = reason;
        }
    }
}

impl State {
    /// Why a port cannot carry frames, else whether its interface is another one than before.
    fn see(&mut self, port: &Port) -> Result<bool, String> {
        let name = port.name();
        let index = index_of(name);
        let mut is_new = false;
        match (port, index) {
            (Port::Interface(_), None) => {
                return Err(format!(
                    "there is no interface {name}; it is joined again when it is back"
                ));
            }
            (Port::Interface(socket), Some(index)) if socket.index() != index => {
                socket.join(index).map_err(|error| format!("{error:#}"))?;
                // Whatever went wrong was of the other one.
                self.failure.iter_mut().for_each(|failure| failure.is_tried = false);
                is_new = true;
            }
            (Port::Tap(_), index) if index.is_none() || index != self.first_index => {
                return Err("the link's tap was deleted; start the link again".to_owned());
            }
            _ => {}
        }
        if Device::new(name).is_ok_and(|device| device.is_up()) {
            Ok(is_new)
        } else {
            Err(format!("it is down: `ip link set {name} up`"))
        }
    }

    /// Has a port read again that has failed, and believes that it works when it has not failed since.
    fn retry(&mut self, read_again: impl FnOnce() -> bool) {
        match &mut self.failure {
            Some(failure) if failure.is_tried => self.failure = None,
            Some(failure) => failure.is_tried = read_again(),
            None => {}
        }
    }
}

fn index_of(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_fails_again_and_again_is_tried_again_and_again() {
        let failure = || Some(Failure { error: io::ErrorKind::Other.into(), is_tried: false });
        let mut state =
            State { first_index: None, is_there: true, reason: None, failure: failure() };
        let mut tries = 0;
        let mut pass = |state: &mut State| {
            state.retry(|| {
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
